"""Ollama's client: vectors, the list of models, refusals."""

import numpy as np
import ollama
import pytest
from plain import URL, ask

TEXTS = ["a river in Europe", "", "naïve façade 北京"]


def test_vectors_are_those_of_the_plain_route() -> None:
    client = ollama.Client(host=URL)
    assert "minilm-l6" in [model.model for model in client.list().models]
    rows = np.array(ask("/embed", {"inputs": TEXTS}), np.float32)
    reply = client.embed(model="minilm-l6:latest", input=TEXTS, options={"num_ctx": 256})
    assert np.array_equal(np.array(reply.embeddings, np.float32), rows)
    assert reply.prompt_eval_count > 0


@pytest.mark.parametrize(
    ("wrong", "says"), [({"model": "nope"}, "nope"), ({"dimensions": 5}, "dimensions: 5")]
)
def test_refusals_are_its_own_errors(wrong: dict, says: str) -> None:
    with pytest.raises(ollama.ResponseError, match=says):
        ollama.Client(host=URL).embed(**{"model": "minilm-l6", "input": TEXTS, **wrong})
