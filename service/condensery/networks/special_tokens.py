"""Special tokens that callers write stay text."""

import re

from tokenizers import Tokenizer

FULL_WIDTH = 0xFEE0  # from an ASCII character to its full-width twin


class SpecialTokenEscaper:
    """Keeps special tokens out of callers' texts: ``<MEM0>`` in a passage must stay a text.

    Their first character becomes its full-width twin, so that offsets stay as they were.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        names = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
        names.sort(key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names))) if names else None

    def __call__(self, text: str) -> str:
        """Return ``text`` without special tokens, as long as it was."""
        return text if self._pattern is None else self._pattern.sub(self._disguise, text)

    @staticmethod
    def _disguise(match: re.Match[str]) -> str:
        first = ord(match[0][0])
        twin = chr(first + FULL_WIDTH) if 0x21 <= first <= 0x7E else "\ufffd"
        return twin + match[0][1:]
