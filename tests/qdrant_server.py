"""A small server that speaks the part of Qdrant's REST that we use, over its client's local mode.

Bodies are read and replies written by Qdrant's own models, so that what the real client sends goes
over a real socket and is checked. It can be stopped and started on the same port, hold requests at
a gate, and refuse writes as a full disk does.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio.to_thread
import uvicorn
from qdrant_client import QdrantClient, models
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Handler = Callable[[QdrantClient, str, Any], Any]


def _create(client: QdrantClient, name: str, body: Any) -> bool:
    asked = models.CreateCollection(**body)
    return client.create_collection(name, vectors_config=asked.vectors)


def _upsert(client: QdrantClient, name: str, body: Any) -> Any:
    if "batch" in body:
        return client.upsert(name, models.PointsBatch(**body).batch)
    return client.upsert(name, models.PointsList(**body).points)


def _delete(client: QdrantClient, name: str, body: Any) -> Any:
    return client.delete(name, models.PointIdsList(**body))


def _query(client: QdrantClient, name: str, body: Any) -> Any:
    asked = models.QueryRequest(**body)
    return client.query_points(
        name, query=asked.query, limit=asked.limit, query_filter=asked.filter, with_payload=False
    )


def _scroll(client: QdrantClient, name: str, body: Any) -> Any:
    asked = models.ScrollRequest(**body)
    points, following = client.scroll(
        name, limit=asked.limit, offset=asked.offset, with_payload=False
    )
    return models.ScrollResult(points=points, next_page_offset=following)


def _count(client: QdrantClient, name: str, body: Any) -> Any:
    asked = models.CountRequest(**body)
    return client.count(name, count_filter=asked.filter, exact=True)


HANDLERS: dict[tuple[str, str], Handler] = {
    ("GET", ""): lambda client, name, _: client.get_collection(name),
    ("PUT", ""): _create,
    ("DELETE", ""): lambda client, name, _: client.delete_collection(name),
    ("PUT", "/index"): lambda *_: models.UpdateResult(status=models.UpdateStatus.COMPLETED),
    ("PUT", "/points"): _upsert,
    ("POST", "/points"): lambda client, name, body: client.retrieve(name, ids=body["ids"]),
    ("POST", "/points/delete"): _delete,
    ("POST", "/points/query"): _query,
    ("POST", "/points/scroll"): _scroll,
    ("POST", "/points/count"): _count,
}


class QdrantServer:
    """The server, in a thread; its content outlives ``stop``.

    Attributes:
        client: The local mode beneath: what there is, and what a test changes behind our back.
        gate: Requests wait while it is cleared.
        refusal: A status and a text that requests of ``refused`` methods and paths get.
        asked: (method, path) of every request.
    """

    def __init__(self, key: str | None = None) -> None:
        self.client = QdrantClient(":memory:")
        self.gate = threading.Event()
        self.gate.set()
        self.refusal: tuple[int, str] | None = None
        self.refused: tuple[tuple[str, str], ...] = tuple(HANDLERS)
        self.asked: list[tuple[str, str]] = []
        self._key = key
        self._mutex = threading.RLock()
        self._run = 0  # requests outlive their connections, in their threads
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        routes = [
            Route(f"/collections/{{name}}{path}", self._endpoint(handler, path), methods=[method])
            for (method, path), handler in HANDLERS.items()
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), port=self.port, log_level="error", lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), f"port {self.port} was taken meanwhile"
            time.sleep(0.005)

    def stop(self) -> None:
        """Close the port and every connection; what was asked and not yet done is not done."""
        with self._mutex:
            self._run += 1
        if self._server is not None and self._thread is not None:
            held, self.gate = self.gate, threading.Event()
            held.set()
            self._server.should_exit = self._server.force_exit = True
            self._thread.join()
            self._server = None
            self.gate.set()

    def collections(self) -> list[str]:
        with self._mutex:
            return [about.name for about in self.client.get_collections().collections]

    def rows(self, collection: str) -> list[int]:
        with self._mutex:
            points, _ = self.client.scroll(collection, limit=10**6, with_payload=False)
        return sorted(int(point.id) for point in points if point.id != 0)

    def lose(self, collection: str, count: int) -> None:
        """Delete the first points that it has."""
        with self._mutex:
            self.client.delete(collection, self.rows(collection)[:count])

    def _endpoint(self, handler: Handler, path: str) -> Callable[[Request], Awaitable[Response]]:
        run = self._run

        async def endpoint(request: Request) -> Response:
            self.asked.append((request.method, path))
            body = await request.body()
            return await anyio.to_thread.run_sync(
                self._reply, handler, request, path, json.loads(body or b"null"), run
            )

        return endpoint

    def _reply(
        self, handler: Handler, request: Request, path: str, body: Any, run: int
    ) -> Response:
        self.gate.wait()
        if self._key is not None and request.headers.get("api-key") != self._key:
            return _error(401, "Must provide an API key or an Authorization bearer token")
        if self.refusal is not None and (request.method, path) in self.refused:
            return _error(*self.refusal)
        try:
            with self._mutex:
                if run != self._run:
                    return _error(503, "stopped")
                result = handler(self.client, request.path_params["name"], body)
        except ValueError as error:
            return _error(404 if "not found" in str(error) else 400, str(error))
        plain = result
        if isinstance(result, list):
            plain = [item.model_dump(mode="json") for item in result]
        elif hasattr(result, "model_dump"):
            plain = result.model_dump(mode="json")
        return JSONResponse({"result": plain, "status": "ok", "time": 0.0})


def _error(status: int, text: str) -> Response:
    return JSONResponse({"status": {"error": text}, "time": 0.0}, status_code=status)


@contextlib.contextmanager
def serving_qdrant(key: str | None = None) -> Iterator[QdrantServer]:
    server = QdrantServer(key)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.client.close()
