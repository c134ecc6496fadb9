"""Sentences of a passage: that which a stretch stands in, that which shares most with a question.

For people to read: a mistake is a sentence that is too short or too long. Where there are none (a
table, code, a page without a full stop), lines or the words around stand for them.
"""

import re
from collections.abc import Iterator

Span = tuple[int, int]

MOST_CHARACTERS = 300
_ABBREVIATIONS = frozenset(
    ["mr", "mrs", "ms", "dr", "prof", "st", "no", "vs", "fig", "eq", "sec", "ch", "vol", "approx",
     "ca", "cf", "jr", "sr", "inc", "ltd", "co", "gen", "col"]
)  # fmt: skip
# A full stop with its closing quotes or brackets; CJK's need no blank. A line ends a sentence where
# the next is empty or indented, or begins as lists, tables, headings and quotations do.
# Many stops in a row are tried from the first alone, and blanks before a line's end from none: from
# each, a long row of either takes time by the square of its length.
_END = re.compile(
    r"(?<![.!?…])(?P<stop>[.!?…]++)[\"'”’»)\]]*+\s+|[。！？]\s*"
    r"|\n(?=[\s\-*•#|>]|\d++[.)]\s)\s*"
)
_WORD = re.compile(r"\w+")
_BLANK = re.compile(r"\s")


def sentences(text: str) -> Iterator[Span]:
    """Yield the spans of a text's sentences, in order; of what is too long, its pieces."""
    start = 0
    for end in (*_ends(text, 0, len(text)), len(text)):
        while end - start > MOST_CHARACTERS:
            cut = _word_before(text, start + MOST_CHARACTERS, start + 1)
            yield _trim(text, start, cut)
            start = cut
        if text[start:end].strip():
            yield _trim(text, start, end)
        start = end


def sentence_around(text: str, start: int, end: int) -> Span:
    """Return the span of the sentence that a stretch stands in; all of it, if in several.

    At most ``MOST_CHARACTERS``, or what the stretch has: of a longer one the words around it.
    """
    low, high = max(0, start - MOST_CHARACTERS), min(len(text), end + MOST_CHARACTERS)
    ends = list(_ends(text, low, high))
    first = max((place for place in ends if place <= start), default=low)
    last = min((place for place in ends if place >= end), default=high)
    if last - first > MOST_CHARACTERS:
        around = max(0, MOST_CHARACTERS - (end - start)) // 2
        if first < start - around:
            first = _next_word(text, start - around, start)
        if last > end + around:
            last = _word_before(text, end + around, end)
    return _trim(text, first, last)


def nearest_sentence(text: str, question: str, start: int = 0) -> Span:
    """Return the span of the sentence that shares most with a question; else the first.

    Args:
        start: Where the text begins after its headings, which are shown only where they are all.
    """
    words = words_of(question)
    spans = list(sentences(text)) or [(0, len(text))]
    spans = [span for span in spans if span[0] >= start] or spans
    return max(spans, key=lambda span: shared_letters(text[slice(*span)], words))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, without case."""
    return frozenset(_WORD.findall(text.casefold()))


def shared_letters(text: str, words: frozenset[str]) -> int:
    """Count the letters of the words that a text shares: long ones say more than short ones."""
    return sum(map(len, words & words_of(text)))


def _ends(text: str, low: int, high: int) -> Iterator[int]:
    """Yield where sentences end, blanks behind them included, between two places."""
    for match in _END.finditer(text[low:high]):
        end = low + match.end()
        if match["stop"] and _goes_on(text, low + match.start(), end):
            continue
        yield end


def _goes_on(text: str, stop: int, end: int) -> bool:
    """Whether a stop ends no sentence: after an initial or an abbreviation, or within one."""
    word = re.split(r"\W", text[max(0, stop - 8) : stop])[-1]
    initial = len(word) == 1 and word.isalpha()
    return initial or word.casefold() in _ABBREVIATIONS or text[end : end + 1].islower()


def _next_word(text: str, place: int, limit: int) -> int:
    """Return where the next word begins, if ``place`` is within one."""
    if place == 0 or text[place - 1].isspace():
        return place
    blank = _BLANK.search(text, place, limit)
    return blank.start() if blank else place


def _word_before(text: str, place: int, limit: int) -> int:
    """Return where the word before ends, if ``place`` is within one."""
    if place == len(text) or text[place].isspace() or text[place - 1].isspace():
        return place
    for at in range(place - 1, limit - 1, -1):
        if text[at].isspace():
            return at
    return place


def _trim(text: str, start: int, end: int) -> Span:
    piece = text[start:end]
    trimmed = piece.strip()
    start += len(piece) - len(piece.lstrip())
    return start, start + len(trimmed)
