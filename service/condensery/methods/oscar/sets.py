"""The data sets a pair is trained on, read from a folder, with evaluation text kept out."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from condensery.methods.oscar.cloze import make_cloze
from condensery.methods.oscar.data import Example, Ids, QaData, load_qa, read_jsonl
from condensery.methods.oscar.leakage import Held
from condensery.methods.trainer.rows import read_lines

# Sources of wikipedia_passages that are evaluation contexts, or hold some.
EVALUATION_SOURCES = frozenset(
    {"squad_dev", "nq_gold", "qed", "clapnq", "wiki18_e5_retrieved", "hotpotqa"}
)
HELD_ARTICLES = 4


@dataclass(frozen=True, slots=True)
class TrainingSets:
    """Sets with their shares of the steps, validation questions, and what was left out."""

    sets: list[tuple[QaData, float]]
    validation: list[dict[str, Any]]
    report: dict[str, int]


def load_sets(folder: Path, tokenizer: Tokenizer, *, cloze: int, seed: int) -> TrainingSets:
    """Read SQuAD, QAMR, FairytaleQA and cloze questions from ``folder``.

    All text that shares ten words in a row with SQuAD's dev paragraphs, or with the articles
    held out for validation, is left out; Wikipedia passages of those titles too.

    Args:
        folder: Holds squad_v1, qamr, fairytaleqa, wikipedia_passages, openstax.
        tokenizer: The compressor's.
        cloze: How many cloze questions to make.
        seed: For the choice of facts and held articles.
    """
    dev = list(read_jsonl(folder / "squad_v1" / "dev.jsonl.gz"))
    squad = list(read_jsonl(folder / "squad_v1" / "train_part.jsonl.gz"))
    titles = sorted({row["title"] for row in squad if row["title"]})
    held_titles = set(random.Random(seed).sample(titles, HELD_ARTICLES))
    validation = [row for row in squad if row["title"] in held_titles]
    held = Held({row["context"] for row in [*dev, *validation]})
    closed_titles = {row["title"].replace("_", " ").lower() for row in [*dev, *validation]}
    report: dict[str, int] = {}

    def keep(name: str, rows: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
        verdict = {t: held.shares(t) for t in {row[text] for row in rows}}
        kept = [row for row in rows if not verdict[row[text]]]
        report[f"{name}_left_out"] = len(rows) - len(kept)
        report[f"{name}_kept"] = len(kept)
        return kept

    qa = {
        "squad": [row for row in squad if row["title"] not in held_titles],
        "qamr": list(read_jsonl(folder / "qamr" / "train.jsonl.gz")),
        "fairytaleqa": list(read_jsonl(folder / "fairytaleqa" / "train.jsonl.gz")),
    }
    shares = {"squad": 0.5, "qamr": 0.12, "fairytaleqa": 0.08}
    sets = [(load_qa(keep(n, rows, "context"), tokenizer), shares[n]) for n, rows in qa.items()]
    for (data, _), name in zip(sets, qa, strict=True):
        report[f"{name}_examples"] = len(data.examples)
    wikipedia = [
        row
        for row in read_jsonl(folder / "wikipedia_passages" / "passages.jsonl.gz")
        if row["source"] not in EVALUATION_SOURCES and row["title"].lower() not in closed_titles
    ]
    texts = [row["text"] for row in keep("wikipedia", wikipedia, "text")]
    texts += [
        row["text"]
        for row in keep(
            "openstax",
            [{"text": t} for t in islice(paragraphs(folder / "openstax" / "train.txt.xz"), 30_000)],
            "text",
        )
    ]
    sets.append((cloze_set(texts, tokenizer, cloze, random.Random(seed + 1)), 0.3))
    report["cloze_examples"] = len(sets[-1][0].examples)
    return TrainingSets(sets, validation, report)


def paragraphs(path: Path) -> Iterator[str]:
    """Yield a text file's paragraphs of 30 to 250 words, titles left out."""
    for line in read_lines(path):
        if not line.startswith("=") and 30 <= len(line.split()) <= 250:
            yield line.strip()


def cloze_set(texts: list[str], tokenizer: Tokenizer, count: int, rng: random.Random) -> QaData:
    """Make ``count`` cloze questions over random ``texts``; neighbours in order share a group."""
    examples: list[Example] = []
    passages: list[Ids] = []
    for _ in range(3 * count):
        if len(examples) == count:
            break
        made = make_cloze(rng.choice(texts), len(passages), tokenizer, rng)
        if made:
            passages.append(made[0])
            examples.append(made[1])
    return QaData(examples, passages, [[i] for i in range(len(passages))])
