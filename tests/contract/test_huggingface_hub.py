"""huggingface_hub's client, which posts to the URL itself, of a real server."""

from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient

from condensery.client.rest import Client


@pytest.fixture
def hub(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> InferenceClient:
    # The tests fetch nothing from the hub; this client is one of our own server alone.
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)
    return InferenceClient(live_server.url)


def test_features_are_our_vectors(hub: InferenceClient, live_server: Any) -> None:
    texts = ["an old mill", "a river"]
    with Client(live_server.url) as client:
        wanted = client.embed(texts)
    features = np.array([hub.feature_extraction(text)[0] for text in texts])
    np.testing.assert_allclose(features, wanted, atol=2e-3)


def test_sentences_are_compared(hub: InferenceClient, live_server: Any) -> None:
    others = ["the mill is old", "cats sleep"]
    with Client(live_server.url) as client:
        own, *rest = client.embed(["an old mill", *others])
    similarities = hub.sentence_similarity("an old mill", others)
    assert similarities == pytest.approx((np.array(rest) @ own).tolist(), abs=5e-3)
    assert similarities[0] > similarities[1]
