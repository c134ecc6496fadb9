"""The routes as OpenAPI describes them: bodies, replies and every status that can come."""

import http
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson
from pydantic import TypeAdapter

import condensery
from condensery import errors
from condensery.api.asking import MAX_REQUEST_ID_CHARS
from condensery.api.asking import TIMEOUT as TIMEOUT_HEADER
from condensery.api.rest import notices
from condensery.api.rest.errors import MALFORMED, Family, row_of
from condensery.api.rest.routes import sections
from condensery.api.rest.routing import Route
from condensery.errors import CondenseryError
from condensery.jobs.contexts import LEAST_SECONDS, MOST_SECONDS
from condensery.jobs.services import Limits

Schema = dict[str, Any]

ERRORS: dict[Family, Any] = {
    "tei": notices.TeiError,
    "openai": notices.OpenAIError,
    "rerank": notices.RerankError,
    "kserve": notices.KServeError,
}
COMPONENTS = "#/components/schemas/{model}"
NAME = {
    "index": "^[a-z0-9][a-z0-9._-]{0,63}$",
    "model": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    "context": "^ctx_[A-Za-z0-9_-]+$",
}
ABOUT = "Embeddings, reranking and answers from compressed passages."
# One event of a stream, as those who read descriptions take a stream's schema.
STREAMS: dict[str, Schema] = {
    "events": {
        "type": "object",
        "description": "Where `stream` is true. A failure once it has begun is an event `error`.",
        "properties": {
            "event": {
                "enum": [
                    *("search_results", "message", "compression"),
                    *("final_answer", "error", "done"),
                ]
            },
            "data": {"type": "string", "description": "JSON; `[DONE]` of the event `done`."},
        },
        "required": ["event", "data"],
    },
    "chunks": {
        "type": "object",
        "description": "Where `stream` is true, as OpenAI has it: the last chunk with a choice has "
        "`condensery`. A failure once it has begun is an `error`.",
        "properties": {
            "data": {"type": "string", "description": "JSON of a chunk; the last is `[DONE]`."}
        },
        "required": ["data"],
    },
}
PARAMETERS: Schema = {
    "request_id": {
        "name": "x-request-id",
        "in": "header",
        "description": "Echoed, and in the server's log; by default one is made.",
        "schema": {"type": "string", "maxLength": MAX_REQUEST_ID_CHARS},
    },
    "timeout": {
        "name": TIMEOUT_HEADER,
        "in": "header",
        "description": "How long the caller waits; then the work is dropped.",
        "schema": {"type": "integer", "minimum": 1},
    },
}
SECURITY: Schema = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
ECHO: Schema = {"x-request-id": {"required": True, "schema": {"type": "string"}}}
RETRY: Schema = {
    "retry-after": {
        "required": True,
        "description": "When it is worth coming back, in seconds.",
        "schema": {"type": "integer"},
    }
}
HEADERS: dict[int, Schema] = {
    401: {"www-authenticate": {"required": True, "schema": {"type": "string"}}},
    429: RETRY,
    503: RETRY,
}


def describe(table: Mapping[str, Sequence[Route]], limits: Limits) -> Schema:
    """Return the description of the routes, which come in sections."""
    every = [route for section in table.values() for route in section]
    schemas = _Schemas(every, limits)
    responses: Schema = {}
    paths: Schema = {}
    for tag, section in table.items():
        for route in section:
            operation = {"tags": [tag], **_operation(route, schemas, responses)}
            paths.setdefault(route.template, {})[route.method.lower()] = operation
    described = {
        "openapi": "3.1.0",
        "info": {"title": "Condensery", "version": condensery.__version__, "description": ABOUT},
        "tags": [{"name": tag} for tag in table],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "parameters": PARAMETERS,
            "responses": dict(sorted(responses.items())),
            "securitySchemes": SECURITY,
        },
    }
    # Docstrings quote as reStructuredText does, descriptions as Markdown.
    plain: Schema = orjson.loads(orjson.dumps(described).replace(b"``", b"`"))
    return plain


class _Schemas:
    """What bodies and replies hold, each named once.

    Args:
        routes: Whose bodies and replies.
        limits: The bodies' bounds, which are settings.
    """

    def __init__(self, routes: Sequence[Route], limits: Limits) -> None:
        kinds = [route.body for route in routes if route.body is not None]
        kinds += [route.reply for route in routes if route.reply is not None]
        kinds += ERRORS.values()
        mode: Literal["validation"] = "validation"
        found, defs = TypeAdapter.json_schemas(
            [(place, mode, TypeAdapter(kind)) for place, kind in enumerate(kinds)],
            ref_template=COMPONENTS,
        )
        self._found = {kind: found[place, mode] for place, kind in enumerate(kinds)}
        self.components: Schema = dict(sorted(defs["$defs"].items()))
        for model, fields in _bounds(limits).items():
            for field, bound in fields.items():
                _bind(self.components[model]["properties"][field], bound)

    def of(self, *kinds: Any) -> Schema:
        """Return the schema of a type, or of whichever of them."""
        found = [self._found[kind] for kind in kinds]
        return found[0] if len(found) == 1 else {"anyOf": found}


def _bounds(limits: Limits) -> dict[str, dict[str, Schema]]:
    """Return the bounds that are settings, by model and field."""
    items = {"minItems": 1, "maxItems": limits.max_items}
    read = {"minItems": 1, "maxItems": limits.max_answer_documents}
    count = {"minimum": 1, "maximum": limits.max_answer_documents}
    tokens = {"minimum": 1, "maximum": limits.max_answer_tokens}
    answer = {"documents": read, "max_tokens": tokens}
    seconds = {"minimum": LEAST_SECONDS, "maximum": MOST_SECONDS}
    return {
        "OpenAIEmbedRequest": {"input": items},
        "TeiEmbedRequest": {"inputs": items},
        "TeiRerankRequest": {"texts": items},
        "RerankRequest": {"documents": items},
        "UpsertRequest": {"documents": items},
        "IdsRequest": {"ids": items},
        "QueryRequest": {"top_k": {"minimum": 1, "maximum": limits.max_top_k}},
        "AnswerRequest": answer,
        "CompareRequest": answer,
        "ChatRequest": {**answer, "max_completion_tokens": tokens},
        "CompressRequest": {"documents": read, "ttl_s": seconds},
        "AnswerIndex": {"top_k": count},
        "AnswerRerank": {"top_n": {**count, "minimum": 0}},
    }


def _bind(schema: Schema, bound: Schema) -> None:
    kinds = ("array",) if "maxItems" in bound else ("integer", "number")
    for branch in schema.get("anyOf", [schema]):
        if branch.get("type") in kinds:
            branch.update(bound)


def _operation(route: Route, schemas: _Schemas, responses: Schema) -> Schema:
    words = route.template.replace("{", "").replace("}", "").strip("/")
    operation: Schema = {
        "operationId": f"{route.method.lower()}_{words}".replace("/", "_").replace(".", "_"),
        "summary": " ".join((route.endpoint.__doc__ or "").split()),
        "parameters": _parameters(route),
    }
    if route.access != "open":
        operation["security"] = [{}, {"bearer": []}, {"apiKey": []}]
    if route.access not in ("open", "any"):
        operation["description"] = f"Where keys are needed: one that may `{route.access}`."
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.optional,
            "content": {"application/json": {"schema": schemas.of(route.body)}},
        }
    operation["responses"] = _responses(route, schemas, responses)
    return operation


def _parameters(route: Route) -> list[Schema]:
    names = ("request_id",) if route.vital else ("request_id", "timeout")
    parameters: list[Schema] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    parameters += [dict(one) for one in route.parameters]
    if "{name" not in route.path:
        return parameters
    kinds = {"/v1/indexes": "index", "/v1/contexts": "context"}
    begins = (kind for start, kind in kinds.items() if route.path.startswith(start))
    schema = {"type": "string", "pattern": NAME[next(begins, "model")]}
    return [{"name": "name", "in": "path", "required": True, "schema": schema}, *parameters]


def _responses(route: Route, schemas: _Schemas, responses: Schema) -> Schema:
    """Return what a route can answer, by status; errors go into ``responses``, once a family."""
    good: Schema = {} if route.media.startswith("image/") else {"type": "string"}
    if route.reply is not None:
        good = schemas.of(route.reply)
    content: Schema = {route.media: {"schema": good}}
    if route.other_media:
        content[route.other_media] = {"schema": {"type": "string"}}
    if route.streams:
        content["text/event-stream"] = {"schema": STREAMS[route.streams]}
    found: Schema = {"200": {"description": "OK", "headers": ECHO, "content": content}}
    families = [route.family] if route.other_family is None else [route.family, route.other_family]
    schema = schemas.of(*(ERRORS[family] for family in families))
    rows = [MALFORMED, *(row_of(kind) for kind in errors_of(route))]
    for status in sorted({row.status(family) for row in rows for family in families}):
        name = f"{'_or_'.join(families)}_{status}"
        responses[name] = {
            "description": http.HTTPStatus(status).phrase,
            "headers": {**ECHO, **HEADERS.get(status, {})},
            "content": {"application/json": {"schema": schema}},
        }
        found[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return found


def errors_of(route: Route) -> set[type[CondenseryError]]:
    """Return every error that a route can answer with."""
    # A web page of another origin may be refused anywhere.
    found: set[type[CondenseryError]] = {
        *(errors.CondenseryError, errors.HeadersTooLarge, errors.Forbidden)
    }
    found.update(route.fails)
    if route.access != "open":
        found.add(errors.Unauthenticated)
    if not route.vital:
        found |= {errors.InputError, errors.Overloaded, errors.Unavailable}
        found |= {errors.ExpiredInQueue, errors.DeadlineExceeded}
    if route.body is not None:
        found |= {errors.InputError, errors.PayloadTooLarge}
    return found


def main() -> None:
    """Write the description, of the default limits, to standard output."""
    described = describe(sections(), Limits())
    sys.stdout.buffer.write(orjson.dumps(described, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
