"""The description of the routes, as OpenAPI: the bodies, the replies and every status of each."""

import ast
import http
import inspect
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import orjson
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema
from starlette.requests import Request
from starlette.responses import Response

import condensery
from condensery import errors
from condensery.api.rest.endpoint import Route
from condensery.api.rest.errors import (
    MALFORMED,
    Family,
    KServeError,
    OpenAIError,
    RerankError,
    TeiError,
    find_row,
)
from condensery.api.rest.ignored_fields import IGNORED_FIELDS_HEADER
from condensery.api.rest.io import write_json
from condensery.auth import MAX_REQUEST_ID_CHARS, REQUEST_TIMEOUT_HEADER
from condensery.errors import CondenseryError
from condensery.jobs.contexts import LEAST_SECONDS, MOST_SECONDS
from condensery.jobs.services import RequestLimits, Services

Schema = dict[str, Any]

ERROR_TYPES: dict[Family, Any] = {
    "tei": TeiError,
    "openai": OpenAIError,
    "rerank": RerankError,
    "kserve": KServeError,
}
# What the components are called whose class has another name.
NAMES = {
    "Answer": "WholeAnswer",
    "Compression": "CompressionBlock",
    "Document": "StoredDocument",
    "IndexInfo": "Index",
    "ModelInfo": "Model",
    "ModelLoad": "Loaded",
    "ModelReport": "Report",
    "ModelUnload": "Unloaded",
    "ModelVersion": "KServeVersion",
    "PairTraits": "Pair",
    "SnapshotList": "Snapshots",
    "StoredDocument": "ReadDocument",
    "StoredPassage": "ReadPassage",
    "TextToken": "TeiToken",
    "Timings": "AnswerTimings",
    "Upserted": "Written",
    "Usage": "AnswerUsage",
}
COMPONENTS = "#/components/schemas/{model}"
NAME_PATTERNS = {
    "index": "^[a-z0-9][a-z0-9._-]{0,63}$",
    "model": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    "context": "^ctx_[A-Za-z0-9_-]+$",
}
SERVICE_DESCRIPTION = "Embeddings, reranking and answers from compressed passages."
# Tools read the schema of a stream as that of one event.
STREAMS: dict[str, Schema] = {
    "events": {
        "type": "object",
        "description": "Where `stream` is true. A failure once it has begun is an event `error`.",
        "properties": {
            "event": {
                "enum": [
                    "search_results",
                    "message",
                    "compression",
                    "final_answer",
                    "error",
                    "done",
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
    "responses": {
        "type": "object",
        "description": "Where `stream` is true, as OpenAI has it: `response.created`, ..., "
        "`response.output_text.delta`, ..., `response.completed` or `response.incomplete`, whose "
        "`response` has `condensery`. A failure once it has begun is an event `error`.",
        "properties": {
            "event": {"type": "string", "description": "The `type` of its data."},
            "data": {"type": "string", "description": "JSON."},
        },
        "required": ["event", "data"],
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
        "name": REQUEST_TIMEOUT_HEADER,
        "in": "header",
        "description": "How long the caller waits; then the work is dropped.",
        "schema": {"type": "integer", "minimum": 1},
    },
}
SECURITY: Schema = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
REQUEST_ID_HEADER: Schema = {"x-request-id": {"required": True, "schema": {"type": "string"}}}
IGNORED_HEADER: Schema = {
    IGNORED_FIELDS_HEADER: {
        "description": "Fields of the body that had no effect, where there were any.",
        "schema": {"type": "string"},
    }
}
RETRY_HEADER: Schema = {
    "retry-after": {
        "required": True,
        "description": "When it is worth coming back, in seconds.",
        "schema": {"type": "integer"},
    }
}
ERROR_HEADERS: dict[int, Schema] = {
    401: {"www-authenticate": {"required": True, "schema": {"type": "string"}}},
    429: RETRY_HEADER,
    503: RETRY_HEADER,
}


async def show_openapi(request: Request, _services: Services) -> Response:
    """Return the description of all routes, as OpenAPI has it."""
    return write_json(request.state.describe())


def describe_routes(table: Mapping[str, Sequence[Route]], limits: RequestLimits) -> Schema:
    """Return the OpenAPI description of the routes, given by section."""
    schemas = _Schemas([route for section in table.values() for route in section], limits)
    responses: Schema = {}
    paths: Schema = {}
    for tag, section in table.items():
        for route in section:
            operation = {"tags": [tag], **_describe_operation(route, schemas, responses)}
            paths.setdefault(route.template, {})[route.method.lower()] = operation
    described = {
        "openapi": "3.1.0",
        "info": {
            "title": "Condensery",
            "version": condensery.__version__,
            "description": SERVICE_DESCRIPTION,
        },
        "tags": [{"name": tag} for tag in table],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "parameters": PARAMETERS,
            "responses": dict(sorted(responses.items())),
            "securitySchemes": SECURITY,
        },
    }
    # Docstrings quote code as reStructuredText does, descriptions as Markdown.
    markdown: Schema = orjson.loads(orjson.dumps(described).replace(b"``", b"`"))
    return markdown


class BodySchema(GenerateJsonSchema):
    """Describes classes by their docstrings, and those below their fields.

    Pydantic can do that too, but not for inherited fields, and each version in another way.
    """

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> Schema:
        """Describe a dataclass."""
        return self._describe_class(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> Schema:
        """Describe a dictionary, of which some fields may be left out."""
        return self._describe_class(super().typed_dict_schema(schema), schema["cls"])

    def _describe_class(self, described: Schema, kind: type) -> Schema:
        """Describe a class; it takes no unknown fields, unless it says that it does."""
        described["description"] = _join_lines(inspect.getdoc(kind) or "")
        if getattr(kind, "__pydantic_config__", {}).get("extra") != "ignore":
            described["additionalProperties"] = False
        for field, text in field_docstrings(kind).items():
            described["properties"].get(field.rstrip("_"), {})["description"] = text
        return described


class ReplySchema(BodySchema):
    """Describes replies, whose fields are all there, in the order of the dataclass."""

    def normalize_name(self, name: str) -> str:
        """Return the name that a class has among the components."""
        name = super().normalize_name(name)
        return NAMES.get(name, name)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        """Describe a field without its default, which says nothing where it is always there."""
        return self.generate_inner(schema["schema"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> Schema:
        """Describe a reply, or a part of one."""
        described = super().dataclass_schema(schema)
        names = [field.name for field in fields(schema["cls"])]
        described["properties"] = {name: described["properties"][name] for name in names}
        name = schema["cls"].__name__
        return {**described, "required": names, "title": NAMES.get(name, name)}

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> Schema:
        """Describe a part of a reply with fields that are there only where they are asked for."""
        described = super().typed_dict_schema(schema)
        for name in described["properties"].keys() - set(described.get("required", ())):
            described["properties"][name]["default"] = None
        return described


def field_docstrings(kind: type) -> dict[str, str]:
    """Return what stands below the fields of a class, and of those that it inherits from."""
    docstrings = {}
    for base in reversed([base for base in kind.__mro__ if base not in (dict, object)]):
        (definition,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        docstrings[field.target.id] = " ".join(text.split())
    return docstrings


def _join_lines(text: str) -> str:
    """Return a docstring's paragraphs, each on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


class _Schemas:
    """The schemas of bodies and replies, each once."""

    def __init__(self, routes: Sequence[Route], limits: RequestLimits) -> None:
        bodies = [route.body for route in routes if route.body is not None]
        replies = [route.reply for route in routes if route.reply is not None]
        self._schemas, components = _describe_types(bodies, BodySchema)
        schemas, more = _describe_types([*replies, *ERROR_TYPES.values()], ReplySchema)
        self._schemas |= schemas
        self.components: Schema = dict(sorted((components | more).items()))
        for model, bounds in _setting_bounds(limits).items():
            for field, bound in bounds.items():
                _bound_schema(self.components[model]["properties"][field], bound)

    def of(self, *kinds: Any) -> Schema:
        """Return the schema of a type, or of any of several."""
        schemas = [self._schemas[kind] for kind in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _describe_types(
    kinds: Sequence[Any], generator: type[GenerateJsonSchema]
) -> tuple[dict[Any, Schema], Schema]:
    """Return the schema of each type, and those that they refer to by name."""
    mode: Literal["validation"] = "validation"
    schemas, described = TypeAdapter.json_schemas(
        [(place, mode, TypeAdapter(kind)) for place, kind in enumerate(kinds)],
        schema_generator=generator,
        ref_template=COMPONENTS,
    )
    by_kind = {kind: schemas[place, mode] for place, kind in enumerate(kinds)}
    return by_kind, described.get("$defs", {})


def _setting_bounds(limits: RequestLimits) -> dict[str, dict[str, Schema]]:
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
        "ChatRequest": {  # of more tokens it gets the limit
            "documents": read,
            "max_tokens": {"minimum": 1},
            "max_completion_tokens": {"minimum": 1},
        },
        "ResponseRequest": {"documents": read, "max_output_tokens": {"minimum": 1}},
        "CompressRequest": {"documents": read, "ttl_s": seconds},
        "AnswerIndex": {"top_k": count},
        "AnswerRerank": {"top_n": {**count, "minimum": 0}},
    }


def _bound_schema(schema: Schema, bound: Schema) -> None:
    kinds = ("array",) if "maxItems" in bound else ("integer", "number")
    for branch in schema.get("anyOf", [schema]):
        if branch.get("type") in kinds:
            branch.update(bound)


def _describe_operation(route: Route, schemas: _Schemas, responses: Schema) -> Schema:
    words = route.template.replace("{", "").replace("}", "").strip("/")
    operation: Schema = {
        "operationId": f"{route.method.lower()}_{words}".replace("/", "_").replace(".", "_"),
        "summary": " ".join((route.endpoint.__doc__ or "").split()),
        "parameters": _describe_parameters(route),
    }
    if route.access != "open":
        operation["security"] = [{}, {"bearer": []}, {"apiKey": []}]
    if route.access not in ("open", "any"):
        operation["description"] = f"Where keys are needed: one that may `{route.access}`."
    if route.body is not None:
        media = "multipart/form-data" if route.form else "application/json"
        operation["requestBody"] = {
            "required": not route.optional,
            "content": {media: {"schema": schemas.of(route.body)}},
        }
    operation["responses"] = _describe_responses(route, schemas, responses)
    return operation


def _describe_parameters(route: Route) -> list[Schema]:
    names = ("request_id",) if route.vital else ("request_id", "timeout")
    parameters: list[Schema] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    parameters += [dict(parameter) for parameter in route.parameters]
    if "{name" not in route.path:
        return parameters
    kinds = {"/v1/indexes": "index", "/v1/contexts": "context"}
    begins = (kind for start, kind in kinds.items() if route.path.startswith(start))
    schema = {"type": "string", "pattern": NAME_PATTERNS[next(begins, "model")]}
    return [{"name": "name", "in": "path", "required": True, "schema": schema}, *parameters]


def _describe_responses(route: Route, schemas: _Schemas, responses: Schema) -> Schema:
    """Return a route's responses by status; errors go into the shared ``responses``."""
    success: Schema = {} if route.media.startswith("image/") else {"type": "string"}
    if route.reply is not None:
        success = schemas.of(route.reply)
    content: Schema = {route.media: {"schema": success}}
    if route.other_media:
        content[route.other_media] = {"schema": {"type": "string"}}
    if route.streams:
        content["text/event-stream"] = {"schema": STREAMS[route.streams]}
    headers = REQUEST_ID_HEADER if route.body is None else {**REQUEST_ID_HEADER, **IGNORED_HEADER}
    by_status: Schema = {"200": {"description": "OK", "headers": headers, "content": content}}
    families = [route.family] if route.other_family is None else [route.family, route.other_family]
    schema = schemas.of(*(ERROR_TYPES[family] for family in families))
    rows = [MALFORMED, *(find_row(kind) for kind in route_errors(route))]
    for status in sorted({row.status(family) for row in rows for family in families}):
        name = f"{'_or_'.join(families)}_{status}"
        responses[name] = {
            "description": http.HTTPStatus(status).phrase,
            "headers": {**REQUEST_ID_HEADER, **ERROR_HEADERS.get(status, {})},
            "content": {"application/json": {"schema": schema}},
        }
        by_status[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return by_status


def route_errors(route: Route) -> set[type[CondenseryError]]:
    """Return every error that a route can answer with."""
    # Forbidden: a web page of another origin may be refused anywhere.
    kinds: set[type[CondenseryError]] = {
        errors.CondenseryError,
        errors.HeadersTooLarge,
        errors.Forbidden,
        *route.fails,
    }
    if route.access != "open":
        kinds.add(errors.Unauthenticated)
    if not route.vital:
        kinds |= {errors.InputError, errors.Overloaded, errors.Unavailable}
        kinds |= {errors.ExpiredInQueue, errors.DeadlineExceeded}
    if route.body is not None:
        kinds |= {errors.InputError, errors.PayloadTooLarge}
    return kinds


def main() -> None:
    """Write the description, of the default limits, to standard output."""
    from condensery.api.rest.routes import route_sections  # which imports this module

    described = describe_routes(route_sections(), RequestLimits())
    plain = orjson.loads(orjson.dumps(described))
    text = json.dumps(plain, ensure_ascii=False, indent=1, separators=(",", ":"))
    # The properties of a schema are a line, and so are the answers of a route.
    lines = re.sub(r"\n {5,}|\n {4}(?=[}\]])", "", text)
    # Programs need no indentation, which would be 9 KB.
    sys.stdout.write(re.sub(r"\n +", "\n", lines) + "\n")


if __name__ == "__main__":
    main()
