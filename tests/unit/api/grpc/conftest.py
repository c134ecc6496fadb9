"""A real server and a real channel on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from condensery.api import ports
from condensery.api.grpc.server import GrpcServer, start_server
from condensery.jobs.services import Services


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give calls no grace at shutdown, where that is not what is tested."""
    monkeypatch.setattr(ports, "LAST_SECONDS", 0.0)


@pytest.fixture
async def server(services: Services) -> AsyncIterator[GrpcServer]:
    running = await start_server(services, "127.0.0.1", 0)
    yield running
    await running.stop(1)


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Awaitable[None]]:
    """Wait for something to become true, half a minute at most."""

    async def wait(happened: Callable[[], Any]) -> None:
        for _ in range(3000):
            if happened():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it did not happen")

    return wait
