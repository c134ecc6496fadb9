"""How a span reader is trained."""

from dataclasses import dataclass

from condensery.methods.trainer.recipe import TrainerRecipe, check_field, trainer_recipe


@dataclass(frozen=True, slots=True)
class ReaderRecipe:
    """How a span reader is trained.

    Attributes:
        steps: Optimizer steps in all.
        tokens: Of a batch, about.
        accumulate: Batches a step, in each process.
        warmup: Steps of linear warm-up; then the rates fall to zero in a line.
        backbone_rate: Learning rate of the encoder's weights; its word table stays as it is.
        new_rate: Of the span head.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm.
        others: Chance that a question comes with a second passage, which does not answer it.
        smallest: Fewest tokens passages are cropped to.
        passage_tokens: Most, and the size of a window when it reads.
        query_tokens: Longest question; longer ones are cut.
        answer_tokens: Longest answer that it gives.
        held_articles: Articles of the first file kept for validation.
        seed: All chance comes from it.
    """

    steps: int = 1400
    tokens: int = 2048
    accumulate: int = 1
    warmup: int = 60
    backbone_rate: float = 1.5e-4
    new_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    others: float = 0.35
    smallest: int = 32
    passage_tokens: int = 128
    query_tokens: int = 64
    answer_tokens: int = 24
    held_articles: int = 4
    seed: int = 13

    def __post_init__(self) -> None:
        """Refuse sizes that can't be.

        Raises:
            InputError: Names field and value.
        """
        for name in ("tokens", "smallest", "query_tokens", "answer_tokens"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")
        least = max(self.smallest, self.answer_tokens)
        wanted = f"at least smallest ({self.smallest}) and answer_tokens ({self.answer_tokens})"
        check_field(self, "passage_tokens", self.passage_tokens >= least, wanted)

    def trainer(self, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it, with a checkpoint every so many steps."""
        return trainer_recipe(self, every=every, schedule="linear")
