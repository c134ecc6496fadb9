import math

import pytest

from condensery.auth import (
    Key,
    Keys,
    check_any_key,
    hash_key,
    read_key,
    read_request_id,
    read_timeout,
)
from condensery.errors import Forbidden, InputError, Unauthenticated

SECRET = "a-key-of-sixteen-or-more"


@pytest.mark.parametrize(
    ("authorization", "api_key", "key"),
    [
        (None, None, None),
        ("", "", None),
        ("Bearer one", None, "one"),
        ("bearer   one ", None, "one"),
        ("BEARER one", "two", "one"),
        ("one", None, "one"),
        (None, "two", "two"),
        ("Bearer ", "two", "two"),
        ("Bearer", None, None),
    ],
)
def test_a_key_comes_as_bearer_bare_or_by_itself(
    authorization: str | None, api_key: str | None, key: str | None
) -> None:
    assert read_key(authorization, api_key) == key


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, math.inf), ("1", 0.001), ("2500", 2.5), (" 2500 ", 2.5), ("0000010", 0.01)],
)
def test_a_callers_timeout_is_read_in_milliseconds(header: str | None, seconds: float) -> None:
    assert read_timeout(header) == seconds


def test_an_endless_timeout_is_allowed() -> None:
    assert read_timeout("9" * 5000) > 1e12


@pytest.mark.parametrize("header", ["", "0", "000", "-5", "1.5", "1e3", "soon", "٣", "²"])
def test_an_invalid_timeout_is_refused_by_name_and_value(header: str) -> None:
    with pytest.raises(InputError, match="x-request-timeout-ms: ") as caught:
        read_timeout(header)
    assert caught.value.field == "x-request-timeout-ms"
    assert repr(header) in caught.value.message


def test_an_id_that_fits_a_header_and_a_log_line_is_kept() -> None:
    assert read_request_id("mine") == "mine"
    for unfit in (None, "", "two\nlines", "é", "x" * 129):
        assert len(read_request_id(unfit)) == 32


def test_a_method_without_a_scope_takes_every_key_that_is_known() -> None:
    keys = Keys([Key("writer", frozenset({"index-write"}), hash_key(SECRET))])
    assert check_any_key(keys, SECRET, "index-write") == "writer"
    assert check_any_key(keys, SECRET, None) == "writer"
    with pytest.raises(Forbidden):
        check_any_key(keys, SECRET, "infer")
    with pytest.raises(Unauthenticated):
        check_any_key(keys, "another", None)
    assert check_any_key(Keys(), None, None) is None
