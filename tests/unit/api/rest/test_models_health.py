"""Health, metrics and version, as operators and orchestrators read them."""

import json

import pytest

READY = ["/readyz", "/health", "/ping", "/v2/health/ready"]


async def get(line, path):
    asked = await line(path, method="GET").run()
    return asked.status, json.loads(asked.content)


async def test_before_the_start_it_lives_and_is_not_ready(line, services):
    services.health._started = False
    assert (await get(line, "/livez"))[0] == 200
    for path in (*READY, "/startupz"):
        status, body = await get(line, path)
        assert status == 503
        assert "starting" in json.dumps(body)
    services.health.start()
    for path in (*READY, "/startupz"):
        assert (await get(line, path))[0] == 200


async def test_a_fault_and_the_end_make_it_unready_and_leave_it_started(line, services):
    services.health.fault("a device worker hangs")
    for path in READY:
        status, body = await get(line, path)
        assert status == 503
        assert "a device worker hangs" in json.dumps(body)
    assert (await get(line, "/startupz")) == (200, {"status": "started"})
    assert (await get(line, "/livez")) == (200, {"status": "live"})
    services.health.fault(None)
    assert (await get(line, "/readyz")) == (200, {"status": "ready"})
    services.health.drain()
    for path in READY:
        assert (await get(line, path))[0] == 503


async def test_it_is_not_alive_once_only_a_new_process_helps(line, services):
    services.health.fault("the worker died twice", fatal=True)
    for path in ("/livez", "/v2/health/live"):
        status, body = await get(line, path)
        assert status == 503
        assert "the worker died twice" in json.dumps(body)


async def test_kserve_hears_in_its_own_words(line, services):
    assert await get(line, "/v2/health/live") == (200, {"live": True})
    assert await get(line, "/v2/health/ready") == (200, {"ready": True})
    status, server = await get(line, "/v2")
    assert (status, server["name"], server["extensions"]) == (
        200,
        "condensery",
        ["model_repository", "binary_tensor_data"],
    )
    assert await get(line, "/v2/models/words/ready") == (200, {"name": "words", "ready": True})
    services.health.drain()
    status, body = await get(line, "/v2/health/ready")
    assert (status, body) == (503, {"error": "Not ready: draining."})
    assert (await get(line, "/v2/models/words/ready"))[0] == 503


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "shape"),
    [
        ("words", ["input"], ["embedding"], [-1, 8]),
        ("pair", ["query", "documents"], ["relevance_score"], [-1]),
    ],
)
async def test_kserve_hears_what_a_model_takes_and_gives(line, name, inputs, outputs, shape):
    status, model = await get(line, f"/v2/models/{name}")
    assert (status, model["name"]) == (200, name)
    assert [item["name"] for item in model["inputs"]] == inputs
    assert [output["name"] for output in model["outputs"]] == outputs
    assert model["outputs"][0]["shape"] == shape
    assert model["versions"] == [f"sha256:{name}"]


async def test_a_model_that_there_is_not_is_told_with_the_reason(line):
    status, body = await get(line, "/v2/models/broken")
    assert status == 404
    assert "was refused: model.json is cut short" in body["error"]
