"""What a filter may say, and which documents it chooses."""

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.index.plain_filters import IDS, filters, holds, metadata

from condensery.errors import InputError, PayloadTooLarge
from condensery.index import fields
from condensery.index.filters import (
    MAX_CONDITIONS,
    MAX_DEPTH,
    MAX_VALUES,
    Filter,
    HasId,
    Match,
    Range,
    read_filter,
)


def choose(documents: list[Any], asked: Any) -> set[str]:
    """The ids that SQLite chooses of documents with this metadata."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE documents (row INTEGER PRIMARY KEY, id TEXT, metadata TEXT)")
    rows = [(n, IDS[n], json.dumps(document)) for n, document in enumerate(documents)]
    connection.executemany("INSERT INTO documents VALUES (?, ?, ?)", rows)
    fields.create(connection)
    chosen = read_filter(asked)
    if chosen is None:
        return {id_ for _, id_, _ in rows}
    where, values = fields.compile_filter(chosen)
    statement = f"SELECT id FROM (SELECT id, row AS document FROM documents) WHERE {where}"
    ids = {id_ for (id_,) in connection.execute(statement, values)}
    fields.remove(connection, [row for row, _, _ in rows])
    assert connection.execute("SELECT count(*) FROM fields").fetchone() == (0,)
    connection.close()
    return ids


@settings(max_examples=400, deadline=None)
@example([{"a": True}, {"a": 1}, {"a": "1"}], {"must": {"key": "a", "match": {"value": 1}}})
@example([{"a": 2**53 + 1}], {"must": {"key": "a", "match": {"value": float(2**53)}}})
@example([{}], {"must_not": {"must": []}})
@example([{}, {"a": None}], {"must_not": {"key": "a", "match": {"except": []}}})
@given(st.lists(metadata, max_size=len(IDS)), filters)
def test_sqlite_chooses_what_plain_python_does(documents: list[Any], asked: Any) -> None:
    expected = {IDS[n] for n, document in enumerate(documents) if holds(asked, IDS[n], document)}
    assert choose(documents, asked) == expected


def test_each_condition_is_read() -> None:
    root = read_filter(
        {
            "must": [
                {"key": "year", "range": {"gte": 1900, "lt": 2000.5, "gt": None}},
                {"must_not": {"key": "a.b[].c", "match": {"except": ["x", 1, True]}}},
            ],
            "should": None,
            "must_not": {"has_id": ["d1"]},
        }
    )
    assert root == Filter(
        must=(
            Range("year", (("gte", 1900), ("lt", 2000.5))),
            Filter(must_not=(Match("a.b[].c", ("x", 1, True), negated=True),)),
        ),
        must_not=(HasId(("d1",)),),
    )


@pytest.mark.parametrize("nothing", [None, {}, {"must": []}, {"must": [], "should": None}])
def test_a_filter_without_a_condition_is_none(nothing: Any) -> None:
    assert read_filter(nothing) is None


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a", "a"),
        ("a[]", "a"),
        ('"a"', "a"),
        ('"a.b".c', '"a.b".c'),
        ('"a b"[].c', "a b[].c"),
        ('""', '""'),
        ('"say ""hi"""', '"say ""hi"""'),
        ("größe.ä", "größe.ä"),
    ],
)
def test_a_path_has_one_form(key: str, path: str) -> None:
    root = read_filter({"must": {"key": key, "match": {"value": 1}}})
    assert root == Filter(must=(Match(path, (1,)),))


def ranged(**bounds: Any) -> Any:
    return {"must": [{"key": "year", "range": bounds}]}


def matched(**how: Any) -> Any:
    return {"should": {"key": "year", "match": how}}


@pytest.mark.parametrize(
    ("asked", "field", "says"),
    [
        (7, "filter", "7 is not an object"),
        ([], "filter", "is not an object"),
        ({"must": "x"}, "filter.must", "'x' is not a list"),
        ({"must": [7]}, "filter.must[0]", "7 is not an object"),
        ({"must": [{}]}, "filter.must[0]", "the condition is empty"),
        ({"must": {"match": None}}, "filter.must", "the condition is empty"),
        ({"all": []}, "filter.all", "unknown field; known here: must, should, must_not"),
        ({"must": [{"is_null": {"key": "a"}}]}, "filter.must[0].is_null", "unknown field; known"),
        ({"must": [{"key": "a"}]}, "filter.must[0]", "give one of match, range; got none"),
        (
            {"must": [{"key": "a", "match": {"value": 1}, "range": {"gt": 1}}]},
            "filter.must[0]",
            "got match and range",
        ),
        ({"must": {"match": {"value": 1}}}, "filter.must.key", "this field is missing"),
        ({"must": {"key": "a", "must": []}}, "filter.must", "got none"),
        (
            {"must": {"key": "a", "match": {"value": 1}, "should": []}},
            "filter.must.should",
            "can't stand beside match",
        ),
        (
            {"must": {"has_id": ["a"], "key": "a"}},
            "filter.must.key",
            "can't stand beside has_id",
        ),
        ({"must": {"key": 7, "match": {"value": 1}}}, "filter.must.key", "7 is no path"),
        ({"must": {"key": "", "match": {"value": 1}}}, "filter.must.key", "'' is no path"),
        ({"must": {"key": "a..b", "match": {"value": 1}}}, "filter.must.key", "is no path"),
        ({"must": {"key": "a[0]", "match": {"value": 1}}}, "filter.must.key", "is no path"),
        ({"must": {"key": "a\ud800", "match": {"value": 1}}}, "filter.must.key", "surrogate"),
        (matched(), "filter.should.match", "give one of value, any, except; got none"),
        (matched(value=1, any=[1]), "filter.should.match", "got value and any"),
        (matched(text="a b"), "filter.should.match.text", "unknown field; known here: value, any"),
        (matched(value=[1]), "filter.should.match.value", "[1] is not a string, a number, true"),
        (matched(value={}), "filter.should.match.value", "{} is not a string"),
        (matched(value="\ud800"), "filter.should.match.value", "surrogate"),
        (matched(value=float("nan")), "filter.should.match.value", "nan is not a finite number"),
        (matched(any="abc"), "filter.should.match.any", "'abc' is not a list"),
        (matched(any=["a", None]), "filter.should.match.any[1]", "None is not a string"),
        (ranged(), "filter.must[0].range", "give at least one of gt, gte, lt, lte"),
        (ranged(gt="1900"), "filter.must[0].range.gt", "'1900' is not a number"),
        (ranged(gt=True), "filter.must[0].range.gt", "True is not a number"),
        (ranged(lt=float("inf")), "filter.must[0].range.lt", "inf is not a finite number"),
        (ranged(ge=1), "filter.must[0].range.ge", "unknown field; known here: gt, gte, lt, lte"),
        ({"must": {"has_id": "d1"}}, "filter.must.has_id", "'d1' is not a list"),
        ({"must": {"has_id": ["d", 7]}}, "filter.must.has_id[1]", "7 is not an id"),
        ({"must": {"has_id": ["\ud800"]}}, "filter.must.has_id[0]", "surrogate"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(asked: Any, field: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_filter(asked)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")
    assert says in caught.value.message


@pytest.mark.parametrize(
    "asked",
    [
        {"x" * 100_000: 1},
        {"must": {"x" * 100_000: 1}},
        matched(**{"x" * 100_000: 1}),
        ranged(**{"x" * 100_000: 1}),
        {"must": {"key": "x" * 100_000 + "[", "match": {"value": 1}}},
        matched(value=["x" * 100_000]),
        ranged(gt="x" * 100_000),
    ],
)
def test_what_is_wrong_is_named_and_not_repeated_at_length(asked: Any) -> None:
    with pytest.raises(InputError) as caught:
        read_filter(asked)
    assert len(caught.value.message) < 500
    assert len(caught.value.field or "") < 200


def test_a_filter_has_the_name_that_its_request_gives_it() -> None:
    with pytest.raises(InputError, match=r"index\.filter\.must\[0\]\.range\.gt: '5'"):
        read_filter(ranged(gt="5"), "index.filter")


def test_filters_have_their_limits() -> None:
    deep: Any = {"must": [{"has_id": []}]}
    for _ in range(MAX_DEPTH - 1):
        deep = {"must": [deep]}
    assert read_filter(deep) is not None
    with pytest.raises(InputError, match=rf"over the limit of {MAX_DEPTH}"):
        read_filter({"must": [deep]})
    most = [{"has_id": ["a"]}] * MAX_CONDITIONS
    assert read_filter({"must": most}) is not None
    with pytest.raises(PayloadTooLarge, match=f"filter.must: {MAX_CONDITIONS + 1} conditions"):
        read_filter({"must": [*most, *most[:1]]})
    with pytest.raises(PayloadTooLarge, match=f"filter: {MAX_CONDITIONS + 1} conditions"):
        read_filter({"must": most, "should": most[:1]})
    nothing = [{"must": []}] * MAX_CONDITIONS  # each is a condition, too
    with pytest.raises(PayloadTooLarge, match=f"filter: {MAX_CONDITIONS + 1} conditions"):
        read_filter({"must": [{"must": nothing}]})
    many = [{"key": "a", "match": {"any": ["a"] * (MAX_VALUES // 2)}}] * 2
    assert read_filter({"must": many}) is not None
    with pytest.raises(PayloadTooLarge, match=f"filter: {MAX_VALUES + 1} values"):
        read_filter({"must": [*many, {"has_id": ["a"]}]})


@pytest.mark.parametrize("group", ["must", "should", "must_not"])
def test_the_largest_filters_are_answered(group: str) -> None:
    wide = [{"key": "a", "match": {"any": ["x"] * 39}}] * MAX_CONDITIONS
    assert choose([{"a": "x"}, {"a": "y"}], {group: wide}) == (
        {"d1"} if group == "must_not" else {"d0"}
    )


def test_the_deepest_expressions_are_answered() -> None:
    """As deep as SQL gets: each list of conditions within the first of another."""
    asked: Any = {"has_id": ["d0"]}
    for _ in range(MAX_DEPTH):
        asked = {"must": [asked, *[{"has_id": ["d0"]}] * (MAX_CONDITIONS // MAX_DEPTH - 1)]}
    assert choose([{}, {}], asked) == {"d0"}


def test_whole_numbers_of_over_64_bits_are_the_nearest_double() -> None:
    documents = [{"a": 2**70}, {"a": -(10**400)}, {"a": 2**64 - 1}]
    assert choose(documents, {"must": {"key": "a", "match": {"value": 2**70 + 1}}}) == {"d0"}
    assert choose(documents, ranged_at("a", lt=-1e308)) == {"d1"}
    assert choose(documents, ranged_at("a", gte=2**64)) == {"d0", "d2"}


def ranged_at(key: str, **bounds: Any) -> Any:
    return {"must": {"key": key, "range": bounds}}


def test_users_values_never_reach_the_statement() -> None:
    evil = "x') OR 1=1; DROP TABLE documents; --"
    asked = {"must": [{"key": evil.replace(".", ""), "match": {"value": evil}}, {"has_id": [evil]}]}
    chosen = read_filter(asked)
    assert chosen is not None
    statement, values = fields.compile_filter(chosen)
    assert "DROP" not in statement
    assert statement.count("?") == len(values) == 3


def test_long_names_and_texts_are_not_kept_with_each_value() -> None:
    """Else 16 KB of metadata could be megabytes in the index."""
    metadata = {"x" * 8000: {f"n{n}": "t" * n for n in range(1000)}}
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE documents (row INTEGER PRIMARY KEY, metadata TEXT)")
    fields.create(connection)
    fields.insert(connection, 1, json.dumps(metadata))
    rows = connection.execute("SELECT path, value FROM fields").fetchall()
    connection.close()
    assert len(rows) == 1000
    assert max(len(path) + len(value) for path, value in rows) < 150
    asked = {"key": f"{'x' * 8000}.n999", "match": {"value": "t" * 999}}
    assert choose([metadata, {}], {"must": asked}) == {"d0"}


names = st.sampled_from(
    [
        "must",
        "should",
        "must_not",
        "key",
        "match",
        "range",
        "has_id",
        "value",
        "any",
        "except",
        "gt",
    ]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | names,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names | st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(anything | st.dictionaries(st.sampled_from(["must", "should", "must_not"]), anything))
def test_whatever_is_asked_is_answered_or_refused_by_name(asked: Any) -> None:
    refused = None
    try:
        read_filter(asked)
    except InputError as error:
        refused = error
    if refused is None:
        assert choose([{"a": 1}, {}], asked) <= {"d0", "d1"}
    else:
        assert refused.field is not None
        assert refused.field.startswith("filter")
        assert refused.message.startswith(refused.field)
