"""What a generator may say that answers in the words of what it read: stretches of its texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

END = -1  # after each text's last token, and where a word can't be said
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quotes:
    """Texts of which an answer has to be one stretch, whole words of it.

    Where an answer may go on is a set of places in the texts: first everywhere that a word begins,
    then behind each place that said what the answer says so far. No state is kept here, so that
    answers may share it.

    Attributes:
        tokens: Ids of all texts, ``END`` behind each, (tokens,).
        begins: Whether a word begins there; at ``END`` it does, (tokens,).
        pointed: Stretches that memory vectors point at, first token and the one after the last,
            whole words. An answer that begins as one of them ends where it does: whoever read the
            whole passage knows its bounds, and vectors carry few of its words.
    """

    tokens: NDArray[np.int64]
    begins: NDArray[np.bool_]
    pointed: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls,
        texts: Sequence[Sequence[int]],
        continues: NDArray[np.bool_],
        pointed: Sequence[tuple[int, int] | None] = (),
    ) -> "Quotes | None":
        """Make them of texts; None where there is nothing to quote, so that anything may be said.

        Args:
            texts: Token ids, ``END`` in the place of what can't be said.
            continues: Of each token of the vocabulary whether it goes on with a word.
            pointed: Of each text the first token and the one after the last that memory vectors
                point at, None where at none; empty where no text is read as vectors.
        """
        tokens = np.array([id_ for text in texts for id_ in (*text, END)], dtype=np.int64)
        begins = (tokens == END) | ~continues[tokens]
        if not (begins & (tokens != END)).any():
            return None
        starts = np.cumsum([0, *(len(text) + 1 for text in texts)]).tolist()
        stretches = [
            _whole_words(begins, start + stretch[0], start + stretch[1])
            for start, stretch in zip(starts, pointed, strict=False)
            if stretch is not None and stretch[1] > stretch[0]
        ]
        return cls(tokens, begins, tuple(dict.fromkeys(stretches)))

    def first(self) -> Places:
        """Return where an answer may begin."""
        return np.flatnonzero(self.begins & (self.tokens != END))

    def allowed(self, places: Places, said: int) -> tuple[NDArray[np.int64], bool]:
        """Return the tokens that may come next, each once, and whether the answer may end.

        Args:
            places: Where it may go on.
            said: Tokens of the answer so far; without any it may not end.
        """
        tokens = np.unique(self.tokens[places])
        tokens, may_end = tokens[tokens != END], bool(said and self.begins[places].any())
        left = [
            end - first - said for first, end in self.pointed if said and first + said in places
        ]
        if any(count > 0 for count in left):
            may_end = may_end and 0 in left
        elif 0 in left:
            tokens, may_end = tokens[:0], True
        return tokens, may_end

    def only(self, places: Places, said: int) -> int | None:
        """Return what alone may come next: a token, or ``END``; None where there is a choice.

        Args:
            places: Where it may go on.
            said: Tokens of the answer so far.
        """
        tokens, may_end = self.allowed(places, said)
        if len(tokens) + may_end != 1:
            return None
        return END if may_end else int(tokens[0])

    def after(self, places: Places, token: int) -> Places:
        """Return where it may go on once a token is said."""
        following: Places = places[self.tokens[places] == token] + 1
        return following


def _whole_words(begins: NDArray[np.bool_], first: int, end: int) -> tuple[int, int]:
    """Widen a stretch to whole words."""
    while not begins[first]:
        first -= 1
    while not begins[end]:
        end += 1
    return first, end
