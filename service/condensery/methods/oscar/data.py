"""What a small pair is trained on: questions with passages as word pieces, and the sets' files."""

import hashlib
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tokenizers import Encoding, Tokenizer

from condensery.errors import InputError

Ids = NDArray[np.int32]
UNSCORED = math.nan
WORD = re.compile(r"\w+")
NEAR = 120  # characters to both sides of an answer that are compared with the question
TENSORS, TEXTS = "sets.safetensors", "sets.json"
Arrays = dict[str, NDArray[Any]]


def find_place(text: str, answer: str, question: str) -> int | None:
    """Return where ``answer`` begins in ``text``, upper and lower case alike; None if nowhere.

    Of several places, whole words come before parts of words, and then what has the most words of
    the question near it: the first occurrence of a short answer is often another.
    """
    if not answer.strip():
        return None
    starts = [match.start() for match in re.finditer(re.escape(answer), text, re.IGNORECASE)]
    if len(starts) < 2:
        return starts[0] if starts else None
    words = set(WORD.findall(question.lower()))

    def likeness(start: int) -> tuple[bool, int]:
        end = start + len(answer)
        around = text[max(0, start - 1) : start], text[end : end + 1]
        whole_word = not any(WORD.match(text) for text in around)
        near = text[max(0, start - NEAR) : start] + " " + text[end : end + NEAR]
        return whole_word, len(words & set(WORD.findall(near.lower())))

    return max(starts, key=likeness)  # the first of equals


def tokens_at(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Return the first token that touches the characters ``start:end`` and the one after the last.

    The same number twice where none does (the tokenizer drops some characters).
    """
    touching = [i for i, (a, b) in enumerate(offsets) if a < end and b > start and b > a]
    return (touching[0], touching[-1] + 1) if touching else (0, 0)


@dataclass(frozen=True, slots=True)
class RetrievedPassage:
    """Another passage that was retrieved for a question.

    ``start:end`` are its tokens that answer, the same number twice where none do; ``score`` is a
    cross-encoder's logit, ``UNSCORED`` where there is none.
    """

    passage: int
    start: int = 0
    end: int = 0
    score: float = UNSCORED


@dataclass(frozen=True, slots=True)
class Example:
    """A question and the passage that answers it.

    Attributes:
        question: Its word pieces.
        passage: Index among the passages of the data set.
        start: First of its tokens that answer.
        end: After the last; ``start`` again where the answer stands nowhere word for word.
        label: What the generator is to say, if not those tokens; empty if nothing: such a
            question only says which passage answers it.
        score: A cross-encoder's logit of the passage.
        beside: Further passages that were retrieved.
        answerable: Whether ``passage`` answers it; if not, none of its passages does.
    """

    question: Ids
    passage: int
    start: int
    end: int
    label: Ids | None = None
    score: float = UNSCORED
    beside: tuple[RetrievedPassage, ...] = ()
    answerable: bool = True

    @property
    def ranked_only(self) -> bool:
        """Whether its passages are to be ranked, and nothing to be said."""
        return self.label is not None and not self.label.size


@dataclass(frozen=True, slots=True)
class QaData:
    """Examples over shared passages; ``group[i]`` lists the passages of passage i's article."""

    examples: list[Example]
    passages: list[Ids]
    group: list[list[int]]


@dataclass(frozen=True, slots=True)
class QuestionTexts:
    """A question with its passages as texts.

    Attributes:
        question: Its text.
        passages: Theirs.
        answers: What may stand in them.
        label: What the generator is to say; "" if nothing.
        scores: One a passage, if there are any.
        title: Of their article, or "".
        gold: Places of those that answer, where nothing is to be said.
        answerable: Whether any of them answers.
    """

    question: str
    passages: Sequence[str]
    answers: Sequence[str]
    label: str
    scores: Sequence[float] | None = None
    title: str = ""
    gold: Sequence[int] = ()
    answerable: bool = True


class Passages:
    """Passages as word pieces, each once, with those of their article."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._index: dict[str, int] = {}
        self._articles: defaultdict[str, list[int]] = defaultdict(list)
        self.encoded: list[Encoding] = []
        self.ids: list[Ids] = []
        self.group: list[list[int]] = []

    def add(self, text: str, title: str) -> int:
        """Return where the passage stands, which is the same for the same text."""
        if text not in self._index:
            at = self._index[text] = len(self.ids)
            self.encoded.append(self._tokenizer.encode(text, add_special_tokens=False))
            self.ids.append(np.array(self.encoded[-1].ids, dtype=np.int32))
            article = self._articles[title or f"only {at}"]
            article.append(at)
            self.group.append(article)
        return self._index[text]


def tokenise(questions: Iterable[QuestionTexts], tokenizer: Tokenizer) -> QaData:
    """Find each question's answers in its passages, and make word pieces of all.

    The passage to read is the best scored of those that hold the answer, without scores the
    first. Others that hold it are kept only with a score: alone, the same words may stand there
    by chance. A question with a label of its own is kept even if no passage holds it. One with
    neither is an example for each passage that it names as gold, one that is unanswerable for
    each of its passages.
    """
    passages = Passages(tokenizer)
    examples: list[Example] = []
    for question in questions:
        if not question.answerable:
            examples += _unanswerable(question, passages, tokenizer)
            continue
        if not question.label and not question.answers:
            examples += _ranked_only(question, passages, tokenizer)
            continue
        places = [_place(question, i, passages) for i in range(len(question.passages))]
        places = [place for place in places if len(passages.ids[place.passage])]
        holding = [place for place in places if place.end > place.start]
        scored = question.scores is not None
        label = ids_of(question.label, tokenizer)
        choice = holding or (places if label.size else [])
        if not choice:
            continue
        best = max(choice, key=lambda place: place.score) if scored else choice[0]
        span = passages.ids[best.passage][best.start : best.end]
        others = [p for p in places if p.passage != best.passage and (scored or p.end == p.start)]
        examples.append(
            Example(
                ids_of(question.question, tokenizer),
                best.passage,
                best.start,
                best.end,
                None if span.size and (not label.size or _same(span, label)) else label,
                best.score,
                tuple(others) if holding or scored else (),
            )
        )
    return QaData(examples, passages.ids, passages.group)


def _ranked_only(row: QuestionTexts, passages: Passages, tokenizer: Tokenizer) -> Iterator[Example]:
    question, nothing = ids_of(row.question, tokenizer), np.zeros(0, np.int32)
    places = [passages.add(text, row.title) for text in row.passages]
    gold = {places[number] for number in row.gold}
    others = tuple(
        RetrievedPassage(at)
        for at in dict.fromkeys(places)
        if at not in gold and len(passages.ids[at])
    )
    for at in sorted(gold):
        if len(passages.ids[at]):
            yield Example(question, at, 0, 0, nothing, beside=others)


def _unanswerable(
    row: QuestionTexts, passages: Passages, tokenizer: Tokenizer
) -> Iterator[Example]:
    question, nothing = ids_of(row.question, tokenizer), np.zeros(0, np.int32)
    for at in dict.fromkeys(passages.add(text, row.title) for text in row.passages):
        if len(passages.ids[at]):
            yield Example(question, at, 0, 0, nothing, answerable=False)


def _place(row: QuestionTexts, number: int, passages: Passages) -> RetrievedPassage:
    text = row.passages[number]
    at = passages.add(text, row.title)
    score = UNSCORED if row.scores is None else row.scores[number]
    for answer in (row.label, *row.answers):
        start = find_place(text, answer, row.question)
        if start is not None:
            offsets = passages.encoded[at].offsets
            first, last = tokens_at(offsets, start, start + len(answer))
            return RetrievedPassage(at, first, last, score)
    return RetrievedPassage(at, score=score)


def _same(span: Ids, label: Ids) -> bool:
    return bool(np.array_equal(span, label))


def ids_of(text: str, tokenizer: Tokenizer) -> Ids:
    """Return a text's word pieces, none of them special."""
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)


def crop(length: int, start: int, end: int, size: int, rng: random.Random) -> tuple[int, int]:
    """Choose a random window of ``size`` tokens (all if there are fewer) round ``start:end``."""
    size = min(length, max(end - start, size))
    first = rng.randint(max(0, end - size), min(start, length - size))
    return first, first + size


@dataclass(frozen=True)
class TrainingSets:
    """Sets with their shares of the steps, validation questions, and what was left out.

    The last set is the cloze questions.
    """

    sets: list[tuple[QaData, float]]
    validation: list[dict[str, Any]]
    report: dict[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of all that is trained on."""
        digest = hashlib.sha256()
        for (data, share), number in zip(self.sets, range(len(self.sets)), strict=True):
            digest.update(f"{number} {share}".encode())
            for name, array in _arrays(data).items():
                digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def save_sets(folder: Path, sets: TrainingSets) -> None:
    """Write sets to a folder."""
    arrays = {
        f"{number}.{name}": np.ascontiguousarray(array)
        for number, (data, _) in enumerate(sets.sets)
        for name, array in _arrays(data).items()
    }
    save_file(arrays, folder / TENSORS)
    texts = {
        "shares": [share for _, share in sets.sets],
        "validation": sets.validation,
        "report": sets.report,
    }
    (folder / TEXTS).write_text(json.dumps(texts, ensure_ascii=False) + "\n")


def open_sets(folder: Path) -> TrainingSets:
    """Read what ``save_sets`` wrote.

    Raises:
        InputError: A file is missing or damaged.
    """
    try:
        texts = json.loads((folder / TEXTS).read_text())
        arrays = load_file(folder / TENSORS)
        sets = [
            (
                _data(
                    {n.removeprefix(f"{i}."): a for n, a in arrays.items() if n.startswith(f"{i}.")}
                ),
                share,
            )
            for i, share in enumerate(texts["shares"])
        ]
        return TrainingSets(sets, texts["validation"], texts["report"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(
            f"packed: {folder} holds no sets that can be read: {error}",
            field="packed",
            value=str(folder),
        ) from error


def _arrays(data: QaData) -> Arrays:
    examples = data.examples
    empty = np.zeros(0, np.int32)
    beside = [(e.passage, e.start, e.end) for x in examples for e in x.beside]
    firsts = {id(group): number for number, group in reversed(list(enumerate(data.group)))}
    return {
        **_flat("passages", data.passages),
        **_flat("questions", [x.question for x in examples]),
        **_flat("labels", [empty if x.label is None else x.label for x in examples]),
        "labelled": np.array([x.label is not None for x in examples], np.uint8),
        "answerable": np.array([x.answerable for x in examples], np.uint8),
        "places": np.array([(x.passage, x.start, x.end) for x in examples], np.int32).reshape(
            -1, 3
        ),
        "scores": np.array([x.score for x in examples], np.float32),
        "beside": np.array(beside, np.int32).reshape(-1, 3),
        "beside_scores": np.array([e.score for x in examples for e in x.beside], np.float32),
        "beside_counts": np.array([len(x.beside) for x in examples], np.int32),
        "articles": np.array([firsts[id(group)] for group in data.group], np.int32),
    }


def _data(arrays: Arrays) -> QaData:
    beside = [
        RetrievedPassage(passage, start, end, score)
        for (passage, start, end), score in zip(
            arrays["beside"].tolist(), arrays["beside_scores"].tolist(), strict=True
        )
    ]
    counts = arrays["beside_counts"]
    ends = np.cumsum(counts)
    questions, labels = _split("questions", arrays), _split("labels", arrays)
    examples = []
    for i, (passage, start, end) in enumerate(arrays["places"].tolist()):
        label = labels[i] if arrays["labelled"][i] else None
        others = tuple(beside[ends[i] - counts[i] : ends[i]])
        score = float(arrays["scores"][i])
        answerable = bool(arrays["answerable"][i]) if "answerable" in arrays else True
        examples.append(
            Example(questions[i], passage, start, end, label, score, others, answerable)
        )
    articles: dict[int, list[int]] = {}
    for passage, article in enumerate(arrays["articles"].tolist()):
        articles.setdefault(article, []).append(passage)
    group = [articles[article] for article in arrays["articles"].tolist()]
    return QaData(examples, _split("passages", arrays), group)


def _flat(name: str, rows: Sequence[Ids]) -> Arrays:
    joined = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    return {name: joined, f"{name}_lengths": np.array([len(row) for row in rows], np.int32)}


def _split(name: str, arrays: Arrays) -> list[Ids]:
    ends = np.cumsum(arrays[f"{name}_lengths"])
    return np.split(arrays[name], ends[:-1]) if len(ends) else []
