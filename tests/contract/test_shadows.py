"""Shadows of a real server: every way to ask has them, and none is told of them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import LiveServer, serving

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.question import Answer

QUESTION = "Which lake does the Rhine pass through?"
HOW: dict[str, Any] = {
    "documents": ["The Rhine passes through Lake Constance.", "The Danube begins at a spring."],
    "max_tokens": 12,
    "min_relevance": 0.0,
}
WAIT = 100.0  # for what must happen, however busy the machine is


@pytest.fixture(scope="module")
def watched(
    store_with_pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server that computes every answer again."""
    folder = tmp_path_factory.mktemp("watched")
    with serving(store_with_pair, folder, "--shadow-share", "1") as server:
        yield server


def read(url: str) -> dict[str, float]:
    """Read what is said of shadows: their sums over models, by name and outcome."""
    found: dict[str, float] = {}
    text = httpx.get(f"{url}/metrics", timeout=60).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("condensery_shadow") and not (
                sample.name.endswith("_created") or "le" in sample.labels
            ):
                name = sample.labels.get("outcome", sample.name)
                found[name] = found.get(name, 0.0) + sample.value
    return found


def test_each_answer_has_its_shadow_and_stays_as_it_is(watched: LiveServer) -> None:
    def stream(client: Client | GrpcClient) -> Answer:
        *_, last = client.answer_stream(QUESTION, **HOW)
        assert isinstance(last, Answer)
        return last

    with Client(watched.url) as rest, GrpcClient(watched.grpc) as grpc:
        both = rest.compare(QUESTION, **HOW)  # which has no shadow
        asks: list[Callable[[], Answer]] = [
            lambda: rest.answer(QUESTION, **HOW),
            lambda: stream(rest),
            lambda: grpc.answer(QUESTION, **HOW),
            lambda: stream(grpc),
        ]
        for count, ask in enumerate(asks, 1):
            answer = ask()
            assert (answer.text, answer.usage) == (both.compressed.text, both.compressed.usage)
            until = time.monotonic() + WAIT
            while (seen := read(watched.url))["done"] < count:
                assert time.monotonic() < until, seen
                time.sleep(0.05)
        rest.answer(QUESTION, **{**HOW, "mode": "off"})  # nothing to compare
    seen = read(watched.url)
    assert seen["condensery_shadow_agreement_sum"] == pytest.approx(len(asks) * both.agreement.f1)
    assert seen["condensery_shadow_exact_total"] == len(asks) * both.agreement.exact
    assert seen["done"] == len(asks)
    assert sum(seen[name] for name in ("busy", "late", "too_long", "gone", "failed")) == 0
    assert not [word for word in ("Rhine", "Danube", "lake") if word in watched.log.read_text()]
