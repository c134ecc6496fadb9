"""How a network is trained: steps, learning rates over time, clipping, checkpoints."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from condensery.errors import InputError

Schedule = Literal["linear", "cosine"]


def trainer_recipe(recipe: Any, **others: Any) -> "TrainerRecipe":
    """Return what the trainer needs of a method's recipe.

    Args:
        recipe: A dataclass; its fields of the trainer's names count.
        others: What it names otherwise, or does not say.

    Raises:
        InputError: A field holds a value that is not allowed; names both.
    """
    shared = {field.name for field in fields(recipe)} & {f.name for f in fields(TrainerRecipe)}
    return TrainerRecipe(**{name: getattr(recipe, name) for name in shared} | others)


def check_field(recipe: object, name: str, holds: bool, wanted: str) -> None:
    """Raise InputError, with field and value, if a recipe's field does not hold."""
    if not holds:
        value = getattr(recipe, name)
        raise InputError(f"{name}={value!r}: must be {wanted}", field=name, value=value)


@dataclass(frozen=True, slots=True)
class TrainerRecipe:
    """What every training run has, whatever it trains.

    Attributes:
        steps: Optimizer steps in all.
        accumulate: Batches whose gradients are summed in each step, in each process.
        warmup: Steps of linear warm-up.
        warm_from: Share of the learning rates at which it begins.
        schedule: How the learning rates fall after it.
        decay: Share of the steps, at the end, over which they fall; 1: from the warm-up on.
        floor: Share of the learning rates at the end.
        clip: Largest norm of the gradient.
        betas: AdamW's.
        seed: All chance comes from it and the step.
        every: Steps between checkpoints, each with a validation.
        keep: Checkpoints kept.
        log_every: Steps between lines of the log.
    """

    steps: int
    accumulate: int = 1
    warmup: int = 100
    schedule: Schedule = "cosine"
    decay: float = 1.0
    floor: float = 0.0
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    seed: int = 13
    warm_from: float = 0.0
    every: int = 500
    keep: int = 1
    log_every: int = 50

    def __post_init__(self) -> None:
        """Refuse what can't be trained with.

        Raises:
            InputError: A field holds a value that is not allowed; names both.
        """
        for name in ("steps", "accumulate", "every", "keep", "log_every"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")
        check_field(self, "warmup", self.warmup >= 0, "at least 0")
        check_field(self, "schedule", self.schedule in ("linear", "cosine"), "linear or cosine")
        check_field(self, "decay", 0 < self.decay <= 1, "above 0 and at most 1")
        check_field(self, "floor", 0 <= self.floor <= 1, "from 0 to 1")
        check_field(self, "warm_from", 0 <= self.warm_from <= 1, "from 0 to 1")
        check_field(self, "clip", self.clip > 0, "above 0")
        check_field(self, "betas", all(0 <= b < 1 for b in self.betas), "from 0 to below 1")

    def scale(self, step: int) -> float:
        """Return the share of the learning rates at ``step``, counted from 0."""
        rise = (step + 1) / self.warmup if self.warmup else 1.0
        rise = self.warm_from + (1 - self.warm_from) * rise
        span = max(1.0, min(self.decay * self.steps, self.steps - self.warmup))
        left = min(1.0, (self.steps - step) / span)
        if self.schedule == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        return min(1.0, rise, self.floor + (1 - self.floor) * left)

    def fixed(self) -> dict[str, object]:
        """Return what a resumed run must share with the one that began it, for ``state.json``.

        ``accumulate`` is not among it: what counts is the batches of a step, those of all
        processes together.
        """
        names = ("steps", "warmup", "schedule", "decay", "floor", "clip", "seed")
        # Runs of before it was there go on.
        more = {"warm_from": self.warm_from} if self.warm_from else {}
        fixed = {name: getattr(self, name) for name in names}
        return {**fixed, **more, "betas": list(self.betas)}
