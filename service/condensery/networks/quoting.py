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
    """

    tokens: NDArray[np.int64]
    begins: NDArray[np.bool_]

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], continues: NDArray[np.bool_]) -> "Quotes | None":
        """Make them of texts; None where there is nothing to quote, so that anything may be said.

        Args:
            texts: Token ids, ``END`` in the place of what can't be said.
            continues: Of each token of the vocabulary whether it goes on with a word.
        """
        tokens = np.array([id_ for text in texts for id_ in (*text, END)], dtype=np.int64)
        begins = (tokens == END) | ~continues[tokens]
        return cls(tokens, begins) if (begins & (tokens != END)).any() else None

    def first(self) -> Places:
        """Return where an answer may begin."""
        return np.flatnonzero(self.begins & (self.tokens != END))

    def allowed(self, places: Places) -> tuple[NDArray[np.int64], bool]:
        """Return the tokens that may come next, each once, and whether the answer may end."""
        tokens = np.unique(self.tokens[places])
        return tokens[tokens != END], bool(self.begins[places].any())

    def after(self, places: Places, token: int) -> Places:
        """Return where it may go on once a token is said."""
        following: Places = places[self.tokens[places] == token] + 1
        return following
