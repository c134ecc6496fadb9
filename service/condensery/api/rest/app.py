"""The REST door: every route in one table, and the front that each request passes."""

import secrets
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import condensery
from condensery import schemas
from condensery.api.rest import embeddings, indexes, ops, rag, rerank
from condensery.api.rest.doors import BodyLimit, Endpoint, Guarded, guard
from condensery.api.rest.errors import Family, render_fault
from condensery.jobs.services import Services

MAX_REQUEST_ID_CHARS = 128
COMPONENTS = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Route:
    """A path and a method.

    Attributes:
        method: HTTP's.
        path: Starlette's pattern.
        endpoint: What answers.
        family: How its errors look.
        body: The request's schema, for the description.
        hot: Whether requests skip FastAPI, which takes 0.2 ms each: the short ones, many a second.
    """

    method: str
    path: str
    endpoint: Endpoint
    family: Family = "openai"
    body: type[BaseModel] | None = None
    hot: bool = False


ONE = "/v1/indexes/{name}"
ROUTES = (
    Route(
        *("POST", "/v1/embeddings", embeddings.openai_embeddings),
        body=schemas.OpenAIEmbedRequest,
        hot=True,
    ),
    Route("POST", "/embed", embeddings.tei_embed, "tei", schemas.TeiEmbedRequest, hot=True),
    Route("POST", "/rerank", rerank.any_rerank, "tei", schemas.TeiRerankRequest, hot=True),
    Route("POST", "/v1/rerank", rerank.v1_rerank, "rerank", schemas.RerankRequest, hot=True),
    Route("POST", "/v1/rag/answer", rag.rag_answer, body=schemas.AnswerRequest),
    Route("GET", "/v1/indexes", indexes.list_all),
    Route("PUT", ONE, indexes.create, body=schemas.CreateIndexRequest),
    Route("GET", ONE, indexes.info),
    Route("DELETE", ONE, indexes.drop),
    Route("POST", f"{ONE}/documents", indexes.upsert, body=schemas.UpsertRequest),
    Route("POST", f"{ONE}/documents/get", indexes.get, body=schemas.IdsRequest),
    Route("POST", f"{ONE}/documents/delete", indexes.delete, body=schemas.IdsRequest),
    Route("POST", f"{ONE}/documents/count", indexes.count, body=schemas.CountRequest),
    Route("POST", f"{ONE}/query", indexes.query, body=schemas.QueryRequest),
    Route("GET", "/v1/models", ops.list_models),
    Route("GET", "/v1/models/{name:path}", ops.show_model),
    Route("GET", "/info", ops.tei_info, "tei"),
    Route("GET", "/health", ops.readyz, "tei"),
    Route("GET", "/livez", ops.livez),
    Route("GET", "/readyz", ops.readyz),
    Route("GET", "/metrics", ops.metrics),
    Route("GET", "/version", ops.version),
)
FAMILIES = {route.path: route.family for route in ROUTES}


def build(services: Services) -> ASGIApp:
    """Return the REST door as an ASGI app."""
    app = FastAPI(
        title="Condensery",
        version=condensery.__version__,
        description="Embeddings, reranking and answers from compressed passages.",
        redirect_slashes=False,
    )
    hot: dict[tuple[str, str], Guarded] = {}
    for route in ROUTES:
        guarded = guard(route.endpoint, services, route.family)
        if route.hot:
            hot[route.method, route.path] = guarded
        app.add_api_route(
            route.path,
            guarded,
            methods=[route.method],
            name=route.endpoint.__name__,
            description=route.endpoint.__doc__ or "",
            response_model=None,
            openapi_extra=_describe(route),
        )
    app.add_exception_handler(HTTPException, _refuse)
    vars(app)["openapi"] = lambda: _openapi(app)
    return Front(app, hot, services)


class Front:
    """What each request passes first: its id, the limit of its body, the hot routes.

    Pure ASGI: Starlette's BaseHTTPMiddleware hides that a client has gone, and takes time.
    """

    def __init__(
        self, app: ASGIApp, hot: dict[tuple[str, str], Guarded], services: Services
    ) -> None:
        self._app = app
        self._hot = hot
        self._max_body = services.limits.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = _request_id(scope)
        scope["state"] = {"request_id": identity}
        header = (b"x-request-id", identity.encode("latin-1"))

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        limited = BodyLimit(scope, receive, self._max_body)
        endpoint = self._hot.get((scope["method"], scope["path"]))
        if endpoint is None:
            await self._app(scope, limited, tagged)
            return
        response = await endpoint(Request(scope, limited))
        await response(scope, limited, tagged)


def _request_id(scope: Scope) -> str:
    """Return the caller's id if it can stand in a header and a log line, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given: str = value.decode("latin-1")
            if given.isascii() and given.isprintable() and 0 < len(given) <= MAX_REQUEST_ID_CHARS:
                return given
    return secrets.token_hex(16)


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer an unknown path, or a method that a path does not take."""
    assert isinstance(error, HTTPException)  # registered for it
    method, path = request.method, request.url.path
    family = FAMILIES.get(path, "openai")
    if error.status_code != 405:
        message = f"There is no {method} {path[:200]}; /docs lists what there is."
        return render_fault(family, error.status_code, "not_found", message)
    allowed = (error.headers or {}).get("allow", "") or (error.headers or {}).get("Allow", "")
    message = f"{path} does not take {method}; it takes {allowed}."
    response = render_fault(family, 405, "method_not_allowed", message)
    response.headers["allow"] = allowed
    return response


def _describe(route: Route) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if "{name" in route.path:
        described["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if route.body is not None:
        schema = {"$ref": COMPONENTS.format(model=route.body.__name__)}
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return described


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Describe the routes; bodies are read by hand, so their schemas are added here."""
    described = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas_of = described.setdefault("components", {}).setdefault("schemas", {})
    for route in ROUTES:
        if route.body is not None:
            schema = route.body.model_json_schema(ref_template=COMPONENTS)
            schemas_of.update(schema.pop("$defs", {}))
            schemas_of[route.body.__name__] = schema
    return described
