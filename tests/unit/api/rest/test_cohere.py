"""Cohere's embeddings over REST, in either version."""

import base64
from dataclasses import replace

import numpy as np
import pytest

from condensery.encodings import encode

PATHS = ("/v1/embed", "/v2/embed")
TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
BODY = {"texts": ["one", "two words"], "input_type": "search_document", "model": "words"}


@pytest.fixture
async def wanted(services):
    embedded = await services.registry.encoder().embed(BODY["texts"])
    return embedded.vectors


async def test_the_second_version_gives_a_list_a_type(client, wanted):
    reply = await client.post("/v2/embed", json={**BODY, "embedding_types": TYPES})
    assert reply.status_code == 200
    body = reply.json()
    assert body["response_type"] == "embeddings_by_type"
    assert body["texts"] == BODY["texts"]
    assert body["meta"] == {
        "api_version": {"version": "2"},
        "billed_units": {"input_tokens": 3},
    }
    embeddings = body["embeddings"]
    assert list(embeddings) == TYPES
    assert np.array_equal(np.array(embeddings["float"], np.float32), wanted)
    for name in ("int8", "uint8", "binary", "ubinary"):
        assert embeddings[name] == encode(wanted, name).tolist()
    rows = [np.frombuffer(base64.b64decode(item), "<f4") for item in embeddings["base64"]]
    assert np.array_equal(np.stack(rows), wanted)


async def test_the_first_version_gives_one_list_unless_types_are_named(client, wanted):
    body = (await client.post("/v1/embed", json=BODY)).json()
    assert body["response_type"] == "embeddings_floats"
    assert np.array_equal(np.array(body["embeddings"], np.float32), wanted)
    assert body["meta"]["api_version"] == {"version": "1"}
    body = (await client.post("/v1/embed", json={**BODY, "embedding_types": ["int8"]})).json()
    assert body["response_type"] == "embeddings_by_type"
    assert body["embeddings"] == {"int8": encode(wanted, "int8").tolist()}
    body = (await client.post("/v2/embed", json=BODY)).json()
    assert list(body["embeddings"]) == ["float"]


async def test_what_texts_are_for_chooses_the_models_prompt(client, registry):
    encoder = registry.encoders["words"]
    for kind in ("search_query", "search_document", "classification", None):
        body = {**BODY, "texts": ["a"], "input_type": kind}
        assert (await client.post("/v2/embed", json=body)).status_code == 200
    assert [prompt for _, prompt, _ in encoder.asked] == ["query: ", "", "", ""]
    encoder.prompts = {"passage": "passage: ", "all": "all: "}
    encoder.default_prompt = "all"
    encoder.asked.clear()
    for kind in ("search_document", "search_query", None):
        await client.post("/v2/embed", json={**BODY, "texts": ["a"], "input_type": kind})
    assert [prompt for _, prompt, _ in encoder.asked] == ["passage: ", "all: ", "all: "]


async def test_texts_are_cut_at_the_end_that_is_named(client, registry):
    body = {**BODY, "texts": ["b " * 20]}
    for word in ("START", "END", None):  # LangChain's sends null
        reply = await client.post("/v2/embed", json={**body, "truncate": word})
        assert reply.headers["x-truncated-inputs"] == "1"
    assert registry.encoders["words"].sides == ["left", "right", "right"]
    reply = await client.post("/v2/embed", json={**body, "truncate": "NONE"})
    assert reply.status_code == 400
    assert reply.json()["message"] == "texts[0] has 20 tokens"


async def test_a_length_that_the_model_declares_is_given(client, registry, wanted):
    encoder = registry.encoders["words"]
    encoder.info = replace(encoder.info, dimensions=(4,))
    body = {**BODY, "output_dimension": 4}
    vectors = (await client.post("/v2/embed", json=body)).json()["embeddings"]["float"]
    assert np.array_equal(np.array(vectors, np.float32), wanted[:, :4])
    reply = await client.post("/v2/embed", json={**body, "output_dimension": 5})
    assert reply.json()["message"] == (
        "output_dimension: 5, but words gives vectors of 4, 8 dimensions only."
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"texts": []}, 400, "texts: the list is empty"),
        ({"texts": None}, 400, "texts: the list is empty"),
        ({"texts": "one"}, 400, "texts: 'one'"),
        ({"texts": ["a"] * 51}, 413, "texts: 51 items"),
        ({"texts": None, "images": ["data:..."]}, 400, "images: no model here reads pictures"),
        ({"texts": None, "inputs": [{"content": []}]}, 400, "inputs: no model here reads"),
        ({"input_type": "poem"}, 400, "input_type: 'poem' is not one of search_query"),
        ({"embedding_types": []}, 400, "embedding_types: []"),
        ({"embedding_types": ["int4"]}, 400, "embedding_types[0]: 'int4'"),
        ({"truncate": "MIDDLE"}, 400, "truncate: 'MIDDLE'"),
        ({"output_dimension": 3}, 400, "output_dimension: 3, but words gives vectors of 8"),
        ({"model": "nope"}, 404, "'nope'"),
    ],
)
async def test_what_is_wrong_is_named_in_coheres_body(client, path, change, status, says):
    reply = await client.post(path, json={**BODY, **change})
    assert reply.status_code == status
    assert says in reply.json()["message"]


async def test_many_vectors_are_written_piece_by_piece_and_read_alike(client, services):
    texts = [f"text {n}" for n in range(50)]
    body = {**BODY, "texts": texts, "embedding_types": ["float", "ubinary"]}
    whole = (await client.post("/v2/embed", json=body)).json()
    assert whole["texts"] == texts
    for place in (0, 49):
        alone = (await client.post("/v2/embed", json={**body, "texts": [texts[place]]})).json()
        for kind in ("float", "ubinary"):
            assert alone["embeddings"][kind] == [whole["embeddings"][kind][place]]
