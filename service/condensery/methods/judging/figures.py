"""Scores of several encoders on several sets as one table: means, intervals, differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy.stats import t as students_t

from condensery.methods.judging.sets import Kind

ABOUT = ("fingerprint", "dtype", "device")  # of a model, beside each of its figures
MADE = ("date", "command", "machine", "recipe")  # of the run
FEW = 100  # resamples, under which an interval is made of their spread


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its 95% interval.

    Attributes:
        value: 0 to 1; a difference, -1 to 1.
        low: Where the interval begins.
        high: Where it ends.
        error: Its standard error: the spread of the resamples.
    """

    value: float
    low: float
    high: float
    error: float

    @classmethod
    def of(cls, value: float, resamples: Sequence[float]) -> "Figure":
        """Make the figure of a value and what it was over resamples of the rows.

        Of many the interval is theirs, the middle 95%. Of few, each of which is a resample too
        (clusterings), it is the value and Student's t times their spread to both sides.
        """
        drawn = np.asarray(resamples, dtype=np.float64)
        error = float(drawn.std(ddof=1))
        if len(drawn) >= FEW:
            low, high = np.percentile(drawn, [2.5, 97.5])
        else:
            half = float(students_t.ppf(0.975, len(drawn) - 1)) * error
            low, high = value - half, value + half
        return cls(value, float(low), float(high), error)

    @classmethod
    def mean(cls, figures: Sequence["Figure"]) -> "Figure":
        """Return the mean over sets, whose errors are independent."""
        value = float(np.mean([figure.value for figure in figures]))
        error = math.sqrt(sum(figure.error**2 for figure in figures)) / len(figures)
        return cls(value, value - 1.96 * error, value + 1.96 * error, error)

    def record(self) -> dict[str, float]:
        """Return it as JSON has it."""
        return {name: round(getattr(self, name), 5) for name in ("value", "low", "high")}


@dataclass(frozen=True, slots=True)
class Measured:
    """What one encoder was measured at.

    Attributes:
        name: The encoder's.
        about: What its vectors depend on.
        facts: Parameters, FLOPs, where it ran.
        scores: By set: ``value`` and ``resamples``, and what else mteb gives.
        speed: As ``time_texts`` gives it; empty where it was not timed.
    """

    name: str
    about: Mapping[str, Any]
    facts: Mapping[str, Any]
    scores: Mapping[str, Mapping[str, Any]]
    speed: Mapping[str, Any]

    def figures(self) -> dict[str, Figure]:
        """Return its figure on each set."""
        return {
            key: Figure.of(score["value"], score["resamples"]) for key, score in self.scores.items()
        }

    def minus(self, other: "Measured") -> dict[str, Figure]:
        """Return its differences from another, paired: over the same resamples."""
        return {
            key: Figure.of(
                score["value"] - other.scores[key]["value"],
                np.subtract(score["resamples"], other.scores[key]["resamples"]).tolist(),
            )
            for key, score in self.scores.items()
        }


def means_of(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Return the mean over the sets of each kind, and over all sets (``mean``)."""
    kinds: dict[str, list[Figure]] = {}
    for key, figure in figures.items():
        kinds.setdefault(kind_of(key), []).append(figure)
    means = {kind: Figure.mean(of_kind) for kind, of_kind in kinds.items()}
    return {**means, "mean": Figure.mean([*figures.values()])}


def kind_of(key: str) -> Kind:
    """Return the kind of task of a set's key."""
    return cast(Kind, key.partition("/")[0])


def make_report(
    models: Sequence[Measured], sets: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the comparison: each model's figures, means, cost and speed, beside the first's.

    Args:
        models: The first is what the others are compared with.
        sets: By key, what each is.
    """
    first = models[0]
    rows = {}
    for model in models:
        figures = model.figures()
        row: dict[str, Any] = {
            **model.facts,
            **model.about,
            "sets": _records(figures),
            "means": _records(means_of(figures)),
            "scores": {key: score["others"] for key, score in model.scores.items()},
        }
        if model.speed:
            row["speed"] = dict(model.speed)
        if model is not first:
            differences = model.minus(first)
            row["minus_first"] = {
                "of": first.name,
                "sets": _records(differences),
                "means": _records(means_of(differences)),
            }
        rows[model.name] = row
    return {"format": 1, "sets": {key: dict(about) for key, about in sets.items()}, "models": rows}


def part_of(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a stored model's own report says of it: by set, and under ``speed`` how fast.

    Args:
        report: From ``make_report``, with date, command and recipe.
        name: The model's.
    """
    row = report["models"][name]
    about = {field: row[field] for field in ABOUT if field in row}
    about |= {field: report[field] for field in MADE if field in report}
    part: dict[str, Any] = {
        key: {**report["sets"][key], **figure, "scores": row["scores"][key], **about}
        for key, figure in row["sets"].items()
    }
    if "speed" in row:
        part["speed"] = {**row["speed"], **about}
    return part


def _records(figures: Mapping[str, Figure]) -> dict[str, dict[str, float]]:
    return {name: figure.record() for name, figure in figures.items()}
