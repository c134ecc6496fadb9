"""The description says what is true: of every route, every reply and every refusal."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.unit.api.rest.every_route import request_every_route

from condensery import errors
from condensery.api.rest.errors import find_row
from condensery.api.rest.openapi import describe_routes, route_errors
from condensery.api.rest.routes import route_sections
from condensery.index.checks import check_name
from condensery.jobs.services import RequestLimits

ROOT = Path(__file__).parents[4]
ROUTES = [route for section in route_sections().values() for route in section]
DESCRIBED = describe_routes(route_sections(), RequestLimits())


def operation_of(route: Any) -> Any:
    return DESCRIBED["paths"][route.template][route.method.lower()]


def test_the_file_is_what_the_app_describes():
    path = ROOT / "docs" / "openapi.json"
    assert json.loads(path.read_text()) == DESCRIBED, "run `make openapi` and commit it"


async def test_a_server_describes_its_own_limits(client, services):
    described = (await client.get("/openapi.json")).json()
    texts = described["components"]["schemas"]["TeiRerankRequest"]["properties"]["texts"]
    assert (texts["minItems"], texts["maxItems"]) == (1, services.limits.max_items)


def test_every_route_is_described_whole(subtests):
    for route in ROUTES:
        with subtests.test(f"{route.method} {route.template}"):
            operation = operation_of(route)
            assert operation["summary"].endswith(".")
            assert ("requestBody" in operation) == (route.body is not None)
            good = operation["responses"]["200"]
            assert route.media in good["content"]
            if route.media == "application/json":
                assert good["content"][route.media]["schema"], "what the reply holds is not said"
            names = [
                parameter.get("name", parameter.get("$ref"))
                for parameter in operation["parameters"]
            ]
            assert ("name" in names) == ("{name" in route.path)
            needs = [find_row(kind).status(route.family) for kind in route_errors(route)]
            assert {str(status) for status in needs} <= operation["responses"].keys()


def test_names_of_operations_are_unique():
    names = [operation_of(route)["operationId"] for route in ROUTES]
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere():
    text = json.dumps(DESCRIBED)
    for reference in {part.split('"')[0] for part in text.split('"#/')[1:]}:
        node = DESCRIBED
        for step in reference.split("/"):
            node = node[step]
        assert node is not None


@pytest.mark.parametrize(
    ("path", "method", "statuses"),
    [
        (
            "/v1/rag/answer",
            "post",
            "200 400 401 403 404 408 409 410 413 424 429 431 500 502 503 504",
        ),
        ("/v1/contexts/{name}", "delete", "200 400 401 403 404 408 410 429 431 500 503 504"),
        ("/embed", "post", "200 400 401 403 404 408 413 422 424 429 431 500 503 504"),
        ("/v1/embeddings", "post", "200 400 401 403 404 408 413 429 431 500 503 504"),
        ("/rerank", "post", "200 400 401 403 404 408 413 422 424 429 431 500 503 504"),
        ("/livez", "get", "200 400 403 431 500 503"),
        ("/metrics", "get", "200 400 401 403 431 500"),
        (
            "/v1/indexes/{name}/documents",
            "post",
            "200 400 401 403 404 408 409 413 429 431 500 503 504 507",
        ),
    ],
)
def test_statuses_are_those_that_come(path, method, statuses):
    assert " ".join(DESCRIBED["paths"][path][method]["responses"]) == statuses


def test_names_of_indexes_are_those_that_are_taken():
    import re

    schema = DESCRIBED["paths"]["/v1/indexes/{name}"]["get"]["parameters"][0]["schema"]
    for name in ("a", "0", "a.b_c-d", "a" * 64, "a" * 65, "A", "", ".a", "a b", "é"):
        allowed = bool(re.search(schema["pattern"], name))
        try:
            check_name(name)
        except errors.InputError:
            assert not allowed
        else:
            assert allowed


async def test_replies_hold_what_is_described_and_nothing_else(client, classifiers):
    answered = set()
    async for method, template, _, reply in request_every_route(client, classifiers):
        assert reply.status_code == 200, reply.text
        good = DESCRIBED["paths"][template][method.lower()]["responses"]["200"]
        schema = good["content"]["application/json"]["schema"]
        whole = {**schema, "components": DESCRIBED["components"]}
        jsonschema_rs.validate(whole, reply.json())
        answered.add((method, template))
    described = {(route.method, route.template) for route in ROUTES if route.reply is not None}
    assert answered == described, "add a request of each to every_route.py"


async def test_the_page_lists_every_route_and_loads_nothing(client):
    reply = await client.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    page = reply.text
    for route in ROUTES:
        assert f"<code>{route.method} {route.template}</code>" in page
    # Links lead to this page and to its description, and nothing is run or fetched.
    links = {part.split("'")[0] for part in page.split("href='")[1:]}
    assert {link for link in links if not link.startswith("#")} == {"openapi.json"}
    for link in links:
        assert link == "openapi.json" or f"id='{link[1:]}'" in page
    for loads in ("<script", "src=", "<link", "url(", "@import", "//"):
        assert loads not in page
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")


def test_what_a_description_holds_is_no_html():
    from condensery.api.rest.page import render_page

    described = json.loads(json.dumps(DESCRIBED))
    described["paths"]["/embed"]["post"]["summary"] = "<script>alert(1)</script> `<b>`"
    page = render_page(described)
    assert "<script" not in page
    assert "<code>&lt;b&gt;</code>" in page
