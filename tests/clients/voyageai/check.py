"""Voyage's client: vectors in its types, rankings cut by its word."""

import numpy as np
import pytest
import voyageai
from plain import URL, ask

TEXTS = ["a river in Europe", "a bridge in Porto", "naïve façade 北京"]
QUERY = "a bridge"


@pytest.fixture
def client() -> voyageai.Client:
    return voyageai.Client(api_key="none", base_url=f"{URL}/v1")


def test_vectors_come_in_every_type(client: voyageai.Client) -> None:
    rows = np.array(ask("/embed", {"inputs": TEXTS}), np.float32)
    got = client.embed(TEXTS, model="minilm-l6")
    assert np.array_equal(np.array(got.embeddings, np.float32), rows)
    assert got.total_tokens > 0
    bits = np.packbits(rows > 0, axis=1)
    packed = client.embed(TEXTS, model="minilm-l6", output_dtype="ubinary").embeddings
    assert np.array_equal(packed, bits)
    signed = client.embed(TEXTS, model="minilm-l6", output_dtype="int8").embeddings
    assert np.array_equal(signed, np.clip(np.round(127 * rows / (6 / np.sqrt(384))), -127, 127))


def test_a_ranking_has_as_many_as_asked_for(client: voyageai.Client) -> None:
    whole = client.rerank(QUERY, TEXTS, model="oscar-mini").results
    assert [result.document for result in whole] == [TEXTS[result.index] for result in whole]
    assert client.rerank(QUERY, TEXTS, model="oscar-mini", top_k=2).results == whole[:2]


def test_refusals_are_its_own_errors(client: voyageai.Client) -> None:
    with pytest.raises(voyageai.error.InvalidRequestError, match="output_dimension"):
        client.embed(TEXTS, model="minilm-l6", output_dimension=100)
    with pytest.raises(voyageai.error.InvalidRequestError):
        client.embed(["word " * 1000], model="minilm-l6", truncation=False)
