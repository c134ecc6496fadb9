"""A real server and a real channel on loopback."""

from collections.abc import AsyncIterator

import grpc
import pytest

from condensery.api.grpc.server import GrpcServer, start
from condensery.jobs.services import Services


@pytest.fixture
async def server(services: Services) -> AsyncIterator[GrpcServer]:
    running = await start(services, "127.0.0.1", 0)
    await running.set_ready(True)
    yield running
    await running.stop(1)


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel
