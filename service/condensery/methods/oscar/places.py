"""Where an answer stands in its passage."""

import re
from collections.abc import Sequence

WORD = re.compile(r"\w+")
NEAR = 120  # characters to both sides of an answer that are compared with the question


def find_place(text: str, answer: str, question: str) -> int | None:
    """Return where ``answer`` begins in ``text``, upper and lower case alike; None if nowhere.

    Of several places, whole words come before parts of words, and then what has the most words of
    the question near it: the first occurrence of a short answer is often another.
    """
    if not answer.strip():
        return None
    found = [match.start() for match in re.finditer(re.escape(answer), text, re.IGNORECASE)]
    if len(found) < 2:
        return found[0] if found else None
    asked = set(WORD.findall(question.lower()))

    def likeness(start: int) -> tuple[bool, int]:
        end = start + len(answer)
        around = text[max(0, start - 1) : start], text[end : end + 1]
        whole = not any(WORD.match(one) for one in around)
        near = text[max(0, start - NEAR) : start] + " " + text[end : end + NEAR]
        return whole, len(asked & set(WORD.findall(near.lower())))

    return max(found, key=likeness)  # the first of equals


def tokens_at(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Return the first token that touches the characters ``start:end`` and the one after the last.

    The same number twice where none does (the tokenizer drops some characters).
    """
    touching = [i for i, (a, b) in enumerate(offsets) if a < end and b > start and b > a]
    return (touching[0], touching[-1] + 1) if touching else (0, 0)
