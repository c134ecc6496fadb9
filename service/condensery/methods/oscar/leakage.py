"""Keep evaluation text out of training: a passage that shares a long run of words is dropped."""

import re
from collections.abc import Iterable

WORD = re.compile(r"\w+")
RUN = 10  # words; long enough that only copied text shares one


def word_runs(text: str, size: int = RUN) -> set[int]:
    """Return hashes of all runs of ``size`` words; a shorter text counts as one run."""
    words = WORD.findall(text.lower())
    last = max(1, len(words) - size + 1)
    return {hash(tuple(words[i : i + size])) for i in range(last)}


class HeldOutText:
    """Text held out for evaluation."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs: set[int] = set()
        for text in texts:
            self._runs |= word_runs(text)

    def shares(self, text: str) -> bool:
        """Return whether ``text`` shares a run of words with what is held out."""
        return not self._runs.isdisjoint(word_runs(text))
