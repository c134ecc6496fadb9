"""Cohere's client, both of its versions."""

import base64

import cohere
import numpy as np
import pytest
from plain import URL, ask

TEXTS = ["a river in Europe", "", "a bridge in Porto " * 300, "naïve façade 北京"]
EMBEDDED = {"model": "minilm-l6", "texts": TEXTS, "input_type": "search_document"}

PASSAGES = ["Helium is a gas.", "The Danube ends in the Black Sea.", "A mill grinds grain."]
ASKED = {
    "model": "oscar-mini",
    "query": "Where does the Danube end?",
    "documents": PASSAGES,
    "top_n": 2,
}


@pytest.fixture(params=[cohere.Client, cohere.ClientV2])
def client(request: pytest.FixtureRequest) -> cohere.Client | cohere.ClientV2:
    return request.param(api_key="none", base_url=URL)


def test_passages_come_best_first(client: cohere.Client | cohere.ClientV2) -> None:
    results = client.rerank(**ASKED).results
    assert len(results) == 2
    scores = [result.relevance_score for result in results]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("wrong", "says"), [({"model": "rerank-v9"}, "rerank-v9"), ({"documents": []}, "documents")]
)
def test_refusals_are_its_own_errors(
    client: cohere.Client | cohere.ClientV2, wrong: dict, says: str
) -> None:
    with pytest.raises(cohere.core.ApiError) as caught:
        client.rerank(**{**ASKED, **wrong})
    assert caught.value.status_code in (400, 404, 422)
    assert says in caught.value.body["message"]


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.array(ask("/embed", {"inputs": TEXTS}), np.float32)


def test_vectors_come_in_every_type(rows: np.ndarray) -> None:
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    reply = cohere.ClientV2(api_key="none", base_url=URL).embed(**EMBEDDED, embedding_types=types)
    embeddings = reply.embeddings
    assert np.array_equal(np.array(embeddings.float_, np.float32), rows)
    packed = [np.frombuffer(base64.b64decode(text), "<f4") for text in embeddings.base64]
    assert np.array_equal(packed, rows)
    scaled = np.clip(np.round(127 * rows / (6 / np.sqrt(384))), -127, 127)
    assert np.array_equal(embeddings.int8, scaled)
    assert np.array_equal(embeddings.uint8, scaled + 128)
    bits = np.packbits(rows > 0, axis=1)
    assert np.array_equal(embeddings.ubinary, bits)
    assert np.array_equal(embeddings.binary, bits.astype(int) - 128)
    assert reply.texts == TEXTS
    assert reply.meta.billed_units.input_tokens > 256  # the long one is cut


def test_the_first_version_answers_in_both_of_its_shapes(rows: np.ndarray) -> None:
    client = cohere.Client(api_key="none", base_url=URL)
    assert np.array_equal(np.array(client.embed(**EMBEDDED).embeddings, np.float32), rows)
    named = client.embed(**EMBEDDED, embedding_types=["int8"])
    assert type(named).__name__ == "EmbeddingsByTypeEmbedResponse"
    assert len(named.embeddings.int8[0]) == 384


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ({"input_type": "poem"}, cohere.BadRequestError, "input_type"),
        ({"output_dimension": 100}, cohere.BadRequestError, "output_dimension"),
        ({"truncate": "NONE"}, cohere.BadRequestError, "texts[2] has "),
        ({"model": "nope"}, cohere.NotFoundError, "model"),
    ],
)
def test_embeddings_are_refused_by_field(wrong: dict, kind: type, says: str) -> None:
    with pytest.raises(kind) as caught:
        cohere.ClientV2(api_key="none", base_url=URL).embed(
            **{**EMBEDDED, "embedding_types": ["float"], **wrong}
        )
    assert caught.value.body["message"].startswith(says)
