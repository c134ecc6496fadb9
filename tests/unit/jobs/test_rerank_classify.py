import numpy as np
import pytest

from condensery.jobs.rerank import classify, softmax


def test_likelihoods_sum_to_one_however_great_the_logits_are() -> None:
    logits = np.array([[0, 0], [1e4, -1e4], [-3e38, 3e38], [5, 6]], np.float32)
    likelihoods = softmax(logits)
    assert likelihoods.dtype == np.float32
    wanted = [[0.5, 0.5], [1, 0], [0, 1], [1 / (1 + np.e), np.e / (1 + np.e)]]
    np.testing.assert_allclose(likelihoods, wanted, atol=1e-6)


async def test_the_likeliest_label_comes_first_and_of_equal_ones_the_lower_number(
    services, classifiers
):
    text = "n" * 60 + "e" * 30 + "c" * 10  # a label's logit is how often its first letter comes
    (predictions,) = (await classify(services, [text], model="nli")).items
    assert [prediction.label for prediction in predictions] == [
        "neutral",
        "entailment",
        "contradiction",
    ]
    assert predictions[0].score == pytest.approx(1)
    (tied,) = (await classify(services, ["x"], model="nli")).items
    assert [prediction.label for prediction in tied] == ["contradiction", "entailment", "neutral"]
    assert sum(prediction.score for prediction in tied) == pytest.approx(1)
