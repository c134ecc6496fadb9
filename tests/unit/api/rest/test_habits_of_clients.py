"""What clients of other servers write that those take: other words, slashes, HEAD."""

import base64

import numpy as np
import pytest

from condensery.encodings import encode

PASSAGES = ["a", "gold gold", "gold"]
LONG = "word " * 60


def embedding_of(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("words", "form", "dtype"),
    [
        ({"encoding_format": None}, "float", "float32"),
        ({"embedding_type": "float"}, "float", "float32"),
        ({"embedding_type": "base64"}, "base64", "float32"),
        ({"embedding_type": "ubinary"}, "float", "ubinary"),
        ({"output_dtype": "int8"}, "float", "int8"),
        ({"encoding_format": "base64", "output_dtype": "binary"}, "base64", "binary"),
        ({"encoding_format": "base64", "output_dtype": "float"}, "base64", "float32"),
    ],
)
async def test_vectors_come_as_jinas_and_voyages_words_ask(client, services, words, form, dtype):
    vectors = (await services.registry.encoder().embed(["a"])).vectors
    got = embedding_of(await client.post("/v1/embeddings", json={"input": "a", **words}))
    expected = encode(vectors, dtype)[0]
    if form == "base64":
        assert base64.b64decode(got) == expected.tobytes()
    else:
        assert np.array_equal(np.array(got, expected.dtype), expected)


async def test_where_texts_are_cut_comes_in_any_familys_words(client, registry):
    encoder = registry.encoders["words"]
    for words, side in (
        ({"truncate": "END"}, "right"),
        ({"truncate": "START"}, "left"),
        ({"truncate": None, "truncation_direction": "left"}, "left"),
        ({"truncation": True}, "right"),
    ):
        reply = await client.post("/v1/embeddings", json={"input": LONG, **words})
        assert (reply.status_code, encoder.sides[-1]) == (200, side), words
    for words in ({"truncate": "NONE"}, {"truncate": False}, {"truncation": False}):
        reply = await client.post("/v1/embeddings", json={"input": LONG, **words})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input[0]"), words


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"dimensions": 8, "output_dimension": 4}, "dimensions"),
        ({"output_dimension": 5}, "output_dimension"),
        ({"encoding_format": "float", "embedding_type": "base64"}, "encoding_format"),
        ({"embed_dtype": "int8", "output_dtype": "int8"}, "embed_dtype"),
        ({"truncate": True, "truncation": True}, "truncate"),
        ({"truncate": "START", "truncation_direction": "Right"}, "truncate"),
        ({"truncate": 1}, "truncate"),
        ({"truncate": "MIDDLE"}, "truncate"),
        ({"normalize": True, "normalized": False}, "normalize"),
    ],
)
async def test_two_words_for_one_wish_and_wrong_ones_are_refused(client, words, field):
    reply = await client.post("/v1/embeddings", json={"input": "a", **words})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field), reply.text


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_voyages_ranking_is_cut_by_top_k_and_read_from_data(client, path):
    body = {"query": "q", "documents": PASSAGES, "model": "pair", "top_k": 2, "truncation": True}
    reply = (await client.post(path, json=body)).json()
    assert [rank["index"] for rank in reply["data"]] == [1, 2]
    assert reply["data"] == reply["results"]
    both = {**body, "top_n": 1}
    assert "top_n" in (await client.post(path, json=both)).json()["message"]
    refused = await client.post(path, json={**body, "query": LONG, "truncation": False})
    assert refused.status_code == 400


async def test_ollama_embeds_by_a_name_with_its_tag(client, services, registry):
    vectors = (await services.registry.encoder().embed(["a", "b"])).vectors
    body = {"model": "words:latest", "input": ["a", "b"], "options": {"num_ctx": 8}}
    reply = await client.post("/api/embed", json={**body, "keep_alive": None})
    assert reply.headers["x-ignored-fields"] == "options"
    embedded = reply.json()
    assert np.array_equal(np.array(embedded["embeddings"], np.float32), vectors)
    assert (embedded["model"], embedded["prompt_eval_count"]) == ("words:latest", 2)
    assert registry.encoders["words"].asked[-1] == ("b", "", True)
    assert (await client.post("/api/embed", json={"input": LONG})).status_code == 200
    for wrong, status in (
        ({"model": "nope"}, 404),
        ({"truncate": False, "input": LONG}, 400),
        ({"dimensions": 5}, 400),
    ):
        refused = await client.post("/api/embed", json={**body, **wrong})
        assert (refused.status_code, refused.json().keys()) == (status, {"error"})
    listed = (await client.get("/api/tags")).json()["models"]
    assert next(item["model"] for item in listed) == "words"
    assert (await client.post("/api/generate", json={})).json().keys() == {"error"}


async def test_a_nim_of_rerankers_lists_them_alone_and_ranks_as_its_path_says(client, registry):
    listed = [item["id"] for item in (await client.get("/v1/models")).json()["data"]]
    rerankers = [item["id"] for item in (await client.get("/rerank/v1/models")).json()["data"]]
    assert listed[0] == "words"
    assert rerankers[0] == registry.scorer().info.name
    body = {"query": {"text": "q"}, "passages": [{"text": text} for text in PASSAGES]}
    wanted = (await client.post("/v1/ranking", json=body)).json()["rankings"]
    for path, model in (
        ("/rerank/v1/ranking", rerankers[0]),
        ("/v1/retrieval/pair/reranking", None),
        ("/v1/ranking", "pair"),
    ):
        reply = await client.post(path, json={**body, "model": model, "top_k": 2})
        assert reply.json()["rankings"] == wanted[:2], path
    assert (await client.post("/v1/retrieval/no/one/reranking", json=body)).status_code == 404


@pytest.mark.parametrize(
    "path", ["/v1/models/", "//v1/models", "/v1//models", "/v1/models//words/", "//", "/readyz/"]
)
async def test_slashes_that_clients_add_are_no_other_path(client, path):
    url = f"http://door{path}"  # not joined to a base, which would take slashes away
    assert (await client.request("POST" if path == "//" else "GET", url)).status_code in (200, 422)


async def test_head_is_taken_where_get_is(client):
    assert (await client.head("/v1/models")).status_code == 200
    reply = await client.head("/embed")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


async def test_a_models_version_is_ready_where_it_is_the_one_that_serves(client):
    ready = await client.get("/v2/models/words/versions/sha256:words/ready")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "name": "words"})
    described = await client.get("/v2/models/words/versions/sha256:words")
    assert described.json() == (await client.get("/v2/models/words")).json()
    for path in ("/v2/models/words/versions/7/ready", "/v2/models/words/versions/7"):
        reply = await client.get(path)
        assert (reply.status_code, "sha256:words" in reply.json()["error"]) == (404, True)


async def test_teis_other_routes_refuse_in_its_shape(client):
    sparse = await client.post("/embed_sparse", json={"inputs": ["a"]})
    assert (sparse.status_code, sparse.json()["error_type"]) == (424, "Backend")
    bad = await client.post("/embed_sparse", json={"inputs": 5})
    assert (bad.status_code, bad.json()["error_type"]) == (422, "Validation")
    vertex = await client.post("/vertex", json={"instances": [{"inputs": "a"}]})
    assert (vertex.status_code, vertex.json()["error_type"]) == (404, "Validation")
