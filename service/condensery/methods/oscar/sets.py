"""The data sets a pair is trained on, cloze questions among them; evaluation text kept out."""

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from condensery.errors import InputError
from condensery.methods.oscar.calibration import calibrate
from condensery.methods.oscar.data import (
    Example,
    Ids,
    QaData,
    QuestionTexts,
    TrainingSets,
    tokenise,
)
from condensery.methods.oscar.sources import KEPT_OUT_OF
from condensery.methods.trainer.questions import Rules, TrainingQuestion, read_questions
from condensery.methods.trainer.rows import read_lines, read_rows
from condensery.methods.trainer.texts import HeldOutText

# Sources of wikipedia_passages that are evaluation contexts, or hold some.
EVALUATION_SOURCES = frozenset(
    {"squad_dev", "nq_gold", "qed", "clapnq", "wiki18_e5_retrieved", "hotpotqa"}
)
HELD_ARTICLES = 4
NOTHING_KEPT_OUT = "nothing by a run without --data"
CLOZE_SHARE = 0.3
# What is trained on where nothing is named: file within the folder of data sets, and share.
USUAL = (
    ("squad_v1/train_part.jsonl.gz", 0.5),
    ("qamr/train.jsonl.gz", 0.12),
    ("fairytaleqa/train.jsonl.gz", 0.08),
)


SENTENCE = re.compile(r"[^.!?]+[.!?]?")
FACT = re.compile(r"(?:[A-Z][\w'-]+(?: (?:of |the |and )?[A-Z][\w'-]+){0,3})|\d[\d,.]*(?: \w+)?")
ASKS_NUMBER = ("when", "how many", "what year", "how much", "what")
ASKS_NAME = ("who", "what", "which", "where", "what is the name of")


def make_cloze(
    text: str, passage: int, tokenizer: Tokenizer, rng: random.Random
) -> tuple[Ids, Example] | None:
    """Make one question on ``text``; None when it holds no fact to ask for.

    Returns:
        The passage's tokens and the example that asks for a span of them.
    """
    sentences = [m for m in SENTENCE.finditer(text) if len(m.group().split()) >= 6]
    rng.shuffle(sentences)
    for sentence in sentences:
        facts = [
            m for m in FACT.finditer(text, *sentence.span()) if m.start() > sentence.start() + 2
        ]
        if not facts:
            continue
        fact = rng.choice(facts)
        encoded = tokenizer.encode(text, add_special_tokens=False)
        tokens = [
            i for i, (a, b) in enumerate(encoded.offsets) if a < fact.end() and b > fact.start()
        ]
        if not tokens or len(tokens) > 12:
            continue
        before = text[sentence.start() : fact.start()].split()
        after = text[fact.end() : sentence.end()].split()
        question = ragged(before, after, fact.group(), rng)
        ids = tokenizer.encode(question, add_special_tokens=False).ids[:48]
        return np.array(encoded.ids, dtype=np.int32), Example(
            np.array(ids, dtype=np.int32), passage, tokens[0], tokens[-1] + 1
        )
    return None


def ragged(before: list[str], after: list[str], fact: str, rng: random.Random) -> str:
    """Ask for ``fact`` with some of its sentence's words, an asking word first or in its place."""
    ask = rng.choice(ASKS_NUMBER if fact[0].isdigit() else ASKS_NAME)
    keep = rng.uniform(0.4, 0.9)
    near = rng.randint(4, 10)
    left = [w for w in before[-near:] if rng.random() < keep]
    right = [w for w in after[:near] if rng.random() < keep]
    halves = [left, right]
    if rng.random() < 0.4:
        halves.reverse()
    words = [ask, *halves[0], *halves[1]] if rng.random() < 0.7 else [*left, ask, *right]
    return " ".join(words).rstrip(".,;:") + "?"


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder of questions and its share of the steps, beside the others' shares."""

    path: Path
    share: float

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Read ``PATH`` or ``PATH:SHARE``.

        Raises:
            InputError: The share is not above 0.
        """
        path, _, share = text.rpartition(":")
        if not path or not _number(share):
            return cls(Path(text), 1.0)
        if not float(share) > 0:
            raise InputError(
                f"questions={text!r}: the share must be above 0", field="questions", value=text
            )
        return cls(Path(path), float(share))

    @property
    def name(self) -> str:
        """What the counts call it: its folder's name and its own, without endings."""
        return f"{self.path.parent.name}/{self.path.name.split('.')[0]}".lstrip("/")


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def load_sets(
    folder: Path | None,
    tokenizer: Tokenizer,
    *,
    cloze: int,
    seed: int,
    sources: Sequence[Source] = (),
    cloze_share: float = CLOZE_SHARE,
    label_tokens: int | None = None,
    wording: str = "",
) -> TrainingSets:
    """Read and check questions, make cloze questions, keep out what is measured on.

    Left out and counted are rows that something is wrong with, no answer in a passage among it
    (``trainer/questions.py``); passages that share ten words in a row with SQuAD's dev paragraphs,
    or with the articles held out for validation; questions that are then without the passage that
    answers them, or that are asked in SQuAD's dev too; Wikipedia passages of those titles.

    Args:
        folder: Holds squad_v1, and the usual sources; wikipedia_passages and openstax, where cloze
            questions are made. Without it nothing is kept out, and there is nothing to validate on.
        tokenizer: The compressor's.
        cloze: How many cloze questions to make; 0 without a folder.
        seed: For the choice of facts and held articles.
        sources: The questions; by default SQuAD's, QAMR's and FairytaleQA's.
        cloze_share: Share of the steps that is cloze questions; the sources share the rest.
        label_tokens: Most tokens of a label.
        wording: Field of another wording of a question, which is read where a row has it.

    Raises:
        InputError: A file can't be read, of one nothing is left, or its scores are the wrong way
            round; there is neither a folder nor sources, or cloze questions are asked for that
            nothing is there to make from.
    """
    report: dict[str, Any] = {"sources": {}}
    dev: list[dict[str, Any]] = []
    validation: list[dict[str, Any]] = []
    if folder is None:
        report[KEPT_OUT_OF] = NOTHING_KEPT_OUT
        if not sources:
            raise InputError("data: without it, questions must be named", field="data")
    else:
        dev = _squad_rows(folder / "squad_v1" / "dev.jsonl.gz")
        validation = _held_articles(folder / "squad_v1" / "train_part.jsonl.gz", seed)
        sources = sources or [Source(folder / name, share) for name, share in USUAL]
    if cloze and folder is None:
        raise InputError(
            f"cloze={cloze}: cloze questions are made from texts of --data, which is missing",
            field="cloze",
            value=cloze,
        )
    if cloze_share and not cloze:
        raise InputError(
            f"cloze_share={cloze_share:g}: there are no cloze questions (cloze=0)",
            field="cloze_share",
            value=cloze_share,
        )
    kept_out = KeptOut([*dev, *validation])
    sets: list[tuple[QaData, float]] = []
    total = sum(source.share for source in sources)
    for source in sources:
        share = source.share / total * (1 - cloze_share)
        data, facts = _read_source(source, tokenizer, kept_out, label_tokens, wording)
        sets.append((data, share))
        report[f"{source.name}_examples"] = len(data.examples)
        report["sources"][source.name] = {
            "file": source.path.name,
            "sha256": _sha256(source.path),
            "share": round(share, 6),
            **facts,
        }
    texts: list[str] = []
    if folder is not None and cloze:
        texts, counts = _plain_texts(folder, kept_out)
        report |= counts
    made = cloze_set(texts, tokenizer, cloze, random.Random(seed + 1))
    if cloze and not made.examples:
        raise InputError(
            f"cloze={cloze}: of {len(texts)} texts of {folder} none holds a fact to ask for; "
            "cloze=0, with cloze_share=0 and cloze_only=0, does without",
            field="cloze",
            value=cloze,
        )
    sets.append((made, cloze_share))
    if cloze:
        report["cloze_examples"] = len(made.examples)
    return TrainingSets(sets, validation, report)


def _held_articles(path: Path, seed: int) -> list[dict[str, Any]]:
    """Choose articles of a file to validate on; returns their questions."""
    squad = _squad_rows(path)
    titles = sorted({row["title"] for row in squad if row["title"]})
    if len(titles) < HELD_ARTICLES:
        raise InputError(
            f"data: {path}: rows of {len(titles)} titles, and those of {HELD_ARTICLES} are held "
            "out to validate on",
            field="data",
            value=str(path),
        )
    held = set(random.Random(seed).sample(titles, HELD_ARTICLES))
    return [row for row in squad if row["title"] in held]


def _squad_rows(path: Path) -> list[dict[str, Any]]:
    return list(_rows_with(path, {"question": str, "context": str, "title": str, "answers": list}))


def _rows_with(path: Path, wanted: dict[str, type]) -> Iterator[dict[str, Any]]:
    """Yield a file's rows, each of which must have these fields."""
    for row in read_rows(path):
        for name, kind in wanted.items():
            if not isinstance(row.value.get(name), kind):
                what = "a list" if kind is list else "a string"
                raise InputError(f"{row.where}: {name}: must be {what}", field=name)
        yield row.value


def _read_source(
    source: Source,
    tokenizer: Tokenizer,
    kept_out: "KeptOut",
    label_tokens: int | None,
    wording: str = "",
) -> tuple[QaData, dict[str, Any]]:
    """Read a source's questions; returns those that stay, and what there is to say of them."""
    rows, wrong = read_questions(
        [source.path],
        Rules(answer_in_passages=True, label_tokens=label_tokens, ranked=True, unanswerable=True),
        wrong="leave_out",
        wording=wording,
        count=lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
    )
    kept, left_out = kept_out.without(rows)
    data = tokenise(kept, tokenizer)
    if not data.examples:
        raise InputError(
            f"questions: {source.path}: of {len(rows)} questions none is left: {left_out}",
            field="questions",
            value=str(source.path),
        )
    data, calibration = calibrate(data)
    return data, {
        "examples": len(data.examples),
        "passages": len(data.passages),
        "scored": sum(not math.isnan(example.score) for example in data.examples),
        "unanswerable": sum(not example.answerable for example in data.examples),
        "left_out": dict(Counter(wrong) + Counter(left_out)),
        **calibration,
    }


class KeptOut:
    """What is measured on, and so may not be trained on."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.held = HeldOutText({row["context"] for row in rows})
        self.titles = {_title(row["title"]) for row in rows if row["title"]}
        self._asked = {_plain(row["question"]) for row in rows}
        self._verdicts: dict[str, bool] = {}

    def shares(self, text: str) -> bool:
        """Return whether a text shares ten words in a row with what is held out."""
        if text not in self._verdicts:
            self._verdicts[text] = self.held.shares(text)
        return self._verdicts[text]

    def without(
        self, rows: Sequence[TrainingQuestion]
    ) -> tuple[list[QuestionTexts], dict[str, int]]:
        """Return the questions that stay, with the passages that do, and count the others."""
        counts: Counter[str] = Counter()
        kept = []
        for row in rows:
            if _plain(row.question) in self._asked or _title(row.title) in self.titles:
                counts["question or article is held out"] += 1
                continue
            stays = [not self.shares(text) for text in row.passages]
            counts["passage is held out"] += stays.count(False)
            passages = [text for text, stay in zip(row.passages, stays, strict=True) if stay]
            looked_for = [text.casefold() for text in row.answers if text.strip()]
            if not passages or (
                len(passages) < len(stays)
                and looked_for
                and not any(a in text.casefold() for a in looked_for for text in passages)
            ):
                counts["no passage left"] += 1
                continue
            staying = [place for place, stay in enumerate(stays) if stay]
            gold = [new for new, old in enumerate(staying) if old in row.gold]
            if not (gold or row.answers or row.label) and row.answerable:
                counts["no passage left"] += 1
                continue
            scores = None if row.scores is None else [row.scores[place] for place in staying]
            kept.append(
                QuestionTexts(
                    row.question,
                    passages,
                    row.answers,
                    row.label,
                    scores,
                    row.title,
                    gold,
                    row.answerable,
                )
            )
        return kept, dict(counts)


def _title(text: str) -> str:
    return text.replace("_", " ").lower()


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _plain_texts(folder: Path, kept_out: KeptOut) -> tuple[list[str], dict[str, int]]:
    """Read the texts that cloze questions are made from, and count those left out."""
    wikipedia = [
        row["text"]
        for row in _rows_with(
            folder / "wikipedia_passages" / "passages.jsonl.gz",
            {"title": str, "text": str, "source": str},
        )
        if row["source"] not in EVALUATION_SOURCES and _title(row["title"]) not in kept_out.titles
    ]
    books = list(islice(paragraphs(folder / "openstax" / "train.txt.xz"), 30_000))
    texts: list[str] = []
    report: dict[str, int] = {}
    for name, candidates in (("wikipedia", wikipedia), ("openstax", books)):
        kept = [text for text in candidates if not kept_out.shares(text)]
        report |= {f"{name}_left_out": len(candidates) - len(kept), f"{name}_kept": len(kept)}
        texts += kept
    return texts, report


def paragraphs(path: Path) -> Iterator[str]:
    """Yield a text file's paragraphs of 30 to 250 words, titles left out."""
    for line in read_lines(path):
        if not line.startswith("=") and 30 <= len(line.split()) <= 250:
            yield line.strip()


def cloze_set(texts: list[str], tokenizer: Tokenizer, count: int, rng: random.Random) -> QaData:
    """Make ``count`` cloze questions over random ``texts``; neighbours in order share a group."""
    examples: list[Example] = []
    passages: list[Ids] = []
    for _ in range(3 * count if texts else 0):
        if len(examples) == count:
            break
        made = make_cloze(rng.choice(texts), len(passages), tokenizer, rng)
        if made:
            passages.append(made[0])
            examples.append(made[1])
    return QaData(examples, passages, [[i] for i in range(len(passages))])
