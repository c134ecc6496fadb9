"""No error is left out of gRPC's table."""

import inspect

import pytest
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


def test_trailers_name_class_field_and_when_to_come_back() -> None:
    assert trailers(errors.InputError("x", field="texts[0]")) == (
        ("x-error", "InputError"),
        ("x-field", "texts[0]"),
    )
    assert trailers(errors.Overloaded("full", retry_after_seconds=1.5)) == (
        ("x-error", "Overloaded"),
        ("grpc-retry-pushback-ms", "1500"),
    )


def test_a_field_that_no_header_may_hold_is_left_out() -> None:
    assert trailers(errors.InputError("x", field="metadata.é\n")) == (("x-error", "InputError"),)
