"""The page that shows the description of the routes; it loads nothing from elsewhere."""

import re
from collections.abc import Iterable
from html import escape
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.jobs.services import Services

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


async def show_docs(request: Request, _services: Services) -> Response:
    """Show what there is, for people."""
    host = request.headers.get("host", "localhost:8080")
    secure = request.url.scheme == "https"
    page = render_page(request.state.describe(), f"https://{host}" if secure else host)
    headers = {"content-security-policy": PAGE_POLICY}
    return Response(page, headers=headers, media_type="text/html")


def render_page(described: dict[str, Any], server: str = "localhost:8080") -> str:
    """Return the page of a description.

    Args:
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
        ((media, body),) = operation["requestBody"]["content"].items()
        form = "" if media == "application/json" else f"{escape(media)} "
        parts.append(f"<p>Body: {form}{_type_html(body['schema'])}</p>")
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
