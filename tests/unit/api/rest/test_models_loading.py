"""Models that come and go, over REST: ours, Triton's and KServe's routes."""

import pytest

from condensery.errors import ModelNotLoaded

LOAD = "/v1/models/other/load"
KSERVE = "/v2/repository/models/other"


async def test_a_load_tells_what_serves_now_and_what_did(client, registry):
    reply = await client.post(LOAD, json={"version": "7"})
    assert reply.status_code == 200
    body = reply.json()
    assert (body["id"], body["model"]["version"], body["changed"]) == ("other", "7", True)
    assert body["previous"] == {"version": "1", "fingerprint": "sha256:other"}
    assert (await client.post("/v1/models/other/reload")).status_code == 200
    assert registry.lifecycle.asked == [("other", "7", False), ("other", None, True)]


async def test_a_load_that_fails_is_an_error_in_each_familys_body(client, registry):
    registry.lifecycle.fails = ModelNotLoaded(
        "model 'other' version 2 was not loaded", field="model"
    )
    reply = await client.post(LOAD)
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "model_not_loaded")
    assert reply.headers["x-should-retry"] == "false"
    reply = await client.post(f"{KSERVE}/load")
    assert (reply.status_code, reply.json()) == (
        400,
        {"error": "model 'other' version 2 was not loaded"},
    )


async def test_kserve_lists_loads_and_unloads(client, registry):
    rows = (await client.post("/v2/repository/index")).json()
    assert {"name": "other", "version": "2", "state": "READY", "reason": ""} in rows
    assert rows[-1]["state"] == "UNAVAILABLE"
    assert rows[-1]["reason"] == "model.json is cut short"
    ready = (await client.post("/v2/repository/index", json={"ready": True})).json()
    assert [row for row in rows if row["state"] == "READY"] == ready
    body = {"parameters": {"version": "3"}}
    reply = await client.post(f"{KSERVE}/load", json=body)
    assert reply.json() == {"name": "other", "version": "3", "state": "READY", "reason": ""}
    body = {"parameters": {"unload_dependents": False}}
    reply = await client.post(f"{KSERVE}/unload", json=body)
    assert reply.json() == {"name": "other", "version": "2", "state": "UNAVAILABLE", "reason": ""}
    assert registry.lifecycle.asked == [("other", "3", False), ("other",)]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (LOAD, {"version": 2}, 400, "version: 2"),
        (LOAD, {"versoin": "2"}, 400, "versoin: unknown field"),
        (LOAD, [], 400, "not a JSON object"),
        ("/v1/models/other/unload", {"force": "yes"}, 400, "force: 'yes'"),
        ("/v1/models/words/unload", {}, 409, "it is the default encoder"),
        ("/v1/models/aliases", {}, 400, "aliases: this field is missing"),
        ("/v1/models/aliases", {"aliases": {}}, 400, "nothing to change"),
        ("/v1/models/aliases", {"aliases": {"a": 1}}, 400, "aliases.a: 1"),
        ("/v1/models/aliases", {"aliases": {"a": "b", "b": "a"}}, 409, "leads in a circle"),
        ("/v1/models/aliases", {"aliases": {"a": "nobody"}}, 404, "neither a running model"),
        ("/v1/models/aliases", {"aliases": {"words": "other"}}, 409, "is a model's name"),
        ("/v1/models/aliases", {"aliases": {"a": None}}, 404, "no alias 'a' to remove"),
        (f"{KSERVE}/load", {"parameters": {"config": "{}"}}, 400, "parameters.config: unknown"),
        ("/v2/repository/models/words/unload", {}, 409, "it is the default encoder"),
        ("/v2/repository/index", {"ready": "yes"}, 400, "ready: 'yes'"),
    ],
)
async def test_bad_requests_are_refused_by_field_and_value_in_the_familys_body(
    client, path, body, status, says
):
    reply = await client.post(path, json=body)
    error = reply.json()["error"]
    assert reply.status_code == status, reply.text
    assert says in (error if path.startswith("/v2/") else error["message"])


async def test_an_alias_is_a_models_name_on_every_door(client):
    aliases = {"best": "other", "judge": "pair"}
    reply = await client.post("/v1/models/aliases", json={"aliases": aliases})
    assert reply.json() == {"aliases": aliases}
    assert (await client.get("/v1/models/aliases")).json() == {"aliases": aliases}
    listed = {
        item["id"]: item["alias_of"] for item in (await client.get("/v1/models")).json()["data"]
    }
    assert listed["best"] == "other"
    assert listed["other"] is None
    assert (await client.get("/v1/models/best")).json()["alias_of"] == "other"
    assert (await client.get("/v2/models/best")).status_code == 200
    assert (await client.get("/v2/models/best/ready")).json()["ready"]
    for path, body in (
        ("/v1/embeddings", {"input": "a", "model": "best"}),
        ("/embed", {"inputs": "a", "model": "best"}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "model": "best"}),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "model": "judge"}),
        ("/v1/rag/answer", {"query": "q", "documents": ["a"], "model": "judge"}),
        ("/v1/compress", {"query": "q", "documents": ["a"], "model": "judge"}),
    ):
        reply = await client.post(path, json=body)
        assert reply.status_code == 200, reply.text
    reply = await client.post("/embed", json={"inputs": "a"}, headers={"x-model": "best"})
    assert (reply.headers["x-model"], reply.headers["x-model-revision"]) == (
        "other",
        "sha256:other",
    )
    reply = await client.put("/v1/indexes/kb", json={"encoder": "best"})
    assert reply.json()["encoder"] == "other", "an index is its encoder's, whatever that is called"
    await client.post("/v1/models/aliases", json={"aliases": {"best": "words", "judge": None}})
    reply = await client.post("/embed", json={"inputs": "a", "model": "best"})
    assert reply.headers["x-model"] == "words"
    assert (
        await client.post("/v1/rerank", json={"query": "q", "documents": ["a"], "model": "judge"})
    ).status_code == 404
