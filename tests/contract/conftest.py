"""Our own clients of a real server, by each door."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.conftest import read_metric

from condensery.client.grpc import AsyncGrpcClient, GrpcClient
from condensery.client.rest import AsyncClient, Client

DOORS = ("rest", "grpc")


def make(door: str, server: Any) -> Client | GrpcClient:
    return Client(server.url) if door == "rest" else GrpcClient(server.grpc)


@pytest.fixture(params=DOORS)
def client(request: pytest.FixtureRequest, live_server: Any) -> Iterator[Client | GrpcClient]:
    with make(request.param, live_server) as made:
        yield made


@pytest.fixture
def clients(live_server: Any) -> Iterator[tuple[Client | GrpcClient, ...]]:
    """Both, REST first."""
    with make("rest", live_server) as rest, make("grpc", live_server) as grpc:
        yield rest, grpc


@pytest.fixture(params=DOORS)
async def async_client(
    request: pytest.FixtureRequest, live_server: Any
) -> AsyncIterator[AsyncClient | AsyncGrpcClient]:
    if request.param == "rest":
        async with AsyncClient(live_server.url) as rest:
            yield rest
    else:
        async with AsyncGrpcClient(live_server.grpc) as grpc:
            yield grpc


@pytest.fixture
def metric(live_server: Any) -> Callable[..., float]:
    """Return a sample of the server's metrics, by name and labels; 0 if there is none."""
    return partial(read_metric, live_server.url)
