"""Our own clients of a real server, by each door."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

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
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    def read(name: str, **labels: str) -> float:
        text = httpx.get(f"{live_server.url}/metrics", timeout=60).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    return read
