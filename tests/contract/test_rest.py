"""REST against the real server: real models, a real socket."""

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

QUESTION = "Which lake does the Rhine pass through?"
PASSAGES = ["The Rhine passes through Lake Constance.", "Helium is a gas.", "Vasa sank in 1628."]


@pytest.fixture
def door(live_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live_server.url, timeout=60) as client:
        yield client
        assert client.get("/readyz").status_code == 200, "the service did not go on"


def vectors(reply: httpx.Response) -> Any:
    return np.array(reply.raise_for_status().json(), np.float32)


def test_tei_embeds_and_normalises(door: httpx.Client) -> None:
    rows = vectors(door.post("/embed", json={"inputs": PASSAGES}))
    assert rows.shape == (3, 384)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert vectors(door.post("/embed", json={"inputs": "one"})).shape == (1, 384)


def test_openai_and_tei_give_the_same_bits_for_the_same_batch(door: httpx.Client) -> None:
    tei = vectors(door.post("/embed", json={"inputs": PASSAGES[0]}))
    reply = door.post("/v1/embeddings", json={"input": PASSAGES[0]}).json()
    assert np.array_equal(tei[0], np.array(reply["data"][0]["embedding"], np.float32))


def test_texts_over_the_models_length_are_cut_and_reported(door: httpx.Client) -> None:
    body = {"inputs": ["word " * 1000, "short"]}
    reply = door.post("/embed", json=body)
    assert reply.headers["x-truncated-inputs"] == "1"
    reply = door.post("/embed", json={**body, "truncate": False})
    assert reply.status_code == 422
    assert "truncate" in reply.json()["error"]


def test_both_rerank_doors_rank_alike(door: httpx.Client) -> None:
    tei = door.post("/rerank", json={"query": QUESTION, "texts": PASSAGES}).json()
    jina = door.post("/v1/rerank", json={"query": QUESTION, "documents": PASSAGES}).json()
    assert [item["index"] for item in tei] == [result["index"] for result in jina["results"]]
    assert [entry["score"] for entry in tei] == [
        result["relevance_score"] for result in jina["results"]
    ]
    assert sorted(entry["index"] for entry in tei) == [0, 1, 2]
    assert all(0 <= entry["score"] <= 1 for entry in tei)
    assert tei == sorted(tei, key=lambda entry: -entry["score"])
    assert jina["model"] == "oscar-mini"


def test_the_sample_index_finds_the_passage_with_the_answer(door: httpx.Client) -> None:
    body = {"query": QUESTION, "top_k": 3}
    results = door.post("/v1/indexes/samples/query", json=body).json()["results"]
    assert results[0]["document_id"] == "rhine"
    assert results[0]["metadata"]["title"] == "Rhine"
    assert len(results) == 3


def test_an_index_over_rest_by_text_and_by_vector(door: httpx.Client) -> None:
    info = door.put("/v1/indexes/contract").raise_for_status().json()
    long = " ".join(f"Sentence {place} speaks of topic {place * 3}." for place in range(60))
    documents = [{"id": str(place), "text": text} for place, text in enumerate([*PASSAGES, long])]
    written = door.post("/v1/indexes/contract/documents", json={"documents": documents}).json()
    assert written["documents"] == 4
    assert written["passages"] > 4
    reply = door.post("/v1/embeddings", json={"input": PASSAGES[1]})
    vector = reply.json()["data"][0]["embedding"]
    assert reply.headers["x-model-revision"] == info["fingerprint"]
    body = {"vector": vector, "fingerprint": info["fingerprint"], "top_k": 1}
    (hit,) = door.post("/v1/indexes/contract/query", json=body).json()["results"]
    assert (hit["document_id"], hit["text"]) == ("1", PASSAGES[1])
    assert hit["score"] > 0.99
    (hit, *_) = door.post("/v1/indexes/contract/query", json={"query": "topic 90"}).json()[
        "results"
    ]
    assert hit["document_id"] == "3"
    assert long[hit["start"] : hit["end"]] == hit["text"]
    gone = door.post("/v1/indexes/contract/documents/delete", json={"ids": ["1"]}).json()
    assert gone == {"deleted": 1}
    door.delete("/v1/indexes/contract").raise_for_status()


def events_of(reply: httpx.Response) -> list[tuple[str, Any]]:
    events, name = [], ""
    for line in reply.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: ") and line != "data: [DONE]":
            events.append((name, json.loads(line.removeprefix("data: "))))
    return events


@pytest.mark.parametrize("mode", ["auto", "required", "off"])
def test_a_streamed_answer_joins_to_the_whole_one(door: httpx.Client, mode: str) -> None:
    body = {
        "query": QUESTION,
        "index": {"name": "samples", "top_k": 6},
        "rerank": {"top_n": 3},
        "compression": {"mode": mode},
        "max_tokens": 12,
    }
    whole = door.post("/v1/rag/answer", json=body).raise_for_status().json()
    with door.stream("POST", "/v1/rag/answer", json={**body, "stream": True}) as reply:
        events = events_of(reply)
    deltas = [
        data["delta"]["content"][0]["payload"]["value"]
        for name, data in events
        if name == "message"
    ]
    final = dict(events)["final_answer"]
    assert "".join(deltas) == final["generated_answer"] == whole["answer"]
    assert whole["usage"]["completion_tokens"] <= 12
    assert len(whole["citations"]) == 3
    block = whole["compression"]
    assert (block["mode"], block["status"]) == (mode, "off" if mode == "off" else "applied")
    assert block["vectors_out"] == (0 if mode == "off" else 24)
    assert block["flops_saved"] == block["flops_plain"] - block["flops_used"]


STATUSES = ("applied", "fallback", "left_out")
SUMS = ("context_tokens_in", "context_vectors_out", "flops_used", "flops_plain")


def test_metrics_are_the_sums_of_what_answers_reported(door: httpx.Client) -> None:
    names = [
        *(f'compressed_docs_total{{model="oscar-mini",status="{status}"}}' for status in STATUSES),
        *(f'{name}_total{{model="oscar-mini"}}' for name in SUMS),
    ]

    def read() -> list[float]:
        lines = dict(
            line.rsplit(" ", 1)
            for line in door.get("/metrics").text.splitlines()
            if not line.startswith("#")
        )
        return [float(lines[f"condensery_{name}"]) for name in names]

    before = read()
    asked = {"query": QUESTION, "documents": [*PASSAGES, " "], "max_tokens": 4}
    blocks = [
        door.post("/v1/rag/answer", json={**asked, **more}).raise_for_status().json()["compression"]
        for more in ({}, {"compression": {"mode": "off"}}, {"rerank": {"top_n": 0}})
    ]
    grown = [after - early for after, early in zip(read(), before, strict=True)]
    assert grown == [
        sum(block["docs"] for block in blocks),
        sum(len(block["fallback_docs"]) for block in blocks),
        sum(len(block["left_out"]) for block in blocks),
        sum(block["tokens_in"] for block in blocks),
        sum(block["vectors_out"] for block in blocks),
        sum(block["flops_used"] for block in blocks),
        sum(block["flops_plain"] for block in blocks),
    ]
    assert grown[2] == 3  # the blank one, each time


BAD = [
    ("/v1/embeddings", {"input": "a", "model": "nobody"}, 404, "model_not_found", "'nobody'"),
    ("/v1/embeddings", {"input": []}, 400, "empty_input", "input"),
    ("/v1/embeddings", {"input": "a" * 64_001}, 400, "input_error", "64001 characters"),
    ("/v1/embeddings", {"input": ["a"] * 10_000}, 413, "payload_too_large", "10000 items"),
    ("/v1/embeddings", {"input": {"text": "a"}}, 400, "input_error", "input: "),
    ("/v1/embeddings", {"input": [1, 2]}, 400, "token_ids_refused", "check_embedding_ctx_length"),
    ("/v1/embeddings", b'{"input": "a"', 400, "input_error", "not JSON"),
    ("/v1/embeddings", b'{"input": "\xff"}', 400, "input_error", "0xff"),
    ("/v1/embeddings", b'{"input": "\\ud800"}', 400, "input_error", "surrogate"),
    ("/v1/embeddings", b"a" * (8 * 2**20 + 1), 413, "payload_too_large", "8388608"),
    ("/v1/rag/answer", {"query": "q", "index": {"name": "no"}}, 404, "index_not_found", "'no'"),
    ("/v1/rag/answer", {"query": "q"}, 400, "input_error", "got neither"),
    ("/v1/rag/answer", {"query": "q", "documents": []}, 400, "empty_input", "documents"),
    ("/v1/rag/answer", {"query": "q", "documents": ["a"], "n": 1}, 400, "input_error", "unknown"),
    ("/v1/indexes/none/query", {"query": "q"}, 404, "index_not_found", "'none'"),
    ("/v1/indexes/NO/query", {"query": "q"}, 400, "input_error", "'NO'"),
    ("/v1/indexes/samples/query", {"query": "q", "top_k": 0}, 400, "input_error", "top_k: 0"),
    ("/v1/indexes/samples/query", b'{"vector": [NaN]}', 400, "input_error", "NaN"),
    ("/v1/indexes/samples/query", {"vector": [1.0]}, 400, "input_error", "fingerprint: needed"),
    (
        "/v1/indexes/samples/query",
        {"vector": [1.0] * 384, "fingerprint": "sha256:other"},
        409,
        "encoder_mismatch",
        "sha256:other",
    ),
    ("/v1/indexes/samples/documents", {"documents": [{"text": "a"}]}, 400, "input_error", "[0].id"),
]


@pytest.mark.parametrize(("path", "body", "status", "code", "says"), BAD)
def test_bad_input_gets_its_own_error(
    door: httpx.Client, path: str, body: Any, status: int, code: str, says: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = door.post(path, content=content)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert error["code"] == code
    assert says in error["message"]
    assert "Traceback" not in reply.text


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": []}, 400, "Empty"),
        ("/embed", {"inputs": 5}, 422, "Validation"),
        ("/embed", {"inputs": ["a"] * 10_000}, 413, "Validation"),
        ("/embed", b"{", 422, "Validation"),
        ("/embed", b"\xff", 422, "Validation"),
        ("/rerank", {"query": "q", "texts": []}, 400, "Empty"),
        ("/rerank", {"query": "q", "texts": ["a"], "model": "nobody"}, 404, "Validation"),
        ("/rerank", {"query": "q"}, 422, "Validation"),
    ],
)
def test_bad_input_on_teis_routes_looks_like_teis(
    door: httpx.Client, path: str, body: Any, status: int, kind: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = door.post(path, content=content)
    assert reply.status_code == status
    assert reply.json()["error_type"] == kind
    assert set(reply.json()) == {"error", "error_type"}


def test_a_body_that_never_says_its_length_is_stopped(door: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(9):
            yield b"a" * 2**20

    reply = door.post("/v1/embeddings", content=chunks())
    assert reply.status_code == 413


def test_a_client_that_leaves_harms_nobody(door: httpx.Client, live_server: Any) -> None:
    address = urlsplit(live_server.url)
    for part in (b"", b"{", b'{"input": "a"}'):
        with socket.create_connection((address.hostname, address.port)) as line:
            size = len(part) + 5
            head = f"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}"
            line.sendall(head.encode() + b"\r\n\r\n" + part)
    with door.stream(
        "POST",
        "/v1/rag/answer",
        json={"query": QUESTION, "documents": PASSAGES, "stream": True, "max_tokens": 200},
    ) as reply:
        next(reply.iter_lines())
    assert door.post("/embed", json={"inputs": "a"}).status_code == 200


def test_a_scrape_tells_of_the_server_itself(metric: Any) -> None:
    assert metric("condensery_ready") == 1
    assert metric("condensery_queue_tokens_limit") == 1_000_000
    assert metric("condensery_data_bytes", state="total") > metric(
        "condensery_data_bytes", state="free"
    )
    assert metric("process_resident_memory_bytes") > 2**20
