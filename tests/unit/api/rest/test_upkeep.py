"""Keeping indexes over REST: what is asked, and what is refused."""

import pytest


@pytest.fixture
async def kb(door):
    (await door.put("/v1/indexes/kb", json={})).raise_for_status()
    body = {"documents": [{"id": "a", "text": "alpha"}]}
    (await door.post("/v1/indexes/kb/documents", json=body)).raise_for_status()


def create(alias, index):
    return {"create_alias": {"alias": alias, "index": index}}


async def test_an_alias_does_in_every_route_of_an_index(door, kb):
    reply = await door.post("/v1/indexes/aliases", json={"actions": [create("live", "kb")]})
    assert reply.json()["data"] == [{"alias": "live", "target": "kb", "index": "kb"}]
    assert (await door.get("/v1/indexes/aliases")).json() == reply.json()
    assert (await door.get("/v1/indexes/live")).json()["name"] == "kb"
    body = {"documents": [{"id": "b", "text": "beta"}]}
    (await door.post("/v1/indexes/live/documents", json=body)).raise_for_status()
    found = await door.post("/v1/indexes/live/query", json={"query": "beta", "top_k": 1})
    assert found.json()["results"][0]["document_id"] == "b"
    counts = await door.post("/v1/indexes/live/documents/count")
    assert counts.json() == {"documents": 2, "passages": 2}
    body = {"query": "what?", "index": {"name": "live"}}
    answer = (await door.post("/v1/rag/answer", json=body)).json()
    assert {one["id"] for one in answer["citations"]} == {"a#0", "b#0"}


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
async def test_each_wrong_action_is_an_error_of_its_own(door, kb, actions, status, code, param):
    reply = await door.post("/v1/indexes/aliases", json={"actions": actions})
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert (await door.get("/v1/indexes/aliases")).json()["data"] == []


async def test_an_index_with_an_alias_is_not_deleted_and_its_name_not_taken(door, kb):
    await door.post("/v1/indexes/aliases", json={"actions": [create("live", "kb")]})
    for name in ("kb", "live"):
        reply = await door.delete(f"/v1/indexes/{name}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "index_aliased")
    reply = await door.put("/v1/indexes/live", json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "name_taken")
    reply = await door.put("/v1/indexes/aliases", json={})
    assert reply.status_code == 405
