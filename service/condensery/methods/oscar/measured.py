"""A measured report (``condensery eval oscar``, format 2), read and checked."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from condensery.errors import InputError, shorten

FORMAT = 2
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Part(BaseModel):
    """A part of a report; what a newer writer adds is kept in the file, and not looked at here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Estimate(Part):
    """A mean with its 95% interval, where one was measured."""

    mean: Finite
    low: Finite | None = None
    high: Finite | None = None


def _as_estimate(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"mean": value} if is_number else value


Figure = Annotated[Estimate, BeforeValidator(_as_estimate)]


class RetrievalRate(Part):
    """The share of the questions whose own passage was retrieved, percent."""

    share: Finite


class Setting(Part):
    """How well questions were answered in one setting, and what that took, a question each.

    Attributes:
        passages: Given, in the mean.
        read: Read by the generator, in the mean.
        em: Exact match, percent.
        f1: Percent.
        match: Answers that hold a gold one, percent.
        judge: Answers that a language model judged right, percent.
        seconds: A question.
        tflops: A question, from the models' dimensions.
        vectors: Memory vectors in the prompt, mean.
        tokens: Positions of the prompt, mean.
        left_out: Passages that did not fit the generator, mean.
        gold_found: Where the right passage is among those retrieved.
    """

    passages: Finite | None = None
    read: Finite | None = None
    em: Figure
    f1: Figure
    match: Figure | None = None
    judge: Figure | None = None
    seconds: Finite | None = None
    tflops: Finite | None = None
    vectors: Finite | None = None
    tokens: Finite | None = None
    left_out: Finite | None = None
    gold_found: RetrievalRate | None = None


class Difference(Part):
    """A difference of F1 on the same questions, with its paired 95% interval."""

    f1: Finite
    low_95: Finite
    high_95: Finite


class Point(Part):
    """What abstaining under ``min_relevance`` does; percent."""

    min_relevance: Finite
    answered: Finite
    f1_answered: Finite | None = None
    f1_kept: Finite | None = None
    """Of the F1 that there is without a threshold."""
    wrong_without_gold: Finite | None = None


class Abstention(Part):
    """The curve over thresholds, and the one that was chosen of them, by a rule in words."""

    threshold: Finite | None = None
    rule: str = ""
    curve: list[Point] = []


class Rank(Part):
    """nDCG@10 with its 95% interval."""

    ndcg10: Finite
    low: Finite | None = None
    high: Finite | None = None


class RankDifference(Part):
    """A difference of nDCG@10 on the same queries, with its paired 95% interval."""

    ndcg10: Finite
    low_95: Finite
    high_95: Finite


class Ranking(Part):
    """Reranking of what BM25 found in one set of queries."""

    queries: int
    depth: int | None = None
    bm25: Rank | None = None
    encoder: Rank | None = None
    pair: Rank | None = None
    cross_encoder: Rank | None = None
    differences: dict[str, RankDifference] = {}


class Interval(Part):
    """A mean with its 95% interval."""

    mean: Finite
    low: Finite
    high: Finite


class Choice(Part):
    """How well the passages of a collection were ordered; ``ndcg10`` and ``ndcg1`` by order."""

    queries: int
    ndcg10: dict[str, Interval]
    ndcg1: dict[str, Interval] = {}


class Passages(Part):
    """How the passages that an answer reads are chosen: by the pair with the place in the search.

    ``rank_weight`` was learnt on other collections than those reported, and there too the threshold
    of ``near_misses``: of questions whose right passage was found, and of the same questions with
    it taken away, which leaves what is most like it.
    """

    rank_weight: float = Field(ge=0, le=100)
    learnt_on: list[str] = []
    search: str = ""
    depth: int | None = None
    reported: dict[str, Choice] = {}
    near_misses: Abstention | None = None
    near_misses_of: str = ""
    """The collections of the threshold; "": all that the weight was learnt on."""


class Baseline(Part):
    """Another reader on the same questions with the same passages."""

    em: Figure
    f1: Figure
    questions: int | None = None
    seed: int | None = None


class RoundedWeights(Part):
    """Answers of a generator whose weights were rounded, on the same questions as with floats.

    Attributes:
        em: Exact match, percent.
        em_lost: Of it, to floats; negative where it is more.
        changed: Answers that are others, percent.
    """

    em: Figure
    em_lost: Finite
    em_lost_low_95: Finite
    em_lost_high_95: Finite
    changed: Finite


class WeightsMeasured(Part):
    """What fewer bits a weight cost (``condensery eval weights``), with each question's passage.

    ``dtype`` is that of the floats, ``smallest`` how many weights a matrix has at least that is
    rounded to 8 bits; 0: not said.
    """

    questions: int
    file: str = ""
    dtype: str = ""
    smallest: int = 0
    int8: RoundedWeights | None = None
    int4: RoundedWeights | None = None

    def rounded(self) -> dict[str, RoundedWeights]:
        """Return those that were measured."""
        both = {"int8": self.int8, "int4": self.int4}
        return {name: row for name, row in both.items() if row is not None}


class Replaced(Part):
    """Answers whose string was swapped for another in the passage; percent."""

    questions: int
    follows_em: Finite | None = None
    keeps_old_answer: Finite | None = None


class MeasuredOn(Part):
    """What the questions were."""

    questions: int = Field(ge=1)
    file: str = ""
    passages_in_corpus: int | None = None
    retrieval: str | None = None
    seconds: str | None = None


class Example(Part):
    """A question with what was said."""

    question: str
    answer: str
    gold: list[str] = Field(min_length=1)


class Report(Part):
    """A whole report; only ``settings`` and what they were measured on must be there."""

    format: Literal[2]
    model: str
    fingerprint: str | None = None
    command: str = ""
    seed: int | None = None
    machine: str = ""
    measured_on: MeasuredOn
    settings: dict[str, Setting] = Field(min_length=1)
    differences: dict[str, Difference] = {}
    abstention: Abstention | None = None
    replaced: Replaced | None = None
    gold_ranked_first_among_five: Finite | None = None
    rerank: dict[str, Ranking] = {}
    passages: Passages | None = None
    baselines: dict[str, dict[str, Baseline]] = {}
    weights: WeightsMeasured | None = None
    training: list[dict[str, Any]] = []
    examples: list[Example] = []

    @model_validator(mode="after")
    def _compares(self) -> Self:
        for name, settings in self.baselines.items():
            for key, baseline in settings.items():
                ours = self.measured_on.questions, self.seed
                theirs = baseline.questions, baseline.seed
                if any(their not in (None, own) for their, own in zip(theirs, ours, strict=True)):
                    raise ValueError(
                        f"baselines.{name}.{key} is of {theirs[0]} questions (seed {theirs[1]}),"
                        f" the pair of {ours[0]} (seed {ours[1]}): they don't compare"
                    )
        return self

    def f1(self, key: str) -> float | None:
        """Return a setting's F1, percent; None if it was not measured."""
        setting = self.settings.get(key)
        return None if setting is None else setting.f1.mean

    def counts(self, *families: str) -> list[int]:
        """Return the numbers of passages K that all of these settings ``family_K`` are there of."""
        counts = [
            {int(key.rpartition("_")[2]) for key in self.settings if key_of(key) == family}
            for family in families
        ]
        return sorted(set.intersection(*counts))


def key_of(key: str) -> str:
    """Return the family of a setting ``family_K``; another's own key."""
    family, _, number = key.rpartition("_")
    return family if number.isdigit() else key


def read_report(path: Path) -> tuple[Report, dict[str, Any]]:
    """Read a report, and its JSON as it stands, which is what is published.

    Raises:
        InputError: It can't be read, or is none of format 2; names the file, the place, the value.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"report: {path}: {why}", field="report", value=str(path)) from error
    return check_report(content, str(path)), content


def check_report(content: Any, name: str = "report") -> Report:
    """Check a report's JSON; ``name`` is what errors call it. Raises as ``read_report`` does."""
    number = content.get("format") if isinstance(content, dict) else None
    if number != FORMAT or isinstance(number, bool):
        raise InputError(
            f"report: {name}: format: {shorten(number)} is not {FORMAT}, which condensery eval "
            "oscar writes; measure again",
            field="report",
            value=number,
        )
    try:
        return Report.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(["report", *(str(part) for part in first["loc"])])
        shown = first["type"] in ("missing", "value_error")
        got = "" if shown else f" (got {shorten(first['input'])})"
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{name}: {at}: {message}{got}", field=at, value=name) from error


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")
