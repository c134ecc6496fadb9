"""How a retriever is tuned."""

from dataclasses import dataclass
from typing import Literal, get_args

from condensery.methods.trainer.recipe import TrainerRecipe, check_field, trainer_recipe

Tuning = Literal["lora", "full"]
TEMPERATURE = 0.02


@dataclass(frozen=True, slots=True)
class RetrieverRecipe:
    """How a retriever is tuned; defaults are EffiR's (appendix A.2) but for steps and batch.

    Attributes:
        steps: Optimizer steps in all.
        queries: Queries a batch, each with one passage that answers it; those of all others are
            negatives too.
        negatives: Hard negatives a query, drawn anew each time.
        accumulate: Batches a step, in each process; negatives are not shared between them.
        tuning: ``lora`` (adapters on every linear layer, merged at the end) or ``full``.
        lora_rank: Of the adapters.
        lora_alpha: Their products count ``alpha / rank`` times.
        rate: Learning rate.
        warmup: Steps of linear warm-up.
        schedule: ``linear`` or ``cosine``, how the rate falls.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm.
        temperature: Of the similarities.
        distil: Weight of the teacher's scores, where rows have them.
        length: Most tokens of a query, and of a passage.
        recompute: Compute activations again in the backward pass: memory for a layer's input
            alone, a third more time; for large models.
        seed: All chance comes from it.
    """

    steps: int = 1000
    queries: int = 16
    negatives: int = 7
    accumulate: int = 1
    tuning: str = "lora"
    lora_rank: int = 32
    lora_alpha: int = 64
    rate: float = 1e-4
    warmup: int = 100
    schedule: str = "linear"
    weight_decay: float = 0.0
    clip: float = 1.0
    temperature: float = TEMPERATURE
    distil: float = 1.0
    length: int = 512
    recompute: bool = False
    seed: int = 13

    def __post_init__(self) -> None:
        """Refuse what can't be tuned with.

        Raises:
            InputError: A field holds a value that is not allowed; names both.
        """
        for name in ("queries", "lora_rank", "lora_alpha"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")
        check_field(self, "negatives", self.negatives >= 0, "at least 0")
        check_field(self, "length", self.length >= 4, "at least 4")
        allowed = get_args(Tuning)
        check_field(self, "tuning", self.tuning in allowed, f"one of {', '.join(allowed)}")
        for name in ("rate", "temperature"):
            check_field(self, name, getattr(self, name) > 0, "above 0")
        for name in ("distil", "weight_decay"):
            check_field(self, name, getattr(self, name) >= 0, "at least 0")
        check_field(
            self, "queries", self.queries > 1 or self.negatives > 0, "above 1 without negatives"
        )
        self.trainer(1)  # which checks the rest

    def trainer(self, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it, with a checkpoint every so many steps."""
        return trainer_recipe(self, every=every)
