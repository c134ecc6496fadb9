"""Cut a long text into passages of bounded length, at the ends of sentences where it can.

What a passage is about often stands above it only: a text's heading is found, to be read with each
passage that begins after it.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import takewhile

from condensery.sentences import MOST_CHARACTERS, sentences

Span = tuple[int, int]

# A full stop may be followed by closing quotes or brackets; CJK stops need no space after them.
_SENTENCE_END = re.compile(r"(?:[.!?…][\"'”’»)\]]*\s+|[。！？]\s*)$")
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*$")
_LOOK_BACK = 64
# What a heading stands over: a blank line, or a line drawn under it.
_BELOW_HEADING = re.compile(r"[^\S\n]*\n|([=\-~^*+#\"'])\1{2,}[^\S\n]*\n")
_MARKED = re.compile(r"#{1,6}\s")  # Markdown's needs neither
_NO_HEADING = re.compile(r"[-*+>|]\s|```|~~~|<")  # of a list, a quotation, a table, code, markup
_GOES_ON = (",", "，", ";", "；", ":", "：")
MAX_HEADING_CHARS = 400  # a longer line is a paragraph
_BETWEEN_TOKENS = 2  # at most, for the blank line between a heading and a passage


def find_heading(text: str, offsets: Sequence[Span], most: int) -> int:
    """Return where a text's heading ends, in characters; 0 where it begins without one.

    It is the first line, if it is one sentence at most and stands over a blank line, is underlined,
    or is Markdown's. Of one of more than ``most`` tokens it is the words that fit.

    Args:
        text: The text that was tokenised.
        offsets: As of ``split``.
        most: Tokens; 0 finds none.
    """
    start = len(text) - len(text.lstrip())
    line = text[start : text.find("\n", start) + 1]  # "" where there is no other
    # It is kept with what stands before it, for each passage.
    if start > MAX_HEADING_CHARS or not _is_heading(line.rstrip(), text, start + len(line)):
        return 0
    end = start + len(line.rstrip())
    within = takewhile(lambda token: token[1] <= end, offsets)
    tokens = [token for token in within if token[1] > token[0]]
    count = len(tokens)
    if count > most:
        count = next((at for at in range(most, 0, -1) if _between_words(text, tokens, at)), 0)
        end = tokens[count - 1][1]
    return end if count else 0


def _is_heading(line: str, text: str, end: int) -> bool:
    """Tell whether a text's first line, up to ``end``, is a heading of what follows."""
    return (
        len(line) <= MAX_HEADING_CHARS
        and any(map(str.isalnum, line))
        and not line.endswith(_GOES_ON)
        # what is longer than a sentence may be is cut for that alone
        and len(list(sentences(line[:MOST_CHARACTERS]))) == 1
        and len(list(sentences(line[-MOST_CHARACTERS:]))) == 1
        and not _NO_HEADING.match(line)
        and bool(_MARKED.match(line) or _BELOW_HEADING.match(text, end))
        and bool(text[end:].strip())
    )


def split(
    text: str, offsets: Sequence[Span], size: int, overlap: int, heading: int = 0
) -> list[Span]:
    """Return the character spans of the passages of ``text``.

    A passage ends at the last paragraph break in its last third, else at the last sentence end
    there, else between the last two words that fit, else anywhere. Nothing is lost: each character
    that is not white space lies in a span, those that the tokenizer dropped too.

    Args:
        text: The text that was tokenised.
        offsets: Each token's (start, end) in characters, in order; empty ones are skipped.
        size: Most tokens of a passage, at least 1.
        overlap: Tokens that a passage repeats of the one before it (fewer, where that would start
            it inside a word); under ``size``.
        heading: Where the text's heading ends (``find_heading``, of at most ``heading_room``
            tokens): passages after the first leave room for it.

    Returns:
        Spans in order, (0, 0) alone for a text without characters other than white space.

    Raises:
        ValueError: ``size`` or ``overlap`` out of range.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 token, not {size}")
    if not 0 <= overlap < size:
        raise ValueError(f"overlap must be from 0 to size - 1 = {size - 1} tokens, not {overlap}")
    tokens = [(start, end) for start, end in offsets if end > start]
    if not text.strip():
        return [(0, 0)]
    above = bisect_right(tokens, heading, key=lambda token: token[1])
    later = size - above - _BETWEEN_TOKENS if above else size
    spans: list[Span] = []
    first = stop = 0
    while True:
        stop = _stop(text, tokens, first, stop, later if spans else size)
        start = tokens[first][0] if spans else 0
        # up to the next token, so that characters no token covers go with the passage before them
        end = max(tokens[stop - 1][1], tokens[stop][0]) if stop < len(tokens) else len(text)
        if text[start:end].strip():
            spans.append(_trim(text, start, end))
        if stop >= len(tokens):
            return spans
        first = _restart(text, tokens, first, stop, overlap)


def heading_room(size: int, overlap: int) -> int:
    """Return how many tokens of passages of ``size`` a heading may take: a third.

    Fewer, or none, where a passage would have less than three times what it repeats, or nothing.
    """
    return max(0, min(size // 3, size - max(1, 3 * overlap) - _BETWEEN_TOKENS))


def _stop(text: str, tokens: Sequence[Span], first: int, after: int, size: int) -> int:
    """Return the token before which the passage that starts at token ``first`` ends.

    It comes after ``after``, where the passage before ended, so that none holds another whole.
    """
    last = first + size
    if last >= len(tokens):
        return len(tokens)
    last_third = first + size - size // 3
    sentence = word = None
    for stop in range(last, max(first, after), -1):
        if stop >= last_third:
            before = text[max(0, tokens[stop][0] - _LOOK_BACK) : tokens[stop][0]]
            if _PARAGRAPH_END.search(before):
                return stop
            if sentence is None and _SENTENCE_END.search(before):
                sentence = stop
        elif sentence or word:
            break
        if word is None and _between_words(text, tokens, stop):
            word = stop
    return sentence or word or last


def _restart(text: str, tokens: Sequence[Span], first: int, stop: int, overlap: int) -> int:
    """Return the token that the next passage starts at: a word's first one if there is one."""
    earliest = max(stop - overlap, first + 1)
    for start in range(earliest, stop):
        if _between_words(text, tokens, start):
            return start
    return stop


def _between_words(text: str, tokens: Sequence[Span], at: int) -> bool:
    start = tokens[at][0]
    # byte-level tokenizers give the white space before a word to the word's first token
    return start >= tokens[at - 1][1] and (text[start - 1].isspace() or text[start].isspace())


def _trim(text: str, start: int, end: int) -> Span:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))
