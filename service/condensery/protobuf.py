"""Dataclasses as messages of condensery.v1, and back, field by field by their names.

A dataclass's field has REST's name, and mostly the message's field has it too; ``NAMES`` holds
those that differ. None is not set. A field that is not set is read as the dataclass's default, or
as None. One without presence can't tell unset from 0 or empty: that is read as None where the
dataclass allows None, of a request as its default, else as it is.

An object is a ``Struct``, an array little-endian float32 in ``bytes``. What is on hot paths (rows
of vectors, the pieces of a streamed answer) is written and read by hand where it belongs.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from inspect import signature
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct, Value

from condensery.errors import InputError
from condensery.values import Floats
from condensery.wire import without_none

M = TypeVar("M", bound=Message)
T = TypeVar("T")
Converter = Callable[[Any], Any]

# By message: our name -> the message's, where they differ. A dot goes into a nested dataclass, or
# into a nested message.
NAMES: dict[str, dict[str, str]] = {
    "AnswerRequest": {
        "index.name": "index",
        "index.top_k": "top_k",
        "index.mode": "search_mode",
        "index.filter": "filter",
        "rerank.top_n": "top_n",
        "compression.mode": "compression_mode",
        "compression.ratio": "ratio",
        "compression.max_context_vectors": "max_context_vectors",
        "compression.target_ms": "target_ms",
        "compression.timeout_ms": "compress_timeout_ms",
    },
    "AliasesResponse": {"data": "aliases"},
    "CompressResponse": {"usage.prompt_tokens": "tokens"},
    "Compression": {"fallback_docs": "fallback"},
    "EmbedBatchRequest": {"input": "texts", "embed_dtype": "dtype"},
    "GetReportRequest": {"name": "model"},
    "GetReportResponse": {"card": "has_card"},
    "ListIndexesResponse": {"data": "indexes"},
    "ListModelsResponse": {"data": "models"},
    "ListSnapshotsResponse": {"data": "snapshots"},
    "LoadModelRequest": {"name": "model"},
    "ModelInfo": {"id": "name"},
    "QueryResponse": {"results": "hits"},
    "Ranked": {"relevance_score": "score"},
    "RerankRequest": {"documents": "passages", "return_documents": "return_text"},
    "StoredModelsResponse": {"data": "models"},
    "UnloadModelRequest": {"name": "model"},
    "UnloadModelResponse": {"version": "revision.version", "fingerprint": "revision.fingerprint"},
}
# Messages that are a list or a map, so that an empty one differs from none.
WRAPPERS = {"KindOptions": "values", "Logprobs": "tokens"}
# Strings that hold an object as JSON.
JSON_FIELDS = frozenset({"condensery.v1.GetReportResponse.report"})

LITTLE_ENDIAN_FLOAT = np.dtype("<f4")
MAX_DEPTH = 64  # of an object, where nobody says


def write(kind: type[M], value: object, **more: Any) -> M:
    """Return a value as a message.

    Args:
        value: A dataclass, or a mapping by our names. What is None is not set.
        **more: Fields of the message, by its own names, that the value does not hold, or not so.

    Raises:
        ValueError: The message has no such field, or can't hold a value: a number too big, a text
            with lone surrogates.
    """
    return kind(**{**list_fields(kind, value), **more})


def list_fields(kind: type[Message], value: object) -> dict[str, Any]:
    """Return what ``write`` makes a message of: its fields by its own names, those not None.

    Raises:
        ValueError: As for ``write``.
    """
    descriptor: Any = kind.DESCRIPTOR
    if isinstance(value, Mapping):
        return _list_mapping(descriptor, value)
    contents = {}
    source: Any = type(value)
    for name, get, convert in _writing_plan(descriptor, source):
        item = get(value)
        if item is not None:
            contents[name] = item if convert is None else convert(item)
    return contents


def read(kind: type[T], message: Message, **known: Any) -> T:
    """Return a message as a dataclass.

    Args:
        message: Fields that the dataclass lacks are ignored.
        **known: Fields of the dataclass that are not to be read, or not there.

    Raises:
        InputError: An object in it holds what JSON could not.
    """
    values = dict(known)
    target: Any = kind
    for name, get in _reading_plan(message.DESCRIPTOR, target, ""):
        if name not in known:
            value = get(message)
            if value is not MISSING:
                values[name] = value
    return kind(**values)


def call(
    function: Callable[..., T], leading: tuple[object, ...], message: Message, **known: Any
) -> T:
    """Call a function with a message's fields as its arguments, by their names.

    Args:
        function: What the message does not hold has its default.
        message: Fields that the function lacks are ignored.
        **known: Arguments that are not to be read, or not there.

    Raises:
        InputError: An object in it holds what JSON could not.
    """
    for name, get in _argument_plan(message.DESCRIPTOR, function, len(leading)):
        if name not in known:
            value = get(message)
            if value is not MISSING:
                known[name] = value
    return function(*leading, **known)


def read_field(hint: Any, message: Message, our_name: str) -> Any:
    """Return one field of a message as a type has it.

    Args:
        hint: The type: a dataclass, a tuple or list of them, and so on; or None.
    """
    return _single_reader(message.DESCRIPTOR, hint, our_name)(message)


def pack_floats(vectors: Any) -> bytes:
    """Return vectors row by row, little-endian float32."""
    return np.ascontiguousarray(vectors, LITTLE_ENDIAN_FLOAT).tobytes()


def unpack_floats(data: bytes) -> Floats:
    """Return the numbers that ``pack_floats`` gave, (numbers,)."""
    return np.frombuffer(data, LITTLE_ENDIAN_FLOAT).astype(np.float32)


def write_struct(content: Mapping[str, Any]) -> Struct:
    """Return an object as a Struct."""
    struct = Struct()
    struct.update(dict(content))
    return struct


def read_struct(struct: Struct, field: str, levels: int = MAX_DEPTH) -> dict[str, Any]:
    """Return a Struct's object; whole numbers come back as ints, as they do over REST.

    Args:
        struct: It knows one kind of number, the double.
        levels: Objects and lists that may lie within each other, this one counted.

    Raises:
        InputError: A number is not finite, a value is empty or nested too deep; the message names
            its path.
    """
    _check_depth(levels, field)
    return {
        key: _read_struct_value(value, f"{field}.{key}", levels)
        for key, value in struct.fields.items()
    }


def _read_struct_value(value: Value, field: str, levels: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        return _read_number(value.number_value, field)
    if kind == "bool_value":
        return value.bool_value
    if kind == "null_value":
        return None
    if kind == "struct_value":
        return read_struct(value.struct_value, field, levels - 1)
    if kind == "list_value":
        _check_depth(levels - 1, field)
        items = value.list_value.values
        return [
            _read_struct_value(item, f"{field}[{place}]", levels - 1)
            for place, item in enumerate(items)
        ]
    raise InputError.at(field, "the value is empty.")


def _check_depth(levels: int, field: str) -> None:
    if levels < 1:
        raise InputError.at(
            field,
            "it is nested too deep, over the limit of objects and lists within each "
            "other (max_json_depth).",
        )


def _read_number(number: float, field: str) -> int | float:
    if not math.isfinite(number):
        raise InputError.at(field, f"{number} is not a finite number.", number)
    # Over 2^53 not every whole number is a double: it may have been another one.
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number


# Writing: what is done for each field is found once a pair of classes.


class _WriteStep(NamedTuple):
    name: str  # the message's
    get: Converter
    convert: Converter | None


@cache
def _writing_plan(message: Descriptor, kind: type) -> tuple[_WriteStep, ...]:
    """Return a step for each of the message's fields that the dataclass has, as a property too."""
    names = NAMES.get(message.name, {})
    ours = {theirs: our for our, theirs in names.items()}
    steps = []
    for field in message.fields:
        path = ours.get(field.name, field.name)
        renamed = field.name in names and field.name not in ours  # ours of that name goes elsewhere
        if not renamed and hasattr(kind, path.partition(".")[0]):
            steps.append(_WriteStep(field.name, _path_getter(path), _write_converter(field)))
    return tuple(steps)


def _list_mapping(message: Descriptor, values: Mapping[str, Any]) -> dict[str, Any]:
    names = NAMES.get(message.name, {})
    contents = {}
    for our_name, value in values.items():
        if value is not None:
            name = names.get(our_name, our_name)
            field = message.fields_by_name.get(name)
            if field is None:
                raise ValueError(f"{message.name} has no field {name!r}")
            convert = _write_converter(field)
            contents[name] = value if convert is None else convert(value)
    return contents


def _path_getter(path: str) -> Converter:
    """Return what gets a dotted attribute; None where a value on the way is None."""
    first, _, rest = path.partition(".")
    if not rest:
        return attrgetter(path)
    get_first, get_rest = attrgetter(first), _path_getter(rest)

    def get(value: Any) -> Any:
        nested = get_first(value)
        return None if nested is None else get_rest(nested)

    return get


@cache
def _write_converter(field: FieldDescriptor) -> Converter | None:
    """Return what makes a field's value of ours; None where ours is taken as it is."""
    kind = field.message_type
    if kind is None:
        if field.type == field.TYPE_BYTES:
            return lambda value: value if isinstance(value, bytes) else pack_floats(value)
        if field.full_name in JSON_FIELDS:
            return lambda value: json.dumps(value, ensure_ascii=False)
        return None
    if kind.GetOptions().map_entry:
        empty = kind.fields_by_name["value"].default_value
        return lambda items: {k: empty if v is None else v for k, v in items.items()}
    if kind.full_name == Struct.DESCRIPTOR.full_name:
        return write_struct
    write_item = _message_writer(GetMessageClass(kind))
    if _is_repeated(field):
        return lambda items: [write_item(item) for item in items]
    return write_item


def _message_writer(kind: type[Message]) -> Converter:
    wrapped = WRAPPERS.get(kind.DESCRIPTOR.name)
    if wrapped is None:
        return lambda value: value if isinstance(value, Message) else write(kind, value)
    convert = _write_converter(kind.DESCRIPTOR.fields_by_name[wrapped])
    return lambda items: kind(**{wrapped: items if convert is None else convert(items)})


# Reading


class _ReadStep(NamedTuple):
    name: str  # the dataclass's
    get: Callable[[Message], Any]  # MISSING leaves it to the default


@cache
def _reading_plan(message: Descriptor, kind: type, prefix: str) -> tuple[_ReadStep, ...]:
    """Return a step for each of the dataclass's fields that the message has.

    Args:
        prefix: Its path and a dot, where it is nested and its fields are the message's own.
    """
    names = NAMES.get(message.name, {})
    hints = get_type_hints(kind)
    steps = []
    for entry in fields(kind):
        if not entry.init:
            continue
        path, has_default = f"{prefix}{entry.name}", _has_default(entry)
        theirs = names.get(path) or (None if prefix else entry.name)
        get: Callable[[Message], Any] | None = None
        if any(name.startswith(f"{path}.") for name in names):
            get = _nested_reader(message, hints[entry.name], path)
        elif theirs is not None:
            get = _field_reader(message, theirs, hints[entry.name], path, has_default)
        if get is not None:
            steps.append(_ReadStep(entry.name, get))
    return tuple(steps)


@cache
def _argument_plan(
    message: Descriptor, function: Callable[..., Any], leading: int
) -> tuple[_ReadStep, ...]:
    """Return a step for each of the arguments, but the first ones, that the message has."""
    names, hints, steps = NAMES.get(message.name, {}), get_type_hints(function), []
    for name, parameter in islice(signature(function).parameters.items(), leading, None):
        theirs, has_default = names.get(name, name), parameter.default is not parameter.empty
        if (get := _field_reader(message, theirs, hints[name], name, has_default)) is not None:
            steps.append(_ReadStep(name, get))
    return tuple(steps)


@cache
def _single_reader(message: Descriptor, hint: Any, our_name: str) -> Callable[[Message], Any]:
    theirs = NAMES.get(message.name, {}).get(our_name, our_name)
    get = _field_reader(message, theirs, hint, our_name, has_default=False)
    if get is None:
        raise ValueError(f"{message.name} has no field {theirs!r}")
    return get


def _has_default(entry: Any) -> bool:
    return entry.default is not MISSING or entry.default_factory is not MISSING


def _nested_reader(message: Descriptor, hint: Any, path: str) -> Callable[[Message], Any]:
    """Return what reads a nested dataclass out of the message's own fields.

    One that may be None is None where its first field is empty.
    """
    kind, optional = without_none(hint)
    steps = _reading_plan(message, kind, f"{path}.")

    def get(source: Message) -> Any:
        values = {
            name: value
            for name, read_field in steps
            if (value := read_field(source)) is not MISSING
        }
        return None if optional and not values.get(steps[0].name) else kind(**values)

    return get


def _field_reader(
    message: Descriptor, theirs: str, hint: Any, path: str, has_default: bool
) -> Callable[[Message], Any] | None:
    """Return what reads a field of the message, None where it has no such one."""
    outer, _, inner = theirs.partition(".")
    field = message.fields_by_name.get(outer)
    if field is None:
        return None
    if inner:
        nested: Any = field.message_type
        get_inner = _field_reader(nested, inner, hint, path, has_default)
        return None if get_inner is None else lambda source: get_inner(getattr(source, outer))
    kind, optional = without_none(hint)
    get, convert = attrgetter(outer), _read_converter(field, kind, path)
    read_value: Converter = get if convert is None else lambda source: convert(get(source))
    default = MISSING if has_default else None
    if field.has_presence and (optional or has_default):
        return lambda source: read_value(source) if source.HasField(outer) else default
    if not field.has_presence and (optional or (has_default and message.name.endswith("Request"))):
        return lambda source: read_value(source) or default
    return read_value


def _read_converter(field: FieldDescriptor, kind: Any, path: str) -> Converter | None:
    """Return what makes our value of a field's, whose type without None is ``kind``.

    None is where it is taken as it is.
    """
    nested = field.message_type
    if nested is not None and nested.name in WRAPPERS:
        return _field_reader(nested, WRAPPERS[nested.name], kind, path, has_default=False)
    if nested is not None and nested.GetOptions().map_entry:
        return dict
    if _is_repeated(field):
        collect: Converter = list if get_origin(kind) is list else tuple
        if nested is None:
            return collect
        item_kind = get_args(kind)[0]
        return lambda items: collect([read(item_kind, item) for item in items])
    if nested is not None:
        if nested.full_name == Struct.DESCRIPTOR.full_name:
            return lambda value: read_struct(value, path)
        return lambda value: read(kind, value)
    if field.type == field.TYPE_BYTES and get_origin(kind) is np.ndarray:
        return unpack_floats
    return json.loads if field.full_name in JSON_FIELDS else None


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.default_value == [])  # the property of that name is newer than our oldest
