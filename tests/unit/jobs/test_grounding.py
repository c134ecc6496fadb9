"""An answer in the source's words: what is found where, and what a stream shows meanwhile."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from condensery.jobs import text_form
from condensery.jobs.grounding import AnswerWords, Grounded, PassageRead
from condensery.jobs.text_form import GAP, TextForm, extend_form, make_form
from condensery.runtime.generator import WordPieceDetokenizer

# Letters with and without marks, ligatures, scripts without blanks, signs, emoji, what is unseen.
CHARACTERS = "aAbBeEé\u0301ßﬁ½Ⅷİσς東京タ한ग\u093f 019 \n\u00a0-–.,;:'’“\"()/%$#_🍕👨\u200d\u00ad…"
PASSAGES = st.lists(st.text(CHARACTERS, max_size=40), max_size=3)


def ground(
    answer: str | list[str],
    *passages: str | PassageRead,
    question: str = "",
    cut: bool = False,
    stop: tuple[str, ...] = (),
) -> tuple[Grounded, list[str]]:
    """Return the answer, and what is shown with each of its pieces and at its end."""
    read = [each if isinstance(each, PassageRead) else PassageRead(each) for each in passages]
    words = AnswerWords(question, read)
    shown = [words.push(piece) for piece in ([answer] if isinstance(answer, str) else answer)]
    rest, whole = words.end(cut=cut, stop=stop)
    assert "".join([*shown, rest]) == whole.text
    return whole, [*shown, rest]


def text_of(answer: str, *passages: str | PassageRead, **how: object) -> str:
    whole, _ = ground(answer, *passages, **how)  # type: ignore[arg-type]
    return whole.text if whole.grounded else "?"


def spell(text: str) -> str:
    """Return a text as BERT's word pieces are put together again: lower case, without accents."""
    words = BertPreTokenizer().pre_tokenize_str(BertNormalizer().normalize_str(text))
    pieces = [piece for piece, _ in words]
    detokenizer = WordPieceDetokenizer(pieces.__getitem__)
    return "".join(map(detokenizer.push, range(len(pieces))))


def characters(form: TextForm, part: tuple[int, int] | None = None) -> str:
    """Return a form, or a part of it, as text, without the marks of blanks."""
    return "".join(map(chr, (form.codes & ~GAP)[slice(*(part or (0, None)))]))


@pytest.mark.parametrize(
    ("answer", "passage", "wanted"),
    [
        ("lake constance", "It passes through Lake Constance, in the south.", "Lake Constance"),
        ("saint - remy", "the asylum of Saint-Rémy-de-Provence", "Saint-Rémy"),
        ("saint-remy", "the asylum of Saint-Re\u0301my", "Saint-Re\u0301my"),
        ("undici. dispatcher", "pass an undici.Dispatcher to it", "undici.Dispatcher"),
        ("usechat ( )", "Call `useChat()` once.", "useChat()"),
        ("- - answer - with url", "serve --answer-with URL", "--answer-with URL"),
        ("max _ tokens = 64", "set max_tokens=64 there", "max_tokens=64"),
        ("c + +", "written in C++ or C", "C++"),
        ("50 %", "about 50% of it", "50%"),
        ("$ 1. 5 million", "for $1.5 million", "$1.5 million"),
        ("new york", "in New\nYork", "New\nYork"),
        ("“don't”", "they said ‘don’t’ to it", "“don’t”"),
        ("fine", "a ﬁne day", "ﬁne"),
        ("strasse", "in der Straße", "Straße"),
        ("東 京", "日本の東京タワー", "東京"),
        ("3 km", "it is 3km long", "3km"),
        ("%", "the sign % is", "%"),
    ],
)
def test_it_reads_as_it_stands_there(answer: str, passage: str, wanted: str) -> None:
    assert text_of(answer, passage) == wanted


@pytest.mark.parametrize(
    ("answer", "passage"),
    [
        ("nowhere", "now here"),
        ("now here", "nowhere"),
        ("1945", "in 19 45"),
        ("lake", "the snowflakes fall"),
        ("dispatch", "the dispatcher"),
        ("constance lake", "Lake Constance"),
        ("the rhine and the danube", "the Rhine, and also the Danube"),
        ("anything", ""),
        ("", "a passage"),
        (" \n", "a passage"),
    ],
)
def test_what_does_not_stand_there_stays_as_it_was_written(answer: str, passage: str) -> None:
    whole, _ = ground(answer, passage)
    assert whole == Grounded(answer, (None,))


def test_without_a_passage_nothing_is_grounded() -> None:
    assert ground("an answer") == (Grounded("an answer", ()), ["an answer", ""])


@given(st.text(CHARACTERS), st.data())
@example("a ﬁ\u0301…", None)
def test_any_part_of_a_passage_is_found_however_it_is_spelt(source: str, data: object) -> None:
    form = make_form(source)
    borders = np.flatnonzero(form.borders).tolist()
    if data is None or len(borders) < 2:
        return
    start, end = sorted(data.draw(st.lists(st.sampled_from(borders), min_size=2, max_size=2,
                                           unique=True)))  # fmt: skip
    part = source[slice(*form.span(start, end))]
    spelt = spell(part) if data.draw(st.booleans()) else part
    if not len(make_form(spelt).codes):
        return
    whole, _ = ground(spelt, source)
    (span,) = whole.spans
    assert span is not None
    assert 0 <= span[0] < span[1] <= len(source)
    found = source[slice(*span)]
    assert found in whole.text
    wanted = make_form(part)
    whole_form, words = characters(wanted), characters(wanted, wanted.words())
    assert words in characters(make_form(found)) in whole_form, "signs around it may be missing"


@given(st.lists(st.text(CHARACTERS, max_size=4), max_size=6))
@example(["a", " ", "b", "\u0301 ", "ﬁ", "1 2"])
def test_a_form_that_goes_on_is_that_of_the_whole(pieces: list[str]) -> None:
    form = make_form("")
    for piece in pieces:
        form = extend_form(form, piece)
    whole = make_form("".join(pieces))
    assert form.text == whole.text
    for name in ("codes", "kinds", "at", "borders"):
        assert getattr(form, name).tolist() == getattr(whole, name).tolist(), name


def test_no_character_of_a_long_answer_is_looked_at_for_each_of_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passage = " ".join(f"Word{n}" for n in range(500))
    words = AnswerWords("", [PassageRead(passage)])
    seen = []
    monkeypatch.setattr(text_form, "make_form", lambda text: seen.append(text) or make_form(text))
    answer = passage.lower()
    shown = [words.push(answer[at : at + 4]) for at in range(0, len(answer), 4)]
    rest, whole = words.end(cut=False)
    assert "".join([*shown, rest]) == whole.text == passage
    assert sum(map(len, seen)) < 3 * len(answer)


@given(st.data(), PASSAGES, st.booleans())
def test_what_is_shown_joins_to_the_answer(data: st.DataObject, passages: list[str], cut: bool)\
        -> None:  # fmt: skip
    """However it comes, and wherever it stands; ``ground`` asserts it."""
    answer = data.draw(st.text(CHARACTERS, max_size=20))
    if passages and data.draw(st.booleans()):
        passage = data.draw(st.sampled_from(passages))
        places = st.integers(0, len(passage))
        answer = passage[slice(*sorted((data.draw(places), data.draw(places))))] + answer[:3]
        answer = data.draw(st.sampled_from([answer, answer.upper(), answer.lower()]))
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=5))
    edges = [0, *sorted(cuts), len(answer)]
    pieces = [answer[a:b] for a, b in itertools.pairwise(edges)]
    stop = tuple(data.draw(st.lists(st.text(CHARACTERS, min_size=1, max_size=2), max_size=2)))
    whole, _ = ground(pieces, *passages, cut=cut, stop=stop)
    if not whole.grounded and not whole.stopped:
        assert whole.text == answer
    for span, passage in zip(whole.spans, passages, strict=True):
        assert span is None or 0 <= span[0] < span[1] <= len(passage)
    again, _ = ground(answer, *passages, cut=cut)
    if not stop:
        assert again == whole, "pieces make a difference"


# Which of several places


TEN = " ".join(f"In year {year} the mill burnt; THE MILL was built again." for year in range(10))


def test_of_ten_places_the_one_the_pair_points_at_is_taken() -> None:
    start = TEN.index("THE MILL", 200)
    pointed = PassageRead(TEN, (start + 4, start + 8))
    whole, _ = ground("the mill", pointed)
    assert (whole.text, whole.spans) == ("THE MILL", ((start, start + 8),))


def test_without_a_pointer_the_sentence_that_shares_most_with_the_question_is_taken() -> None:
    passage = "A fish swims. It is a FISH that cooks fry. A Fish is in the emblem of Lisbon."
    asked = "Which animal is in the emblem of Lisbon?"
    assert text_of("fish", passage, question=asked) == "Fish"
    assert text_of("fish", passage) == "fish", "of equals the first"


def test_the_best_passage_goes_first_and_each_other_has_its_place_too() -> None:
    whole, _ = ground("lake constance", "no", "at Lake Constance", "LAKE CONSTANCE")
    assert (whole.text, whole.spans) == ("Lake Constance", (None, (3, 17), (0, 14)))


def test_what_was_written_in_capitals_is_not_changed_where_it_stands_so_too() -> None:
    passages = ("THE RHINE, a river", "along the Rhine")
    assert text_of("the Rhine", *passages) == "the Rhine"
    assert text_of("the rhine", *passages) == "THE RHINE"
    assert text_of("The Rhine", *passages) == "THE RHINE", "it stands so nowhere"


def test_punctuation_around_it_may_be_missing_there() -> None:
    whole, _ = ground("“Lake Constance”.", "It is Lake Constance, in the south.")
    assert (whole.text, whole.spans) == ("“Lake Constance”.", ((6, 20),))


def test_the_marks_of_its_last_letter_are_part_of_it() -> None:
    whole, _ = ground("cafe", "the cafe\u0301!")
    assert (whole.text, whole.spans) == ("cafe\u0301", ((4, 9),))


# Streams


def test_a_stream_that_is_written_as_it_stands_there_passes_at_once() -> None:
    pieces = ["The", " Rhine", " passes", " it."]
    _, shown = ground(pieces, "The Rhine passes it.")
    assert shown == [*pieces, ""]


def test_a_stream_in_other_letters_waits_until_it_is_certain() -> None:
    whole, shown = ground(["lake", " constance"], "at Lake Constance")
    assert (whole.text, shown) == ("Lake Constance", ["", "", "Lake Constance"])
    _, shown = ground(["the", " river", " ends", " here"], "The river begins")
    assert shown == ["", "", "the river ends", " here", ""]


def test_where_places_differ_no_more_is_shown_than_they_agree_on() -> None:
    _, shown = ground(["on", " lake", " como"], "on Lake Geneva, on lake Como")
    assert shown == ["on", "", " lake", " Como"]


# Ends


def test_an_answer_that_was_cut_may_end_within_a_word() -> None:
    assert text_of("lake const", "Lake Constance", cut=True) == "Lake Const"
    assert text_of("lake const", "Lake Constance") == "?"
    assert text_of("lake const", "Lake Constance, Lake Const", cut=True) == "Lake Const"


def test_a_stop_string_ends_it_in_the_sources_letters_too() -> None:
    whole, _ = ground("at lake constance", "at Lake Constance", stop=("Const",))
    assert whole == Grounded("at Lake ", ((0, 8),), stopped=True)


@pytest.mark.parametrize(
    "passage",
    [
        "the lake " * 11_000,
        "a" * 100_000,
        "a " * 50_000,
        "東京は" * 33_000,
        "x = y + Größe\n" * 7_000,
        "🍕é" * 50_000,
    ],
    ids=["words", "one word", "letters", "no blanks", "code", "emoji"],
)
def test_the_longest_passages_take_no_time_to_speak_of(passage: str) -> None:
    """Quadratic work would take minutes; by the processor's time, whatever else runs."""
    passages = [passage] * 20
    pieces = [passage[place : place + 3].upper() for place in range(0, 300, 3)]
    began = time.process_time()
    ground(pieces, *passages)
    assert time.process_time() - began < 20
