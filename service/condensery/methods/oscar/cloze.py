"""Questions made from plain text: a fact's span is asked for with a ragged copy of its sentence.

They teach the compressor to point and the generator to read long before the (few) human
questions would.
"""

import random
import re

import numpy as np
from tokenizers import Tokenizer

from condensery.methods.oscar.data import Example, Ids

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
