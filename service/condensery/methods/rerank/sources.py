"""Where queries and passages come from: question files, corpora, retrieval sets in BEIR's form."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from condensery.agreement import normalise_answer
from condensery.errors import InputError, shorten
from condensery.methods.ranking.sets import read_set
from condensery.methods.trainer.questions import Rules, Wrong, read_questions
from condensery.methods.trainer.rows import Row, read_rows


@dataclass(frozen=True, slots=True)
class Sources:
    """What a cross-encoder is trained from.

    Attributes:
        questions: JSONL files, folders of them or ``datasets`` folders; see ``read_questions``.
        retrieval: Folders in BEIR's form, each with the split whose judgements count.
        corpus: Rows with a field ``text``: passages that are nobody's answer, as far as known.
        not_like: Rows whose text must not be trained on, for it is evaluated on.
        wrong: Whether question rows that something is wrong with are refused or left out.
        licence: The data's, for the card.
    """

    questions: Sequence[Path] = ()
    retrieval: Sequence[tuple[Path, str]] = ()
    corpus: Sequence[Path] = ()
    not_like: Sequence[Path] = ()
    wrong: Wrong = "refuse"
    licence: str = "not stated"


@dataclass(frozen=True, slots=True)
class Query:
    """A query and what answers it.

    Attributes:
        text: As it is asked.
        gold: Numbers of the passages that answer it, ascending.
        answers: Texts that a passage which answers it may hold; "" and none for judged ones.
        group: What is held out together: an article, or a passage.
        where: File and line, or set and id.
    """

    text: str
    gold: tuple[int, ...]
    answers: tuple[str, ...]
    group: str
    where: str


@dataclass(slots=True)
class Pool:
    """Passages, each text once, and the queries about them.

    Attributes:
        passages: Texts, in the order in which they were met.
        queries: All that were read.
        left_out: Rows that are of no use, by kind.
    """

    passages: list[str] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        """Return the number of a passage; the same text (blanks and case aside) has one."""
        key = " ".join(text.split()).casefold()
        number = self._numbers.setdefault(key, len(self.passages))
        if number == len(self.passages):
            self.passages.append(text)
        return number


class Answers:
    """Which passages hold an answer, compared as SQuAD's measures compare answers."""

    def __init__(self, passages: Sequence[str]) -> None:
        self._passages = passages
        self._normal: dict[int, str] = {}

    def hold(self, passage: int, answers: Sequence[str]) -> bool:
        """Return whether one of the answers stands in the passage, whole words only."""
        if passage not in self._normal:
            self._normal[passage] = f" {normalise_answer(self._passages[passage])} "
        text = self._normal[passage]
        return any(f" {normal} " in text for a in answers if (normal := normalise_answer(a)))


def read_pool(sources: Sources) -> Pool:
    """Read everything that is trained from.

    A question's only passage answers it; of several, those that hold one of its answers. A
    question none of whose passages does is left out, and counted as ``no gold passage``.

    Raises:
        InputError: A file or row is wrong, naming file, line, field and value.
    """
    if not sources.questions and not sources.retrieval:
        raise InputError("data: neither questions nor a retrieval set is given", field="data")
    pool = Pool()
    if sources.questions:
        _read_questions(pool, sources)
    for folder, split in sources.retrieval:
        _read_retrieval(pool, folder, split)
    for path in sources.corpus:
        for row in read_rows(path):
            pool.add(_text(row, "text"))
    return pool


def _read_questions(pool: Pool, sources: Sources) -> None:
    rules = Rules(answers=False, answer_in_passages=False)
    questions, left_out = read_questions(sources.questions, rules, wrong=sources.wrong)
    pool.left_out.update(left_out)
    answers = Answers(pool.passages)
    for question in questions:
        numbers = [pool.add(text) for text in question.passages if text.strip()]
        gold = set(numbers)
        if len(gold) > 1:
            gold = {number for number in gold if answers.hold(number, question.answers)}
        if not gold:
            pool.left_out["no gold passage"] += 1
            continue
        group = question.title or pool.passages[min(gold)]
        query = Query(
            question.question, tuple(sorted(gold)), question.answers, group, question.where
        )
        pool.queries.append(query)


def _read_retrieval(pool: Pool, folder: Path, split: str) -> None:
    """Read a set in BEIR's form; a passage is its title and text, as BEIR's measures read it."""
    ranking_set = read_set(folder, split)
    numbers = {
        passage.id: pool.add(f"{passage.title} {passage.text}".strip())
        for passage in ranking_set.passages
    }
    for name, text in ranking_set.queries.items():
        gold = tuple(sorted({numbers[passage] for passage in ranking_set.judged[name]}))
        group = pool.passages[gold[0]]
        pool.queries.append(Query(text, gold, (), group, f"{folder}, query {name}"))


def _text(row: Row, name: str) -> str:
    value: Any = row.value.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InputError(
            f"{row.where}: {name}: {shorten(value)} is no text", field=name, value=shorten(value)
        )
    return value
