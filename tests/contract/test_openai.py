"""The openai client against the real server."""

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest


@pytest.fixture
def client(live_server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live_server.url}/v1", api_key="none", max_retries=0)


TEXTS = ["The Danube ends in the Black Sea.", "", "Rusalka is an opera by Dvořák. 水"]


def test_its_default_base64_and_floats_are_the_same_vectors(client: openai.OpenAI) -> None:
    packed = client.embeddings.create(model="minilm-l6", input=TEXTS)
    floats = client.embeddings.create(model="minilm-l6", input=TEXTS, encoding_format="float")
    for left, right in zip(packed.data, floats.data, strict=True):
        assert left.index == right.index
        # alone or in any batch the same, but for what bf16 rounds
        assert np.allclose(left.embedding, right.embedding, atol=5e-3)
        assert np.linalg.norm(left.embedding) == pytest.approx(1, abs=1e-5)
    assert packed.model == "minilm-l6"
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0


def test_base64_is_little_endian_float32(client: openai.OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(
        model="minilm-l6", input="a", encoding_format="base64"
    )
    text = raw.http_response.json()["data"][0]["embedding"]
    wanted = np.frombuffer(base64.b64decode(text, validate=True), "<f4")
    got = client.embeddings.create(model="minilm-l6", input="a").data[0].embedding
    assert np.array_equal(wanted, np.array(got, np.float32))
    assert wanted.shape == (384,)


def test_vectors_place_a_question_beside_its_answer(client: openai.OpenAI) -> None:
    texts = ["Where does the Danube end?", *TEXTS]
    rows = np.array(
        [one.embedding for one in client.embeddings.create(model="minilm-l6", input=texts).data]
    )
    scores = rows[1:] @ rows[0]
    assert scores.argmax() == 0
    assert scores[0] > 0.5 > scores[2]


def test_an_unknown_model_is_its_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "text-embedding-3-small" in caught.value.message
    assert caught.value.request_id


def test_token_ids_are_refused_by_the_name_of_the_setting(client: openai.OpenAI) -> None:
    for ids in ([1, 2], [[1, 2], [3]]):
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
            client.embeddings.create(model="minilm-l6", input=ids)


def test_an_empty_list_and_other_dimensions_are_bad_requests(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm-l6", input=[])
    assert caught.value.code == "empty_input"
    with pytest.raises(openai.BadRequestError, match="dimensions: 256"):
        client.embeddings.create(model="minilm-l6", input="a", dimensions=256)
    assert len(client.embeddings.create(model="minilm-l6", input="a", dimensions=384).data) == 1


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[:2] == ["minilm-l6", "oscar-mini"]
    assert client.models.retrieve("oscar-mini").id == "oscar-mini"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


async def test_many_callers_at_once_each_get_their_own(live_server: Any) -> None:
    import asyncio

    texts = [f"passage number {place} is about {place * 7}" for place in range(40)]
    limits = httpx.Limits(max_connections=40)
    async with openai.AsyncOpenAI(
        base_url=f"{live_server.url}/v1",
        api_key="none",
        http_client=httpx.AsyncClient(limits=limits),
    ) as client:
        alone = await asyncio.gather(
            *(client.embeddings.create(model="minilm-l6", input=text) for text in texts)
        )
        together = await client.embeddings.create(model="minilm-l6", input=texts)
    rows = np.array([one.data[0].embedding for one in alone])
    wanted = np.array([one.embedding for one in together.data])
    assert ((rows * wanted).sum(axis=1) > 0.9995).all()
