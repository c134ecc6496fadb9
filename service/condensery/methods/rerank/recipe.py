"""How a cross-encoder is trained."""

from dataclasses import dataclass
from typing import Literal, get_args

from condensery.methods.trainer.recipe import TrainerRecipe, check_field, trainer_recipe

Objective = Literal["listwise", "pointwise"]
Search = Literal["both", "bm25", "dense"]


@dataclass(frozen=True, slots=True)
class RerankRecipe:
    """How a cross-encoder is trained.

    Attributes:
        steps: Optimizer steps in all.
        queries: Queries a batch, each with one passage that answers it.
        negatives: Passages a query that do not, drawn anew each time from those mined.
        accumulate: Batches a step, in each process.
        rate: Learning rate of the base's weights.
        head_rate: Learning rate of the head, which starts from random weights.
        warmup: Steps of linear warm-up.
        schedule: ``linear`` or ``cosine``, how the rates fall.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm.
        objective: ``listwise`` (softmax over a query's passages) or ``pointwise`` (each pair).
        search: Where negatives come from: ``bm25``, ``dense`` or ``both``.
        depth: Passages taken of each search, before those that may answer are left out.
        length: Tokens of a pair; what is longer loses the end of its passage.
        held_out: Questions measured on; at most a fifth of all.
        candidates: Passages that each of those is measured with, BM25's best.
        seed: All chance comes from it.
    """

    steps: int = 2000
    queries: int = 8
    negatives: int = 7
    accumulate: int = 1
    rate: float = 5e-5
    head_rate: float = 1e-3
    warmup: int = 100
    schedule: str = "linear"
    weight_decay: float = 0.01
    clip: float = 1.0
    objective: str = "listwise"
    search: str = "both"
    depth: int = 20
    length: int = 256
    held_out: int = 200
    candidates: int = 20
    seed: int = 13

    def __post_init__(self) -> None:
        """Refuse what can't be trained with.

        Raises:
            InputError: A field holds a value that is not allowed; names both.
        """
        for name in ("queries", "negatives", "held_out"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")
        check_field(self, "length", self.length >= 8, "at least 8")
        for name, least in (("depth", 1), ("candidates", 2)):
            check_field(
                self, name, least <= getattr(self, name) <= 10_000, f"from {least} to 10000"
            )
        for name, allowed in (("objective", get_args(Objective)), ("search", get_args(Search))):
            check_field(self, name, getattr(self, name) in allowed, f"one of {', '.join(allowed)}")
        for name in ("rate", "head_rate"):
            check_field(self, name, getattr(self, name) > 0, "above 0")
        self.trainer(1)  # which checks the rest

    def trainer(self, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it, with a checkpoint every so many steps."""
        return trainer_recipe(self, every=every)
