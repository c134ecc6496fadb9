"""Questions with passages and answers to train on, checked whole before the first step."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
        answerable: Whether any of its passages answers it.
    """

    question: str
    passages: tuple[str, ...]
    answers: tuple[str, ...]
    label: str
    title: str
    where: str
    scores: tuple[float, ...] | None = None
    gold: tuple[int, ...] = ()
    answerable: bool = True


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
        unanswerable: Rows whose ``answers`` are ``[]``, and that name no gold passages, are
            questions that their passages do not answer; else they lack an answer.
    """

    answers: bool = True
    answer_in_passages: bool = True
    label_tokens: int | None = None
    passages: bool = True
    ranked: bool = False
    unanswerable: bool = False

    def answers_none(self, form: "_Row") -> bool:
        """Whether a row says that its passages do not answer it."""
        says = "answers" in form.model_fields_set and not form.answers
        return self.unanswerable and says and not form.gold and not form.target


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

    @property
    def texts(self) -> tuple[str, ...]:
        """All passages."""
        return tuple(self.passages or ([] if self.context is None else [self.context]))

    @property
    def target(self) -> str:
        """What the generator learns to say."""
        return self.label if self.label is not None else next(iter(self.answers), "")


@dataclass(frozen=True, slots=True)
class _Problem:
    kind: str
    where: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: {self.message}"


def read_questions(
    paths: Iterable[Path],
    rules: Rules,
    *,
    split: str | None = None,
    count: Callable[[str], int] = lambda text: len(text.split()),
    wrong: Wrong = "refuse",
    wording: str = "",
) -> tuple[list[TrainingQuestion], dict[str, int]]:
    """Read and check all of the data, so that nothing is found wrong hours into a run.

    Args:
        paths: JSONL files, folders of them or ``datasets`` folders.
        rules: What is wrong with a row.
        split: Which split of ``datasets`` folders that have several.
        count: Tokens of a text, by the tokenizer that labels are learnt with.
        wrong: Whether rows that something is wrong with are refused, all at once, or left out
            and counted.
        wording: Field with another wording of the question, which takes its place in the rows
            that have it.

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
            question, wrong_with_it = _check(_reworded(row, wording), rules, count, seen)
            problems += wrong_with_it
            if question is not None:
                questions.append(question)
    if problems and wrong == "refuse":
        raise _refusal(problems)
    if not questions:
        refused = f"; {_refusal(problems).message}" if problems else ""
        raise InputError(f"no question to train on in {', '.join(files) or 'no files'}{refused}")
    left_out = dict(Counter(problem.kind for problem in problems))
    if left_out:
        log.warning("rows left out: %s; the first: %s", left_out, problems[0])
    return questions, left_out


def wrong_fields(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield each field that is not of its form, and what is wrong with its value."""
    for part in error.errors():
        yield ".".join(map(str, part["loc"])), f"{shorten(part['input'])}: {part['msg']}"


def _reworded(row: Row, wording: str) -> Row:
    """Return a row with another wording of its question, where it has one."""
    question = row.value.get(wording) if wording else None
    return row if question is None else replace(row, value={**row.value, "question": question})


def _check(
    row: Row, rules: Rules, count: Callable[[str], int], seen: dict[tuple[str, ...], str]
) -> tuple[TrainingQuestion | None, list[_Problem]]:
    """Return the row's question if nothing is wrong, else all that is."""
    try:
        form = _Row.model_validate(row.value)
    except ValidationError as error:
        return None, [
            _Problem("malformed", row.where, field, message)
            for field, message in wrong_fields(error)
        ]
    problems = [
        _Problem(kind, row.where, field, message)
        for kind, field, message in _problems(form, row.where, rules, count, seen)
    ]
    if problems:
        return None, problems
    question = TrainingQuestion(
        question=form.question,
        passages=form.texts,
        answers=tuple(form.answers),
        label=form.target,
        title=form.title or "",
        where=row.where,
        scores=None if form.scores is None else tuple(form.scores),
        gold=tuple(form.gold),
        answerable=not rules.answers_none(form),
    )
    return question, []


_Wrong = Iterator[tuple[str, str, str]]  # kind, field, message


def _problems(
    form: _Row,
    where: str,
    rules: Rules,
    count: Callable[[str], int],
    seen: dict[tuple[str, ...], str],
) -> _Wrong:
    """Yield all that is wrong with a row of the right form."""
    torn = list(_torn(form))
    if torn:  # no tokenizer reads such text
        yield from torn
        return
    yield from _wrong_question(form, where, seen)
    if rules.passages and not any(text.strip() for text in form.texts):
        field = "context" if form.passages is None else "passages"
        yield "no passage", field, f"{shorten(form.texts)} holds no text"
    yield from _wrong_answers(form, rules, count)
    yield from _wrong_places(form)


def _torn(form: _Row) -> _Wrong:
    for field, texts in (
        ("question", [form.question]),
        ("passages", form.texts),
        ("answers", form.answers),
        ("label", [form.label or ""]),
    ):
        torn = next((text for text in texts if _is_torn(text)), None)
        if torn is not None:
            yield "malformed", field, f"{shorten(torn)} holds half of a character"


def _wrong_question(form: _Row, where: str, seen: dict[tuple[str, ...], str]) -> _Wrong:
    if not form.question.strip():
        yield "empty question", "question", f"{form.question!r} is empty"
        return
    key = tuple(" ".join(text.split()).casefold() for text in (form.question, *form.texts))
    if (first := seen.setdefault(key, where)) is not where:
        message = f"{shorten(form.question)} stands in {first} too, with the same passages"
        yield "repeated question", "question", message


def _wrong_answers(form: _Row, rules: Rules, count: Callable[[str], int]) -> _Wrong:
    label, answers = form.target, form.answers
    of_use = (rules.ranked and form.gold) or rules.answers_none(form)
    if rules.answers and not label.strip() and not of_use:
        yield "no answer", "answers", f"{answers!r} holds no answer"
    elif rules.answer_in_passages and answers and form.texts:
        texts = [text.casefold() for text in form.texts]
        if not any(a.casefold() in text for a in answers if a.strip() for text in texts):
            message = f"{shorten(answers)} stands in no passage"
            yield "answer not in passages", "answers", message
    if rules.label_tokens is not None and (tokens := count(label)) > rules.label_tokens:
        field = "answers" if form.label is None else "label"
        message = f"{shorten(label)} has {tokens} tokens, more than {rules.label_tokens}"
        yield "label too long", field, message


def _wrong_places(form: _Row) -> _Wrong:
    passages = len(form.texts)
    if form.scores is not None and (message := _wrong_scores(form.scores, passages)):
        yield "scores not of the passages", "scores", message
    strange = [place for place in form.gold if not 0 <= place < passages]
    if strange:
        message = f"{strange[0]} is the place of none of {passages} passages"
        yield "gold not of the passages", "gold", message


def _is_torn(text: str) -> bool:
    """Tell whether a text holds a lone surrogate, which JSON can write and UTF-8 can not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _wrong_scores(scores: Sequence[float], passages: int) -> str:
    """Say what is wrong with scores, "" for nothing."""
    if len(scores) != passages:
        return f"{len(scores)} scores for {passages} passages"
    bad = [
        f"[{place}] is {score}" for place, score in enumerate(scores) if not math.isfinite(score)
    ]
    return f"{bad[0]}, not a finite number" if bad else ""


def _refusal(problems: list[_Problem]) -> InputError:
    """Make one error of all problems."""
    lines = [str(problem) for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"and {len(problems) - SHOWN} more: {dict(Counter(p.kind for p in problems))}")
    return InputError("\n".join(lines), field=problems[0].field, value=problems[0].message)
