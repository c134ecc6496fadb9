"""Metadata there and back, and messages as arguments; the tests of the clients send all else."""

import math
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

from condensery import protobuf
from condensery.errors import InputError
from condensery.protobuf import read_struct, write_struct
from condensery.stubs import condensery_v1_pb2 as pb


def nested(levels: int) -> dict[str, Any]:
    result: dict[str, Any] = {"end": 1}
    for _ in range(levels - 1):
        result = {"in": result}
    return result


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"rank": 1, "share": 0.5, "title": "é", "none": None, "yes": True, "no": False},
        {"tags": ["a", 2, [3.5, {"deep": []}]], "empty": {}},
        {"big": 2**53, "small": -(2**53), "zero": 0},
        nested(32),
    ],
    ids=["empty", "scalars", "lists", "whole numbers", "as deep as an index takes"],
)
def test_metadata_comes_back_as_it_was(metadata: dict[str, Any]) -> None:
    sent = Struct.FromString(write_struct(metadata).SerializeToString())
    result = read_struct(sent, "metadata")
    assert result == metadata
    assert {key: type(value) for key, value in result.items()} == {
        key: type(value) for key, value in metadata.items()
    }


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused_by_its_place(number: float) -> None:
    struct = Struct()
    struct["list"] = [1, {"x": number}]
    with pytest.raises(InputError, match=r"documents\[2\]\.metadata\.list\[1\]\.x") as caught:
        read_struct(struct, "documents[2].metadata")
    assert caught.value.field == "documents[2].metadata.list[1].x"


def test_a_value_that_holds_nothing_is_refused_by_its_place() -> None:
    struct = Struct()
    struct.fields["odd"].SetInParent()
    with pytest.raises(InputError, match=r"metadata\.odd"):
        read_struct(struct, "metadata")


def describe(
    services: str, name: str, text: str = "none", *, limit: int | None = 7, with_text: bool = False
) -> tuple[Any, ...]:
    return services, name, text, limit, with_text


def test_a_functions_arguments_are_a_messages_fields_or_else_its_own_defaults() -> None:
    unset = pb.ScrollRequest(index="kb", after="not an argument")
    assert protobuf.call(describe, ("parts", "kb"), unset) == ("parts", "kb", "none", 7, False)
    request = pb.ScrollRequest(limit=3, with_text=True)
    result = protobuf.call(describe, ("parts",), request, name="other", limit=4)
    assert result == ("parts", "other", "none", 4, True)
