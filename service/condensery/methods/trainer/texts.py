"""What methods share of texts: read from files, a tokenizer, and evaluation text kept out."""

import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from condensery.errors import InputError
from condensery.methods.trainer.rows import read_lines, read_rows

FIELDS = ("text", "question", "query", "title", "text1", "text2")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")
FEWEST_WORDS = 4  # of a sentence that stands for itself
PLAIN = (".txt", ".txt.gz", ".txt.xz")
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


def read_texts(
    paths: Sequence[Path],
    *,
    sentences: bool = False,
    most: int = 0,
    seed: int = 0,
    without: Collection[tuple[str, str]] = (),
) -> list[str]:
    """Read texts, each once, in their order: JSONL rows' own, or the lines of plain text.

    Args:
        paths: Files and folders. Of a row, what its fields ``text``, ``question``, ``query``,
            ``title``, ``text1`` and ``text2`` hold, each a text.
        sentences: Also every sentence of a text of several.
        most: How many are chosen at random; 0: all.
        seed: Of the choice.
        without: Names and values of fields; rows that have one of them are left out.

    Raises:
        InputError: A file can't be read, or none of its rows has a text; named.
    """
    texts: dict[str, None] = {}
    for path in paths:
        before = len(texts)
        for text in _texts(path, without):
            texts[text] = None
            parts = SENTENCE.split(text) if sentences else ()
            if len(parts) > 1:
                texts.update({p: None for p in parts if len(p.split()) >= FEWEST_WORDS})
        if len(texts) == before:
            raise InputError(f"text: {path}: no row has any of {', '.join(FIELDS)}", field="text")
    chosen = list(texts)
    return random.Random(seed).sample(chosen, most) if 0 < most < len(chosen) else chosen


def _texts(path: Path, without: Collection[tuple[str, str]]) -> Iterator[str]:
    if path.name.endswith(PLAIN):
        yield from (line.strip() for line in read_lines(path) if line.strip())
        return
    for row in read_rows(path):
        if any(row.value.get(name) == value for name, value in without):
            continue
        for name in FIELDS:
            value = row.value.get(name)
            if isinstance(value, str) and value.strip():
                yield value.strip()


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
