import pytest
from hypothesis import given
from hypothesis import strategies as st

from condensery.sentences import MOST_CHARACTERS, nearest_sentence, sentence_around, sentences

TEXTS = st.text("abC .!?。\n\t-*|#1()”🍕é\u0301", max_size=400)


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    "wanted",
    [
        ["It rains.", "It pours!", "Does it?", "“Yes.”", "Well… no."],
        ["Dr. J. Smith of the U.S. Army came at 3.15 p.m. to St. Moritz.", "He left."],
        ["Use lake.name() there, e.g. for names.", "Then go."],
        ["湖はどこ。", "ここ。"],
        [
            "A heading",
            "# Another",
            "- a list",
            "- of two",
            "1. numbered",
            "| a | table |",
            "> said",
        ],
        ["def lake():", "return 1", "def sea():"],
    ],
    ids=["stops", "abbreviations", "within words", "Japanese", "lines", "code"],
)
def test_a_text_is_cut_into_its_sentences(wanted: list[str]) -> None:
    lines = wanted[0].startswith(("A heading", "def"))
    text = "湖はどこ。ここ。" if "。" in wanted[0] else ("\n  " if lines else " ").join(wanted)
    assert cut(text) == wanted


def test_a_line_that_is_only_wrapped_ends_no_sentence() -> None:
    assert cut("The Rhine passes\nthrough a lake.\n\nIt ends.") == [
        "The Rhine passes\nthrough a lake.",
        "It ends.",
    ]


@given(TEXTS)
def test_no_word_is_lost_and_none_is_too_long(text: str) -> None:
    pieces = cut(text * 3)
    assert "".join("".join(pieces).split()) == "".join((text * 3).split())
    assert all(0 < len(piece) <= MOST_CHARACTERS for piece in pieces)
    assert all(piece == piece.strip() for piece in pieces)


@given(TEXTS, st.data())
def test_the_sentence_around_a_stretch_holds_it(text: str, data: st.DataObject) -> None:
    words = [place for place, character in enumerate(text) if not character.isspace()]
    if not words:
        return
    start = data.draw(st.sampled_from(words))
    end = data.draw(st.sampled_from([place for place in words if place >= start])) + 1
    first, last = sentence_around(text, start, end)
    assert 0 <= first <= start < end <= last <= len(text)
    assert last - first <= max(MOST_CHARACTERS, end - start)


def test_of_a_long_sentence_the_words_around_are_taken_whole() -> None:
    text = "word " * 200 + "lake " + "word " * 200
    start = text.index("lake")
    first, last = sentence_around(text, start, start + 4)
    assert {*text[first:last].split()} == {"word", "lake"}
    assert MOST_CHARACTERS - 20 < last - first <= MOST_CHARACTERS
    assert abs((start - first) - (last - start)) < 20


def test_the_sentence_that_shares_most_with_the_question_is_the_nearest() -> None:
    text = "It is of the sea. The Rhine passes through a lake. It is in the town of mills."
    assert text[slice(*nearest_sentence(text, "What LAKE does it pass through?"))] == (
        "The Rhine passes through a lake."
    )
    assert text[slice(*nearest_sentence(text, "?!"))] == "It is of the sea.", "else the first"
    assert nearest_sentence("", "lake") == (0, 0)


def test_a_heading_is_no_sentence_unless_it_stands_alone() -> None:
    text = "The lake > Which lake is it?\n\nIt is in the Alps. A mill is at the lake."
    start = text.index("It is")
    assert text[slice(*nearest_sentence(text, "Which lake is it?", start))] == (
        "A mill is at the lake."
    )
    alone = text[: start - 2]
    assert nearest_sentence(alone, "mill", len(alone)) == (0, len(alone))


def test_long_rows_of_stops_and_blanks_are_read_once_and_not_from_each_of_them() -> None:
    """By the square of their length these took hours, in which no other thread ran."""
    long = 5 * 10**5
    for text in ("." * long + ")" * long + "x", "a" + "?!…" * long + "b", "a" + " " * long + "\nb"):
        assert "".join("".join(cut(text)).split()) == "".join(text.split())
