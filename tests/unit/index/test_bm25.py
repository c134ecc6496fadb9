"""What an index finds by words, through the store; the scores against BM25's formula."""

import math
import random
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.index.conftest import FINGERPRINT, SETTINGS, assert_agrees, make_vectors

from condensery.errors import InputError
from condensery.index import bm25 as words
from condensery.index.store import IndexStore
from condensery.values import Document, IndexSpec, Passage

K1, B = 1.2, 0.75


def write(store: IndexStore, texts: Mapping[str, str], name: str = "kb") -> None:
    """Write each text as a document of one passage."""
    documents = [Document(identity, text) for identity, text in texts.items()]
    passages = [
        Passage(f"{identity}#0", identity, text, 0, len(text)) for identity, text in texts.items()
    ]
    vectors = make_vectors(len(passages))
    store.upsert(name, documents, passages, vectors, fingerprint=FINGERPRINT)


def find(store: IndexStore, text: str, top_k: int = 10) -> list[str]:
    return [hit.passage.document_id for hit in store.query("kb", text, top_k=top_k)]


def bm25(texts: Mapping[str, str], asked: Iterable[str]) -> dict[str, float]:
    """Robertson's formula, over texts that need no more than a split at blanks."""
    counts = {identity: Counter(text.split()) for identity, text in texts.items()}
    mean = sum(each.total() for each in counts.values()) / len(counts)
    scores: dict[str, float] = {}
    for word in asked:
        having = [identity for identity, each in counts.items() if word in each]
        if 2 * len(having) > len(texts):
            continue
        idf = math.log((len(texts) - len(having) + 0.5) / (len(having) + 0.5))
        idf = max(idf, 1e-6)  # SQLite's, where exactly half have it
        for identity in having:
            often, length = counts[identity][word], counts[identity].total()
            part = often * (K1 + 1) / (often + K1 * (1 - B + B * length / mean))
            scores[identity] = scores.get(identity, 0) + idf * part
    return scores


def assert_formula(store: IndexStore, texts: Mapping[str, str], asked: Sequence[str]) -> None:
    scores = bm25(texts, asked)
    hits = store.query("kb", " ".join(asked), top_k=len(texts))
    assert {hit.passage.document_id for hit in hits} == scores.keys()
    expected = [scores[hit.passage.document_id] for hit in hits]
    assert [hit.score for hit in hits] == pytest.approx(expected, rel=1e-9)
    assert expected == pytest.approx(sorted(expected, reverse=True), rel=1e-9)


def test_scores_and_order_are_bm25s(store: IndexStore, data_dir: Path) -> None:
    draw = random.Random(3)
    vocabulary = [f"w{n}" for n in range(200)]
    weights = [1 / (n + 1) for n in range(200)]

    def text() -> str:
        return " ".join(draw.choices(vocabulary, weights, k=draw.randint(5, 60)))

    texts = {f"d{n}": text() for n in range(300)}
    write(store, texts)
    for _ in range(30):
        assert_formula(store, texts, list(dict.fromkeys(draw.choices(vocabulary, weights, k=8))))
    # the lengths and counts behind the formula follow every replacement and deletion
    changed = {f"d{n}": text() for n in range(0, 300, 3)}
    write(store, changed)
    gone = [f"d{n}" for n in range(1, 300, 3)]
    store.delete("kb", gone)
    left = {
        identity: body for identity, body in {**texts, **changed}.items() if identity not in gone
    }
    for _ in range(30):
        assert_formula(store, left, list(dict.fromkeys(draw.choices(vocabulary, weights, k=8))))
    assert_agrees(store, data_dir)


def test_a_hit_carries_its_passage_as_it_was_written(store: IndexStore) -> None:
    text = "First about rivers. Then about hills."
    document = Document("a", text, {"n": 1})
    passages = [
        Passage("a#0", "a", text[:19], 0, 19, {"n": 1}),
        Passage("a#1", "a", text[20:], 20, len(text), {"part": 2}),
    ]
    store.upsert("kb", [document], passages, make_vectors(2), fingerprint=FINGERPRINT)
    assert [hit.passage for hit in store.query("kb", "hills", top_k=5)] == [passages[1]]
    assert [hit.passage for hit in store.query("kb", "rivers hills", top_k=5)] == passages


def test_what_was_replaced_or_deleted_is_found_no_more(store: IndexStore) -> None:
    write(store, {"a": "an old apple", "b": "a pear", "c": "a plum"})
    write(store, {"a": "a new cherry", "d": "an apple"})
    assert find(store, "old") == []
    assert find(store, "apple") == ["d"]
    assert sorted(find(store, "cherry pear")) == ["a", "b"]
    store.delete("kb", ["d", "b"])
    assert find(store, "apple pear cherry") == ["a"]


def test_of_equal_passages_the_older_comes_first_and_no_more_than_asked(store: IndexStore) -> None:
    write(store, {f"d{n}": "the same words" for n in range(9)})
    write(store, {f"o{n}": "others" for n in range(20)})
    assert find(store, "same", top_k=4) == ["d0", "d1", "d2", "d3"]
    write(store, {"d0": "the same words"})
    assert find(store, "same", top_k=9) == [f"d{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 0)]


def test_case_counts_for_nothing_and_latin_diacritics_do_not_either(store: IndexStore) -> None:
    write(store, {"a": "Crème brûlée im CAFÉ", "b": "Ночь, УЛИЦА", "c": "Ένα παράδειγμα", "d": "x"})
    assert find(store, "creme BRULEE") == find(store, "CAFÉ") == ["a"]
    assert find(store, "cafe\N{COMBINING ACUTE ACCENT}") == ["a"]
    assert find(store, "улица") == ["b"]
    assert find(store, "ΠΑΡΆΔΕΙΓΜΑ") == ["c"]
    assert find(store, "caf") == []  # a whole word or none


def test_hangul_is_found_however_it_is_composed(store: IndexStore, data_dir: Path) -> None:
    composed = "한국 음식"
    apart = unicodedata.normalize("NFD", composed)
    write(store, {"a": composed, "b": f"{apart} 김치", "c": "중국", "d": "x", "e": "y", "f": "z"})
    for asked in (composed, apart, f"{composed} {apart}"):
        assert sorted(find(store, asked)) == ["a", "b"]
    store.delete("kb", ["a"])
    write(store, {"b": "중국"})  # and what was written so goes again
    assert find(store, composed) == find(store, apart) == []
    assert_agrees(store, data_dir)


@pytest.mark.parametrize(
    "asked",
    [
        'apple" OR "pear',
        '"apple',
        "apple*",
        "^apple",
        "-apple",
        "NOT apple",
        "text:apple",
        "{text}: apple",
        "(apple",
        "apple)",
        "NEAR(apple, 3)",
        "apple AND nothing",
        "apple + nothing",
        "apple'; DROP TABLE words; --",
        "apple\0pear2",
        "%apple% ? :1 @x $y",
    ],
)
def test_a_users_text_is_never_read_as_syntax(store: IndexStore, asked: str) -> None:
    write(store, {"a": "an apple", "b": "a plum", "c": "a cherry", "d": "some nuts"})
    assert find(store, asked) == ["a"]


@pytest.mark.parametrize(
    "asked", ["", " \n", '"', "?!.,;:-()[]{}*^'\"", "\0", "…—«»", "unheard of"]
)
def test_a_text_that_shares_no_word_finds_nothing(store: IndexStore, asked: str) -> None:
    assert find(store, asked) == []
    write(store, {"a": "an apple", "b": "…—«»\0"})
    assert find(store, asked) == []


def test_words_that_most_passages_have_count_only_where_there_is_no_other(
    store: IndexStore,
) -> None:
    write(store, {"a": "the apple", "b": "the pear", "c": "the plum", "d": "cherry pear"})
    assert find(store, "the apple") == ["a"]
    assert sorted(find(store, "the pear")) == ["b", "d"]
    assert sorted(find(store, "the")) == ["a", "b", "c"]
    assert find(store, "the unheard") == find(store, "the")


def test_of_a_long_question_the_rarest_words_decide(store: IndexStore) -> None:
    # word n is in n + 1 passages: in d0 to dn
    count = words.MAX_WORDS + 8
    texts = {
        f"d{n}": " ".join(f"w{word}" for word in range(n, count)) or "nothing" for n in range(200)
    }
    write(store, texts)
    asked = [f"w{word}" for word in range(count)]
    random.Random(1).shuffle(asked)
    scores = bm25(texts, asked)
    assert len(scores) == count
    hits = store.query("kb", " ".join(asked), top_k=200)
    rarest = bm25(texts, [f"w{word}" for word in range(words.MAX_WORDS)])
    assert {hit.passage.document_id: hit.score for hit in hits} == pytest.approx(rarest)


def test_only_so_many_different_words_are_read(store: IndexStore) -> None:
    write(store, {"a": "apple", "b": "pear", "c": "plum"})
    many = " ".join(f"x{n} x{n}" for n in range(words.MAX_WORDS_READ - 1))
    assert find(store, f"{many} apple pear") == ["a"]
    assert find(store, f"{many} unheard apple pear") == []


def test_words_survive_being_asked_for_again(store: IndexStore, data_dir: Path) -> None:
    """Any text finds itself, whatever characters it is made of."""
    draw = random.Random(11)
    planes = [(0, 0x250), (0x250, 0x2000), (0x2000, 0xD800), (0xE000, 0x30000), (0, 0x110000)]
    texts: dict[str, str] = {}
    for n in range(120):
        low, high = planes[n % len(planes)]
        points = [draw.randrange(low, high) for _ in range(40)]
        texts[f"d{n}"] = "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
    write(store, texts)
    assert_agrees(store, data_dir)
    reader = store.find("kb")._writer
    for identity, text in texts.items():
        own = words.split(reader, text)
        for word in own:
            assert words.split(reader, word) == [word]
        assert not own or identity in find(store, text, top_k=120)


@pytest.mark.parametrize(
    ("asked", "top_k", "field"),
    [("a", 0, "top_k"), ("a", True, "top_k"), ("a\ud800", 1, "words"), (7, 1, "vector")],
)
def test_what_is_no_text_or_no_number_is_named(
    store: IndexStore, asked: Any, top_k: Any, field: str
) -> None:
    with pytest.raises(InputError) as caught:
        store.query("kb", asked, top_k=top_k)
    assert caught.value.field == field


def test_indexes_do_not_share_their_words(store: IndexStore) -> None:
    store.create("other", IndexSpec(**SETTINGS))
    write(store, {"a": "apple"}, "other")
    assert find(store, "apple") == []


def test_asking_leaves_nothing_behind(store: IndexStore) -> None:
    write(store, {"a": "apple", "b": "pear", "c": "plum"})
    for asked in ("apple", "pear", "apple", "nothing"):
        assert find(store, asked) == {"apple": ["a"], "pear": ["b"]}.get(asked, [])
