"""Filters over REST: who may be found, and how a wrong one is told."""

import pytest

DOCUMENTS = [
    {
        "id": f"d{n}",
        "text": f"the fox number {n}",
        "metadata": {"year": 1900 + n, "even": n % 2 == 0},
    }
    for n in range(8)
]
EVEN = {"must": [{"key": "even", "match": {"value": True}}, {"key": "year", "range": {"lt": 1905}}]}


@pytest.fixture
async def kb(client):
    await client.put("/v1/indexes/kb")
    reply = await client.post("/v1/indexes/kb/documents", json={"documents": DOCUMENTS})
    assert reply.status_code == 200
    return "/v1/indexes/kb"


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
async def test_a_query_and_an_answer_see_what_the_filter_chooses(client, kb, mode):
    body = {"query": "fox", "mode": mode, "filter": EVEN}
    hits = (await client.post(f"{kb}/query", json=body)).json()["results"]
    assert {hit["document_id"] for hit in hits} == {"d0", "d2", "d4"}
    index = {"name": "kb", "mode": mode, "filter": EVEN}
    for path in ("/v1/rag/answer", "/v1/chat/completions"):
        asked = {"query": "fox"} if "rag" in path else {"messages": [user("fox")]}
        reply = (await client.post(path, json={**asked, "index": index})).json()
        answered = reply if "rag" in path else reply["condensery"]
        assert {citation["document_id"] for citation in answered["citations"]} == {"d0", "d2", "d4"}
    both = (await client.post("/v1/rag/compare", json={"query": "fox", "index": index})).json()
    for way in ("compressed", "plain"):
        assert {item["document_id"] for item in both[way]["citations"]} <= {"d0", "d2", "d4"}


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("wrong", "place", "says"),
    [
        (
            {"must": [{"key": "year", "range": {"gt": "5"}}]},
            ".must[0].range.gt",
            "'5' is not a number",
        ),
        ({"must": [{"key": "year", "match": {}}]}, ".must[0].match", "got none"),
        ({"any_of": []}, ".any_of", "unknown field; known here: must, should, must_not"),
        ({"should": {"has_id": [1]}}, ".should.has_id[0]", "1 is not an id"),
        ([], "", "[]"),
        ("x", "", "'x'"),
    ],
)
async def test_a_wrong_filter_is_told_by_its_place(client, kb, wrong, place, says):
    asked = [
        (f"{kb}/query", {"query": "fox", "filter": wrong}, "filter"),
        (
            "/v1/rag/answer",
            {"query": "fox", "index": {"name": "kb", "filter": wrong}},
            "index.filter",
        ),
        (
            "/v1/rag/answer",
            {"query": "fox", "stream": True, "index": {"name": "kb", "filter": wrong}},
            "index.filter",
        ),
    ]
    for path, body, field in asked:
        reply = await client.post(path, json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, f"{field}{place}")
        assert says in error["message"]


async def test_a_key_that_no_document_has_finds_nothing(client, kb):
    body = {"query": "fox", "filter": {"must": {"key": "yaer", "match": {"value": 1900}}}}
    assert (await client.post(f"{kb}/query", json=body)).json()["results"] == []
    body["index"] = {"name": "kb", "filter": body.pop("filter")}
    answer = (await client.post("/v1/rag/answer", json=body)).json()
    assert answer["citations"] == []
