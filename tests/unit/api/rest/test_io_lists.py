"""Long replies, piece by piece."""

import asyncio

import numpy as np
import orjson
import pytest

from condensery.api.rest.io import PiecewiseReply, write_list
from condensery.values import Embedded

ROWS = list(np.random.default_rng(1).random((100, 4), np.float32))


async def body_of(response):
    sent = []

    async def send(message):
        sent.append(message)

    await response({"type": "http"}, None, send)
    start, *bodies = sent
    headers = dict(start["headers"])
    body = b"".join(message["body"] for message in bodies)
    assert int(headers[b"content-length"]) == len(body)
    assert [message.get("more_body", False) for message in bodies] == [True] * (len(bodies) - 1) + [
        False
    ]
    return body, len(bodies)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 99, 100])
@pytest.mark.parametrize("within", [None, {"object": "list", "data": [], "model": '"data":[]'}])
async def test_the_pieces_are_the_whole(count, within):
    response = await write_list(iter(ROWS[:count]), 10, within=within, field="data")
    body, pieces = await body_of(response)
    whole = ROWS[:count] if within is None else {**within, "data": ROWS[:count]}
    assert body == orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
    assert (pieces > 1) == (count > 10)


async def test_others_have_their_turn_between_pieces():
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await write_list(ROWS, 10)
    assert turns >= 9
    task.cancel()


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_many_vectors_leave_in_pieces_as_they_are(line, registry, services, encoding):
    vectors = np.random.default_rng(2).random((45, 2000), np.float32)
    encoder = registry.encoders["words"]

    async def embed(texts, **options):
        return Embedded("words", "f", vectors[: len(texts)], tokens=1)

    encoder.embed = embed
    body = {"input": ["a"] * 45, "encoding_format": encoding}
    asked = await line("/v1/embeddings", body).run()
    assert len(asked.sent) > 3
    data = orjson.loads(asked.content)["data"]
    assert [item["index"] for item in data] == list(range(45))
    if encoding == "float":
        written = np.array([item["embedding"] for item in data], np.float32)
        assert np.array_equal(written, vectors)
    asked = await line("/embed", {"inputs": ["a"] * 45}).run()
    assert len(asked.sent) > 3
    assert np.array_equal(np.array(orjson.loads(asked.content), np.float32), vectors)


async def test_a_piece_waits_for_room():
    sent, room = [], asyncio.Event()

    async def send(message):
        sent.append(message)
        await room.wait()

    task = asyncio.create_task(PiecewiseReply([b"[1", b",2]"], {})({"type": "http"}, None, send))
    await asyncio.sleep(0.01)
    assert len(sent) == 1
    room.set()
    await task
    assert len(sent) == 3
