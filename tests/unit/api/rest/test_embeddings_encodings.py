"""Encodings of vectors at OpenAI's endpoint, and the types of inputs."""

import base64
from dataclasses import replace

import numpy as np
import pytest

from condensery.encodings import ENCODINGS, encode, unpack

TEXTS = ["one", "two words", ""]
PATH = "/v1/embeddings"


@pytest.fixture
async def wanted(services):
    return (await services.registry.encoder().embed(TEXTS)).vectors


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_numbers_base64_and_bytes_are_the_same_vectors(client, wanted, encoding):
    body = {"input": TEXTS, "embed_dtype": encoding}
    numbers = (await client.post(PATH, json=body)).json()
    coded = (await client.post(PATH, json={**body, "encoding_format": "base64"})).json()
    raw = await client.post(PATH, json={**body, "encoding_format": "bytes"})
    expected = encode(wanted, encoding)
    for reply in (numbers, coded):
        assert (reply["embed_dtype"], reply["dims"]) == (encoding, 8)
    listed = np.array([item["embedding"] for item in numbers["data"]], expected.dtype)
    assert np.array_equal(listed, expected)
    assert b"".join(base64.b64decode(o["embedding"]) for o in coded["data"]) == expected.tobytes()
    assert raw.content == expected.tobytes()
    assert raw.headers["content-type"] == "application/octet-stream"
    named = {name: raw.headers[f"x-embed-{name}"] for name in ("dtype", "dims", "count")}
    assert named == {"dtype": encoding, "dims": "8", "count": "3"}
    assert raw.headers["x-model"] == "words"
    assert unpack(raw.content, encoding, 8).shape == (3, 8)


async def test_without_a_dtype_the_reply_is_openais_own(client):
    reply = (await client.post(PATH, json={"input": TEXTS})).json()
    assert set(reply) == {"object", "data", "model", "usage"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"embed_dtype": "int4"}, "embed_dtype: 'int4'"),
        ({"embed_dtype": "int8", "normalize": False}, "embed_dtype: int8 is for vectors"),
        ({"encoding_format": "hex"}, "encoding_format: 'hex'"),
        ({"input_type": "poem"}, "input_type: 'poem'"),
        ({"input_type": "query", "prompt_name": "query"}, "prompt_name: give it or input_type"),
        ({"dimensions": 5}, "dimensions: 5, but words gives vectors of 8 dimensions only."),
        ({"truncation_direction": "Up"}, "truncation_direction: 'up'"),
    ],
)
async def test_what_is_wrong_is_named(client, change, says):
    reply = await client.post(PATH, json={"input": ["a"], **change})
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]


async def test_a_model_that_does_not_scale_its_vectors_has_no_int8(client, registry):
    encoder = registry.encoders["words"]
    embed = encoder.embed

    async def longer(texts, **options):
        embedded = await embed(texts, **options)
        return replace(embedded, vectors=3 * embedded.vectors)

    encoder.embed = longer
    reply = await client.post(PATH, json={"input": ["a"], "embed_dtype": "uint8"})
    assert reply.status_code == 400
    assert "has length 3" in reply.json()["error"]["message"]


async def test_what_a_text_is_for_and_where_it_is_cut_reach_the_model(client, registry):
    encoder = registry.encoders["words"]
    body = {"input": ["a"], "truncation_direction": "Left"}
    for word in ("query", "search_query", "passage"):
        assert (await client.post(PATH, json={**body, "input_type": word})).status_code == 200
    assert [prompt for _, prompt, _ in encoder.asked] == ["query: ", "query: ", ""]
    assert encoder.sides == ["left"] * 3


async def test_the_models_default_prompt_is_taken_where_none_is_named(client, registry):
    encoder = registry.encoders["words"]
    encoder.default_prompt = "query"
    await client.post(PATH, json={"input": ["a"]})
    await client.post("/embed", json={"inputs": ["a"]})
    assert [prompt for _, prompt, _ in encoder.asked] == ["query: "] * 2


@pytest.mark.parametrize(
    ("path", "text", "length"),
    [
        ("/v1/embeddings", "input", "dimensions"),
        ("/embed", "inputs", "dimensions"),
        ("/v2/embed", "texts", "output_dimension"),
    ],
)
async def test_only_declared_lengths_are_given_on_every_door(client, registry, path, text, length):
    encoder = registry.encoders["words"]
    for lengths, dims, status in (
        ((), 4, False),
        ((4,), 4, True),
        ((4,), 6, False),
        ((), 8, True),
    ):
        encoder.info = replace(encoder.info, dimensions=lengths)
        reply = await client.post(path, json={text: ["a"], length: dims})
        assert (reply.status_code == 200) is status
        if not status:
            assert f"{length}: {dims}, but words gives vectors of" in reply.text
