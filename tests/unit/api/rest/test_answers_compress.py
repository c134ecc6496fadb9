"""Contexts over REST: compressed in the request's order, held for their caller, released."""

import hashlib
import time

import pytest

from condensery.auth import Key
from condensery.errors import ModelFault

PATH = "/v1/compress"
DOCUMENTS = ["some words", {"id": "best", "text": "gold"}, " ", {"text": "gold gold"}]
BODY = {"query": "where?", "documents": DOCUMENTS}


async def test_results_are_in_the_requests_order_and_number(client, registry):
    registry.pairs["pair"].faults["some words"] = ModelFault("not finite")
    before = time.time()
    reply = await client.post(PATH, json=BODY)
    done = reply.json()
    assert (done["object"], done["model"]) == ("rag.compression", "pair")
    assert done["fingerprint"] == reply.headers["x-model-revision"] == "sha256:pair"
    assert done["id"].startswith("cmp_")
    assert done["context"].startswith("ctx_")
    assert before + 590 < done["expires_at"] < time.time() + 610
    results = done["results"]
    assert [result["index"] for result in results] == [0, 1, 2, 3]
    assert [item["id"] for item in results] == ["0", "best", "2", "3"]
    assert [result["status"] for result in results][:2] == ["failed", "applied"]
    assert [entry["vectors_out"] for entry in results] == [0, 2, 0, 2]
    assert results[0]["relevance_score"] is None
    assert results[0]["reason"]
    assert results[3]["relevance_score"] > results[1]["relevance_score"] > 0.5
    block = done["compression"]
    assert (block["docs"], block["vectors_out"]) == (2, 4)
    assert block["tokens_in"] == sum(result["tokens_in"] for result in results)
    assert done["usage"]["prompt_tokens"] == done["usage"]["total_tokens"] > 0


async def test_statistics_alone_hold_nothing(client, services):
    done = (await client.post(PATH, json={**BODY, "return": "stats"})).json()
    assert (done["context"], done["expires_at"]) == (None, None)
    assert len(done["results"]) == 4


async def test_vectors_never_leave(client):
    text = (await client.post(PATH, json=BODY)).text
    assert "memory" not in text
    assert len(text) < 2000


async def test_a_rate_has_fewer_vectors(client):
    done = (await client.post(PATH, json={**BODY, "ratio": 8})).json()
    assert [result["vectors_out"] for result in done["results"]] == [1, 1, 0, 1]
    reply = await client.post(PATH, json={**BODY, "ratio": 5})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "ratio")


async def test_a_context_that_was_let_go_of_is_no_more(client):
    context = (await client.post(PATH, json=BODY)).json()["context"]
    gone = await client.delete(f"/v1/contexts/{context}")
    assert gone.json() == {"id": context, "object": "context", "deleted": True}
    for reply in (
        await client.delete(f"/v1/contexts/{context}"),
        await client.post("/v1/rag/answer", json={"query": "where?", "context": context}),
    ):
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "context_not_found"


async def test_a_context_whose_time_is_over_is_gone(client, services, monkeypatch):
    context = (await client.post(PATH, json={**BODY, "ttl_s": 60})).json()["context"]
    clock = services.contexts._clock
    monkeypatch.setattr(services.contexts, "_clock", lambda: clock() + 61)
    for reply in (
        await client.delete(f"/v1/contexts/{context}"),
        await client.post("/v1/rag/answer", json={"query": "where?", "context": context}),
    ):
        assert reply.status_code == 410
        assert reply.json()["error"]["code"] == "context_expired"


async def test_another_keys_context_is_not_found(client, services):
    names = ("mine", "yours")
    secrets = {name: f"key-of-{name}-0123456789abcdef" for name in names}
    services.keys.replace(
        Key(name, frozenset({"infer"}), hashlib.sha256(secret.encode()).digest())
        for name, secret in secrets.items()
    )
    mine, yours = ({"authorization": f"Bearer {secrets[name]}"} for name in names)
    context = (await client.post(PATH, json=BODY, headers=mine)).json()["context"]
    asked = {"query": "where?", "context": context}
    assert (await client.post("/v1/rag/answer", json=asked, headers=yours)).status_code == 404
    assert (await client.delete(f"/v1/contexts/{context}", headers=yours)).status_code == 404
    assert (await client.post("/v1/rag/answer", json=asked, headers=mine)).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"documents": []}, 400, "documents"),
        ({"documents": ["a"] * 101}, 413, "documents"),
        ({"documents": ["", " "]}, 400, "documents[0].text"),
        ({"documents": ["a" * 5000]}, 400, "documents[0].text"),
        ({"query": " "}, 400, "query"),
        ({"query": None}, 400, "query"),
        ({"ttl_s": 0}, 400, "ttl_s"),
        ({"ttl_s": 4000}, 400, "ttl_s"),
        ({"model": "nobody"}, 404, "model"),
        ({"vectors": [[1.0]]}, 400, "vectors"),
    ],
)
async def test_what_is_wrong_is_named(client, body, status, field):
    reply = await client.post(PATH, json={**BODY, **body})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, field), error


async def test_compressing_is_counted_as_that(client):
    await client.post(PATH, json=BODY)
    zero = 'condensery_requests_total{code="ok",model="pair",protocol="rest",task="compress"} '
    assert f"{zero}1.0" in (await client.get("/metrics")).text
