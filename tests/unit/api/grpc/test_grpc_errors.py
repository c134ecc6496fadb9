"""Errors over gRPC: each has a code, the one that says what its REST status says."""

import inspect

import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from condensery import errors
from condensery.api.grpc.errors import CODES, code_of, trailers
from condensery.api.rest.errors import render
from condensery.errors import CondenseryError

EVERY = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, CondenseryError)
]


# REST's statuses, and the codes that say the same.
SAME = {
    400: {StatusCode.INVALID_ARGUMENT},
    401: {StatusCode.UNAUTHENTICATED},
    403: {StatusCode.PERMISSION_DENIED},
    404: {StatusCode.NOT_FOUND},
    408: {StatusCode.DEADLINE_EXCEEDED},
    409: {StatusCode.FAILED_PRECONDITION, StatusCode.ALREADY_EXISTS},
    410: {StatusCode.NOT_FOUND},
    413: {StatusCode.INVALID_ARGUMENT},
    424: {StatusCode.INTERNAL},
    429: {StatusCode.RESOURCE_EXHAUSTED},
    431: {StatusCode.INVALID_ARGUMENT},
    500: {StatusCode.INTERNAL},
    503: {StatusCode.UNAVAILABLE},
    504: {StatusCode.DEADLINE_EXCEEDED},
    507: {StatusCode.INTERNAL},
}


def test_every_error_has_the_code_that_says_what_its_rest_status_says(
    subtests: pytest.Subtests,
) -> None:
    for kind in EVERY:
        with subtests.test(kind.__name__):
            assert kind in CODES, "it would take its ancestor's"
            assert code_of(kind("no")) in SAME[render(kind("no"), "openai").status_code]


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
