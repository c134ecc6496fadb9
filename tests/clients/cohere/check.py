"""Cohere's client, both of its versions."""

import os

import cohere
import pytest

PASSAGES = ["Helium is a gas.", "The Danube ends in the Black Sea.", "A mill grinds grain."]
ASKED = {
    "model": "oscar-mini",
    "query": "Where does the Danube end?",
    "documents": PASSAGES,
    "top_n": 2,
}


@pytest.fixture(params=[cohere.Client, cohere.ClientV2])
def client(request: pytest.FixtureRequest) -> cohere.Client | cohere.ClientV2:
    return request.param(api_key="none", base_url=os.environ["SERVER"])


def test_passages_come_best_first(client: cohere.Client | cohere.ClientV2) -> None:
    results = client.rerank(**ASKED).results
    assert len(results) == 2
    scores = [one.relevance_score for one in results]
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
