"""What methods share of texts: a tokenizer from its file, and evaluation text kept out."""

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from condensery.errors import InputError

WORD = re.compile(r"\w+")
RUN = 10  # words; long enough that only copied text shares one


def open_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json``, or the folder's that holds one, without truncation or padding.

    Raises:
        InputError: There is none that can be read.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"tokenizer: {file}: {error}", field="tokenizer") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


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
