"""What many callers send at once, and whether what they get is right.

Every text has a known reply, taken from the server itself before anything is wrong with it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from doors import Ask, Door, Reply
from texts import PASSAGES, QUESTIONS

COSINE = 0.999  # to the reference: bf16, alone or beside others
SCORE = 0.03
KNOWN = 48  # texts
# Passages with a question that is surely answered. What is said then hangs on no near tie, which
# bf16 may decide one way alone and another way beside others.
CASES = (2, 3, 6, 7, 9, 10)
SHARES = {"embed one": 10, "embed list": 3, "rerank": 2, "answer": 2, "stream": 3}


@dataclass
class RightReplies:
    """The right replies, by what was asked."""

    vectors: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, dict[int, float]] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)

    async def learn(self, door: Door) -> None:
        """Ask for everything once, one at a time."""
        for text in (*QUESTIONS[:KNOWN], *PASSAGES[:KNOWN]):
            self.vectors[text] = (await good(door, Ask("embed", (text,)))).vectors[0]
        for case in CASES:
            query, texts = a_case(case)
            self.scores[query] = (await good(door, Ask("rerank", texts, query))).scores
            self.answers[query] = (await good(door, Ask("answer", texts[:2], query))).text

    def fault(self, ask: Ask, reply: Reply) -> str:
        """Say what is wrong with a reply, or nothing."""
        if ask.job == "embed":
            if len(reply.vectors) != len(ask.texts):
                return f"{len(reply.vectors)} vectors for {len(ask.texts)} texts"
            cosines = [
                float(cosine(row, self.vectors[text]))
                for row, text in zip(reply.vectors, ask.texts, strict=True)
            ]
            return "" if min(cosines) >= COSINE else f"cosine {min(cosines):.4f} to the reference"
        if ask.job == "rerank":
            known = self.scores[ask.query]
            if set(reply.scores) != set(known):
                return f"places {sorted(reply.scores)}"
            worst = max(abs(reply.scores[place] - score) for place, score in known.items())
            return "" if worst <= SCORE else f"a score is off by {worst:.3f}"
        if reply.deltas is not None and reply.deltas != reply.text:
            return f"deltas join to {reply.deltas!r}, not to {reply.text!r}"
        if reply.text != self.answers[ask.query]:
            return f"answered {reply.text!r}, not {self.answers[ask.query]!r}"
        return ""


def cosine(vector: Any, other: Any) -> Any:
    return vector @ other / (np.linalg.norm(vector) * np.linalg.norm(other))


async def good(door: Door, ask: Ask) -> Reply:
    reply = await door.ask(ask)
    if reply.verdict != "ok":
        raise SystemExit(f"{door.name} {ask.job}: {reply.code} {reply.message}")
    return reply


def a_case(number: int) -> tuple[str, tuple[str, ...]]:
    """Return a passage's first question, and six passages of which it is the first."""
    return QUESTIONS[number * 2], tuple(PASSAGES[number : number + 6])


def make(kind: str, chance: random.Random) -> Ask:
    """Make a request of a kind of ``SHARES``, at random."""
    if kind == "embed one":
        return Ask("embed", (chance.choice(QUESTIONS[:KNOWN]),))
    if kind == "embed list":
        return Ask("embed", tuple(chance.sample(PASSAGES[:KNOWN], 12)))
    query, texts = a_case(chance.choice(CASES))
    if kind == "rerank":
        return Ask("rerank", texts, query)
    return Ask("stream" if kind == "stream" else "answer", texts[:2], query)


def a_kind(chance: random.Random) -> str:
    return chance.choices(list(SHARES), list(SHARES.values()))[0]


def spoil(ask: Ask, word: str, chance: random.Random) -> Ask:
    """Put a word into one of the texts."""
    texts: list[str] = list(ask.texts)
    place = chance.randrange(len(texts))
    texts[place] = f"{texts[place]} {word}"
    return replace(ask, texts=tuple(texts))


def percent(values: Sequence[float], share: float) -> float:
    """Return a percentile in milliseconds of values in seconds; nan if there are none."""
    return float(np.percentile(values, share)) * 1000 if len(values) else float("nan")
