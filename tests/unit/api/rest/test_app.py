import base64
import json

import numpy as np
import pytest

from condensery.api.rest.routes import route_sections
from condensery.errors import ModelFault, Overloaded
from condensery.jobs import indexes
from condensery.values import Document


def error_of(reply):
    return reply.json()["error"]


async def test_base64_and_float_are_the_same_numbers(client, services):
    body = {"input": ["a", "b"]}
    floats = (await client.post("/v1/embeddings", json=body)).json()
    packed = (
        await client.post("/v1/embeddings", json={**body, "encoding_format": "base64"})
    ).json()
    rows = [base64.b64decode(item["embedding"]) for item in packed["data"]]
    for row, item in zip(rows, floats["data"], strict=True):
        exact = np.frombuffer(row, "<f4")
        assert np.array_equal(exact, np.array(item["embedding"], np.float32))
    assert [item["index"] for item in floats["data"]] == [0, 1]
    assert floats["model"] == "words"
    assert floats["usage"] == {"prompt_tokens": 2, "total_tokens": 2}


async def test_tei_nests_a_single_text_too_and_ignores_unknown_fields(client, registry):
    reply = await client.post("/embed", json={"inputs": "a", "truncation_direction": "left"})
    assert np.array(reply.json()).shape == (1, 8)
    assert registry.encoders["words"].asked == [("a", "", True)]


async def test_cut_inputs_are_counted_in_a_header(client):
    reply = await client.post("/embed", json={"inputs": ["a " * 20, "a", "b " * 30]})
    assert reply.headers["x-truncated-inputs"] == "2"
    reply = await client.post("/embed", json={"inputs": ["a"]})
    assert "x-truncated-inputs" not in reply.headers
    assert reply.headers["x-model"] == "words"
    assert reply.headers["x-model-revision"] == "sha256:words"


async def test_a_cut_query_is_counted_among_the_cut_inputs(client):
    for path, passages in (("/rerank", "texts"), ("/v1/rerank", "documents")):
        reply = await client.post(path, json={"query": "q " * 20, passages: ["a"]})
        assert reply.headers["x-truncated-inputs"] == "1"
        reply = await client.post(path, json={"query": "q", passages: ["a"]})
        assert "x-truncated-inputs" not in reply.headers


async def test_one_rerank_path_serves_both_bodies(client):
    tei = {"query": "q", "texts": ["a", "gold"], "raw_scores": True, "return_text": True}
    reply = (await client.post("/rerank", json=tei)).json()
    assert reply == [
        {"index": 1, "score": 1.0, "text": "gold"},
        {"index": 0, "score": 0.0, "text": "a"},
    ]
    jina = {"query": "q", "documents": ["a", "gold"], "return_documents": True, "top_n": 1}
    (plain,) = (await client.post("/rerank", json=jina)).json()["results"]
    (wrapped,) = (await client.post("/v1/rerank", json=jina)).json()["results"]
    assert plain["document"] == "gold"
    assert wrapped["document"] == {"text": "gold"}
    assert plain["index"] == wrapped["index"] == 1
    assert plain["relevance_score"] == wrapped["relevance_score"]


async def test_rerank_with_both_or_no_passages_is_refused_as_tei_does(client):
    for body in ({"query": "q"}, {"query": "q", "texts": ["a"], "documents": ["a"]}, {}):
        reply = await client.post("/rerank", json=body)
        assert reply.status_code == 422
        assert reply.json()["error_type"] == "Validation"
    reply = await client.post("/rerank", json={"query": "q", "documents": [5]})
    assert reply.status_code == 400
    assert reply.json()["detail"].startswith("documents[0]: 5")


async def test_v1_rerank_answers_as_each_client_reads_it(client):
    reply = (await client.post("/v1/rerank", json={"query": "q", "documents": ["a"]})).json()
    assert {"id", "model", "results", "usage", "meta"} <= set(reply)
    assert "document" not in reply["results"][0]
    assert reply["meta"]["billed_units"] == {"search_units": 1}


async def test_an_index_lives_and_dies_over_rest(client):
    created = (await client.put("/v1/indexes/kb", json={})).json()
    assert (created["name"], created["encoder"], created["dims"]) == ("kb", "words", 8)
    documents = [{"id": "a", "text": "alpha", "metadata": {"n": 1}}, {"id": "b", "text": "beta"}]
    written = await client.post("/v1/indexes/kb/documents", json={"documents": documents})
    assert written.json() == {"documents": 2, "passages": 2, "tokens": 2}
    (hit, _) = (await client.post("/v1/indexes/kb/query", json={"query": "x"})).json()["results"]
    fields = {"id", "document_id", "text", "start", "end", "metadata", "heading", "score"}
    assert set(hit) == fields
    counts = (await client.post("/v1/indexes/kb/documents/count")).json()
    assert counts == {"documents": 2, "passages": 2}
    reply = (await client.post("/v1/indexes/kb/documents/get", json={"ids": ["a"]})).json()
    assert reply == {"documents": [{"id": "a", "text": "alpha", "metadata": {"n": 1}}]}
    gone = await client.post("/v1/indexes/kb/documents/delete", json={"ids": ["a", "z"]})
    assert gone.json() == {"deleted": 1}
    assert (await client.get("/v1/indexes")).json()["data"][0]["documents"] == 1
    assert (await client.get("/v1/indexes/kb")).json()["passages"] == 1
    assert (await client.delete("/v1/indexes/kb")).json() == {"name": "kb", "deleted": True}
    assert (await client.get("/v1/indexes/kb")).status_code == 404


async def test_vectors_of_another_encoder_are_a_conflict(client):
    await client.put("/v1/indexes/kb")
    body = {"vector": [1.0] * 8, "fingerprint": "sha256:other"}
    reply = await client.post("/v1/indexes/kb/query", json=body)
    assert reply.status_code == 409
    assert error_of(reply)["code"] == "encoder_mismatch"
    assert "sha256:words" in error_of(reply)["message"]
    assert "sha256:other" in error_of(reply)["message"]
    body = {"vector": [1.0] * 7 + [1e39], "fingerprint": "sha256:words"}
    reply = await client.post("/v1/indexes/kb/query", json=body)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == "vector[7]"
    documents = [{"id": "a", "vector": [1.0] * 8}, {"id": "b"}]
    reply = await client.post("/v1/indexes/kb/documents", json={"documents": documents})
    assert error_of(reply)["param"] == "documents[1].vector"
    documents = [{"id": "a", "vector": [1.0] * 8}, {"id": "b", "vector": [1.0] * 7}]
    reply = await client.post("/v1/indexes/kb/documents", json={"documents": documents})
    assert error_of(reply)["param"] == "documents[1].vector"


def events_of(text):
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        data = data.removeprefix("data: ")
        yield name.removeprefix("event: "), None if data == "[DONE]" else json.loads(data)


QUESTION = {"query": "where?", "documents": ["some words", {"id": "best", "text": "gold"}]}


async def test_a_stream_says_what_the_whole_answer_says(client):
    whole = (await client.post("/v1/rag/answer", json=QUESTION)).json()
    reply = await client.post("/v1/rag/answer", json={**QUESTION, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = list(events_of(reply.text))
    names = [name for name, _ in events]
    assert names == ["search_results", *["message"] * 3, "compression", "final_answer", "done"]
    deltas = [
        data["delta"]["content"][0]["payload"]["value"]
        for name, data in events
        if name == "message"
    ]
    final = events[-2][1]
    assert "".join(deltas) == final["generated_answer"] == whole["answer"]
    assert final["citations"] == whole["citations"] == events[0][1]["data"]["citations"]
    assert [citation["id"] for citation in whole["citations"]] == ["best", "0"]
    assert whole["compression"]["vectors_out"] == events[-3][1]["vectors_out"] == 4
    assert whole["usage"]["total_tokens"] == 1 + whole["usage"]["completion_tokens"]
    assert final["id"] == events[0][1]["id"]


async def test_a_bad_question_fails_with_a_status_streamed_or_not(client):
    for stream in (False, True):
        body = {"query": "where?", "index": {"name": "nowhere"}, "stream": stream}
        reply = await client.post("/v1/rag/answer", json=body)
        assert reply.status_code == 404
        assert error_of(reply)["code"] == "index_not_found"


async def test_a_failure_amid_a_stream_is_an_event_without_its_details(client, registry):
    registry.pairs["pair"].fails_after = 1
    reply = await client.post("/v1/rag/answer", json={**QUESTION, "stream": True})
    events = list(events_of(reply.text))
    assert [name for name, _ in events] == ["search_results", "message", "error", "done"]
    assert "secret detail" not in reply.text
    assert events[2][1]["error"]["code"] == "internal_error"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/nowhere", 404, "not_found"),
        ("GET", "/v1/embeddings", 405, "method_not_allowed"),
        ("PATCH", "/v1/indexes/kb", 405, "method_not_allowed"),
    ],
)
async def test_unknown_paths_and_methods_get_our_body(client, method, path, status, code):
    reply = await client.request(method, path)
    assert reply.status_code == status
    assert error_of(reply)["code"] == code
    assert path in error_of(reply)["message"]


async def test_methods_that_a_path_takes_are_named(client):
    reply = await client.get("/embed")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json() == {
        "error": "/embed does not take GET; it takes POST.",
        "error_type": "Validation",
    }


async def test_a_body_over_the_limit_is_refused_announced_or_not(client):
    async def chunks():
        for _ in range(30):
            yield b"a" * 1000

    for content in (b"a" * 30_000, chunks()):
        reply = await client.post("/v1/embeddings", content=content)
        assert reply.status_code == 413
        assert error_of(reply)["code"] == "payload_too_large"
        assert "20000" in error_of(reply)["message"]
    reply = await client.post("/embed", content=b"a" * 30_000)
    assert (reply.status_code, reply.json()["error_type"]) == (413, "Validation")
    reply = await client.post("/v1/indexes/kb/documents", content=b"a" * 30_000)
    assert reply.status_code == 413


async def test_a_body_that_is_announced_too_long_is_not_asked_for(line):
    """As curl does: it sends the head alone, and waits for a word."""
    headers = {"content-length": "30000", "expect": "100-continue"}
    asked = await line("/embed", [b""], headers=headers, unfinished=True).run()
    assert (asked.status, asked.received) == (413, 0)


async def test_too_many_texts_are_refused_with_their_count(client):
    reply = await client.post("/v1/embeddings", json={"input": ["a"] * 51})
    assert reply.status_code == 413
    assert error_of(reply)["message"] == "input: 51 items, over the limit of 50 in one request."


async def test_a_bug_shows_no_traceback_and_is_found_by_its_request_id(client, registry, caplog):
    registry.encoders["words"].fails = RuntimeError("secret detail")
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/embed", {"inputs": "a"})):
        reply = await client.post(path, json=body, headers={"x-request-id": "mine-7"})
        assert reply.status_code == 500
        assert "secret" not in reply.text
        assert "mine-7" in reply.text
    logged = [(record.getMessage(), record.request_id) for record in caplog.records]
    assert logged == [("internal_error", "mine-7"), ("reply", "mine-7")] * 2


async def test_faults_and_overload_look_as_the_family_expects(client, registry):
    registry.encoders["words"].fails = ModelFault("not finite")
    assert (await client.post("/embed", json={"inputs": "a"})).status_code == 424
    assert (await client.post("/v1/embeddings", json={"input": "a"})).status_code == 500
    registry.encoders["words"].fails = Overloaded("full", retry_after_seconds=3)
    reply = await client.post("/embed", json={"inputs": "a"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    assert reply.json() == {"error": "full", "error_type": "Overloaded"}


async def test_request_ids_are_echoed_or_made(client):
    echoed = await client.get("/livez", headers={"x-request-id": "abc"})
    assert echoed.headers["x-request-id"] == "abc"
    made = {(await client.get("/livez")).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    reply = await client.get("/livez", headers={"x-request-id": "a" * 500})
    assert len(reply.headers["x-request-id"]) == 32
    assert "x-request-id" in (await client.get("/nowhere")).headers


async def test_models_are_listed_and_shown(client):
    listed = (await client.get("/v1/models")).json()
    assert [item["id"] for item in listed["data"]] == ["words", "other", "pair"]
    assert (await client.get("/v1/models/pair")).json() == listed["data"][2]
    assert [entry["pair"] for entry in listed["data"][:2]] == [None, None]
    assert listed["data"][2]["pair"] == {
        "vectors": [2, 1],
        "rates": [4, 8],
        "scores": True,
        "top_n": 5,
        "min_relevance": 0.0,
        "rank_weight": 0.0,
    }
    reply = await client.get("/v1/models/broken")
    assert reply.status_code == 404
    assert "was refused: model.json is cut short" in error_of(reply)["message"]


async def test_info_has_the_fields_that_teis_clients_read(client):
    info = (await client.get("/info")).json()
    assert list(info["model_type"].items()) == [("embedding", {"pooling": "mean"})]
    assert info["max_input_length"] == 16
    assert info["max_client_batch_size"] == 50
    assert info["capabilities"]["answer"] == ["pair"]


async def test_readiness_is_not_liveness(client, services):
    assert (await client.get("/readyz")).status_code == 200
    services.health.drain()
    for path in ("/readyz", "/health"):
        reply = await client.get(path)
        assert reply.status_code == 503
        assert "draining" in reply.text
        assert "retry-after" in reply.headers
    assert (await client.get("/livez")).status_code == 200
    assert (await client.get("/version")).json().keys() == {"version"}


async def test_metrics_stand_at_zero_and_count(client):
    zero = 'condensery_requests_total{code="ok",model="words",protocol="rest",task="embed"} 0.0'
    assert zero in (await client.get("/metrics")).text
    await client.post("/embed", json={"inputs": "a"})
    assert zero.replace(" 0.0", " 1.0") in (await client.get("/metrics")).text


async def test_every_route_is_described(client):
    described = (await client.get("/openapi.json")).json()
    for route in (route for section in route_sections().values() for route in section):
        path = route.path.replace(":path", "")
        assert route.method.lower() in described["paths"][path]
    text = json.dumps(described)
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in described["components"]["schemas"]


async def test_an_answer_reads_from_an_index(client, services):
    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", [Document("a", "gold"), Document("b", "dust")])
    body = {"query": "q", "index": {"name": "kb", "top_k": 2}, "rerank": {"top_n": 1}}
    whole = (await client.post("/v1/rag/answer", json=body)).json()
    assert [citation["document_id"] for citation in whole["citations"]] == ["a"]
    assert whole["object"] == "rag.answer"


async def test_a_disk_that_turns_read_only_refuses_writes_and_still_answers(client, services):
    await client.put("/v1/indexes/kb")
    await client.post("/v1/indexes/kb/documents", json={"documents": [{"id": "a", "text": "one"}]})
    writer = services.indexes.find("kb")._writer
    writer.execute("PRAGMA query_only = ON")
    body = {"documents": [{"id": "b", "text": "two"}]}
    reply = await client.post("/v1/indexes/kb/documents", json=body)
    assert reply.status_code == 500
    assert error_of(reply)["code"] == "storage_read_only"
    assert (await client.post("/v1/indexes/kb/query", json={"query": "x"})).status_code == 200
    writer.execute("PRAGMA query_only = OFF")
    assert (await client.post("/v1/indexes/kb/documents", json=body)).status_code == 200
