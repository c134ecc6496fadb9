"""Rates in round numbers, for the tests of plans: a plan of them is computed by hand."""

from dataclasses import replace
from typing import Any

from condensery.capacity.rates import MeasuredModel, Memory, Point, Rates, Together

CONCURRENCY = 8
MIB = 2**20


def make_point(
    task: Any, model: str, alone: float, concurrent: float, **more: Any
) -> tuple[Point, Point]:
    """Return a kind of request alone and concurrent, its cost in core-milliseconds.

    Alone it takes as long as it costs, and p95 is half as long again.
    """
    one = Point(
        task=task,
        model=model,
        callers=1,
        count=more.pop("count", 1),
        tokens=more.pop("tokens", 0),
        requests=100,
        seconds=alone / 1000,
        p95_seconds=1.5 * alone / 1000,
        scv=0.0,
        throughput=1000 / alone,
        core_seconds=alone / 1000,
        loop_seconds=0.0002,
        **more,
    )
    concurrent = replace(
        one, callers=CONCURRENCY, core_seconds=concurrent / 1000, throughput=2000 / concurrent
    )
    return one, concurrent


def make_rates(**changes: Any) -> Rates:
    """Return two cores' rates: an encoder `enc`, a pair `pair`, and a classifier `cls`.

    Core-milliseconds alone and concurrent: the door 1 and 0.5; a text of 10 tokens 2 and 1.5, of
    110 12 and 11.5, each more in a list 1 and 10; passages of a pair likewise, twice that.
    """
    models = (
        MeasuredModel("enc", "encoder", "1", "sha256:e", "float32", "cpu", 110, 8, bytes=20 * MIB),
        MeasuredModel("pair", "oscar-pair", "2", "sha256:p", "float32", "cpu", 195, 0, True),
        MeasuredModel("cls", "classifier", "1", "sha256:c", "float32", "cpu", 128),
    )
    points = [
        *make_point("door", "", 1, 0.5),
        *make_point("embed", "enc", 2, 1.5, tokens=10),
        *make_point("embed", "enc", 17, 16.5, tokens=10, count=16),
        *make_point("embed", "enc", 12, 11.5, tokens=110),
        *make_point("embed", "enc", 162, 161.5, tokens=110, count=16),
        *(
            point
            for task in ("rerank", "compress")
            for tokens, first in ((10, 4), (110, 24))
            for count in (1, 16)
            for point in make_point(
                task,
                "pair",
                first * count,
                (first - 1) * count,
                tokens=tokens,
                count=count,
            )
        ),
        # Five passages of 10 tokens compressed: 20 alone, 15 concurrent. The prompt: 10 and 5; and
        # each of four tokens more: 2 and 1.
        *make_point("answer", "pair", 30, 20, tokens=10, count=5, output=1.0),
        *make_point("answer", "pair", 38, 24, tokens=10, count=5, output=5.0),
        *make_point("query", "enc", 3, 2, passages=1000),
        *make_point("query", "enc", 12, 11, passages=10_000),
        *make_point("write", "enc", 5, 4, tokens=10),
        *make_point("write", "enc", 20, 19, tokens=10, count=16),
    ]
    rates = Rates(
        date="2026-11-26",
        command="condensery bench rates",
        machine={"cpu": "A CPU", "kind": "AVX2", "flags": [], "cores": 2, "memory_bytes": 2**33},
        versions={"condensery": "0.0.1"},
        foreign_cores=0.0,
        device="cpu",
        servers=2,
        concurrency=CONCURRENCY,
        models=models,
        points=tuple(points),
        memory=Memory(start=500 * MIB, peak=800 * MIB, stream=2 * MIB, passage=4096),
        together=Together(requests=100, work=1.0, delay=0.0),
    )
    return replace(rates, **changes)
