"""Whatever is wrong on whichever route, the body is its family's and ours, never FastAPI's."""

import json
from itertools import product

from condensery.api.rest.routes import route_sections
from condensery.api.rest.schemas.inference import KServeInferRequest, NimRankingRequest

ROUTES = [route for section in route_sections().values() for route in section]
READ = {route.path for route in ROUTES if route.method == "GET"}
BODIED = [route for route in ROUTES if route.body is not None and not route.form]
BAD_BODIES = [
    *(b"{", b'{"a": NaN}', b"\xff", b'"text"', b"5", b"null", b"[]", b'"\\ud800"'),
    *(b"[" * 100 + b"]" * 100, b'{"a":' * 65 + b"1" + b"}" * 65),
    *(b'{"input": 5, "inputs": 5, "query": 5, "ids": 5, "documents": 5, "metric": 5}',),
    b"a" * 30_000,
]
KEYS = {
    "tei": {"error", "error_type"},
    "openai": {"error"},
    "rerank": {"message", "detail", "error"},
    "kserve": {"error"},
}


def named(route):
    return f"{route.method} {route.template}"


def check(asked, family):
    """Hold a refusal against its family's body."""
    body = json.loads(asked.content)
    assert body.keys() == KEYS[family]
    assert isinstance(body["error"], str) == (family in ("tei", "kserve"))
    assert not isinstance(body.get("detail"), list)
    assert asked.reply_headers["content-type"] == "application/json"
    assert len(asked.reply_headers["x-request-id"]) == 32
    assert not [name for name in asked.reply_headers if name.startswith("access-control")]


def path_of(route):
    return route.template.replace("{name}", "kb")


async def test_a_wrong_method_looks_as_the_path_does(line, subtests):
    for route, method in product(ROUTES, ("PATCH", "OPTIONS", "HEAD", "TRACE")):
        if method == "HEAD" and route.path in READ:
            continue
        with subtests.test(named(route), wrong=method):
            asked = await line(path_of(route), method=method).run()
            assert asked.status == 405
            assert route.method in asked.reply_headers["allow"].split(", ")
            check(asked, route.family)


async def test_a_path_beside_it_is_not_found(line, subtests):
    for route in ROUTES:
        with subtests.test(named(route)):
            path = f"{path_of(route)}/beside/it"
            if route.path.endswith(":path}"):
                path = "/v1/modells"
            asked = await line(path, method=route.method).run()
            # names of models may hold slashes where they are asked for
            is_name = path.startswith("/v1/models/") and route.method != "GET"
            assert asked.status == (405 if is_name else 404)
            check(asked, "kserve" if path.startswith(("/v2/", "/api/")) else "openai")


async def test_a_bad_body_looks_as_its_path_does(line, subtests):
    for route, body in product(BODIED, BAD_BODIES):
        with subtests.test(named(route), body=body[:20]):
            asked = await line(path_of(route), body, method=route.method).run()
            documents = b'"documents": 5' in body
            family = route.other_family if documents and route.other_family else route.family
            wrong = 422 if family == "tei" else 400
            assert asked.status == (413 if len(body) == 30_000 else wrong)
            check(asked, family)


async def test_no_body_looks_as_its_path_does(line, subtests):
    for route in BODIED:
        if route.optional:
            continue
        with subtests.test(named(route)):
            asked = await line(path_of(route), b"", method=route.method).run()
            assert asked.status == (422 if route.family == "tei" else 400)
            check(asked, route.family)


async def test_an_unknown_name_looks_as_its_path_does(line, subtests):
    for route in ROUTES:
        if "{name" not in route.path or route.method == "PUT":
            continue
        with subtests.test(named(route)):
            body = {"ids": ["a"], "documents": [{"id": "a"}], "query": "x"}
            if route.body is NimRankingRequest:
                body = {"query": {"text": "x"}, "passages": [{"text": "a"}], "model": "kb"}
            if route.body is KServeInferRequest:
                body = {"inputs": []}
            fields = route.body.model_fields if route.body else ()
            body = {name: value for name, value in body.items() if name in fields}
            asked = await line(path_of(route), body, method=route.method).run()
            assert asked.status == 404
            check(asked, route.family)
