"""Word pieces back to text, a piece at a time, so that streamed deltas join to the answer."""

NO_SPACE_BEFORE = frozenset(".,;:!?%)]}'’”-–—/°")
NO_SPACE_AFTER = frozenset("([{$£€#-–—/'’“")
AFTER_APOSTROPHE = frozenset({"s", "t", "d", "m", "re", "ve", "ll"})


class Detokenizer:
    """Decides each blank from the pieces before it alone: what was emitted never changes.

    BERT's pieces are lower-case and know no blanks: "african - american", "1 . 5", "u . s .".
    Hyphens, apostrophes, numbers and initials are put together again.
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
        last, before = self._last, self._before_last
        if '"' in {piece, last} and self._quoted:
            return True  # opened: its text follows, or its end
        if piece in NO_SPACE_BEFORE:
            return True
        if last == ",":  # "10 , 000" and "53 , 42 ##3", but "may 7 , 2016"
            return before.isdigit() and piece.isdigit() and max(len(before), len(piece)) <= 3
        if last in {".", ":"} and before[-1:].isdigit() and piece[:1].isdigit():
            return True  # "1 . 5", "11 : 28"
        if last == ".":  # "u . s . army"
            return len(before) == len(piece) == 1 and before.isalpha() and piece.isalpha()
        if last in {"'", "’"} and before.endswith("s"):  # "the mongols ' army", "ross ' s"
            return piece in AFTER_APOSTROPHE
        return last in NO_SPACE_AFTER
