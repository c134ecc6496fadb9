"""A server with keys and a certificate, as our own clients and the command line meet it."""

import json
import re
import ssl
from contextlib import suppress
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc import StatusCode
from tests.command_line import run
from tests.conftest import PAGES

from condensery.client.grpc import AsyncGrpcClient, GrpcClient
from condensery.client.rest import AsyncClient, Client
from condensery.errors import Forbidden, Unauthenticated, Unavailable
from condensery.values import Document

DOORS = ("rest", "grpc")


def make(guarded: Any, door: str, scope: str | None = None, *, trust: bool = True) -> Any:
    key = None if scope is None else guarded.keys.get(scope, "a-key-that-nobody-knows")
    ca = guarded.ca if trust else None
    if door == "rest":
        return Client(guarded.server.url, api_key=key, ca=ca)
    return GrpcClient(guarded.server.grpc, api_key=key, tls=True, ca=ca)


@pytest.mark.parametrize("door", DOORS)
def test_a_key_opens_what_it_is_for(guarded_server: Any, door: str) -> None:
    name = f"guarded-{door}"
    with (
        make(guarded_server, door, "infer") as reader,
        make(guarded_server, door, "index-write") as writer,
        make(guarded_server, door, "admin") as root,
    ):
        assert reader.embed(["a"]).shape == (1, 384)
        with pytest.raises(Forbidden, match="infer-key"):
            reader.create_index(name)
        writer.create_index(name)
        with pytest.raises(Forbidden, match="index-write-key"):
            writer.embed(["a"])
        root.upsert(name, [Document("a", "radium was found")])
        assert reader.query(name, "radium")[0].passage.document_id == "a"
        events = list(reader.answer_stream("What was found?", index=name, max_tokens=4))
        assert events[-1].citations
        with pytest.raises(Forbidden):
            reader.drop_index(name)
        writer.drop_index(name)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("scope", [None, "nobody's"])
def test_without_a_known_key_only_health_is_told(
    guarded_server: Any, door: str, scope: str | None
) -> None:
    with make(guarded_server, door, scope) as client:
        assert client.ready()
        for call in (
            lambda: client.embed(["a"]),
            client.models,
            lambda: client.drop_index("samples"),
            lambda: list(client.answer_stream("q", index="samples")),
        ):
            with pytest.raises(Unauthenticated) as caught:
                call()
            assert "nobody-knows" not in caught.value.message


async def test_the_async_clients_show_their_key_too(guarded_server: Any) -> None:
    key, ca, server = guarded_server.keys["infer"], guarded_server.ca, guarded_server.server
    async with (
        AsyncClient(server.url, api_key=key, ca=ca) as rest,
        AsyncGrpcClient(server.grpc, api_key=key, ca=ca) as rpc,
    ):
        over_rest, over_grpc = await rest.embed(["a"]), await rpc.embed(["a"])
        assert np.array_equal(over_rest, over_grpc)
        assert await rest.ready()
        assert await rpc.ready()


@pytest.mark.parametrize("door", DOORS)
def test_who_does_not_know_the_certificate_sends_nothing(guarded_server: Any, door: str) -> None:
    with make(guarded_server, door, "infer", trust=False) as client:
        assert not client.ready()
        with pytest.raises(Unavailable):
            client.embed(["a"])


def test_who_speaks_plain_is_not_served(guarded_server: Any) -> None:
    server = guarded_server.server
    plain = Client(server.url.replace("https:", "http:"), api_key=guarded_server.keys["infer"])
    with plain, pytest.raises(Unavailable):
        plain.embed(["a"])
    with (
        GrpcClient(server.grpc, api_key=guarded_server.keys["infer"]) as rpc,
        pytest.raises(Unavailable),
    ):
        rpc.embed(["a"])


def test_reflection_and_what_does_not_exist_are_kept_from_strangers(guarded_server: Any) -> None:
    trusted = grpc.ssl_channel_credentials(guarded_server.ca.read_bytes())
    key = (("x-api-key", guarded_server.keys["infer"]),)
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with grpc.secure_channel(guarded_server.server.grpc, trusted) as channel:

        def code(path: str, metadata: Any = ()) -> Any:
            call = channel.stream_stream(path)(iter([b"\x3a\x00"]), timeout=20, metadata=metadata)
            with suppress(grpc.RpcError):
                list(call)
            return call.code()

        for path in (reflection, "/condensery.v1.Embedding/Nope", "/nobody.Knows/Me"):
            assert code(path) is StatusCode.UNAUTHENTICATED, path
        assert code(reflection, key) is StatusCode.OK
        assert code("/nobody.Knows/Me", key) is StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("door", DOORS)
def test_the_command_line_takes_a_key_and_a_certificate(
    guarded_server: Any, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, key = guarded_server.server, guarded_server.keys["infer"]
    where = ("--url", server.url) if door == "rest" else ("--grpc", server.grpc)
    command = ("embed", "a text", *where, "--ca", str(guarded_server.ca))
    printed = run(*command, "--api-key", key).stdout
    assert printed
    with monkeypatch.context() as patched:
        patched.setenv("CONDENSERY_API_KEY", key)
        assert run(*command).stdout == printed
    assert "needs a key" in run(*command, status=1).stderr


def test_the_log_holds_no_key_and_no_traceback(guarded_server: Any) -> None:
    with make(guarded_server, "grpc", "infer") as client:
        client.embed(["a text that nobody else should read"])
    log = guarded_server.server.log.read_text()
    assert "Traceback" not in log
    for secret in (*guarded_server.keys.values(), "nobody else should read"):
        assert secret not in log


def test_a_page_that_is_named_may_ask_with_a_key_and_no_other_page_may(guarded_server: Any) -> None:
    trust = ssl.create_default_context(cafile=str(guarded_server.ca))
    key = {"x-api-key": guarded_server.keys["infer"]}
    with httpx.Client(base_url=guarded_server.server.url, verify=trust, timeout=60) as door:
        asking = {"access-control-request-method": "POST", "origin": PAGES}
        answered = door.options("/v1/embeddings", headers=asking)
        assert (answered.status_code, answered.text) == (204, "")
        for origin, host, status in (
            (PAGES, "localhost", 200),
            ("https://rag.example.com", "rag.example.com", 200),
            ("https://app.example.com:8443", "localhost", 403),
            ("null", "localhost", 403),
            ("https://evil.example", "evil.example", 403),
        ):
            headers = {**key, "origin": origin, "host": host}
            reply = door.post("/v1/embeddings", json={"input": "a"}, headers=headers)
            assert reply.status_code == status, (origin, host)
            allowed = reply.headers.get("access-control-allow-origin")
            assert allowed == (PAGES if origin == PAGES else None)


def test_a_request_that_names_no_mode_is_searched_as_the_server_was_set(
    guarded_server: Any,
) -> None:
    question = "How many traits did Mendel study?"
    with make(guarded_server, "rest", "infer") as client:

        def scores(**search: Any) -> list[float]:
            return [hit.score for hit in client.query("samples", question, top_k=3, **search)]

        assert scores() == pytest.approx(scores(search="bm25"))
        assert scores()[0] > 1  # no cosine
        assert scores(search="dense")[0] < 1


def test_teis_metrics_are_left_out_where_nobody_wants_them(guarded_server: Any) -> None:
    trust = ssl.create_default_context(cafile=str(guarded_server.ca))
    key = {"x-api-key": guarded_server.keys["admin"]}
    with httpx.Client(base_url=guarded_server.server.url, verify=trust, timeout=60) as door:
        text = door.get("/metrics", headers=key).text
    assert "condensery_requests_total" in text
    assert not re.search(r"^te_", text, re.MULTILINE)


def test_without_keys_a_page_of_another_port_writes_nothing(live_server: Any) -> None:
    """It can send a text without a preflight, which is read as JSON."""
    index = f"{live_server.url}/v1/indexes/pages"
    with httpx.Client(timeout=60) as door:
        assert door.put(index, json={}).is_success
        body = json.dumps({"documents": [{"id": "a", "text": "written by a page"}]})
        simple = {"content-type": "text/plain;charset=UTF-8"}
        page = {**simple, "origin": "http://localhost:3000", "sec-fetch-site": "cross-site"}
        assert door.post(f"{index}/documents", content=body, headers=page).status_code == 403
        assert door.get(index).json()["documents"] == 0
        assert door.post(f"{index}/documents", content=body, headers=simple).is_success
        assert door.get(index).json()["documents"] == 1
        assert door.delete(index).is_success
