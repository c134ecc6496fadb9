import orjson
import pytest

from condensery import errors
from condensery.api.rest.errors import ERROR_ROWS, FAMILIES, render_error
from condensery.errors import (
    AnswerServerUnavailable,
    CondenseryError,
    Overloaded,
    VectorDatabaseUnavailable,
    code_of,
)


def tree(kind=CondenseryError):
    return [kind, *(descendant for child in kind.__subclasses__() for descendant in tree(child))]


EVERY = [kind for kind in tree() if kind.__module__ == errors.__name__]


def make(kind):
    if issubclass(kind, Overloaded | AnswerServerUnavailable | VectorDatabaseUnavailable):
        return kind("full")
    return kind("text: 'x' is wrong.", field="text")


def test_no_error_is_left_out_of_the_table():
    left_out = [
        kind
        for kind in EVERY
        if not any(base in ERROR_ROWS for base in kind.__mro__ if base is not CondenseryError)
    ]
    assert left_out == [CondenseryError]  # which has a row, for bugs
    assert CondenseryError in ERROR_ROWS


def test_every_error_has_a_body_in_each_family(subtests):
    for kind in EVERY:
        with subtests.test(kind.__name__):
            tei = orjson.loads(render_error(make(kind), "tei").body)
            nested = orjson.loads(render_error(make(kind), "openai").body)
            ranked = orjson.loads(render_error(make(kind), "rerank").body)
            assert set(tei) == {"error", "error_type"}
            types = {"Validation", "Empty", "Overloaded", "Backend", "Unhealthy"}
            assert tei["error_type"] in types
            assert set(nested) == {"error"}
            assert set(nested["error"]) == {"message", "type", "param", "code"}
            assert nested["error"]["code"] == code_of(kind)
            assert ranked["error"] == nested["error"]
            message = nested["error"]["message"]
            assert tei["error"] == ranked["message"] == ranked["detail"] == message


# The status of each error for OpenAI's clients, Cohere's and Jina's, and our own.
STATUSES = {
    400: "InputError EmptyInput TokenIdsRefused ContextTooLong",
    401: "Unauthenticated",
    403: "Forbidden",
    404: "NotFound ModelNotFound ModelCannot ModelAliasToNothing ReportNotFound IndexNotFound "
    "IndexClosed AliasNotFound AliasToNothing SnapshotNotFound RebuildNotFound ContextNotFound",
    408: "ExpiredInQueue",
    409: "Conflict IndexExists NameTaken AliasCircle IndexAliased LimitReached SnapshotDamaged "
    "SnapshotTooNew RebuildRunning TextsMissing EncoderMismatch ContextMismatch ModelInUse "
    "ModelNotLoaded ModelAliasTaken ModelAliasCircle",
    410: "ContextExpired ContextLost",
    413: "PayloadTooLarge",
    424: "CompressionFailed",
    429: "Overloaded",
    431: "HeadersTooLarge",
    500: "CondenseryError ModelFault StoreError CorruptModel StorageError StorageReadOnly "
    "StartError PortTaken DataDirTaken SettingError",
    502: "AnswerServerFault VectorDatabaseFault",
    503: "Unavailable AnswerServerUnavailable VectorDatabaseUnavailable",
    504: "DeadlineExceeded AnswerServerSlow",
    507: "StorageFull",
}
OTHERWISE = {
    "tei": {
        "InputError": 422,
        "TokenIdsRefused": 422,
        "ContextTooLong": 422,
        "ModelCannot": 424,
        "ModelFault": 424,
    },
    "kserve": {"ModelNotLoaded": 400},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_status_is_the_familys(family):
    expected = {name: status for status, names in STATUSES.items() for name in names.split()}
    statuses = {kind.__name__: render_error(make(kind), family).status_code for kind in EVERY}
    assert statuses == expected | OTHERWISE.get(family, {})


def test_a_class_that_is_not_listed_takes_its_nearest_ancestors_row():
    class Special(errors.IndexNotFound):
        pass

    assert render_error(Special("gone"), "openai").status_code == 404


def test_overload_says_when_to_come_back():
    headers = render_error(Overloaded("full", retry_after_seconds=1.5), "openai").headers
    assert headers["retry-after"] == "2"
    assert headers["retry-after-ms"] == "1500"
    assert headers["x-should-retry"] == "true"
    assert render_error(errors.ModelFault("no"), "openai").headers["x-should-retry"] == "false"
