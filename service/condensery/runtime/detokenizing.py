"""Word pieces back to text, a piece at a time, so that streamed deltas join to the answer."""

NO_SPACE_BEFORE = frozenset(".,;:!?%)]}'’”-–—/°")
NO_SPACE_AFTER = frozenset("([{$£€#-–—/'’“")


class Detokenizer:
    """Decides each blank from the pieces before it alone: what was emitted never changes.

    BERT's pieces are lower-case and know no blanks: "african - american", "1 . 5". Hyphens,
    apostrophes and numbers are put together again.
    """

    def __init__(self) -> None:
        self._last = ""
        self._before_last = ""
        self._quoted = False

    def push(self, piece: str) -> str:
        """Return the text that ``piece`` adds, its leading blank included."""
        if piece.startswith("##"):
            piece, joined = piece[2:], True
        else:
            joined = not self._last or self._closes(piece)
        self._before_last, self._last = self._last, piece
        if piece == '"':
            self._quoted = not self._quoted
        return piece if joined else " " + piece

    def _closes(self, piece: str) -> bool:
        """Return whether ``piece`` follows the last one without a blank."""
        last = self._last
        if piece == '"':
            return self._quoted
        if last == '"':
            return self._quoted
        if last in {".", ","}:  # inside a number: "1 . 5", "10 , 000"
            return self._before_last.isdigit() and piece.isdigit()
        return piece in NO_SPACE_BEFORE or last in NO_SPACE_AFTER


def detokenize(pieces: list[str]) -> str:
    """Join word pieces to text."""
    detokenizer = Detokenizer()
    return "".join(detokenizer.push(piece) for piece in pieces)
