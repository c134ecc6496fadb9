"""Answers over REST, whole and streamed: their passages, their options, their failures."""

import json
from dataclasses import replace

import pytest

from condensery.errors import ModelFault
from condensery.question import Sampling

PATH = "/v1/rag/answer"
QUESTION = {"query": "where?", "documents": ["some words", {"id": "best", "text": "gold"}]}


def events_of(text):
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        data = data.removeprefix("data: ")
        yield name.removeprefix("event: "), None if data == "[DONE]" else json.loads(data)


async def answer(client, **more):
    """Return an answer, once it is found to be the same whole and streamed."""
    reply = await client.post(PATH, json={**QUESTION, **more})
    assert reply.status_code == 200, reply.text
    whole = reply.json()
    reply = await client.post(PATH, json={**QUESTION, **more, "stream": True})
    events = list(events_of(reply.text))
    final = dict(events)["final_answer"]
    for field in ("finish_reason", "citations", "logprobs", "usage"):
        assert final[field] == whole[field]
    payloads = [
        data["delta"]["content"][0]["payload"] for name, data in events if name == "message"
    ]
    assert "".join(item["value"] for item in payloads) == whole["answer"]
    logprobs_sent = [token for payload in payloads for token in payload.get("logprobs", ())]
    assert logprobs_sent == (whole["logprobs"] or [])
    same = ("mode", "status", "reason", "fallback_docs", "left_out", "flops_used")
    for block in (final["compression"], dict(events)["compression"]):
        assert [block[name] for name in same] == [whole["compression"][name] for name in same]
    return whole


async def test_how_to_sample_and_where_to_stop_reach_the_pair(client, registry):
    body = {"temperature": 0.5, "top_p": 0.5, "seed": 3, "logprobs": 1, "stop": "END"}
    await answer(client, **body)
    assert registry.pairs["pair"].asked == [(Sampling(0.5, 0.5, 3, 1), ("END",))] * 2


async def test_log_probabilities_are_of_each_token_or_null(client):
    whole = await answer(client, logprobs=1)
    assert "".join(logprob["text"] for logprob in whole["logprobs"]) == whole["answer"]
    top = {"text": "where? ", "logprob": -0.5}
    assert whole["logprobs"][0] == {**top, "top": [top]}
    assert (await answer(client))["logprobs"] is None


async def test_where_no_passage_holds_the_answer_it_is_not_found(client):
    whole = await answer(client, min_relevance=0.9)
    assert (whole["finish_reason"], whole["usage"]["completion_tokens"]) == ("not_found", 0)
    assert "do not hold" in whole["answer"]
    assert [citation["id"] for citation in whole["citations"]] == ["best", "0"]
    assert (await answer(client, min_relevance=0.5))["finish_reason"] == "stop"


async def test_a_passage_that_cannot_be_compressed_is_reported_by_its_place(client, registry):
    registry.pairs["pair"].faults["some words"] = ModelFault("not finite")
    block = (await answer(client))["compression"]
    assert (block["status"], block["fallback_docs"]) == ("partial", [0])
    assert "1 of 2 passages could not be compressed" in block["reason"]
    for stream in (False, True):
        body = {**QUESTION, "compression": {"mode": "required"}, "stream": stream}
        reply = await client.post(PATH, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (424, "compression_failed")
        assert reply.headers["x-should-retry"] == "false"


async def test_what_does_not_fit_is_reported_by_its_place(client):
    body = {"compression": {"max_context_vectors": 1}}
    block = (await answer(client, **body))["compression"]
    assert (block["vectors_out"], block["left_out"]) == (1, [0])
    assert "max_context_vectors" in block["reason"]


async def test_a_rate_is_one_of_the_pairs(client):
    assert (await answer(client, compression={"ratio": 8}))["compression"]["vectors_out"] == 2
    reply = await client.post(PATH, json={**QUESTION, "compression": {"ratio": 5}})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "compression.ratio")
    assert "5 is not a rate" in error["message"]
    assert "4, 8" in error["message"]


async def test_all_are_read_or_as_many_as_the_pair_reads_best(client, registry):
    body = {"documents": [f"words {place}" for place in range(8)]}
    best = registry.pairs["pair"].traits.top_n
    for rerank, read in (({"top_n": 0}, 8), ({"top_n": 3}, 3), ({}, best), ({"top_n": None}, best)):
        assert len((await answer(client, **body, rerank=rerank))["citations"]) == read


async def test_what_was_compressed_is_read_again_without_a_pass(client, registry):
    whole = await answer(client)
    done = (await client.post("/v1/compress", json=QUESTION)).json()
    passes = len(registry.pairs["pair"].passes)
    again = await answer(client, documents=None, context=done["context"])
    assert len(registry.pairs["pair"].passes) == passes
    assert (again["answer"], again["citations"]) == (whole["answer"], whole["citations"])
    reply = await client.post(PATH, json={"query": "why?", "context": done["context"]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "context_mismatch")
    assert reply.headers["x-should-retry"] == "false"


async def test_a_context_names_its_pair_in_the_reply_and_in_the_metrics(client, registry):
    second = replace(registry.pairs["pair"].info, id="second")
    registry.pairs["second"] = replace(registry.pairs["pair"], info=second)
    body = {**QUESTION, "model": "second"}
    done = (await client.post("/v1/compress", json=body)).json()
    assert done["model"] == "second"
    asked = {"query": QUESTION["query"], "context": done["context"]}
    chat = {"messages": [{"role": "user", "content": QUESTION["query"]}]}
    paths = {
        PATH: asked,
        "/v1/rag/compare": asked,
        "/v1/chat/completions": {**chat, "context": done["context"]},
    }
    for path, body in paths.items():
        reply = await client.post(path, json=body)
        assert (reply.status_code, reply.headers["x-model"]) == (200, "second")
    reply = await client.post(PATH, json={**asked, "stream": True})
    assert reply.headers["x-model"] == "second"
    lines = (await client.get("/metrics")).text.splitlines()
    for task, count in (("compress", 1), ("answer", 3), ("compare", 1)):
        labels = f'code="ok",model="second",protocol="rest",task="{task}"'
        assert f"condensery_requests_total{{{labels}}} {count}.0" in lines


async def test_an_index_is_searched_in_the_mode_asked_for(client):
    await client.put("/v1/indexes/kb")
    documents = [{"id": "a", "text": "the red fox"}, {"id": "b", "text": "a blue whale"}]
    await client.post("/v1/indexes/kb/documents", json={"documents": documents})
    for mode, expected in (("bm25", ["b"]), ("hybrid", ["a", "b"]), ("dense", ["a", "b"])):
        index = {"name": "kb", "mode": mode}
        body = {"query": "whale", "index": index}
        whole = (await client.post(PATH, json=body)).json()
        assert sorted(citation["document_id"] for citation in whole["citations"]) == expected
        body = {"query": "whale", "mode": mode}
        hits = (await client.post("/v1/indexes/kb/query", json=body)).json()["results"]
        assert sorted(hit["document_id"] for hit in hits) == expected


async def test_a_vector_has_no_words_to_look_for(client):
    await client.put("/v1/indexes/kb")
    body = {"vector": [1.0] * 8, "fingerprint": "sha256:words", "mode": "bm25"}
    reply = await client.post("/v1/indexes/kb/query", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "mode")
    assert error["message"].startswith("mode: 'bm25'")


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"documents": None}, 400, "documents"),
        ({"index": {"name": "kb"}}, 400, "documents"),
        ({"documents": None, "context": "ctx_x"}, 404, "context"),
        ({"documents": ["a", {"id": "0", "text": "b"}]}, 400, "documents[1].id"),
        ({"stop": [""]}, 400, "stop[0]"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"rerank": {"top_n": 101}}, 400, "rerank.top_n"),
        ({"max_tokens": 513}, 400, "max_tokens"),
        ({"index": {"name": "kb", "top_k": 0}, "documents": None}, 400, "index.top_k"),
        ({"compression": {"mode": "off", "ratio": 4}}, 400, "compression.ratio"),
        ({"compression": {"mode": "off"}, "min_relevance": 0.5}, 400, "min_relevance"),
    ],
)
async def test_what_is_wrong_is_named_streamed_or_not(client, body, status, field):
    for stream in (False, True):
        reply = await client.post(PATH, json={**QUESTION, **body, "stream": stream})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (status, field), error


async def test_an_answer_that_is_too_long_for_the_generator_is_refused(client, registry):
    registry.pairs["pair"].positions = 3
    for stream in (False, True):
        reply = await client.post(PATH, json={**QUESTION, "stream": stream})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_too_long")
        assert error["param"] in ("max_tokens", "rerank.top_n")
