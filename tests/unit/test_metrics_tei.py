"""TEI's names: as a scrape has them, letter by letter."""

import re

import pytest
from prometheus_client import generate_latest

from condensery import errors
from condensery.metrics import Metrics
from condensery.request_context import RequestStats
from condensery.tei_metrics import TEI_ERRORS

# What TEI 1.9 has, by its sources.
NAMES = {
    *(f"te_request_{name}" for name in ("count", "success", "failure", "input_length")),
    *(
        f"te_{of}_{part}"
        for of in ("request", "embed", "predict")
        for part in ("duration", "tokenization_duration", "queue_duration", "inference_duration")
    ),
    *(f"te_{of}_{part}" for of in ("embed", "predict") for part in ("count", "success")),
    *("te_queue_size", "te_batch_next_size", "te_batch_next_tokens"),
}


def scrape(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def samples(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in scrape(metrics).splitlines() if line.startswith("te_")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def bounds(text: str, name: str) -> list[str]:
    return re.findall(rf'^{name}_bucket{{le="(.*?)"}}', text, re.MULTILINE)


def test_every_name_of_teis_is_there_at_zero_and_none_ends_otherwise() -> None:
    text = scrape(Metrics())
    names = set(re.findall(r"^# TYPE (te_\w+) ", text, re.MULTILINE))
    assert names == NAMES
    assert not re.search(r"^te_\w+_(total|created)", text, re.MULTILINE)
    values = samples(Metrics())
    assert values['te_request_count{method="single"}'] == 0
    assert values['te_request_success{method="batch"}'] == 0
    assert values["te_embed_count"] == 0
    errors = re.findall(r'^te_request_failure{err="(\w+)"} 0', text, re.MULTILINE)
    assert set(errors) == {
        *("overloaded", "tokenization", "validation", "batch_size", "model_type"),
        *("inference", "dropped", "missing_values", "empty"),
    }


def test_buckets_are_teis() -> None:
    text = scrape(Metrics())
    durations = [float(bound) for bound in bounds(text, "te_embed_duration")[:-1]]
    assert len(durations) == 35
    assert durations == pytest.approx([1e-5 * 1.5**k for k in range(1, 36)])
    for name, most in (("input_length", 19), ("size", 12), ("tokens", 20)):
        full = f"te_batch_next_{name}" if name != "input_length" else f"te_request_{name}"
        assert [float(bound) for bound in bounds(text, full)[:-1]] == [
            2**k for k in range(most + 1)
        ]
        assert bounds(text, full)[-1] == "+Inf"


def test_requests_are_counted_by_method_inputs_by_family_and_times_by_both() -> None:
    metrics = Metrics()
    assert metrics.tei is not None
    stats = RequestStats(
        inputs=1, tokens=5, tokenizing=0.001, wait_seconds=0.002, began=1.0, ended=1.25
    )
    metrics.tei.request("embed", "ok", stats, 0.3)
    metrics.tei.request("embed", "ok", RequestStats(inputs=3, tokens=40), 0.6)
    metrics.tei.request("rerank", "ok", RequestStats(inputs=4, tokens=50), 0.1)
    metrics.tei.request("answer", "ok", RequestStats(inputs=4, tokens=50), 0.1)
    metrics.tei.request("embed", "ok", RequestStats(), 0.1)  # only tokenised
    metrics.tei.request("classify", "EmptyInput", RequestStats(), 0.1)
    metrics.tei.batch(3, 40)
    metrics.queue_requests.labels("a").set(2)
    metrics.queue_requests.labels("b").set(5)
    values = samples(metrics)
    expected = {
        'te_request_count{method="single"}': 3,  # with the one that failed
        'te_request_count{method="batch"}': 1,
        'te_request_success{method="single"}': 2,
        'te_request_success{method="batch"}': 1,
        'te_request_failure{err="empty"}': 1,
        "te_embed_count": 4,
        "te_embed_success": 4,
        "te_predict_count": 4,
        "te_predict_success": 4,
        "te_request_duration_count": 3,
        "te_request_duration_sum": 1.0,
        "te_embed_duration_count": 4,
        "te_embed_duration_sum": 0.3 + 3 * 0.6,
        "te_request_queue_duration_sum": 0.002,
        "te_request_inference_duration_sum": 0.25,
        "te_request_input_length_sum": 95,
        'te_request_input_length_bucket{le="4"}': 0,
        'te_request_input_length_bucket{le="8"}': 1,
        'te_request_input_length_bucket{le="+Inf"}': 3,
        'te_batch_next_size_bucket{le="2"}': 0,
        'te_batch_next_size_bucket{le="4"}': 1,
        "te_batch_next_tokens_sum": 40,
        "te_queue_size": 7,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    metrics = Metrics()
    assert metrics.tei is not None
    metrics.tei.batch(4, 2**21)
    values = samples(metrics)
    assert values['te_batch_next_size_bucket{le="4"}'] == 1
    assert values['te_batch_next_tokens_bucket{le="1048576"}'] == 0
    assert values['te_batch_next_tokens_bucket{le="+Inf"}'] == 1


def test_every_error_that_has_a_label_of_teis_exists() -> None:
    assert [name for name in TEI_ERRORS if not hasattr(errors, name)] == ["Cancelled"]


def test_they_can_be_left_out() -> None:
    assert not re.search(r"^te_", scrape(Metrics(tei=False)), re.MULTILINE)
