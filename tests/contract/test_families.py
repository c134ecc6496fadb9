"""Requests as clients of other servers send them, to the real server: what Jina's, Voyage's, NIM's
and KServe's clients were seen to send, and the slashes and HEADs of all."""

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

TEXTS = ["The Rhine passes through Lake Constance.", "Helium is a gas.", "Vasa sank in 1628."]
QUESTION = "Which lake does the Rhine pass through?"


@pytest.fixture
def door(live_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live_server.url, timeout=60) as client:
        yield client


def ask(server: Any, method: str, path: str) -> tuple[int, str | None, bytes]:
    """Send a path as it is, which httpx would tidy up; return status, length announced and body."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.getheader("content-length"), reply.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/v1//models", "/v2/", "/readyz/"])
def test_slashes_that_clients_add_are_no_other_path(live_server: Any, path: str) -> None:
    assert ask(live_server, "GET", path)[0] == 200


def test_head_has_the_head_of_get_and_no_body(live_server: Any) -> None:
    for path in ("/v1/models", "/readyz", "/v2/health/ready", "/openapi.json", "/docs"):
        _, length, body = ask(live_server, "GET", path)
        assert ask(live_server, "HEAD", path) == (200, length, b""), path
        assert body
    assert ask(live_server, "HEAD", "/embed")[0] == 405


def test_jinas_and_voyages_words_give_the_vectors_that_ours_give(door: httpx.Client) -> None:
    body = {"input": TEXTS, "model": "minilm-l6", "encoding_format": None}
    floats = door.post("/v1/embeddings", json=body).raise_for_status().json()["data"]
    wanted = np.array([item["embedding"] for item in floats], np.float32)
    jina = {"input": TEXTS, "model": "minilm-l6", "embedding_type": "base64", "normalized": True}
    voyage = {
        "input": TEXTS,
        "model": "minilm-l6",
        "input_type": None,
        "truncation": True,
        "output_dtype": None,
        "output_dimension": None,
        "encoding_format": "base64",
    }
    for words in (jina, voyage):
        data = door.post("/v1/embeddings", json=words).raise_for_status().json()["data"]
        rows = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in data]
        assert np.array_equal(np.stack(rows), wanted)


def test_voyages_ranking_is_cut_by_top_k(door: httpx.Client) -> None:
    body = {"query": QUESTION, "documents": TEXTS, "model": "oscar-mini"}
    whole = door.post("/v1/rerank", json=body).json()["results"]
    voyage = door.post("/v1/rerank", json={**body, "top_k": 2, "truncation": True}).json()
    assert voyage["data"] == whole[:2]
    assert voyage["usage"]["total_tokens"] > 0


def test_nims_embeddings_and_ranking(door: httpx.Client) -> None:
    body = {"input": TEXTS, "model": "minilm-l6", "encoding_format": "float"}
    body |= {"input_type": "passage", "truncate": "NONE"}
    assert len(door.post("/v1/embeddings", json=body).raise_for_status().json()["data"]) == 3
    long = {**body, "input": ["word " * 1000]}
    assert door.post("/v1/embeddings", json=long).status_code == 400
    cut = door.post("/v1/embeddings", json={**long, "truncate": "START"}).raise_for_status()
    assert cut.headers["x-truncated-inputs"] == "1"
    # NVIDIARerank without a name takes the first that its address lists.
    model = door.get("/rerank/v1/models").json()["data"][0]["id"]
    ranked = {"model": model, "query": {"text": QUESTION}}
    ranked["passages"] = [{"text": text} for text in TEXTS]
    reply = door.post("/rerank/v1/ranking", json=ranked).raise_for_status().json()
    assert sorted(rank["index"] for rank in reply["rankings"]) == [0, 1, 2]


def test_litellms_request_of_ollama_gives_the_vectors_of_embed(door: httpx.Client) -> None:
    body = {"model": "minilm-l6", "input": TEXTS, "options": {"num_ctx": 256}}
    reply = door.post("/api/embed", json=body).raise_for_status()
    wanted = door.post("/embed", json={"inputs": TEXTS, "model": "minilm-l6"}).json()
    assert reply.json()["embeddings"] == wanted
    assert reply.headers["x-ignored-fields"] == "options"
    assert "version" in door.get("/api/version").json()


def test_a_version_of_kserves_is_ready(door: httpx.Client) -> None:
    (version,) = door.get("/v2/models/minilm-l6").json()["versions"]
    ready = door.get(f"/v2/models/minilm-l6/versions/{version}/ready")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    other = door.get("/v2/models/minilm-l6/versions/999/ready")
    assert (other.status_code, json.loads(other.text).keys()) == (404, {"error"})


def test_litellms_request_of_triton_gives_the_vectors_of_embed(door: httpx.Client) -> None:
    given = {"name": "input_text", "shape": [3], "datatype": "BYTES", "data": TEXTS}
    reply = door.post("/v2/models/minilm-l6/infer", json={"inputs": [given]}).raise_for_status()
    (output,) = reply.json()["outputs"]
    got = np.array(output["data"], np.float32).reshape(output["shape"])
    wanted = door.post("/embed", json={"inputs": TEXTS, "model": "minilm-l6"}).json()
    assert np.array_equal(got, np.array(wanted, np.float32))
