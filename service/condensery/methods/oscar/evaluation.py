"""How well a pair answers, on questions whose passages it has not seen."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from condensery.methods.oscar.data import Ids
from condensery.methods.oscar.reading import Reading, read
from condensery.methods.oscar.scoring import exact, f1
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_packing import Specials
from condensery.runtime.detokenizing import detokenize

PORTION = 32  # questions read at a time


@dataclass(frozen=True, slots=True)
class Scores:
    """EM and F1 of each question, and the answers."""

    em: list[float]
    f1: list[float]
    answers: list[str]


class Reader:
    """Reads questions over texts with the networks, for evaluation."""

    def __init__(self, pair: OscarPair, tokenizer: Tokenizer) -> None:
        self._pair, self._tokenizer = pair, tokenizer
        self._specials = Specials.of(tokenizer)
        self._cache: dict[str, Ids] = {}

    def ids(self, text: str) -> Ids:
        """Tokenise, remembering passages."""
        if text not in self._cache:
            found = self._tokenizer.encode(text, add_special_tokens=False).ids
            self._cache[text] = np.array(found, dtype=np.int32)
        return self._cache[text]

    def read(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[str]],
        *,
        keep: int | None = None,
        plain: bool = False,
    ) -> list[Reading]:
        """Answer each question from its passages."""
        readings: list[Reading] = []
        for i in range(0, len(questions), PORTION):
            readings += read(
                self._pair,
                self._specials,
                [self.ids(q) for q in questions[i : i + PORTION]],
                [[self.ids(p) for p in ps] for ps in passages[i : i + PORTION]],
                keep=keep,
                plain=plain,
            )
        return readings

    def text(self, reading: Reading) -> str:
        """Return the answer as text."""
        return detokenize([self._tokenizer.id_to_token(i) or "" for i in reading.answer])

    def score(
        self,
        rows: Sequence[dict[str, Any]],
        passages: Sequence[Sequence[str]],
        *,
        keep: int | None = None,
        plain: bool = False,
    ) -> Scores:
        """Score the answers to ``rows`` read from ``passages``."""
        found = self.read([row["question"] for row in rows], passages, keep=keep, plain=plain)
        answers = [self.text(reading) for reading in found]
        pairs = list(zip(answers, rows, strict=True))
        return Scores(
            [exact(a, row["answers"]) for a, row in pairs],
            [f1(a, row["answers"]) for a, row in pairs],
            answers,
        )


def beside(
    rows: Sequence[dict[str, Any]], count: int, rng: random.Random
) -> list[tuple[list[str], int]]:
    """Put each question's passage among ``count - 1`` others of its article (then of others).

    Returns:
        For each row its passages in random order, and where the gold one stands.
    """
    by_title: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["context"] not in by_title[row["title"]]:
            by_title[row["title"]].append(row["context"])
    everything = sorted({row["context"] for row in rows})
    placed = []
    for row in rows:
        near = [c for c in by_title[row["title"]] if c != row["context"]]
        others = rng.sample(near, min(len(near), count - 1))
        while len(others) < count - 1:
            pick = rng.choice(everything)
            if pick != row["context"] and pick not in others:
                others.append(pick)
        at = rng.randrange(count)
        placed.append(([*others[:at], row["context"], *others[at:]], at))
    return placed


def validate(
    pair: OscarPair, tokenizer: Tokenizer, rows: Sequence[dict[str, Any]], *, limit: int
) -> dict[str, object]:
    """Answer ``limit`` validation questions from their gold passage, plain, and among five."""
    rng = random.Random(0)
    rows = rng.sample(list(rows), min(limit, len(rows)))
    reader = Reader(pair, tokenizer)
    gold = reader.score(rows, [[row["context"]] for row in rows])
    plain = reader.score(rows, [[row["context"]] for row in rows], plain=True)
    placed = beside(rows, 5, rng)
    among = reader.score(rows, [passages for passages, _ in placed])
    found = reader.read([row["question"] for row in rows], [passages for passages, _ in placed])
    first = [float(np.argmax(r.relevance) == at) for r, (_, at) in zip(found, placed, strict=True)]
    return {
        "gold_em": fmean(gold.em),
        "gold_f1": fmean(gold.f1),
        "plain_f1": fmean(plain.f1),
        "among5_f1": fmean(among.f1),
        "rerank_first": fmean(first),
        "samples": [
            f"{r['question']} -> {a} [{r['answers'][0]}]"
            for r, a in zip(rows[:4], gold.answers, strict=False)
        ],
    }
