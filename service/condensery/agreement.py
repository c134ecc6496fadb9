"""Whether two answers say the same: SQuAD's measures (Rajpurkar et al., 2016)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower-case, without punctuation, articles and extra blanks."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the answer equals one of the gold answers when normalised, else 0.0."""
    return float(any(normalise_answer(answer) == normalise_answer(gold) for gold in golds))


def f1_score(answer: str, golds: Sequence[str]) -> float:
    """Return the best word-overlap F1 with a gold answer, 0..1."""
    return max(
        _word_overlap(normalise_answer(answer).split(), normalise_answer(gold).split())
        for gold in golds
    )


def _word_overlap(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    same = sum((Counter(answer) & Counter(gold)).values())
    return 2 * same / (len(answer) + len(gold))
