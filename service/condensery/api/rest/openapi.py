"""The description of the routes: as OpenAPI, and as a page, which loads nothing from elsewhere.

Both have the bodies, the replies and every status of each route.
"""

import ast
import http
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from types import GenericAlias
from typing import Any, Literal, cast

import orjson
from pydantic import ConfigDict, TypeAdapter
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
# A reply has the fields of its class, and no others; a docstring below a field describes it.
REPLY_CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True)
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

# The page has no scripts, and may load none.
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

PAGE_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h2 { margin-top: 2.5rem; } h3 { margin: 1.5rem 0 0; font-size: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: #f4f4f4; padding: .75rem; white-space: pre-wrap; overflow-wrap: anywhere; }
p { margin: .25rem 0; } table { border-collapse: collapse; }
td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
td, p, h3 { overflow-wrap: anywhere; } td:first-child { overflow-wrap: normal; }
nav ul { columns: 20rem; list-style: none; padding: 0; margin: .25rem 0 1rem; }
@media (max-width: 40rem) { td { display: block; } tr { display: block; margin: .5rem 0; } }
@media (prefers-color-scheme: dark) {
  body { background: #181818; color: #ddd; } pre { background: #242424; } a { color: #8ab4f8; }
}
"""

# Example bodies by path, which work with a fresh server.
EXAMPLES: dict[str, Any] = {
    "/v1/embeddings": {"input": ["a text", "another"]},
    "/embed": {"inputs": "a text"},
    "/rerank": {"query": "who?", "texts": ["a passage", "another"]},
    "/v1/rerank": {"query": "who?", "documents": ["a passage", "another"], "top_n": 1},
    "/v1/rag/answer": {"query": "who?", "documents": ["a passage", "another"]},
}


async def show_openapi(request: Request, _services: Services) -> Response:
    """Return the description of all routes, as OpenAPI has it."""
    return write_json(request.app.openapi())


async def show_docs(request: Request, _services: Services) -> Response:
    """Show what there is, for people."""
    host = request.headers.get("host", "localhost:8080")
    secure = request.url.scheme == "https"
    page = render_page(request.app.openapi(), f"https://{host}" if secure else host)
    headers = {"content-security-policy": PAGE_POLICY}
    return Response(page, headers=headers, media_type="text/html")


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
    """Describes dataclasses as bodies: what stands below a field is its description."""

    def dataclass_schema(self, schema: Any) -> Schema:
        """Describe a dataclass; it takes no unknown fields, unless it says that it does."""
        described = {"additionalProperties": False, **super().dataclass_schema(schema)}
        kind = schema["cls"]
        if getattr(kind, "__pydantic_config__", {}).get("extra") == "ignore":
            del described["additionalProperties"]
        for field, text in field_docstrings(kind).items():
            described["properties"].get(field.rstrip("_"), {})["description"] = text
        return described


def field_docstrings(kind: type) -> dict[str, str]:
    """Return what stands below the fields of a class, and of those that it inherits from."""
    docstrings = {}
    for base in reversed(kind.__mro__[:-1]):
        (definition,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        docstrings[field.target.id] = " ".join(text.split())
    return docstrings


class ReplySchema(GenerateJsonSchema):
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
        for content in (described, *described["properties"].values()):
            if "description" in content:
                content["description"] = _join_lines(content["description"])
        name = schema["cls"].__name__
        return {**described, "required": names, "title": NAMES.get(name, name)}

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> Schema:
        """Describe a part of a reply with fields that are there only where they are asked for."""
        described = super().typed_dict_schema(schema)
        for name in described["properties"].keys() - set(described.get("required", ())):
            described["properties"][name]["default"] = None
        return described


def _join_lines(text: str) -> str:
    """Return a docstring's paragraphs, each on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


class _Schemas:
    """The schemas of bodies and replies, each once.

    Args:
        routes: Those with the bodies and replies.
        limits: Settings that bound fields of bodies.
    """

    def __init__(self, routes: Sequence[Route], limits: RequestLimits) -> None:
        bodies = [route.body for route in routes if route.body is not None]
        replies = [route.reply for route in routes if route.reply is not None]
        self._schemas, components = _describe_types(bodies, BodySchema, {})
        schemas, more = _describe_types(
            [*replies, *ERROR_TYPES.values()], ReplySchema, REPLY_CONFIG
        )
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
    kinds: Sequence[Any], generator: type[GenerateJsonSchema], config: ConfigDict
) -> tuple[dict[Any, Schema], Schema]:
    """Return the schema of each type, and those that they refer to by name."""
    mode: Literal["validation"] = "validation"
    # In a list, since only then what has no configuration of its own takes another.
    adapters: list[Any] = [
        (place, mode, TypeAdapter(cast(Any, GenericAlias(list, (kind,))), config=config))
        for place, kind in enumerate(kinds)
    ]
    schemas, described = TypeAdapter.json_schemas(
        adapters, schema_generator=generator, ref_template=COMPONENTS
    )
    items = {kind: schemas[place, mode]["items"] for place, kind in enumerate(kinds)}
    return items, described.get("$defs", {})


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
        "ChatRequest": {**answer, "max_completion_tokens": tokens},
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
        operation["requestBody"] = {
            "required": not route.optional,
            "content": {"application/json": {"schema": schemas.of(route.body)}},
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
    by_status: Schema = {
        "200": {"description": "OK", "headers": REQUEST_ID_HEADER, "content": content}
    }
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


def render_page(described: dict[str, Any], server: str = "localhost:8080") -> str:
    """Return the page of a description.

    Args:
        described: In OpenAPI's format.
        server: The host or URL in the examples.
    """
    info = described["info"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(info['title'])} {escape(info['version'])}</title>",
        f"<style>{PAGE_STYLE}</style></head><body>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])} For programs: <a href='openapi.json'>openapi.json</a>.",
        "</p><nav>",
    ]
    routes = [
        (tag["name"], path, method, operation)
        for tag in described["tags"]
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if tag["name"] in operation["tags"]
    ]
    operations: list[str] = []
    last = ""
    for tag, path, method, operation in routes:
        if tag != last:
            parts.append(f"{'</ul>' if last else ''}<b>{escape(tag)}</b><ul>")
            operations.append(f"<h2>{escape(tag)}</h2>")
            last = tag
        name = f"{method.upper()} {escape(path)}"
        parts.append(f"<li><a href='#{_anchor(method, path)}'>{name}</a></li>")
        operations += _operation_html(path, method, operation)
        operations += _error_list(operation["responses"], described["components"]["responses"])
        operations += _example_html(path, method, server)
    parts.append("</ul></nav><h2 id='headers'>Headers</h2><p>Of requests, where one wants:</p>")
    parts.append(_parameter_table(described["components"]["parameters"].values()))
    parts += [*operations, *_error_table(described["components"]["responses"])]
    parts.append("<h2>Schemas</h2>")
    for name, schema in described["components"]["schemas"].items():
        parts += _schema_html(name, schema)
    return "".join([*parts, "</body></html>"])


def _anchor(method: str, path: str) -> str:
    return method + re.sub(r"\W+", "-", path).rstrip("-")


def _parameter_table(parameters: Iterable[dict[str, Any]]) -> str:
    rows = (
        f"<tr><td><code>{escape(item['name'])}</code></td><td>{_type_html(item['schema'])}</td>"
        f"<td>{_markup(item.get('description', ''))}</td></tr>"
        for item in parameters
    )
    return f"<table>{''.join(rows)}</table>"


def _error_table(responses: dict[str, Any]) -> list[str]:
    """Return the table of error statuses and their meanings."""
    meanings = {name.rpartition("_")[2]: item["description"] for name, item in responses.items()}
    rows = (
        f"<tr><td>{status}</td><td>{escape(meaning)}</td></tr>"
        for status, meaning in sorted(meanings.items())
    )
    return [f"<h2 id='errors'>Errors</h2><table>{''.join(rows)}</table>"]


def _error_list(responses: dict[str, Any], described: dict[str, Any]) -> list[str]:
    """Return an operation's error statuses, and their bodies."""
    statuses: list[str] = []
    bodies: dict[str, None] = {}  # in order
    for status, response in responses.items():
        if "$ref" in response:
            statuses.append(status)
            content = described[response["$ref"].rpartition("/")[2]]["content"]
            bodies |= {_type_html(item["schema"]): None for item in content.values()}
    if not statuses:
        return []
    codes = ", ".join(statuses)
    return [f"<p><a href='#errors'>Errors</a>: {codes}, with {' or '.join(bodies)}.</p>"]


def _example_html(path: str, method: str, server: str) -> list[str]:
    if path not in EXAMPLES or method != "post":
        return []
    command = f"curl {server}{path} -d '{orjson.dumps(EXAMPLES[path]).decode()}'"
    return [f"<pre>{escape(command)}</pre>"]


def _operation_html(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    name = f"{method.upper()} {escape(path)}"
    head = f"<h3 id='{_anchor(method, path)}'><code>{name}</code></h3>"
    parts = [head, f"<p>{_markup(operation['summary'])}</p>"]
    if "description" in operation:
        parts.append(f"<p>{_markup(operation['description'])}</p>")
    own = [item for item in operation["parameters"] if item.get("in") == "query"]
    if own:
        parts.append(_parameter_table(own))
    if "requestBody" in operation:
        body = _type_html(operation["requestBody"]["content"]["application/json"]["schema"])
        parts.append(f"<p>Body: {body}</p>")
    content = operation["responses"]["200"]["content"]
    replies = [f"{escape(media)} {_type_html(item['schema'])}" for media, item in content.items()]
    return [*parts, f"<p>Reply: {'; or '.join(replies)}.</p>"]


def _type_html(schema: dict[str, Any]) -> str:
    """Return the values that a schema allows; other schemas are links."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_type_html(branch) for branch in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in values)
    kind = escape(str(schema.get("type", "any")))
    if "items" in schema:
        kind = f"{kind} of {_type_html(schema['items'])}"
    return f"{kind}{_range_text(schema)}"


def _range_text(schema: dict[str, Any]) -> str:
    """Return the bounds of a number, a length or a count."""
    bounds = []
    for word, names in (
        ("at least", ("minimum", "minItems", "minLength")),
        ("over", ("exclusiveMinimum",)),
        ("at most", ("maximum", "maxItems", "maxLength")),
    ):
        bound = next((schema[name] for name in names if name in schema), None)
        if bound is not None and abs(bound) < 2**31:  # larger ones are the range of 64 bits
            bounds.append(f" {word} {bound:g}" if isinstance(bound, float) else f" {word} {bound}")
    unit = " characters" if "minLength" in schema or "maxLength" in schema else ""
    return f",{' and'.join(bounds)}{unit}" if bounds else ""


def _schema_html(name: str, schema: dict[str, Any]) -> list[str]:
    parts = [f"<h3 id='{escape(name)}'><code>{escape(name)}</code></h3>"]
    parts.append(f"<p>{_markup(schema.get('description', ''))}</p><table>")
    required = schema.get("required", ())
    for field, value in schema.get("properties", {}).items():
        default = value.get("default")
        optional = "; may be left out"
        if field in required:
            optional = ""
        elif default not in (None, [], {}):
            optional = f"; default <code>{escape(orjson.dumps(default).decode())}</code>"
        parts.append(
            f"<tr><td><code>{escape(field)}</code></td><td>{_type_html(value)}{optional}</td>"
            f"<td>{_markup(value.get('description', ''))}</td></tr>"
        )
    return [*parts, "</table>"]


def _markup(text: str) -> str:
    """Return text as HTML; what is between backticks is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def main() -> None:
    """Write the description, of the default limits, to standard output."""
    from condensery.api.rest.app import route_sections  # which imports this module

    described = describe_routes(route_sections(), RequestLimits())
    sys.stdout.buffer.write(orjson.dumps(described, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
