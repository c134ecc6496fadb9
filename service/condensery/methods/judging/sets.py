"""What encoders are judged on: folders of rows, read and checked before any model is loaded."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from condensery.errors import InputError, shorten
from condensery.methods.ranking.retrieval import titled_text
from condensery.methods.ranking.sets import RankingSet, parse_set, read_set
from condensery.methods.ranking.similarities import read_similarities
from condensery.methods.shrp.classification import Example, label_names, read_examples
from condensery.methods.trainer.rows import JSONL, read_rows

Kind = Literal["sts", "classification", "pairs", "clustering", "retrieval", "reranking"]
TEST, TRAIN = "test", "train"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PairRows:
    """Pairs of texts with a figure each: people's scores, or 1 where both say the same."""

    left: list[str]
    right: list[str]
    figures: list[float]


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """Texts with the numbers of their labels; ``train_*`` is what a probe learns from."""

    texts: list[str]
    labels: list[int]
    train_texts: list[str]
    train_labels: list[int]


@dataclass(frozen=True, slots=True)
class Candidates:
    """A query with the passages that are put in an order, and which of them answer it."""

    query: str
    passages: list[str]
    relevant: list[bool]


Rows: TypeAlias = PairRows | LabelledTexts | RankingSet | tuple[Candidates, ...]


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """A set to judge encoders on.

    Attributes:
        kind: Of task.
        name: The folder's; with the split, if that is not ``test``.
        rows: Its content, after the cap.
        content: Fingerprint of these.
        count: Test rows, or queries.
    """

    kind: Kind
    name: str
    rows: Rows
    content: str
    count: int

    @property
    def key(self) -> str:
        """What it is called in a report."""
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Cap:
    """How much of each set is taken.

    Attributes:
        rows: Most test rows or queries, drawn at random; 0: all.
        passages: Of a retrieval corpus, at random, beside the relevant ones; None: all.
        seed: Of the draws.
    """

    rows: int = 0
    passages: int | None = None
    seed: int = 42

    def __post_init__(self) -> None:
        for field, value in (("most", self.rows), ("most_passages", self.passages)):
            if value is not None and value < 0:
                raise InputError.at(field, f"{value} is less than 0", value)

    def draw(self, rows: Sequence[T]) -> list[T]:
        """Return the rows that are taken, in their order."""
        if not self.rows or self.rows >= len(rows):
            return list(rows)
        places = random.Random(self.seed).sample(range(len(rows)), self.rows)
        return [rows[place] for place in sorted(places)]


@dataclass(frozen=True, slots=True)
class JudgingRecipe:
    """How tasks measure; mteb's defaults.

    Attributes:
        experiments: Probes that are trained, and clusterings, each on rows drawn anew.
        samples_per_label: Rows of each label that a probe learns from.
        seed: Of all draws.
    """

    experiments: int = 10
    samples_per_label: int = 8
    seed: int = 42

    def __post_init__(self) -> None:
        for field, least in (("experiments", 2), ("samples_per_label", 1)):
            if (value := getattr(self, field)) < least:
                raise InputError.at(field, f"{value} is less than {least}", value)


def read_judged_set(kind: Kind, text: str, cap: Cap) -> JudgedSet:
    """Read the folder that a flag names, ``DIR`` or ``DIR:SPLIT``.

    Rows are, by kind: ``sts`` text1, text2, score; ``pairs`` text1, text2, label 1 or 0;
    ``classification`` text, label, with a ``train`` beside the split; ``clustering`` text, label;
    ``reranking`` text1 (a query), text2, label. ``retrieval`` is a folder in BEIR's form.

    Raises:
        InputError: There is no such file, or a row is of another form; names file, line, field
            and value.
    """
    folder, split = parse_set(text, split=TEST)
    name = folder.resolve().name if split == TEST else f"{folder.resolve().name}:{split}"
    if kind == "retrieval":
        item = read_set(folder, split, queries=cap.rows, others=cap.passages, seed=cap.seed)
        content = _fingerprint([item.content, {**item.queries}, {**item.judged}])
        return JudgedSet(kind, name, item, content, len(item.queries))
    path = find_rows(folder, split)
    rows: PairRows | LabelledTexts | tuple[Candidates, ...]
    if kind == "sts":
        rows = _read_scored(path, cap)
    elif kind == "pairs":
        rows = _read_pairs(path, cap)
    elif kind == "reranking":
        rows = _read_candidates(path, cap)
    else:
        rows = _read_labelled(path, cap, train=kind == "classification")
    if isinstance(rows, tuple):
        plain: list[object] = [asdict(row) for row in rows]
        return JudgedSet(kind, name, rows, _fingerprint(plain), len(rows))
    count = len(rows.left if isinstance(rows, PairRows) else rows.texts)
    return JudgedSet(kind, name, rows, _fingerprint([asdict(rows)]), count)


def read_judged_sets(named: Sequence[tuple[Kind, str]], cap: Cap) -> list[JudgedSet]:
    """Read all sets.

    Raises:
        InputError: As ``read_judged_set``; there is none, or two of one kind and name.
    """
    sets = [read_judged_set(kind, text, cap) for kind, text in named]
    keys = [item.key for item in sets]
    if not keys:
        raise InputError("no set to judge on: --sts, --classification, --pairs, ...", field="sets")
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise InputError.at(twice[0].partition("/")[0], f"two folders of the name {twice[0]}")
    return sets


def texts_of(item: JudgedSet) -> Sequence[str]:
    """Return a set's texts, or one side of its pairs, or its passages."""
    rows = item.rows
    if isinstance(rows, RankingSet):
        return [titled_text(passage) for passage in rows.passages]
    if isinstance(rows, tuple):
        return [passage for row in rows for passage in row.passages]
    return rows.left if isinstance(rows, PairRows) else rows.texts


def find_rows(folder: Path, split: str) -> Path:
    """Return the JSONL file of a split.

    Raises:
        InputError: There is none; names those that there are.
    """
    for end in JSONL:
        if (path := folder / f"{split}{end}").is_file():
            return path
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    there = ", ".join(file.name for file in files if file.name.endswith(JSONL)) or "none"
    raise InputError(
        f"{folder}: has no {split}.jsonl (plain, .gz, .xz); JSONL files in it: {there}."
        " DIR:SPLIT names another split",
        value=str(folder),
    )


def _read_scored(path: Path, cap: Cap) -> PairRows:
    item = read_similarities(path)
    rows = cap.draw([*zip(item.pairs, item.scores.tolist(), strict=True)])
    scores = [score for _, score in rows]
    if len(set(scores)) < 2:
        raise InputError(f"{path}: the {len(rows)} rows that are taken all have one score")
    return PairRows([pair[0] for pair, _ in rows], [pair[1] for pair, _ in rows], scores)


def _read_pairs(path: Path, cap: Cap) -> PairRows:
    examples = read_examples([path], labels=("0", "1"))
    _check_texts(examples, 2)
    rows = cap.draw(examples)
    _check_labels(path, rows)
    return PairRows(
        [row.texts[0] for row in rows],
        [row.texts[1] for row in rows],
        [float(row.label) for row in rows],
    )


def _read_labelled(path: Path, cap: Cap, *, train: bool) -> LabelledTexts:
    learnt = read_examples([find_rows(path.parent, TRAIN)]) if train else []
    _check_texts(learnt, 1)
    examples = read_examples([path], labels=label_names(learnt) if train else None)
    _check_texts(examples, 1)
    numbers = {name: number for number, name in enumerate(label_names(learnt or examples))}
    rows = cap.draw(examples)
    _check_labels(path, rows)
    return LabelledTexts(
        [row.texts[0] for row in rows],
        [numbers[row.label] for row in rows],
        [row.texts[0] for row in learnt],
        [numbers[row.label] for row in learnt],
    )


def _read_candidates(path: Path, cap: Cap) -> tuple[Candidates, ...]:
    """Return the queries that have a passage that answers them, and one that does not."""
    by_query: dict[str, Candidates] = {}
    for row in read_rows(path):
        texts = [row.value.get(name) for name in ("text1", "text2")]
        for name, text in zip(("text1", "text2"), texts, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{row.where}: {name}: {shorten(text)} is no text", field=name)
        label = row.value.get("label")
        if label not in (0, 1) or isinstance(label, bool):
            raise InputError(
                f"{row.where}: label: {shorten(label)} is neither 0 nor 1", field="label"
            )
        query, passage = map(str, texts)
        item = by_query.setdefault(query, Candidates(query, [], []))
        item.passages.append(passage)
        item.relevant.append(label == 1)
    rows = [item for item in by_query.values() if {*item.relevant} == {False, True}]
    if not rows:
        raise InputError(
            f"{path}: no query (text1) has passages of label 1 and of label 0", field="label"
        )
    return tuple(cap.draw(rows))


def _check_texts(examples: Sequence[Example], count: int) -> None:
    if examples and len(examples[0].texts) != count:
        wanted = {1: "one text", 2: "text1 and text2"}[count]
        raise InputError(f"{examples[0].where}: has not {wanted}", field="text")


def _check_labels(path: Path, rows: Sequence[Example]) -> None:
    if len({row.label for row in rows}) < 2:
        raise InputError(
            f"{path}: the {len(rows)} rows that are taken all have the label {rows[0].label!r}",
            field="label",
        )


def _fingerprint(content: Sequence[object]) -> str:
    return f"sha256:{hashlib.sha256(json.dumps(content).encode()).hexdigest()}"
