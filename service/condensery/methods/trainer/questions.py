"""Questions with passages and answers to train on, checked whole before the first step."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from condensery.errors import InputError, shorten
from condensery.methods.trainer.rows import Row, read_rows

log = logging.getLogger(__name__)
SHOWN = 10  # problems that a message lists; it counts the rest

Wrong = Literal["refuse", "leave_out"]


@dataclass(frozen=True, slots=True)
class TrainingQuestion:
    """A question, what it is to be answered from and what with.

    Attributes:
        question: Its text.
        passages: What holds the answer, in the row's order.
        answers: Given answers; any may stand in the passages.
        label: What the generator learns to say: the row's own, else the first answer.
        title: The article, or "".
        where: File and line.
        scores: A cross-encoder's raw logit of each passage; None if none were made.
        gold: Places of the passages that answer it, if the row names them.
    """

    question: str
    passages: tuple[str, ...]
    answers: tuple[str, ...]
    label: str
    title: str
    where: str
    scores: tuple[float, ...] | None = None
    gold: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What is wrong with a row, beyond its form and an empty or repeated question.

    Attributes:
        answers: Rows must have an answer or a label; else a teacher is to give them.
        answer_in_passages: One of the answers must stand in a passage, upper and lower case
            alike; for labels that are spans.
        label_tokens: Most tokens of a label, None for any.
        passages: Rows must have passages; else an index is to give them.
        ranked: Rows without an answer are of use if they name their gold passages.
    """

    answers: bool = True
    answer_in_passages: bool = True
    label_tokens: int | None = None
    passages: bool = True
    ranked: bool = False


class _Row(BaseModel):
    """A row's form: ``context`` is the only passage, or ``passages`` are several."""

    model_config = ConfigDict(strict=True, frozen=True)

    question: str
    answers: list[str] = []
    context: str | None = None
    passages: list[str] | None = None
    label: str | None = None
    title: str | None = None
    scores: list[float] | None = None
    gold: list[int] = []


@dataclass(frozen=True, slots=True)
class _Problem:
    kind: str
    where: str
    field: str
    says: str


def read_questions(
    paths: Iterable[Path],
    rules: Rules,
    *,
    split: str | None = None,
    count: Callable[[str], int] = lambda text: len(text.split()),
    wrong: Wrong = "refuse",
) -> tuple[list[TrainingQuestion], dict[str, int]]:
    """Read and check all of the data, so that nothing is found wrong hours into a run.

    Args:
        paths: JSONL files, folders of them or ``datasets`` folders.
        rules: What is wrong with a row.
        split: Which split of ``datasets`` folders that have several.
        count: Tokens of a text, by the tokenizer that labels are learnt with.
        wrong: Whether rows that something is wrong with are refused, all at once, or left out
            and counted.

    Returns:
        The questions, and how many rows were left out for what.

    Raises:
        InputError: Something is wrong, naming file, line, field and value; or no row is left.
    """
    questions: list[TrainingQuestion] = []
    problems: list[_Problem] = []
    seen: dict[tuple[str, ...], str] = {}
    files = [str(path) for path in paths]
    for path in files:
        for row in read_rows(Path(path), split):
            checked = list(_check(row, rules, count, seen))
            problems += [one for one in checked if isinstance(one, _Problem)]
            if len(checked) == 1 and isinstance(checked[0], TrainingQuestion):
                questions.append(checked[0])
    if problems and wrong == "refuse":
        raise _refusal(problems)
    if not questions:
        refused = f"; {_refusal(problems).message}" if problems else ""
        raise InputError(f"no question to train on in {', '.join(files) or 'no files'}{refused}")
    left_out = dict(Counter(problem.kind for problem in problems))
    if left_out:
        log.warning("rows left out: %s; the first: %s", left_out, _said(problems[0]))
    return questions, left_out


def _check(
    row: Row, rules: Rules, count: Callable[[str], int], seen: dict[tuple[str, ...], str]
) -> Iterator[TrainingQuestion | _Problem]:
    """Yield the row's question if nothing is wrong, else all that is."""

    def problem(kind: str, field: str, says: str) -> _Problem:
        return _Problem(kind, row.where, field, says)

    try:
        given = _Row.model_validate(row.value)
    except ValidationError as error:
        for one in error.errors():
            field = ".".join(map(str, one["loc"]))
            yield problem("malformed", field, f"{shorten(one['input'])}: {one['msg']}")
        return
    passages = tuple(given.passages or ([] if given.context is None else [given.context]))
    wrong = False
    for field, texts in (
        ("question", [given.question]),
        ("passages", passages),
        ("answers", given.answers),
        ("label", [given.label or ""]),
    ):
        if (bad := next((text for text in texts if _is_torn(text)), None)) is not None:
            wrong = True
            yield problem("malformed", field, f"{shorten(bad)} holds half of a character")
    if wrong:  # no tokenizer reads such text
        return
    if not given.question.strip():
        wrong = True
        yield problem("empty question", "question", f"{given.question!r} is empty")
    else:
        key = tuple(" ".join(text.split()).casefold() for text in (given.question, *passages))
        if (first := seen.setdefault(key, row.where)) is not row.where:
            wrong = True
            yield problem(
                "repeated question",
                "question",
                f"{shorten(given.question)} stands in {first} too, with the same passages",
            )
    field = "context" if given.passages is None else "passages"
    if rules.passages and not any(text.strip() for text in passages):
        wrong = True
        yield problem("no passage", field, f"{shorten(passages)} holds no text")
    label = given.label if given.label is not None else next(iter(given.answers), "")
    if rules.answers and not label.strip() and not (rules.ranked and given.gold):
        wrong = True
        yield problem("no answer", "answers", f"{given.answers!r} holds no answer")
    elif rules.answer_in_passages and given.answers and passages:
        texts = [text.casefold() for text in passages]
        if not any(a.casefold() in text for a in given.answers if a.strip() for text in texts):
            wrong = True
            yield problem(
                "answer not in passages",
                "answers",
                f"{shorten(given.answers)} stands in no passage",
            )
    if rules.label_tokens is not None and (tokens := count(label)) > rules.label_tokens:
        wrong = True
        yield problem(
            "label too long",
            "answers" if given.label is None else "label",
            f"{shorten(label)} has {tokens} tokens, more than {rules.label_tokens}",
        )
    scores = None if given.scores is None else tuple(given.scores)
    if scores is not None and (says := _wrong_scores(scores, len(passages))):
        wrong = True
        yield problem("scores not of the passages", "scores", says)
    strange = [place for place in given.gold if not 0 <= place < len(passages)]
    if strange:
        wrong = True
        says = f"{strange[0]} is the place of none of {len(passages)} passages"
        yield problem("gold not of the passages", "gold", says)
    if not wrong:
        yield TrainingQuestion(
            *(given.question, passages, tuple(given.answers), label, given.title or "", row.where),
            scores=scores,
            gold=tuple(given.gold),
        )


def _is_torn(text: str) -> bool:
    """Tell whether a text holds a lone surrogate, which JSON can write and UTF-8 can not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _wrong_scores(scores: tuple[float, ...], passages: int) -> str:
    """Say what is wrong with scores, "" for nothing."""
    if len(scores) != passages:
        return f"{len(scores)} scores for {passages} passages"
    bad = [
        f"[{place}] is {score}" for place, score in enumerate(scores) if not math.isfinite(score)
    ]
    return f"{bad[0]}, not a finite number" if bad else ""


def _said(problem: _Problem) -> str:
    return f"{problem.where}: {problem.field}: {problem.says}"


def _refusal(problems: list[_Problem]) -> InputError:
    """Make one error of all problems."""
    said = [_said(problem) for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        said.append(f"and {len(problems) - SHOWN} more: {dict(Counter(p.kind for p in problems))}")
    return InputError("\n".join(said), field=problems[0].field, value=problems[0].says)
