import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from condensery.methods.trainer.texts import HeldOutText, read_texts, word_runs

HELD = "one two three four five six seven eight nine ten eleven twelve"


def test_ten_shared_words_are_found_wherever_they_stand() -> None:
    held = HeldOutText([HELD, "another text"])
    assert held.shares(HELD)
    assert held.shares("before it THREE four, five-six (seven) eight nine ten eleven twelve! after")
    assert held.shares("a b c one two three four five six seven eight nine ten d e f")


def test_nine_shared_words_or_ten_in_another_order_are_not() -> None:
    held = HeldOutText([HELD])
    assert not held.shares("x one two three four five six seven eight nine x ten eleven twelve x")
    assert not held.shares("ten nine eight seven six five four three two one zero minus")
    assert not held.shares("something else altogether, of more than ten words, that nobody wrote")


def test_a_short_text_is_one_run() -> None:
    held = HeldOutText(["the old mill"])
    assert held.shares("The old mill.")
    assert not held.shares("the old mill on the river")
    assert len(word_runs("the old mill")) == 1
    assert len(word_runs(HELD)) == 3


def test_rows_of_a_source_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"the {source}", "source": source} for source in ("mill", "river", "town")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_texts([path], without=[("source", "mill"), ("text", "the town")]) == ["the river"]


def test_nothing_held_shares_nothing() -> None:
    assert not HeldOutText([]).shares(HELD)


words = st.lists(st.sampled_from("abcdefgh"), max_size=15)


@given(held=words, before=words, after=words, cut=st.integers(0, 5), size=st.integers(0, 15))
def test_shared_runs_are_what_a_search_for_them_finds(
    held: list[str], before: list[str], after: list[str], cut: int, size: int
) -> None:
    held = [*held, *"abcdefghab"]
    other = [*before, *held[cut : cut + size], *after, *"hgfedcbahg"]
    text = " ".join(other)
    shared = any(" ".join(held[i : i + 10]) in text for i in range(len(held) - 9))
    assert HeldOutText([" ".join(held)]).shares(text) == shared
