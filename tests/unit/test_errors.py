"""Values in messages: as they are while they are short, and never all of a long one."""

import pytest

from condensery.errors import list_some, shorten


class Noted:
    """Says how often it was written."""

    def __init__(self) -> None:
        self.written = 0

    def __repr__(self) -> str:
        self.written += 1
        return "noted"


@pytest.mark.parametrize(
    "value",
    [
        "it's",
        b"\xff",
        "a" * 78,
        "a" * 79,
        ["a" * 74, 1],
        ["a" * 74, 12],
        ["a" * 74, 1, 2],
        [1, 2.5, None, True],
        (),
        (1,),
        ("a", ["b", {"c": "d"}]),
        {},
        {"a": 1, 2: ["b"]},
        {"a" * 100: 1, "b": 2},
        {"a": "b" * 100, "c": 2},
        list(range(1000)),
        [["a"] * 1000] * 1000,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_stands_in_a_message_as_python_writes_it_cut_to_the_limit(value: object) -> None:
    whole = repr(value)
    assert shorten(value) == (whole if len(whole) <= 80 else whole[:79] + "…")


def test_of_a_long_value_no_more_is_written_than_is_shown() -> None:
    noted = Noted()
    for value in (
        [noted] * 1000,
        {"a": [[noted] * 1000] * 1000},
        dict.fromkeys(range(1000), noted),
    ):
        assert len(shorten(value)) == 80
        assert 0 < noted.written < 80
        noted.written = 0
    deep: object = 1
    for _ in range(64):
        deep = [deep, deep]
    assert len(shorten(deep)) == 80


def test_of_many_values_some_are_listed_and_the_others_counted() -> None:
    assert list_some([]) == ""
    assert list_some(["a", 1]) == "'a', 1"
    assert list_some({"b": 1, "a": 2}, most=1) == "'b', and 1 more"
    assert list_some(range(1_000_000)) == "0, 1, 2, 3, 4, 5, 6, 7, and 999992 more"
