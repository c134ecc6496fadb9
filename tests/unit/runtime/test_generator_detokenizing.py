import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from condensery.runtime.generator import WordPieceDetokenizer

EXAMPLES = {
    "": "",
    "the mill": "the mill",
    "un ##aff ##able man": "unaffable man",
    "african - american": "african-american",
    "1990 – 1995": "1990–1995",
    "the king ' s bread": "the king's bread",
    "o ' brien": "o'brien",
    "don ' t": "don't",
    "the mongols ' army": "the mongols' army",
    "ross ' s book": "ross's book",
    "1 . 5 km": "1.5 km",
    "10 , 000": "10,000",
    "1 , 234 , 567": "1,234,567",
    "53 , 42 ##3": "53,423",
    "february 7 , 2016": "february 7, 2016",
    "in 2016 , 300 men": "in 2016, 300 men",
    "mill , river": "mill, river",
    "11 : 28": "11:28",
    "note : stone": "note: stone",
    "u . s . army": "u.s. army",
    "it ends . the next": "it ends. the next",
    "$ 5 . 2 ##bn": "$5.2bn",
    "50 %": "50%",
    "20 ° c": "20° c",
    "( as here ) and there": "(as here) and there",
    "and / or": "and/or",
    'he said " old mill " . yes': 'he said "old mill". yes',
    'the " a " and " b " , too': 'the "a" and "b", too',
    '( " a " )': '("a")',
    "( etc . ) end": "(etc.) end",
    "what ? no !": "what? no!",
}


def detokenize(pieces: list[str]) -> str:
    detokenizer = WordPieceDetokenizer(pieces.__getitem__)
    return "".join(map(detokenizer.push, range(len(pieces))))


@pytest.mark.parametrize(("pieces", "text"), EXAMPLES.items())
def test_pieces_are_put_together_as_people_write(pieces: str, text: str) -> None:
    assert detokenize(pieces.split()) == text


piece = st.one_of(
    st.sampled_from([*".,;:!?%)]}'’”-–—/°([{$£€#“\"", "##s", "##ed", "s", "mill", "u"]),
    st.from_regex(r"(##)?[a-z0-9]{1,5}", fullmatch=True),
)


@given(pieces=st.lists(piece, max_size=30), cut=st.integers(0, 30))
@example(pieces=['"', "a", '"'], cut=2)
def test_text_already_streamed_is_never_taken_back(pieces: list[str], cut: int) -> None:
    detokenizer = WordPieceDetokenizer(pieces.__getitem__)
    streamed = ""
    for place in range(len(pieces)):
        streamed += detokenizer.push(place)
        assert streamed == detokenize(pieces[: place + 1])
    assert detokenize(pieces).startswith(detokenize(pieces[:cut]))


@given(pieces=st.lists(piece, max_size=30))
def test_only_blanks_are_added_and_never_two(pieces: list[str]) -> None:
    text = detokenize(pieces)
    assert text.replace(" ", "") == "".join(piece.removeprefix("##") for piece in pieces)
    assert "  " not in text
    assert text == text.strip()


@given(words=st.lists(st.from_regex(r"[a-z]{2,8}", fullmatch=True), max_size=10))
def test_plain_words_are_a_blank_apart(words: list[str]) -> None:
    assert detokenize(words) == " ".join(words)
