"""huggingface_hub's client, which posts to the URL itself, gets what the server says to others."""

import math

import pytest
from huggingface_hub import InferenceClient
from plain import URL, ask

TEXTS = ["an old mill", "the mill is old", "cats sleep"]


@pytest.fixture(scope="module")
def rows() -> list[list[float]]:
    return ask("/embed", {"inputs": TEXTS})


def test_features_are_the_servers_vectors(rows: list[list[float]]) -> None:
    for text, row in zip(TEXTS, rows, strict=True):
        assert math.dist(InferenceClient(URL).feature_extraction(text)[0].tolist(), row) < 0.02


def test_either_end_of_a_long_text_is_cut() -> None:
    client = InferenceClient(URL)
    text = "mill " * 300 + "cat " * 300
    mill, cat = (client.feature_extraction(word)[0] for word in ("mill " * 300, "cat " * 300))
    for end, kept, lost in (("right", mill, cat), ("left", cat, mill)):
        (vector,) = client.feature_extraction(text, truncate=True, truncation_direction=end)
        assert vector @ kept > 0.99 > vector @ lost


def test_sentences_are_compared(rows: list[list[float]]) -> None:
    near, far = InferenceClient(URL).sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    dot = sum(a * b for a, b in zip(rows[0], rows[1], strict=True))
    assert math.isclose(near, dot, abs_tol=5e-3)
    assert near > far
