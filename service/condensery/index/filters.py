"""Filters: which documents a search, a count, a page or a deletion is about.

The grammar is Qdrant's, as far as its users use it most: ``must``, ``should`` and ``must_not`` over
``match`` (``value``, ``any``, ``except``), ``range`` (``gt``, ``gte``, ``lt``, ``lte``) and
``has_id``, nested as deep as ``MAX_DEPTH``. A condition holds of a document if *one* of the values
at its key does: a list's elements are values, an object's are reached by its names. Where there is
no value, or one of another type (a text under ``range``), nothing holds, ``except`` included; that
is no error, since metadata has no schema.

Source: https://qdrant.tech/documentation/concepts/filtering/
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from condensery.errors import InputError, PayloadTooLarge, shorten, shorten_name

Scalar = str | bool | int | float

MAX_DEPTH = 8
# SQLite takes expressions 1,000 deep, and 32,766 values.
MAX_CONDITIONS = 256
MAX_VALUES = 10_000
# Longer paths are kept as their hash.
MAX_PATH_CHARS = 64

GROUPS = ("must", "should", "must_not")
CONDITIONS = ("match", "range")
MATCHES = ("value", "any", "except")
BOUNDS = ("gt", "gte", "lt", "lte")

# A path: names parted by dots, each as it is or in quotes (a quote within them is doubled), with []
# after a list whose elements are objects.
_PLAIN = r'[^."\[\]]+'
_NAME = rf'(?:{_PLAIN}|"(?:[^"]|"")*")(?:\[\])?'
_PATH = re.compile(rf"{_NAME}(?:\.{_NAME})*")


@dataclass(frozen=True, slots=True)
class Match:
    """A value at ``path`` is among ``values``; or, ``negated``, is another than all of them."""

    path: str
    values: tuple[Scalar, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """A number at ``path`` is within all bounds, pairs of one of ``BOUNDS`` and a number."""

    path: str
    bounds: tuple[tuple[str, int | float], ...]


@dataclass(frozen=True, slots=True)
class HasId:
    """The document's id is among ``ids``."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """All of ``must`` hold, one of ``should`` if there are any, and none of ``must_not``."""

    must: tuple["Condition", ...] = ()
    should: tuple["Condition", ...] = ()
    must_not: tuple["Condition", ...] = ()

    @property
    def conditions(self) -> tuple["Condition", ...]:
        """Those of all three."""
        return (*self.must, *self.should, *self.must_not)

    @property
    def size(self) -> int:
        """How many conditions there are, filters among them, however deep."""
        nested = (condition.size for condition in self.conditions if isinstance(condition, Filter))
        return len(self.conditions) + sum(nested)

    @property
    def leaves(self) -> Iterator[Match | Range | HasId]:
        """Yield the conditions that are no filters, however deep."""
        for condition in self.conditions:
            if isinstance(condition, Filter):
                yield from condition.leaves
            else:
                yield condition


Condition = Match | Range | HasId | Filter


def read_filter(value: object, field: str = "filter") -> Filter | None:
    """Read a filter as requests hold it.

    Args:
        value: An object; None is no filter.
        field: Its name in messages.

    Returns:
        The filter; None where it is empty, and so leaves nothing out.

    Raises:
        InputError: It is none; the message names the place, ``filter.must[0].range.gt``.
        PayloadTooLarge: It is over ``MAX_CONDITIONS`` or ``MAX_VALUES``.
    """
    if value is None:
        return None
    root = _read_group(value, field, MAX_DEPTH)
    _check_most(root.size, MAX_CONDITIONS, field, "conditions")
    values = sum(len(_values_of(leaf)) for leaf in root.leaves)
    _check_most(values, MAX_VALUES, field, "values")
    return root if root.conditions else None


def entries(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Scalar]]:
    """Yield each value that a filter can ask for, with its path, as ``read_filter`` has paths.

    Args:
        metadata: A document's, as JSON. What lies in a list within a list can't be asked for.
    """
    for name, value in metadata.items():
        yield from _entries(_short(_quote(name)), value)


def _entries(path: str, value: Any) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _entries(_join(path, _quote(name)), item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                yield from _entries(_within(path, True), item)
            elif isinstance(item, Scalar):
                yield path, item
    elif value is not None:
        yield path, value


def _join(path: str, name: str) -> str:
    return _short(f"{path}.{name}")


def _short(path: str) -> str:
    """Return a path, or a long one's hash: a long name would else be kept with each value in it."""
    if len(path) <= MAX_PATH_CHARS:
        return path
    return f"#{hashlib.sha256(path.encode()).hexdigest()}"


def _quote(name: str) -> str:
    """Return a name as a path holds it."""
    if re.fullmatch(_PLAIN, name):
        return name
    return '"{}"'.format(name.replace('"', '""'))


def _read_group(node: object, field: str, depth: int) -> Filter:
    names = _object(node, field, GROUPS)
    if depth == 0:
        raise InputError.at(
            field, f"filters within each other, over the limit of {MAX_DEPTH}.", MAX_DEPTH
        )
    groups: dict[str, tuple[Condition, ...]] = {}
    for name, value in names.items():
        at = f"{field}.{name}"
        if isinstance(value, Mapping):  # one condition may stand without a list
            groups[name] = (_read_condition(value, at, depth),)
        else:
            listed = _list(value, at)
            _check_most(len(listed), MAX_CONDITIONS, at, "conditions")
            groups[name] = tuple(
                _read_condition(item, f"{at}[{place}]", depth) for place, item in enumerate(listed)
            )
    return Filter(**groups)


def _read_condition(node: object, field: str, depth: int) -> Condition:
    condition = _object(node, field, (*GROUPS, "has_id", "key", *CONDITIONS))
    if "has_id" in condition:
        _alone(condition, ("has_id",), field)
        return HasId(tuple(_ids(condition["has_id"], f"{field}.has_id")))
    if "key" not in condition and not condition.keys() & set(CONDITIONS):
        if not condition:
            raise InputError.at(field, "the condition is empty.", {})
        return _read_group(condition, field, depth - 1)
    path = _path(condition, field)
    kind = _one_of(condition, CONDITIONS, field)
    _alone(condition, ("key", kind), field)
    if kind == "match":
        return _read_match(path, condition["match"], f"{field}.match")
    return _read_range(path, condition["range"], f"{field}.range")


def _read_match(path: str, node: object, field: str) -> Match:
    match = _object(node, field, MATCHES)
    kind = _one_of(match, MATCHES, field)
    _alone(match, (kind,), field)
    at = f"{field}.{kind}"
    if kind == "value":
        return Match(path, (_scalar(match[kind], at),))
    listed = _list(match[kind], at)
    _check_most(len(listed), MAX_VALUES, at, "values")
    values = tuple(_scalar(item, f"{at}[{place}]") for place, item in enumerate(listed))
    return Match(path, values, negated=kind == "except")


def _read_range(path: str, node: object, field: str) -> Range:
    bounds = _object(node, field, BOUNDS)
    if not bounds:
        raise InputError.at(field, f"give at least one of {', '.join(BOUNDS)}.", {})
    for name, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError.at(
                f"{field}.{name}",
                f"{shorten(value)} is not a number; numbers alone have an order here.",
                value,
            )
        _check_finite(value, f"{field}.{name}")
    return Range(path, tuple(bounds.items()))


def _path(condition: Mapping[str, Any], field: str) -> str:
    at = f"{field}.key"
    if "key" not in condition:
        raise InputError.at(at, "this field is missing.")
    key = condition["key"]
    if not isinstance(key, str) or not _PATH.fullmatch(key):
        raise InputError.at(
            at,
            f"{shorten(key)} is no path in metadata: names parted by dots, in quotes where "
            'one holds a dot, a bracket or a quote ("" in them), with [] after a list of objects.',
            key,
        )
    _check_utf8(key, at)
    # A list's own elements are at its name already; and a name needs no quotes twice.
    first, *others = (_canonical(name) for name in re.findall(_NAME, key.removesuffix("[]")))
    path = _within(_short(first[0]), first[1])
    for name, listed in others:
        path = _within(_join(path, name), listed)
    return path


def _within(path: str, listed: bool) -> str:
    """Return the path of what is within each element of a list, if it is one."""
    return f"{path}[]" if listed else path


def _canonical(name: str) -> tuple[str, bool]:
    """Return a name as ``_quote`` has it, and whether its value is a list to look into."""
    listed = name.endswith("[]") and not name.endswith('"')
    name = name.removesuffix("[]") if listed else name
    return (_quote(name[1:-1].replace('""', '"')) if name.startswith('"') else name), listed


def _ids(node: object, field: str) -> Iterator[str]:
    listed = _list(node, field)
    _check_most(len(listed), MAX_VALUES, field, "ids")
    for place, item in enumerate(listed):
        at = f"{field}[{place}]"
        if not isinstance(item, str):
            raise InputError.at(at, f"{shorten(item)} is not an id, a string.", item)
        _check_utf8(item, at)
        yield item


def _scalar(node: object, field: str) -> Scalar:
    if not isinstance(node, Scalar):
        raise InputError.at(
            field, f"{shorten(node)} is not a string, a number, true or false.", node
        )
    if isinstance(node, str):
        _check_utf8(node, field)
    else:
        _check_finite(node, field)
    return node


def _object(node: object, field: str, known: Sequence[str]) -> dict[str, Any]:
    """Return an object's fields; null is as good as left out."""
    if not isinstance(node, Mapping):
        raise InputError.at(field, f"{shorten(node)} is not an object.", node)
    for name in node:
        if name not in known:
            at = f"{field}.{shorten_name(name)}"
            raise InputError.at(at, f"unknown field; known here: {', '.join(known)}.", node[name])
    return {name: value for name, value in node.items() if value is not None}


def _list(node: object, field: str) -> Sequence[Any]:
    if not isinstance(node, list | tuple):
        raise InputError.at(field, f"{shorten(node)} is not a list.", node)
    return node


def _one_of(node: Mapping[str, Any], names: Sequence[str], field: str) -> str:
    present = [name for name in names if name in node]
    if len(present) != 1:
        got = " and ".join(present) or "none"
        raise InputError.at(field, f"give one of {', '.join(names)}; got {got}.", present)
    return present[0]


def _alone(node: Mapping[str, Any], names: Sequence[str], field: str) -> None:
    for name in node:
        if name not in names:
            raise InputError.at(
                f"{field}.{name}",
                f"can't stand beside {names[-1]}; make it a condition of its own.",
                node[name],
            )


def _values_of(leaf: Match | Range | HasId) -> Sequence[object]:
    if isinstance(leaf, Match):
        return leaf.values
    return leaf.bounds if isinstance(leaf, Range) else leaf.ids


def _check_most(count: int, most: int, field: str, what: str) -> None:
    if count > most:
        raise PayloadTooLarge.at(field, f"{count} {what}, over the limit of {most}.", count)


def _check_finite(value: int | float, field: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError.at(field, f"{value} is not a finite number.", value)


def _check_utf8(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError.at(
            field, f"the character at {error.start} is half of a surrogate pair.", text[error.start]
        ) from error
