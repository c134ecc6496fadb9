"""Every operation there and back: what a client writes a door reads, and the other way."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import orjson
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from condensery import protobuf
from condensery.client import grpc as rpc
from condensery.client import rest
from condensery.client.operations import Operations
from condensery.client.transports import Call, Row, Stream
from condensery.question import Comparison, Compression
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import AliasAction, Document

ROWS: dict[str, Row[Any, Any]] = {
    name: row for name, row in vars(Operations).items() if isinstance(row, Row)
}
# Vectors, a card and a plot are read by hand; events come one by one.
READ_BY_HAND = {"embed", "report_card", "report_plot"}
REPLIES = sorted(
    name
    for name, row in ROWS.items()
    if name not in READ_BY_HAND and not isinstance(row, Stream) and row.result_type is not NoneType
)

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
numbers = st.floats(0.125, 1e6, width=32)
counts = st.integers(1, 2**31)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: counts,
    float: numbers,
    bool: st.just(True),
    Any: json_values,
}


def made(hint: Any, *, whole: bool = False) -> st.SearchStrategy[Any]:
    """Values of a type, none of them 0 or empty; None where it is allowed, unless ``whole``."""
    origin, parts = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        names = [entry.name for entry in fields(hint) if entry.init]
        values = {name: made(hints[name], whole=whole) for name in names}
        if hint is Compression:
            values["flops_plain"] = counts.map(lambda count: 2**32 + count)  # some are saved
        if hint is Comparison:
            values["speedup"] = st.floats(1.125, 1e6, width=32)  # so that it pays
        return st.builds(hint, **values)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (Union, UnionType):
        kinds = [kind for kind in parts if kind is not NoneType]
        some = made(kinds[0], whole=whole)
        return some if whole else st.none() | some
    if origin is np.ndarray:
        return numbers.map(lambda number: np.array([number], np.float32))
    if origin is tuple and parts[1:] != (...,):
        return st.tuples(*(made(part, whole=whole) for part in parts))
    if origin in (tuple, list):
        items = st.lists(made(parts[0], whole=whole), min_size=1, max_size=2)
        return items.map(tuple) if origin is tuple else items
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        return st.dictionaries(texts, made(parts[1]), min_size=1, max_size=2)
    return PLAIN[hint]


def message_kinds(row: Row[Any, Any]) -> tuple[type[Message], type[Message]]:
    """The messages of an operation: its request's, its reply's."""
    service, _, name = row.rpc.partition("/")
    method = pb.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)


def within(row: Row[Any, Any], result: Any) -> Any:
    """A reply that holds a result, as doors write it."""
    if isinstance(row.within, tuple):
        return dict(zip(row.within, result, strict=True))
    return result if row.within is None else {row.within: result}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_comes_back_as_it_was(name: str) -> None:
    row = ROWS[name]

    @settings(max_examples=10, deadline=None)
    @given(made(row.result_type))
    def check(result: Any) -> None:
        # The reply over gRPC does not repeat the name of what was unloaded.
        call: Call[Any] = Call({}, known={"id": result.id} if name == "unload_model" else {})
        reply = within(row, result)
        content = orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)
        assert rest.read_reply(row, call, content) == result
        kind = message_kinds(row)[1]
        message = kind.FromString(protobuf.write(kind, reply).SerializeToString())
        assert rpc.read_reply(row, call, message) == result

    check()


# What no client asks for, or gets by hand.
UNREACHED = {
    "CreateIndexRequest.dims",
    "EmbedBatchRequest.input_type",
    "EmbedBatchRequest.truncate_left",
    "GetReportRequest.with_card",
    "GetReportRequest.with_plots",
    "GetReportResponse.card",
    "GetReportResponse.pictures",
    "ListModelsResponse.refused",
    "QueryRequest.query",  # or a vector
    "RerankRequest.return_text",
    "RerankResponse.model",
    "RerankResponse.query_truncated",
    "RerankResponse.tokens",
    "RerankResponse.truncated",
}


def unset(message: Message) -> set[str]:
    """Fields of a message, and of those in it, that are not set."""
    described = message.DESCRIPTOR
    if described.full_name.startswith("google.protobuf."):
        return set()
    present = {field.name: value for field, value in message.ListFields()}
    missing = {
        f"{described.name}.{field.name}" for field in described.fields if field.name not in present
    }
    for value in present.values():
        items = [value] if isinstance(value, Message) else value
        if not isinstance(items, str | bytes | int | float | Mapping):
            missing.update(*(unset(item) for item in items if isinstance(item, Message)))
    return missing


@pytest.mark.parametrize("name", REPLIES)
def test_every_field_of_a_reply_is_written(name: str) -> None:
    row = ROWS[name]

    @settings(max_examples=1, deadline=None)
    @given(made(row.result_type, whole=True))
    def check(result: Any) -> None:
        assert unset(protobuf.write(message_kinds(row)[1], within(row, result))) <= UNREACHED

    check()


SAMPLES: dict[Any, Any] = {str: "a", int: 3, float: 0.5, bool: True}
ARGUMENTS: dict[str, Any] = {
    "texts": ["a"],
    "passages": ["a"],
    "ids": ["a"],
    "documents": [Document("a", "text", {"year": 1898})],
    "vectors": np.ones((1, 2), np.float32),
    "vector": np.ones(2, np.float32),
    "filter": {"must": []},
    "options": {"m": 8},
    "stop": ["."],
    "dtype": "int8",
    "search": "bm25",
    "mode": "off",
    "aliases": {"a": "b"},
    "actions": [
        AliasAction("create", "a", "b"),
        AliasAction("rename", "a", "b"),
        AliasAction("delete", "a"),
    ],
}
ALL_BUT_ONE = {"query": "text", "delete": None}  # an argument that another one excludes


def all_arguments(name: str) -> dict[str, Any]:
    """An argument for each parameter of an operation, none of them 0 or empty."""
    arguments = {}
    for parameter in [*inspect.signature(getattr(Operations, name)).parameters.values()][1:]:
        if ALL_BUT_ONE.get(name) == parameter.name:
            continue
        kind = parameter.annotation
        kinds = [part for part in get_args(kind) if part is not NoneType] or [kind]
        arguments[parameter.name] = ARGUMENTS.get(parameter.name, SAMPLES.get(kinds[0]))
    return arguments


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_field_of_a_request_is_written(name: str) -> None:
    call = ROWS[name].make(None, **all_arguments(name))
    message = rpc.write_request(ROWS[name], call).message
    oneof = {"AliasAction.create_alias", "AliasAction.rename_alias", "AliasAction.delete_alias"}
    assert unset(message) <= UNREACHED | oneof
    request = rest.write_request(ROWS[name], call)
    assert "{" not in request.path
    if request.content is not None:
        json.loads(request.content)
