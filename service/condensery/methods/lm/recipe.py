"""How a small language model is trained."""

from dataclasses import dataclass

from condensery.methods.trainer.recipe import TrainerRecipe, trainer_recipe


@dataclass(frozen=True, slots=True)
class LmRecipe:
    """How a language model is trained.

    Attributes:
        steps: Optimizer steps in all.
        rows: Windows a batch.
        accumulate: Batches a step, in each process.
        rate: Learning rate.
        warmup: Steps of linear warm-up.
        schedule: ``cosine`` or ``linear``, how the rate falls.
        floor: Share of the rate at the end.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm.
        vocabulary: Tokens of a tokenizer that is trained; one that is given has its own.
        held_out: Share of the documents to measure on, where no text is given for it.
        seed: All chance comes from it.
    """

    steps: int = 4000
    rows: int = 16
    accumulate: int = 1
    rate: float = 1e-3
    warmup: int = 200
    schedule: str = "cosine"
    floor: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    vocabulary: int = 16_000
    held_out: float = 0.02
    seed: int = 13

    def trainer(self, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it, with a checkpoint every so many steps."""
        return trainer_recipe(self, every=every, betas=(0.9, 0.95))
