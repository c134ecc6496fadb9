"""The REST door over ASGI, without a socket."""

import httpx
import pytest

from condensery.api.rest.app import build


@pytest.fixture
async def door(services):
    transport = httpx.ASGITransport(app=build(services), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        yield client
