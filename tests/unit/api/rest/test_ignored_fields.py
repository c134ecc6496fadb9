"""A field of a body that has no effect is listed in its reply's header, by every lenient route."""

from dataclasses import dataclass

import pytest
from pydantic import ConfigDict
from tests.unit.api.rest.every_route import FILES, REQUESTS

from condensery.api.rest import ignored_fields
from condensery.api.rest.ignored_fields import MAX_NAME_CHARS, MAX_NAMES, find_ignored_fields
from condensery.api.rest.schemas.inference import Lenient, Ours

HEADER = "x-ignored-fields"


@dataclass(frozen=True)
class Item:
    __pydantic_config__ = ConfigDict(extra="ignore")

    text: str
    in_: str = ""


class Body(Lenient):
    items: list[Item] | None = None
    item: Item | None = None


class Strict(Ours):
    item: Item | None = None


def test_fields_are_found_at_any_depth_each_once():
    item = {"text": "a", "in": "b", "colour": 1}
    data = {"items": [item, "a text", item], "item": {"text": "a", "size": 2}, "user": "me"}
    assert find_ignored_fields(data, Body) == ["items[].colour", "item.size", "user"]


def test_what_is_null_or_refused_or_no_object_is_not_ignored():
    assert find_ignored_fields({"user": None, "items": None}, Body) == []
    assert find_ignored_fields({"item": {"colour": 1}, "user": "me"}, Strict) == []
    assert find_ignored_fields(["user"], Body) == []
    assert find_ignored_fields({"user": "me"}, tuple) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/embed", {"inputs": "a"}),
        ("/", {"inputs": "a"}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["float"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
async def test_each_lenient_route_lists_them(client, path, body):
    more = {"documents": ["gold"]} if "messages" in body else {}
    reply = await client.post(path, json={**body, **more, "colour": "red", "size": None})
    assert (reply.status_code, reply.headers.get(HEADER)) == (200, "colour"), reply.text
    plain = await client.post(path, json={**body, **more})
    assert HEADER not in plain.headers


async def test_an_error_lists_them_too_and_a_stream(client):
    reply = await client.post("/v1/embeddings", json={"input": "a", "model": "b", "colour": 1})
    assert (reply.status_code, reply.headers[HEADER]) == (404, "colour")
    chat = {"messages": [{"role": "user", "content": "a"}], "documents": ["gold"], "stream": True}
    reply = await client.post("/v1/chat/completions", json={**chat, "colour": 1})
    assert (reply.status_code, reply.headers[HEADER]) == (200, "colour")


async def test_names_are_the_callers_and_cannot_break_the_header(client):
    odd = {"a\r\nset-cookie: b": 1, "ü" * 100: 2}
    reply = await client.post("/embed", json={"inputs": "a", **odd})
    first, second = reply.headers[HEADER].split(", ")
    assert first == "a%0D%0Aset-cookie%3A%20b"
    assert len(second) == MAX_NAME_CHARS
    many = {f"f{place}": place for place in range(MAX_NAMES + 3)}
    reply = await client.post("/embed", json={"inputs": "a", **many})
    assert reply.headers[HEADER].endswith(f"f{MAX_NAMES - 1}, and 3 more")


async def test_of_many_long_names_no_more_is_quoted_than_is_listed(client, monkeypatch):
    quoted, quote = [], ignored_fields.quote
    monkeypatch.setattr(
        ignored_fields, "quote", lambda name, **how: quoted.append(name) or quote(name, **how)
    )
    many = {f"{place}{'a' * 100}": place for place in range(100)}
    reply = await client.post("/embed", json={"inputs": "a", **many})
    assert reply.headers[HEADER].endswith(f"and {100 - MAX_NAMES} more")
    assert len(quoted) == MAX_NAMES
    assert max(map(len, quoted)) <= MAX_NAME_CHARS


async def test_every_route_refuses_an_unknown_field_by_name_or_lists_it(client, subtests):
    for method, path, body in REQUESTS:
        if not body:
            continue
        with subtests.test(f"{method} {path}", body=body):
            sent = {"json": {**body, "colour": "red"}}
            if path == FILES:
                await client.put("/v1/indexes/kb")
                sent = {"files": body, "data": {"colour": "red"}}
            reply = await client.request(method, path, **sent)
            refused = reply.status_code in (400, 422) and "colour" in reply.text
            listed = "colour" in reply.headers.get(HEADER, "").split(", ")
            assert refused != listed, reply.text
