"""Filters as plain Python reads them, and documents to try them on: what SQL is compared with."""

from typing import Any

from hypothesis import strategies as st

# Paths in metadata, and the steps that they stand for; None is each element of a list of objects.
LONG = "k" * 70
PATHS: dict[str, list[str | None]] = {
    "a": ["a"],
    "b": ["b"],
    "b[]": ["b"],
    "n.x": ["n", "x"],
    "n.y": ["n", "y"],
    "l[].x": ["l", None, "x"],
    "l": ["l"],
    '"d.t"': ["d.t"],
    '"q""q"': ['q"q'],
    '""': [""],
    'n.""': ["n", ""],
    "nobody": ["nobody"],
    LONG: [LONG],
    f"{LONG}.x": [LONG, "x"],
    f"n.{LONG}[].x": ["n", LONG, None, "x"],
}
IDS = [f"d{n}" for n in range(8)]

EDGES = [0, 1, -1, 1.0, -0.0, 0.5, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63), 1e308]
numbers = st.sampled_from(EDGES) | st.integers(-3, 3) | st.floats(-3, 3)
texts = st.sampled_from(["", "a", "A", "1", "true", "x" * 64, "x" * 65, "x" * 66, "é\0", "a%_'"])
scalars = st.booleans() | numbers | texts
values = scalars | st.none()
deep = st.lists(st.dictionaries(st.just("x"), values), max_size=2)
inner = st.dictionaries(
    st.sampled_from(["x", "y", "", LONG]), values | st.lists(values, max_size=2) | deep
)
fields = st.one_of(
    values, st.lists(values | inner | st.lists(values, max_size=2), max_size=3), inner
)
metadata = st.dictionaries(st.sampled_from(["a", "b", "n", "l", "d.t", 'q"q', "", LONG]), fields)

matches = st.one_of(
    st.fixed_dictionaries({"value": scalars}),
    st.fixed_dictionaries({"any": st.lists(scalars, max_size=3)}),
    st.fixed_dictionaries({"except": st.lists(scalars, max_size=3)}),
)
ranges = st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), numbers, min_size=1)
keys = st.sampled_from(sorted(PATHS))
leaves = st.one_of(
    st.fixed_dictionaries({"key": keys, "match": matches}),
    st.fixed_dictionaries({"key": keys, "range": ranges}),
    st.fixed_dictionaries({"has_id": st.lists(st.sampled_from([*IDS, "nobody"]), max_size=4)}),
)


def groups(conditions: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(conditions, max_size=3) | conditions
    return st.dictionaries(st.sampled_from(["must", "should", "must_not"]), some, min_size=1)


filters = groups(st.recursive(leaves, groups, max_leaves=6))


def holds(condition: Any, document: str, metadata: Any) -> bool:
    """Whether a document is chosen."""
    if "has_id" in condition:
        return document in condition["has_id"]
    if "key" in condition:
        return any(fits(value, condition) for value in values_at(metadata, PATHS[condition["key"]]))
    group = {
        name: [
            holds(part, document, metadata) for part in ([some] if isinstance(some, dict) else some)
        ]
        for name, some in condition.items()
    }
    should = group.get("should")
    return (
        all(group.get("must", []))
        and (not should or any(should))
        and not any(group.get("must_not", []))
    )


def values_at(value: Any, steps: list[str | None]) -> list[Any]:
    """The values that a path leads to: scalars, a list's own among them."""
    if not steps:
        values = value if isinstance(value, list) else [value]
        return [
            element
            for element in values
            if element is not None and not isinstance(element, dict | list)
        ]
    step, *rest = steps
    if step is None:
        elements = value if isinstance(value, list) else []
        return [
            value_within
            for element in elements
            if isinstance(element, dict)
            for value_within in values_at(element, rest)
        ]
    if not isinstance(value, dict) or step not in value:
        return []
    return values_at(value[step], rest)


def fits(value: Any, condition: Any) -> bool:
    """Whether one value meets a match or a range."""
    if "match" in condition:
        ((kind, wanted),) = condition["match"].items()
        if kind == "value":
            return same(value, wanted)
        return any(same(value, accepted) for accepted in wanted) == (kind == "any")
    if isinstance(value, bool | str):
        return False
    tests = {
        "gt": lambda bound: value > bound,
        "gte": lambda bound: value >= bound,
        "lt": lambda bound: value < bound,
        "lte": lambda bound: value <= bound,
    }
    return all(tests[name](bound) for name, bound in condition["range"].items())


def same(value: Any, other: Any) -> bool:
    """Equal, where true is not 1 and "1" is not either."""
    kinds = [
        bool if isinstance(it, bool) else str if isinstance(it, str) else float
        for it in (value, other)
    ]
    return kinds[0] == kinds[1] and bool(value == other)
