"""The form in which an answer's words are compared with a passage's, and the way back from it.

A generator may write lower case, without accents, with blanks around punctuation (BERT's word
pieces), or other quotes and dashes. All of that is folded away on both sides; each character of the
form knows the character of the text that it is of.
"""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Places: TypeAlias = NDArray[np.intp]
Codes: TypeAlias = NDArray[np.uint32]
Flags: TypeAlias = NDArray[np.bool_]

# Kinds of characters. Of a script without blanks between words each character is a word.
DROPPED, BLANK, LETTER, DIGIT, IDEOGRAPH, SIGN = range(6)
NO_BLANKS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x109F),  # Tibetan, Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x312F),  # CJK's radicals, kana
    (0x31A0, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
# Marks on a letter, and what can't be seen: nothing is compared of them.
UNSEEN = frozenset({"Mn", "Me", "Cf", "Cc", "Cs"})
ALIKE = str.maketrans("‘’‚‛ʼ`“”„‟‐‑‒–—―−", "''''''\"\"\"\"-------")
ASCII = 128
GAP = np.uint32(1 << 31)  # over all of Unicode


@dataclass(frozen=True, slots=True)
class TextForm:
    """A text as it is compared, character by character.

    Blanks are dropped. Those between two words, or two numbers, leave a mark (``GAP``) on the
    character behind them: "now here" is not "nowhere".

    Attributes:
        codes: The form's characters, (length,).
        kinds: What each is, (length,).
        at: The place in the text of the character that each is of, (length,).
        borders: Where words may begin and end: before each character, and behind the last,
            (length + 1,).
        text: What it is the form of.
    """

    codes: Codes
    kinds: NDArray[np.uint8]
    at: Places
    borders: Flags
    text: str

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the characters of the text that a stretch of the form is of, their marks too."""
        first, last = int(self.at[start]), int(self.at[end - 1]) + 1
        while last < len(self.text) and fold_character(self.text[last])[1] == DROPPED:
            last += 1
        return first, last

    def words(self) -> tuple[int, int] | None:
        """Return where the first word starts and the last one ends; None if there is none."""
        places = np.flatnonzero(self.kinds != SIGN)
        return (int(places[0]), int(places[-1]) + 1) if len(places) else None


@lru_cache(maxsize=2**16)
def fold_character(character: str) -> tuple[str, int]:
    """Return what a character becomes, and its kind."""
    if character.isspace():
        return "", BLANK
    # Taken apart, and not put together again: BERT's tokenizers leave Korean so.
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    seen = (c for c in apart if unicodedata.category(c) not in UNSEEN and not c.isspace())
    form = "".join(seen).translate(ALIKE)
    if not form:
        return "", DROPPED
    first = form[0]
    if first.isalpha() or unicodedata.category(first) == "Mc":
        no_blanks = any(low <= ord(first) <= high for low, high in NO_BLANKS)
        return form, IDEOGRAPH if no_blanks else LETTER
    return form, DIGIT if first.isnumeric() else SIGN


@dataclass(frozen=True, slots=True)
class _Table:
    """Of each code: how many characters it becomes, where they begin in ``form``, and its kind."""

    counts: NDArray[np.uint8]
    firsts: Places
    kinds: NDArray[np.uint8]
    form: Codes

    @classmethod
    def of(cls, codes: Places | range, size: int) -> "_Table":
        counts, kinds = np.zeros((2, size), np.uint8)
        firsts, form = np.zeros(size, np.intp), ""
        for code in map(int, codes):
            becomes, kinds[code] = fold_character(chr(code))
            counts[code], firsts[code] = len(becomes), len(form)
            form += becomes
        return cls(counts, firsts, kinds, _codes_of(form))


def _codes_of(text: str) -> Codes:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


_ASCII_TABLE = _Table.of(range(ASCII), ASCII)


def make_form(text: str) -> TextForm:
    """Return the form of a text, in time proportional to its length."""
    codes = _codes_of(text).astype(np.intp)  # as numpy wants indices
    size = int(codes.max(initial=0)) + 1
    table = _ASCII_TABLE
    if size > ASCII:
        there = np.zeros(size, np.bool_)
        there[codes] = True
        table = _Table.of(np.flatnonzero(there), size)
    counts = table.counts[codes]
    at = np.flatnonzero(counts.astype(np.bool_))
    borders = np.ones(len(at) + 1, np.bool_)
    forms = table.firsts[codes[at]]
    if counts.max(initial=0) > 1:  # some become several characters
        repeats = counts[at].astype(np.intp)
        begins = np.cumsum(repeats) - repeats
        at, forms = np.repeat(at, repeats), np.repeat(forms, repeats)
        within = np.arange(len(at)) - np.repeat(begins, repeats)
        forms += within
        borders = np.append(within == 0, True)
    form, kinds = table.form[forms], table.kinds[codes[at]]
    blanks = np.cumsum(table.kinds[codes] == BLANK, dtype=np.int32)[at]
    apart = blanks[1:] != blanks[:-1]
    in_word = (kinds == LETTER) | (kinds == DIGIT)
    joined = in_word[1:] & in_word[:-1]
    borders[1:-1] &= ~joined | apart
    form[1:][joined & apart & (kinds[1:] == kinds[:-1])] |= GAP
    return TextForm(form, kinds, at, borders, text)


def extend_form(form: TextForm, text: str) -> TextForm:
    """Return the form of a text that goes on; what it had is copied, and not looked at again."""
    if not len(form.at):
        return make_form(form.text + text)
    # From the last character on: what lies between it and the next says whether they are joined.
    last = int(form.at[-1])
    more = make_form(form.text[last:] + text)
    new = int(np.searchsorted(more.at, 0, side="right"))
    return TextForm(
        np.concatenate([form.codes, more.codes[new:]]),
        np.concatenate([form.kinds, more.kinds[new:]]),
        np.concatenate([form.at, more.at[new:] + last]),
        np.concatenate([form.borders[:-1], more.borders[new:]]),
        form.text + text,
    )
