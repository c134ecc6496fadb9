"""How the composition root gives back what is free."""

import asyncio

import pytest

from condensery import server
from condensery.runtime import device


async def test_what_is_free_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trims, twice = 0, asyncio.Event()
    loop = asyncio.get_running_loop()

    def trim() -> None:
        nonlocal trims
        trims += 1
        if trims == 2:
            loop.call_soon_threadsafe(twice.set)

    monkeypatch.setattr(device, "trim_memory", trim)
    monkeypatch.setattr(server, "TRIM_SECONDS", 0.01)
    task = asyncio.create_task(server._trim_regularly())
    try:
        await asyncio.wait_for(twice.wait(), 60)
    finally:
        task.cancel()
