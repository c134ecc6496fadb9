"""Keeping indexes over REST: what is asked, and what is refused."""

import asyncio

import pytest


@pytest.fixture
async def kb(client):
    (await client.put("/v1/indexes/kb", json={})).raise_for_status()
    body = {"documents": [{"id": "a", "text": "alpha"}]}
    (await client.post("/v1/indexes/kb/documents", json=body)).raise_for_status()


def create(alias, index):
    return {"create_alias": {"alias": alias, "index": index}}


async def test_an_alias_does_in_every_route_of_an_index(client, kb):
    reply = await client.post("/v1/indexes/aliases", json={"actions": [create("live", "kb")]})
    assert reply.json()["data"] == [{"alias": "live", "target": "kb", "index": "kb"}]
    assert (await client.get("/v1/indexes/aliases")).json() == reply.json()
    assert (await client.get("/v1/indexes/live")).json()["name"] == "kb"
    body = {"documents": [{"id": "b", "text": "beta"}]}
    (await client.post("/v1/indexes/live/documents", json=body)).raise_for_status()
    queried = await client.post("/v1/indexes/live/query", json={"query": "beta", "top_k": 1})
    assert queried.json()["results"][0]["document_id"] == "b"
    counts = await client.post("/v1/indexes/live/documents/count")
    assert counts.json() == {"documents": 2, "passages": 2}
    body = {"query": "what?", "index": {"name": "live"}}
    answer = (await client.post("/v1/rag/answer", json=body)).json()
    assert {citation["id"] for citation in answer["citations"]} == {"a#0", "b#0"}


@pytest.mark.parametrize(
    ("actions", "status", "code", "param"),
    [
        ([create("x", "nowhere")], 404, "alias_to_nothing", "actions[0]"),
        ([create("a", "b"), create("b", "a")], 409, "alias_circle", "actions[0]"),
        ([create("kb", "kb")], 409, "name_taken", "actions[0].alias"),
        ([{"delete_alias": {"alias": "x"}}], 404, "alias_not_found", "actions[0].alias"),
        (
            [{"rename_alias": {"alias": "x", "to": "y"}}],
            *(404, "alias_not_found", "actions[0].alias"),
        ),
        ([], 400, "empty_input", "actions"),
        ([{}], 400, "input_error", "actions[0]"),
        (
            [{**create("x", "kb"), "delete_alias": {"alias": "x"}}],
            *(400, "input_error", "actions[0]"),
        ),
        ([{"create": {}}], 400, "input_error", "actions[0].create"),
        ([{"create_alias": {"alias": "x"}}], 400, "input_error", "actions[0].create_alias.index"),
        ([create("X", "kb")], 400, "input_error", "actions[0].alias"),
    ],
)
async def test_each_wrong_action_is_an_error_of_its_own(client, kb, actions, status, code, param):
    reply = await client.post("/v1/indexes/aliases", json={"actions": actions})
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert (await client.get("/v1/indexes/aliases")).json()["data"] == []


async def test_an_index_with_an_alias_is_not_deleted_and_its_name_not_taken(client, kb):
    await client.post("/v1/indexes/aliases", json={"actions": [create("live", "kb")]})
    for name in ("kb", "live"):
        reply = await client.delete(f"/v1/indexes/{name}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "index_aliased")
    reply = await client.put("/v1/indexes/live", json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "name_taken")
    reply = await client.put("/v1/indexes/aliases", json={})
    assert reply.status_code == 405


async def test_a_snapshot_is_restored_over_its_index_or_as_another(client, kb):
    made = (await client.post("/v1/indexes/kb/snapshots")).json()
    (await client.post("/v1/indexes/kb/documents/delete", json={"ids": ["a"]})).raise_for_status()
    path = f"/v1/indexes/kb/snapshots/{made['id']}"
    assert (await client.get(path)).json() == made
    assert (await client.post(f"{path}/restore")).json()["documents"] == 1
    reply = await client.post(f"{path}/restore", json={"into": "copy"})
    assert reply.json()["name"] == "copy"
    assert (await client.delete(path)).json() == {"id": made["id"], "deleted": True}
    gone = await client.post(f"{path}/restore")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "snapshot_not_found")
    assert (await client.get("/v1/indexes/nowhere/snapshots")).status_code == 404


@pytest.mark.parametrize(
    ("harm", "code"),
    [("cut", "snapshot_damaged"), ("flip", "snapshot_damaged"), ("newer", "snapshot_too_new")],
)
async def test_a_snapshot_that_can_not_be_used_is_refused_by_name(client, kb, tmp_path, harm, code):
    made = (await client.post("/v1/indexes/kb/snapshots")).json()
    folder = tmp_path / "snapshots" / "kb" / made["id"]
    file, note = folder / "index.sqlite3", folder / "snapshot.json"
    data = bytearray(file.read_bytes())
    if harm == "newer":
        note.write_text(note.read_text().replace('"format": 1,', '"format": 9,'))
    elif harm == "cut":
        file.write_bytes(data[:-1])
    else:
        data[5000] ^= 1
        file.write_bytes(data)
    reply = await client.post(f"/v1/indexes/kb/snapshots/{made['id']}/restore")
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (409, code, "snapshot")
    assert made["id"] in error["message"]
    assert reply.headers["x-should-retry"] == "false"
    counts = (await client.post("/v1/indexes/kb/documents/count")).json()
    assert counts == {"documents": 1, "passages": 1}


async def test_a_rebuild_is_begun_watched_and_done(client, kb):
    assert (await client.get("/v1/indexes/kb/rebuild")).status_code == 404
    reply = await client.post("/v1/indexes/kb/rebuild", json={"encoder": "other"})
    assert reply.json()["state"] == "running"
    async with asyncio.timeout(30):
        rebuild = reply.json()
        while rebuild["state"] == "running":
            await asyncio.sleep(0.005)
            rebuild = (await client.get("/v1/indexes/kb/rebuild")).json()
    assert (rebuild["state"], rebuild["encoder"], rebuild["overlap"]) == ("done", "other", 1.0)
    assert (await client.get("/v1/indexes/kb")).json()["encoder"] == "other"
    queried = await client.post("/v1/indexes/kb/query", json={"query": "alpha"})
    assert queried.json()["results"][0]["document_id"] == "a"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"encoder": "nobody"}, 404, "model_not_found"),
        ({"kind": "tree"}, 400, "input_error"),
        ({"metric": 3}, 400, "input_error"),
        ({"model": "other"}, 400, "input_error"),
    ],
)
async def test_a_rebuild_that_can_not_be_is_refused(client, kb, body, status, code):
    reply = await client.post("/v1/indexes/kb/rebuild", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert (await client.get("/v1/indexes/kb/rebuild")).status_code == 404


async def test_vectors_without_texts_are_not_rebuilt(client, kb, registry):
    vector = (await registry.encoder("words").embed(["x"])).vectors[0].tolist()
    body = {"documents": [{"id": "bare", "vector": vector}], "fingerprint": "sha256:words"}
    (await client.post("/v1/indexes/kb/documents", json=body)).raise_for_status()
    reply = await client.post("/v1/indexes/kb/rebuild", json={"encoder": "other"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "texts_missing")
    assert "'bare'" in reply.json()["error"]["message"]
