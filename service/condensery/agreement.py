"""Whether two answers say the same: SQuAD's measures (Rajpurkar et al., 2016)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLE = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower-case, without punctuation, articles and extra blanks."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(answer: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the answer equals one of the gold answers when normalised, else 0.0."""
    return float(any(normalise(answer) == normalise(gold) for gold in golds))


def f1(answer: str, golds: Sequence[str]) -> float:
    """Return the best word-overlap F1 with a gold answer, 0..1."""
    return max(_f1(normalise(answer).split(), normalise(gold).split()) for gold in golds)


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    same = sum((Counter(answer) & Counter(gold)).values())
    return 2 * same / (len(answer) + len(gold))
