"""Infinity's list of models."""

import asyncio


async def test_models_are_listed_with_what_they_can_do(client, classifiers):
    data = (await client.get("/models")).json()["data"]
    assert {item["id"]: item["capabilities"] for item in data} == {
        "words": ["embed"],
        "other": ["embed"],
        "pair": ["rerank"],
        "nli": ["classify"],
        "cross": ["rerank", "classify"],
    }
    assert data[0]["revision"] == "sha256:words"


async def test_how_busy_a_model_is_comes_from_the_metrics(client, services, registry):
    metrics = services.metrics
    metrics.queue_requests.labels("words").set(7)
    metrics.queue_tokens.labels("words").set(services.limits.max_queue_tokens // 4)
    for items in (2, 4):
        metrics.batch_items.labels("words").observe(items)
    encoder = registry.encoders["words"]
    encoder.gate = asyncio.Event()
    asked = asyncio.create_task(client.post("/embed", json={"inputs": "a"}))
    async with asyncio.timeout(60):
        while not encoder.waiting:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)
    first, second, *_ = (await client.get("/models")).json()["data"]
    encoder.gate.set()
    await asked
    assert first["stats"] == {
        "queue_fraction": 0.25,
        "queue_absolute": 7,
        "results_pending": 2,  # this one is inside, too
        "batch_size": 3,
    }
    assert (second["stats"]["queue_absolute"], second["stats"]["batch_size"]) == (0, 0)
