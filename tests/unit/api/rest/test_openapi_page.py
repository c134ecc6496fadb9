"""What people read at /docs: that they find it, can try it, and see what is allowed."""

import re
from html import unescape

import pytest

from condensery.api.rest.page import EXAMPLES, render_page
from condensery.api.rest.routes import route_sections


@pytest.fixture
async def page(client):
    return (await client.get("/docs")).text


async def test_each_route_is_reached_from_the_top_of_the_page(page):
    listed, _, _ = page.partition("</nav>")
    routes = [route for section in route_sections().values() for route in section]
    links = re.findall("<a href='#([^']+)'>([^<]+)</a>", listed)
    assert {name for _, name in links} == {f"{item.method} {item.template}" for item in routes}
    for anchor, name in links:
        assert f"<h3 id='{anchor}'><code>{name}</code></h3>" in page
    assert len({anchor for anchor, _ in links}) == len(links)


async def test_every_example_is_one_that_can_be_tried(client, page):
    for path, body in EXAMPLES.items():
        assert (await client.post(path, json=body)).status_code == 200, path
        assert f"curl door{path} -d '{{" in unescape(page), "it names this server"


async def test_examples_go_where_the_page_came_from(client):
    asked = await client.get("https://api.example:8443/docs", headers={"host": "api.example:8443"})
    assert "curl https://api.example:8443/embed -d" in asked.text
    asked = await client.get("/docs", headers={"host": "<script>"})
    assert "<script" not in asked.text


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ({"type": "integer", "default": 64, "minimum": 1, "maximum": 512},
         "integer, at least 1 and at most 512; default <code>64</code>"),
        ({"anyOf": [{"enum": ["dense", "bm25"]}, {"type": "null"}], "default": None},
         "<code>dense</code> or <code>bm25</code> or null; may be left out"),
        ({"const": "list"}, "<code>list</code>; may be left out"),
        ({"type": "string", "maxLength": 9, "default": "a"},
         "string, at most 9 characters; default <code>&quot;a&quot;</code>"),
        ({"type": "number", "exclusiveMinimum": 0, "default": 0.5},
         "number, over 0; default <code>0.5</code>"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1},
         "array of string, at least 1; may be left out"),
        ({"type": "boolean", "default": False}, "boolean; default <code>false</code>"),
    ],
)  # fmt: skip
def test_a_field_tells_its_values_and_its_default(field, shown):
    described = {
        "info": {"title": "t", "version": "1", "description": "d"},
        "tags": [],
        "paths": {},
        "components": {
            "parameters": {},
            "responses": {},
            "schemas": {"S": {"properties": {"one": field}}},
        },
    }
    assert f"<td><code>one</code></td><td>{shown}</td>" in render_page(described)


async def test_the_statuses_of_errors_are_explained(page):
    _, _, errors = page.partition("<h2 id='errors'>")
    assert "<td>429</td><td>Too Many Requests</td>" in errors
    for status in set(re.findall(r"\b[45]\d\d\b", page.partition("<h2 id='errors'>")[0])):
        assert f"<td>{status}</td>" in errors
