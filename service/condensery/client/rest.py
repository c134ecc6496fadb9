"""The service over REST: a blocking and an async client.

from condensery.client.rest import Client

with Client("http://127.0.0.1:8080") as client:
    vectors = client.embed(["a question", "a passage"])  # (2, dims), float32
    print(client.answer("Who discovered radium?", index="samples").text)
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from condensery.client import rest_answers as answers
from condensery.client import rest_calls as calls
from condensery.client import rest_models as changes
from condensery.client import rest_upkeep as upkeep
from condensery.client.access import TIMEOUT, headers_of, milliseconds, read_ca, trust
from condensery.client.calls import awaiting, blocking, streaming, streaming_async
from condensery.client.events import EventReader
from condensery.client.faults import Retries
from condensery.client.rest_calls import RestCall
from condensery.client.rest_faults import read_fault, reading, sending, write_body
from condensery.errors import Unavailable

T = TypeVar("T")
URL = "http://127.0.0.1:8080"
ONCE = Retries(attempts=1)


def _options(timeout: float, api_key: str | None, ca: str | Path | None) -> dict[str, Any]:
    """Return what httpx is told of a client's arguments."""
    headers = {
        "content-type": "application/json",
        TIMEOUT: milliseconds(timeout),
        **headers_of(api_key),
    }
    verify = True if ca is None else trust(read_ca(ca))
    return {"timeout": timeout, "headers": headers, "verify": verify}


class Client:
    """Blocking REST client, usable from several threads; ``close`` it, or use ``with``.

    Args:
        url: Where the service listens; ``https://`` if it shows a certificate.
        timeout: Seconds a call may take. The server hears of them, and drops what comes too late.
        retries: How often to try again where the server is full or not ready, and says until when.
        api_key: A key, if the server wants one.
        ca: PEM file with the certificates to trust instead of the usual ones.

    Raises:
        CondenseryError: By each method: the server's own error, by class and message.
            Unavailable also where nobody listens, DeadlineExceeded after ``timeout``.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        timeout: float = 120.0,
        retries: int | Retries = 2,
        api_key: str | None = None,
        ca: str | Path | None = None,
    ) -> None:
        self.url = url
        self._retries = Retries.of(retries)
        with sending(url):
            self._http = httpx.Client(base_url=url, **_options(timeout, api_key, ca))

    embed = blocking(calls.embed)
    rerank = blocking(calls.rerank)
    answer = blocking(answers.answer)
    answer_stream = streaming(answers.answer_stream)
    compare = blocking(answers.compare)
    compress = blocking(answers.compress)
    release = blocking(answers.release)
    create_index = blocking(calls.create_index)
    list_indexes = blocking(calls.list_indexes)
    drop_index = blocking(calls.drop_index)
    aliases = blocking(upkeep.aliases)
    update_aliases = blocking(upkeep.update_aliases)
    create_snapshot = blocking(upkeep.create_snapshot)
    list_snapshots = blocking(upkeep.list_snapshots)
    delete_snapshot = blocking(upkeep.delete_snapshot)
    restore_snapshot = blocking(upkeep.restore_snapshot)
    rebuild_index = blocking(upkeep.rebuild_index)
    rebuild_status = blocking(upkeep.rebuild_status)
    cancel_rebuild = blocking(upkeep.cancel_rebuild)
    upsert = blocking(calls.upsert)
    delete = blocking(calls.delete)
    query = blocking(calls.query)
    count = blocking(calls.count)
    get = blocking(calls.get)
    scroll = blocking(calls.scroll)
    models = blocking(calls.models)
    report = blocking(calls.report)
    report_card = blocking(calls.report_card)
    report_plot = blocking(calls.report_plot)
    load_model = blocking(changes.load_model)
    unload_model = blocking(changes.unload_model)
    stored_models = blocking(changes.stored_models)
    set_aliases = blocking(changes.set_aliases)

    def ready(self) -> bool:
        """Tell whether the service is there and ready to serve."""
        try:
            with self._open(calls.ready(), ONCE):
                return True
        except Unavailable:
            return False

    def send(self, call: RestCall[T]) -> T:
        """Send ``call`` and read its reply."""
        with self._open(call, self._retries) as reply, reading(self.url):
            return call.read(call.decode(reply.read()))

    def stream(self, call: RestCall[Iterable[T]]) -> Iterator[T]:
        """Send ``call`` and read each event of its reply as it comes."""
        events = EventReader(self.url)
        with self._open(call, self._retries) as reply:
            for chunk in reply.iter_bytes():
                yield from events.feed(chunk, call.read)
        events.finish()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _open(self, call: RestCall[Any], retries: Retries) -> Iterator[httpx.Response]:
        """Send ``call`` until it is taken, and hold the reply open."""
        content = write_body(call.body)
        with sending(self.url):
            for attempt in itertools.count(1):
                with self._http.stream(call.method, call.path, content=content) as reply:
                    if reply.is_success:
                        yield reply
                        return
                    reply.read()
                time.sleep(retries.pause(attempt, read_fault(reply)))


class AsyncClient:
    """Async REST client; otherwise as ``Client``. ``await close()`` it, or use ``async with``."""

    def __init__(
        self,
        url: str = URL,
        *,
        timeout: float = 120.0,
        retries: int | Retries = 2,
        api_key: str | None = None,
        ca: str | Path | None = None,
    ) -> None:
        self.url = url
        self._retries = Retries.of(retries)
        with sending(url):
            self._http = httpx.AsyncClient(base_url=url, **_options(timeout, api_key, ca))

    embed = awaiting(calls.embed)
    rerank = awaiting(calls.rerank)
    answer = awaiting(answers.answer)
    answer_stream = streaming_async(answers.answer_stream)
    compare = awaiting(answers.compare)
    compress = awaiting(answers.compress)
    release = awaiting(answers.release)
    create_index = awaiting(calls.create_index)
    list_indexes = awaiting(calls.list_indexes)
    drop_index = awaiting(calls.drop_index)
    aliases = awaiting(upkeep.aliases)
    update_aliases = awaiting(upkeep.update_aliases)
    create_snapshot = awaiting(upkeep.create_snapshot)
    list_snapshots = awaiting(upkeep.list_snapshots)
    delete_snapshot = awaiting(upkeep.delete_snapshot)
    restore_snapshot = awaiting(upkeep.restore_snapshot)
    rebuild_index = awaiting(upkeep.rebuild_index)
    rebuild_status = awaiting(upkeep.rebuild_status)
    cancel_rebuild = awaiting(upkeep.cancel_rebuild)
    upsert = awaiting(calls.upsert)
    delete = awaiting(calls.delete)
    query = awaiting(calls.query)
    count = awaiting(calls.count)
    get = awaiting(calls.get)
    scroll = awaiting(calls.scroll)
    models = awaiting(calls.models)
    report = awaiting(calls.report)
    report_card = awaiting(calls.report_card)
    report_plot = awaiting(calls.report_plot)
    load_model = awaiting(changes.load_model)
    unload_model = awaiting(changes.unload_model)
    stored_models = awaiting(changes.stored_models)
    set_aliases = awaiting(changes.set_aliases)

    async def ready(self) -> bool:
        """Tell whether the service is there and ready to serve."""
        try:
            async with self._open(calls.ready(), ONCE):
                return True
        except Unavailable:
            return False

    async def send(self, call: RestCall[T]) -> T:
        """Send ``call`` and read its reply."""
        async with self._open(call, self._retries) as reply:
            content = await reply.aread()
        with reading(self.url):
            return call.read(call.decode(content))

    async def stream(self, call: RestCall[Iterable[T]]) -> AsyncIterator[T]:
        """Send ``call`` and read each event of its reply as it comes."""
        events = EventReader(self.url)
        async with self._open(call, self._retries) as reply:
            async for chunk in reply.aiter_bytes():
                for event in events.feed(chunk, call.read):
                    yield event
        events.finish()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def _open(self, call: RestCall[Any], retries: Retries) -> AsyncIterator[httpx.Response]:
        """Send ``call`` until it is taken, and hold the reply open."""
        content = write_body(call.body)
        with sending(self.url):
            for attempt in itertools.count(1):
                async with self._http.stream(call.method, call.path, content=content) as reply:
                    if reply.is_success:
                        yield reply
                        return
                    await reply.aread()
                await asyncio.sleep(retries.pause(attempt, read_fault(reply)))
