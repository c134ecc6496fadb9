import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from condensery.index.splitting import (
    MAX_HEADING_CHARS,
    Span,
    find_heading,
    heading_room,
    split,
)


def words(text: str) -> list[Span]:
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def pieces(text: str, size: int, overlap: int = 0) -> list[str]:
    return [text[start:end] for start, end in split(text, words(text), size, overlap)]


@st.composite
def tokenised(draw: st.DrawFn) -> tuple[str, list[Span]]:
    """Any text, with ordered tokens that may leave characters out, share them, or be empty."""
    text = draw(st.text(alphabet="ab .!?\n\t。é\u200b", max_size=120))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=60)))
    spans = list(itertools.pairwise(cuts))
    keep = draw(st.lists(st.integers(0, 3), min_size=len(spans), max_size=len(spans)))
    # 0 leaves a token out, 2 and 3 repeat it, as byte-level tokenizers do with one character
    return text, [span for span, times in zip(spans, keep, strict=True) for _ in range(times)]


@given(tokenised(), st.integers(1, 12), st.integers(0, 11))
def test_no_character_is_lost_and_spans_are_in_order(
    case: tuple[str, list[Span]], size: int, overlap: int
) -> None:
    text, offsets = case
    spans = split(text, offsets, size, min(overlap, size - 1))
    covered = {at for start, end in spans for at in range(start, end)}
    assert [at for at, char in enumerate(text) if not char.isspace() and at not in covered] == []
    assert spans == sorted(spans)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    if text.strip():
        assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    else:
        assert spans == [(0, 0)]


@given(st.text(alphabet="ab .!?\n,。", max_size=300), st.integers(1, 12), st.integers(0, 11))
def test_no_passage_is_over_size_or_inside_another(text: str, size: int, overlap: int) -> None:
    tokens = words(text)
    spans = split(text, tokens, size, min(overlap, size - 1))
    for start, end in spans:
        assert sum(start <= first and last <= end for first, last in tokens) <= size
    for before, after in itertools.pairwise(spans):
        assert before[0] < after[0]
        assert before[1] < after[1]
        shared = [token for token in tokens if after[0] <= token[0] and token[1] <= before[1]]
        assert len(shared) <= overlap


def test_a_short_text_is_one_passage() -> None:
    assert pieces("  One short text.  ", 100) == ["One short text."]


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_an_empty_text_gives_one_empty_span(text: str) -> None:
    assert split(text, [], 8, 2) == [(0, 0)]


def test_a_passage_ends_at_the_last_sentence_end_in_its_last_third() -> None:
    text = "One two three four five six. Seven eight nine ten eleven twelve. Thirteen, fourteen."
    assert pieces(text, 9) == [
        "One two three four five six.",
        "Seven eight nine ten eleven twelve.",
        "Thirteen, fourteen.",
    ]


def test_a_sentence_end_before_the_last_third_does_not_count() -> None:
    text = "One two. Three four five six seven eight nine ten eleven twelve."
    assert pieces(text, 9)[0] == "One two. Three four five six seven eight"


def test_a_paragraph_break_goes_before_a_later_sentence_end() -> None:
    text = "One two three four five six\n\nSeven. Eight nine ten eleven twelve"
    assert pieces(text, 9)[0] == "One two three four five six"


def test_a_number_with_a_point_is_not_a_sentence_end() -> None:
    text = "One two three four pi is 3.14 and more words come after it here"
    assert pieces(text, 10)[0] == "One two three four pi is 3.14 and"


def test_words_are_not_cut_where_tokens_are_parts_of_words() -> None:
    text = "unbelievable internationalisation notwithstanding everything"
    tokens = [match.span() for match in re.finditer(r"\w{1,5}", text)]
    spans = split(text, tokens, 5, 2)
    assert all(text[start:end].split() <= text.split() for start, end in spans)
    words = {word for start, end in spans for word in text[start:end].split()}
    assert words == set(text.split())


def test_the_next_passage_repeats_overlap_tokens() -> None:
    text = " ".join(f"w{n}" for n in range(10))
    assert pieces(text, 4, overlap=1) == ["w0 w1 w2 w3", "w3 w4 w5 w6", "w6 w7 w8 w9"]


def test_a_word_longer_than_a_passage_is_cut() -> None:
    text = "x" * 20
    assert split(text, [(n, n + 1) for n in range(20)], 8, 0) == [(0, 8), (8, 16), (16, 20)]


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (4, 4), (4, -1)])
def test_sizes_that_cannot_be_are_refused(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        split("a b", [(0, 1), (2, 3)], size, overlap)


def heading_of(text: str, most: int = 10) -> str:
    return text[: find_heading(text, words(text), most)]


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        ("Guide > Install\n\nRun it.", "Guide > Install"),
        ("\n  Guide  \r\n\r\nRun it.", "\n  Guide"),
        ("# Guide\nRun it.", "# Guide"),
        ("Guide\n=====\nRun it.", "Guide"),
        ("How is it run?\n\nBy hand.", "How is it run?"),
        ("f(x, side='right')\n\nPads.", "f(x, side='right')"),
        ("The wheel is of oak.\n\nIt turns.", "The wheel is of oak."),  # as titles of papers end
        ("The wheel is of oak. It turns.\n\nSo it does.", ""),
        ("What follows:\n\nIt turns.", ""),
        ("Dear all,\n\nit turns.", ""),
        ("Guide\nRun it.", ""),
        ("- one\n\n- two", ""),
        ("```\n\ncode", ""),
        ("***\n\nRun it.", ""),
        ("Guide\n\n \n", ""),
        ("Guide", ""),
        ("", ""),
        ("w" * (MAX_HEADING_CHARS + 1) + "\n\nRun it.", ""),
        (
            "one two three four five six seven eight nine ten eleven\n\nRun it.",
            "one two three four five six seven eight nine ten",
        ),
        ("。\n\nRun it.", ""),
        ("<p>\n\nRun it.", ""),
        (" " * MAX_HEADING_CHARS + "Guide\n\nRun it.", " " * MAX_HEADING_CHARS + "Guide"),
        (" " * (MAX_HEADING_CHARS + 1) + "Guide\n\nRun it.", ""),
        (f"{'w ' * 160}. It turns.\n\nRun it.", ""),
    ],
)
def test_a_heading_is_a_first_line_of_one_sentence_that_stands_over_something(
    text: str, heading: str
) -> None:
    assert heading_of(text) == heading


def test_a_heading_of_one_word_that_is_too_long_is_none() -> None:
    text = "unbelievable\n\nRun it."
    tokens = [match.span() for match in re.finditer(r"\w{1,2}|[^\w\s]", text)]
    assert find_heading(text, tokens, 3) == 0
    assert find_heading(text, tokens, 6) == len("unbelievable")
    assert find_heading(text, tokens, 0) == 0


def test_every_small_passage_has_room_beside_a_heading() -> None:
    text = "Title of\n\none two three four five six"
    tokens = words(text)
    for size in range(1, 16):
        for overlap in range(size):
            heading = find_heading(text, tokens, heading_room(size, overlap))
            above = sum(end <= heading for _, end in tokens)
            # the heading, a blank line and something: else no passage would ever end
            assert not above or size - above - 2 >= max(1, 3 * overlap), (size, overlap)
            assert split(text, tokens, size, overlap, heading)[-1][1] == len(text)


@given(st.text(alphabet="ab .#?\n,。", max_size=300), st.integers(1, 30), st.integers(0, 29))
def test_passages_after_the_first_fit_with_the_heading(text: str, size: int, overlap: int) -> None:
    text, overlap = f"a b c\n\n{text}", min(overlap, size - 1)
    tokens, room = words(text), heading_room(size, overlap)
    heading = find_heading(text, tokens, room)
    spans = split(text, tokens, size, overlap, heading)
    above = sum(end <= heading for _, end in tokens)
    assert above <= room <= size // 3
    assert not above or size - above - 2 >= max(1, 3 * overlap)
    for start, end in spans[1:]:
        assert sum(start <= first and last <= end for first, last in tokens) + above <= size
    covered = {at for start, end in spans for at in range(start, end)}
    assert [at for at, char in enumerate(text) if not char.isspace() and at not in covered] == []
    if not heading:
        assert spans == split(text, tokens, size, overlap)
