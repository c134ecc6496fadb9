"""Texts as a pair reads them: word pieces without special tokens, with character offsets."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from condensery.errors import CorruptModel
from condensery.networks.oscar_packing import Specials
from condensery.runtime.tokenizing import INLINE_CHARACTERS, TextTokenizer


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text's word pieces; ``offsets[i]`` is the character span of ``ids[i]``."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class PieceTokenizer:
    """A pair's tokenizer.

    Args:
        path: Directory with ``tokenizer.json``.
        max_tokens: What the character limit is reckoned from (250 characters a token).
        threads: Where longer texts are tokenised.

    Raises:
        CorruptModel: The file can't be read, or has no [CLS] and [SEP].
    """

    def __init__(self, path: Path, max_tokens: int, threads: ThreadPoolExecutor) -> None:
        self._limits = TextTokenizer.load(path, max_tokens, threads)
        self._tokenizer = self._limits.tokenizer
        self._threads = threads
        try:
            self.specials = Specials.of(self._tokenizer)
        except ValueError as error:
            raise CorruptModel(f"{path.name}: {error}") from error

    async def encode(self, texts: Sequence[str], field: str) -> list[Pieces]:
        """Tokenise each text, whole.

        Raises:
            InputError: A text is over the character limit, or no valid Unicode; names ``field``.
        """
        if self._limits.check(texts, field) <= INLINE_CHARACTERS:
            return self._encode(texts)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._encode, texts)

    def count(self, texts: Sequence[str]) -> int:
        """Count the word pieces of ``texts``."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return sum(len(encoding.ids) for encoding in found)

    def piece(self, token: int) -> str:
        """Return the word piece of an id."""
        piece: str = self._tokenizer.id_to_token(token) or ""
        return piece

    def _encode(self, texts: Sequence[str]) -> list[Pieces]:
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [Pieces(encoding.ids, encoding.offsets) for encoding in found]
