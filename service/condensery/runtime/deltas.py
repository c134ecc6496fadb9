"""Tokens to text, one at a time: what was shown never changes, and deltas join to the answer."""

from collections.abc import Callable, Sequence
from typing import Protocol

from condensery.errors import InputError
from condensery.questions import MAX_STOP_CHARS, MAX_STOPS
from condensery.runtime.detokenizing import Detokenizer

# What a decoder puts in the place of bytes that are no whole character (yet).
BROKEN = "\ufffd"


class Deltas(Protocol):
    """One answer's text, as its tokens come."""

    def push(self, token: int) -> str:
        """Return the text that ``token`` adds; it may be empty, and come with a later one."""
        ...

    def rest(self) -> str:
        """Return what was held back, once no token follows."""
        ...


class PieceDeltas:
    """Of BERT's word pieces, each decided by those before it.

    Args:
        piece_of: Word piece of an id.
    """

    def __init__(self, piece_of: Callable[[int], str]) -> None:
        self._piece_of = piece_of
        self._detokenizer = Detokenizer()

    def push(self, token: int) -> str:
        """Return the text that ``token`` adds."""
        return self._detokenizer.push(self._piece_of(token))

    def rest(self) -> str:
        """Return nothing: nothing is held back."""
        return ""


class DecodedDeltas:
    """Of any tokenizer: by decoding the last tokens with and without the new one.

    A character may take several tokens of bytes; it is shown when it is whole. The tokens
    decoded begin one delta early, since decoders drop a leading blank.

    Args:
        decode: Text of token ids, special ones left out.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._known = 0  # tokens, at the beginning, whose text is shown
        self._shown = ""  # theirs

    def push(self, token: int) -> str:
        """Return the text that ``token`` adds."""
        self._ids.append(token)
        text = self._decode(self._ids)
        # A token that is no character ever, at worst, is shown when the next whole one is.
        if text.endswith(BROKEN) or len(text) <= len(self._shown):
            return ""
        return self._show(text)

    def rest(self) -> str:
        """Return what was held back, broken characters as their sign."""
        return self._show(self._decode(self._ids)) if self._ids else ""

    def _show(self, text: str) -> str:
        delta = text[len(self._shown) :]
        self._ids = self._ids[self._known :]
        self._known = len(self._ids)
        self._shown = self._decode(self._ids)
        return delta


class StopStrings:
    """Ends a text before the first of some strings, and shows no part of one meanwhile.

    Args:
        stops: The strings.

    Raises:
        InputError: One is empty or too long, or there are too many.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if len(stops) > MAX_STOPS:
            raise InputError(
                f"stop: {len(stops)} strings, over the limit of {MAX_STOPS}",
                field="stop",
                value=len(stops),
            )
        for place, stop in enumerate(stops):
            if not 0 < len(stop) <= MAX_STOP_CHARS:
                raise InputError(
                    f"stop[{place}] has {len(stop)} characters, not 1 to {MAX_STOP_CHARS}",
                    field=f"stop[{place}]",
                    value=len(stop),
                )
        self._stops = tuple(stops)
        self._held = ""

    def push(self, delta: str) -> tuple[str, bool]:
        """Return what may be shown now, and whether the text has ended."""
        if not self._stops:
            return delta, False
        text = self._held + delta
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def rest(self) -> str:
        """Return what was held back, once nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return how many of the last characters of ``text`` begin ``stop``, all of it not counted."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0
