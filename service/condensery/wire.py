"""JSON as dataclasses, by their fields' names, as clients read a server's replies.

What a newer server adds is no error: fields that a dataclass lacks are ignored, fields that the
reply lacks have the dataclass's default, and a word that a ``Literal`` does not hold is taken.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

T = TypeVar("T")
Converter = Callable[[Any], Any]

# OpenAI's value for minus infinity, which JSON lacks.
LEAST_LOGPROB = -9999.0


def read(hint: Any, content: Any) -> Any:
    """Return parsed JSON as a value of a type: a dataclass, or lists, tuples and maps of them.

    Raises:
        TypeError: It lacks a field that has no default, or is of another shape.
        ValueError: It is of another shape.
    """
    convert = _reader(hint)
    return content if convert is None else convert(content)


def write(value: Any) -> Any:
    """Return what ``json.dumps`` does not know (its ``default``) as what it does.

    A dataclass is an object without the fields that are None, so that the server's defaults hold.
    """
    if is_dataclass(value):
        names = (entry.name for entry in fields(value) if entry.init)
        items = ((name, getattr(value, name)) for name in names)
        return {name: item for name, item in items if item is not None}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value)


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return ``X`` of ``X | None``, and whether it was that."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return (kinds[0] if len(kinds) == 1 else hint), len(kinds) < len(get_args(hint))


@cache
def _reader(hint: Any) -> Converter | None:
    """Return what reads a type, compiled once; None for what is taken as it is."""
    origin, parts = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _dataclass_reader(hint)
    kind, optional = without_none(hint)
    if optional and kind is not hint:
        convert = _reader(kind)
        return None if convert is None else _optional_reader(convert)
    if origin is np.ndarray:
        return lambda content: np.array(content, np.float32)
    if origin is tuple and parts[1:] == (...,):
        return _list_reader(tuple, parts[0])
    return _list_reader(list, parts[0]) if origin is list else None


def _optional_reader(convert: Converter) -> Converter:
    return lambda content: None if content is None else convert(content)


def _list_reader(collect: type, item: Any) -> Converter:
    convert = _reader(item)
    return collect if convert is None else lambda content: collect(map(convert, content))


def _dataclass_reader(kind: Any) -> Converter:
    hints = get_type_hints(kind)
    readers = {entry.name: _reader(hints[entry.name]) for entry in fields(kind) if entry.init}
    if "logprob" in readers:
        readers["logprob"] = _read_logprob

    def convert(content: Any) -> Any:
        values = {}
        for name, read_field in readers.items():
            if name in content:
                value = content[name]
                values[name] = value if read_field is None else read_field(value)
        return kind(**values)

    return convert


def _read_logprob(content: float) -> float:
    return content if content > LEAST_LOGPROB else -math.inf
