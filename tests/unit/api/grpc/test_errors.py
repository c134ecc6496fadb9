"""No error is left out of gRPC's table."""

import inspect

import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from condensery import errors
from condensery.api.grpc.errors import make_trailers, status_code_of
from condensery.errors import CondenseryError

EVERY = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, CondenseryError)
]


# The status of each error; of those that are no fault of the request, and of no other, INTERNAL.
STATUSES = {
    StatusCode.INVALID_ARGUMENT: "InputError EmptyInput PayloadTooLarge HeadersTooLarge "
    "TokenIdsRefused ContextTooLong",
    StatusCode.UNAUTHENTICATED: "Unauthenticated",
    StatusCode.PERMISSION_DENIED: "Forbidden",
    StatusCode.NOT_FOUND: "NotFound ModelNotFound ModelCannot ModelAliasToNothing ReportNotFound "
    "IndexNotFound IndexClosed AliasNotFound AliasToNothing SnapshotNotFound RebuildNotFound "
    "ContextNotFound ContextExpired ContextLost",
    StatusCode.ALREADY_EXISTS: "IndexExists NameTaken",
    StatusCode.FAILED_PRECONDITION: "Conflict AliasCircle IndexAliased LimitReached "
    "SnapshotDamaged SnapshotTooNew RebuildRunning TextsMissing EncoderMismatch ContextMismatch "
    "ModelInUse ModelNotLoaded ModelAliasTaken ModelAliasCircle",
    StatusCode.RESOURCE_EXHAUSTED: "Overloaded",
    StatusCode.UNAVAILABLE: "Unavailable AnswerServerUnavailable VectorDatabaseUnavailable",
    StatusCode.DEADLINE_EXCEEDED: "DeadlineExceeded ExpiredInQueue AnswerServerSlow",
    StatusCode.INTERNAL: "CondenseryError ModelFault CompressionFailed StoreError CorruptModel "
    "StorageError StorageFull StorageReadOnly StartError PortTaken DataDirTaken SettingError "
    "AnswerServerFault VectorDatabaseFault",
}


def test_every_error_has_a_status_of_its_own() -> None:
    expected = {name: code for code, names in STATUSES.items() for name in names.split()}
    errors_by_name = {kind.__name__: kind.__new__(kind) for kind in EVERY}
    assert {name: status_code_of(error) for name, error in errors_by_name.items()} == expected
    teis = {name: status_code_of(error, "tei") for name, error in errors_by_name.items()}
    of_the_model = dict.fromkeys(("ModelCannot", "ModelFault"), StatusCode.FAILED_PRECONDITION)
    assert teis == expected | of_the_model


def test_an_error_of_a_class_unknown_to_the_table_takes_its_ancestors_status() -> None:
    class Odd(errors.ModelNotFound):
        pass

    assert status_code_of(Odd("no such model")) is StatusCode.NOT_FOUND


def test_trailers_name_class_and_field() -> None:
    assert make_trailers(errors.InputError("x", field="texts[0]")) == (
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
    trailers = dict(make_trailers(error))
    assert trailers["grpc-retry-pushback-ms"] == str(milliseconds)
    status = Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (status_code_of(error).value[0], error.message)
    info = RetryInfo()
    (detail,) = status.details
    assert detail.Unpack(info)
    assert info.retry_delay.ToMilliseconds() == milliseconds


def test_a_field_that_no_header_may_hold_is_left_out() -> None:
    assert make_trailers(errors.InputError("x", field="metadata.é\n")) == (
        ("x-error", "InputError"),
    )
