"""The description of the routes: for programs, and for people. Nothing is loaded from elsewhere."""

from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.doors import reply
from condensery.jobs.services import Services

# The page has no scripts, and may load none.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h2 { margin-top: 2.5rem; } h3 { margin: 1.5rem 0 0; font-size: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: #f4f4f4; overflow-x: auto; padding: .75rem; }
p { margin: .25rem 0; } table { border-collapse: collapse; }
td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) {
  body { background: #181818; color: #ddd; } pre { background: #242424; } a { color: #8ab4f8; }
}
"""


async def openapi(request: Request, services: Services) -> Response:
    """Return the description of all routes, as OpenAPI has it."""
    del services
    return reply(request.app.openapi())


async def docs(request: Request, services: Services) -> Response:
    """Show what there is, for people."""
    del services
    page = render(request.app.openapi())
    headers = {"content-security-policy": POLICY}
    return Response(page, headers=headers, media_type="text/html")


def render(described: dict[str, Any]) -> str:
    """Return the page of a description."""
    info = described["info"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(info['title'])} {escape(info['version'])}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])} For programs: <a href='openapi.json'>openapi.json</a>.",
        "</p>",
    ]
    for tag in described["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2>")
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    parts += _operation(path, method, operation)
    parts.append("<h2>Schemas</h2>")
    for name, schema in described["components"]["schemas"].items():
        parts += _schema(name, schema)
    return "".join([*parts, "</body></html>"])


def _operation(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    head = f"<h3><code>{method.upper()} {escape(path)}</code></h3>"
    parts = [head, f"<p>{_marked(operation['summary'])}</p>"]
    if "description" in operation:
        parts.append(f"<p>{_marked(operation['description'])}</p>")
    if "requestBody" in operation:
        body = _links(operation["requestBody"]["content"]["application/json"]["schema"])
        parts.append(f"<p>Body: {body}</p>")
    content = operation["responses"]["200"]["content"]
    replies = [f"{escape(media)} {_links(one['schema'])}" for media, one in content.items()]
    errors = ", ".join(status for status in operation["responses"] if status != "200")
    return [*parts, f"<p>Reply: {'; or '.join(replies)}. Errors: {errors}.</p>"]


def _links(schema: dict[str, Any]) -> str:
    """Return the names of what a schema holds, each a link to it."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_links(one) for one in schema["anyOf"])
    kind = escape(str(schema.get("type", "any")))
    return f"{kind} of {_links(schema['items'])}" if "items" in schema else kind


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    parts = [f"<h3 id='{escape(name)}'><code>{escape(name)}</code></h3>"]
    parts.append(f"<p>{_marked(schema.get('description', ''))}</p><table>")
    needed = schema.get("required", ())
    for field, one in schema.get("properties", {}).items():
        values = " or ".join(f"<code>{escape(str(value))}</code>" for value in one.get("enum", ()))
        must = "" if field in needed else ", may be left out"
        parts.append(
            f"<tr><td><code>{escape(field)}</code></td><td>{values or _links(one)}{must}</td>"
            f"<td>{_marked(one.get('description', ''))}</td></tr>"
        )
    return [*parts, "</table>"]


def _marked(text: str) -> str:
    """Return text as HTML; what stands between backticks is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
