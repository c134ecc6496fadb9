import orjson
import pytest

from condensery import errors
from condensery.api.rest.errors import ROWS, render
from condensery.errors import CondenseryError, Overloaded, code_of


def tree(kind=CondenseryError):
    return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]


def make(kind):
    return kind("text: 'x' is wrong.", field="text") if kind is not Overloaded else kind("full")


def test_no_error_is_left_out_of_the_table():
    assert set(ROWS) == {kind for kind in tree() if kind.__module__ == errors.__name__}


def test_every_error_has_a_body_in_each_family(subtests):
    for kind in ROWS:
        with subtests.test(kind.__name__):
            tei = orjson.loads(render(make(kind), "tei").body)
            nested = orjson.loads(render(make(kind), "openai").body)
            ranked = orjson.loads(render(make(kind), "rerank").body)
            assert set(tei) == {"error", "error_type"}
            types = {"Validation", "Empty", "Overloaded", "Backend", "Unhealthy"}
            assert tei["error_type"] in types
            assert set(nested) == {"error"}
            assert set(nested["error"]) == {"message", "type", "param", "code"}
            assert nested["error"]["code"] == code_of(kind)
            assert ranked["error"] == nested["error"]
            message = nested["error"]["message"]
            assert tei["error"] == ranked["message"] == ranked["detail"] == message


@pytest.mark.parametrize(
    ("kind", "tei", "others"),
    [
        (errors.InputError, 422, 400),
        (errors.EmptyInput, 400, 400),
        (errors.PayloadTooLarge, 413, 413),
        (errors.TokenIdsRefused, 422, 400),
        (errors.ModelNotFound, 404, 404),
        (errors.EncoderMismatch, 409, 409),
        (errors.Overloaded, 429, 429),
        (errors.Unavailable, 503, 503),
        (errors.DeadlineExceeded, 504, 504),
        (errors.ModelFault, 424, 500),
        (errors.StorageFull, 507, 507),
    ],
)
def test_the_status_is_the_familys(kind, tei, others):
    assert render(make(kind), "tei").status_code == tei
    assert render(make(kind), "openai").status_code == others
    assert render(make(kind), "rerank").status_code == others


def test_a_class_that_is_not_listed_takes_its_nearest_ancestors_row():
    class Special(errors.IndexNotFound):
        pass

    assert render(Special("gone"), "openai").status_code == 404


def test_overload_says_when_to_come_back():
    headers = render(Overloaded("full", retry_after_seconds=1.5), "openai").headers
    assert headers["retry-after"] == "2"
    assert headers["retry-after-ms"] == "1500"
    assert headers["x-should-retry"] == "true"
    assert render(errors.ModelFault("no"), "openai").headers["x-should-retry"] == "false"
