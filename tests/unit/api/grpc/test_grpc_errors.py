"""No error is left out of gRPC's table."""

import inspect

import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from condensery import errors
from condensery.api.grpc.errors import CODES, code_of, trailers
from condensery.errors import CondenseryError

EVERY = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, CondenseryError)
]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_of_its_own(kind: type[CondenseryError]) -> None:
    assert kind in CODES


def test_an_error_of_a_class_unknown_to_the_table_takes_its_ancestors_status() -> None:
    class Odd(errors.ModelNotFound):
        pass

    assert code_of(Odd("no such model")) is StatusCode.NOT_FOUND


def test_trailers_name_class_and_field() -> None:
    assert trailers(errors.InputError("x", field="texts[0]")) == (
        ("x-error", "InputError"),
        ("x-field", "texts[0]"),
    )


@pytest.mark.parametrize(
    ("error", "milliseconds"),
    [
        (errors.Overloaded("full", retry_after_seconds=1.5), 1500),
        (errors.Overloaded("full", retry_after_seconds=0.0301), 31),
        (errors.Unavailable("draining"), 1000),
    ],
    ids=["full", "full for a moment", "not ready"],
)
def test_when_to_come_back_is_told_to_grpc_and_to_its_clients(
    error: CondenseryError, milliseconds: int
) -> None:
    told = dict(trailers(error))
    assert told["grpc-retry-pushback-ms"] == str(milliseconds)
    status = Status.FromString(told["grpc-status-details-bin"])
    assert (status.code, status.message) == (code_of(error).value[0], error.message)
    info = RetryInfo()
    (detail,) = status.details
    assert detail.Unpack(info)
    assert info.retry_delay.ToMilliseconds() == milliseconds


def test_a_field_that_no_header_may_hold_is_left_out() -> None:
    assert trailers(errors.InputError("x", field="metadata.é\n")) == (("x-error", "InputError"),)
