"""How deep JSON goes, told without parsing it."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from condensery.api.rest import io
from condensery.api.rest.io import MAX_CONTAINERS, check_nesting, parse_json
from condensery.errors import InputError

texts = st.text(alphabet='[]{}"\\,: aé\n', max_size=8)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=40,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def is_deeper(data: bytes, limit: int) -> bool:
    try:
        check_nesting(data, limit)
    except InputError:
        return True
    return False


@pytest.fixture(params=[5, 2**20], ids=["in slices", "at once"])
def slices(request, monkeypatch):
    monkeypatch.setattr(io, "SLICE_BYTES", request.param)


def test_depth_is_told_whatever_the_strings_hold(slices):
    @given(values, st.booleans())
    def check(value, escaped):
        data = json.dumps(value, ensure_ascii=escaped).encode()
        depth = depth_of(value)
        assert not is_deeper(data, depth)
        assert depth == 0 or is_deeper(data, depth - 1)

    check()


def test_the_limit_is_named():
    with pytest.raises(InputError, match=r"body: nested deeper than 64 \(max_json_depth\)"):
        check_nesting(b"[" * 65 + b"]" * 65, 64)


def test_brackets_in_texts_are_no_depth():
    check_nesting(json.dumps({"input": "[" * 10_000, "x": ["]{" * 500]}).encode(), 4)


def test_more_objects_than_any_request_has_are_refused_by_their_number():
    data = b'{"documents": [' + b"{}," * MAX_CONTAINERS + b"{}]}"
    with pytest.raises(InputError, match=f"body: {MAX_CONTAINERS + 3} objects and lists"):
        check_nesting(data, 64)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 8_000_000,
        b"[]," * 2_700_000,
        b'["' + b"\\" * 8_000_000,
        b'"[",' * 2_000_000,
        b'["' + b'\\"' * 4_000_000,
    ],
    ids=["deep", "wide", "backslashes", "strings", "quotes"],
)
def test_nothing_takes_long(data):
    started = time.thread_time()
    is_deeper(data, 64)
    assert time.thread_time() - started < 2  # 0.2 s; bracket by bracket it would be 3 s


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b'{"input": "a"', "not JSON at line 1 column 1[345]"),
        (b'{"input": "\xff"}', "the byte 0xff at 11 is not UTF-8"),
        (b'{"input": "\\ud800"}', "not JSON at line 1 column 1[12]: .*surrogate"),
        (b'{"vector": [1, NaN]}', "NaN at character 15 .line 1. is not JSON; numbers must be fin"),
        (b'{"vector": [-Infinity]}', "-Infinity at character 1[23]"),
        (b'{"vector": [1e999]}', "not JSON at line 1"),
        (b"[" * 5000, "not JSON at line 1"),
        (b"[" * 65 + b"]" * 65, r"body: nested deeper than 64 \(max_json_depth\)"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "body: nested deeper than 64"),
    ],
)
def test_what_is_no_json_is_told_where(data, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_json(data, 64)
    assert caught.value.field == "body"
