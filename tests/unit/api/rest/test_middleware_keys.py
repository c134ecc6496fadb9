"""Who may ask for what, once there are keys."""

import hashlib
import json
from itertools import product

import pytest

from condensery.api.rest.routes import route_sections
from condensery.auth import Key

SCOPES = {
    "reader": {"infer"},
    "writer": {"index-write"},
    "both": {"infer", "index-write"},
    "boss": {"admin"},
}
ROUTES = [route for section in route_sections().values() for route in section]
CONSOLE = ["/", "/console", "/console/{file}"]
HEALTH = [
    "/livez",
    "/readyz",
    "/startupz",
    "/health",
    "/ping",
    "/v2/health/live",
    "/v2/health/ready",
]
OPEN = [*CONSOLE, *HEALTH]
WRITES = {
    ("PUT", "/v1/indexes/{name}"),
    ("DELETE", "/v1/indexes/{name}"),
    ("POST", "/v1/indexes/{name}/documents"),
    ("POST", "/v1/indexes/{name}/files"),
    ("POST", "/v1/indexes/{name}/documents/delete"),
    ("POST", "/v1/indexes/aliases"),
    ("POST", "/v1/indexes/{name}/snapshots"),
    ("DELETE", "/v1/indexes/{name}/snapshots/{snapshot}"),
    ("POST", "/v1/indexes/{name}/snapshots/{snapshot}/restore"),
    ("POST", "/v1/indexes/{name}/rebuild"),
    ("DELETE", "/v1/indexes/{name}/rebuild"),
}

CHANGES = {
    ("POST", "/v1/models/aliases"),
    *(("POST", f"/v1/models/{{name}}/{action}") for action in ("load", "reload", "unload")),
    *(("POST", f"/v2/repository/models/{{name}}/{action}") for action in ("load", "unload")),
    ("POST", "/v2/repository/index"),
}


def key(name):
    return f"key-of-{name}-0123456789abcdef"


@pytest.fixture
def keyed(services):
    services.keys.replace(
        Key(name, frozenset(scopes), hashlib.sha256(key(name).encode()).digest())
        for name, scopes in SCOPES.items()
    )


def bearer(name):
    return {"authorization": f"Bearer {key(name)}"}


def path_of(route):
    return route.template.replace("{name}", "kb").replace("{file}", "live")


async def test_every_route_but_health_and_the_console_needs_a_key(line, keyed, subtests):
    for route, headers in product(ROUTES, ({}, {"authorization": "Bearer wrong"})):
        with subtests.test(f"{route.method} {route.template}", **headers):
            path = path_of(route)
            asked = await line(path, b"{}", method=route.method, headers=headers).run()
            if route.access == "open":
                assert asked.status == 200
                continue
            assert asked.status == 401
            assert asked.reply_headers["www-authenticate"] == "Bearer"
            assert asked.received == 0, "the body was read before the key"
            assert "x-request-id" in asked.reply_headers


async def test_a_key_opens_what_its_scopes_name(line, keyed, subtests):
    for route, name in product(ROUTES, SCOPES):
        with subtests.test(f"{route.method} {route.template}", key=name):
            asked = line(path_of(route), b"{}", method=route.method, headers=bearer(name))
            await asked.run()
            needed = "index-write" if (route.method, route.template) in WRITES else "infer"
            if (route.method, route.template) in CHANGES:
                needed = "admin"
            free = route.access == "open" or route.template == "/metrics"
            if free or name == "boss" or needed in SCOPES[name]:
                assert asked.status not in (401, 403)
            else:
                assert asked.status == 403
                assert name in asked.content.decode()
                assert needed in asked.content.decode()
                assert asked.received == 0, "the body was read before the key"


def test_the_open_routes_are_those_of_health_and_the_consoles_files():
    assert [route.template for route in ROUTES if route.access == "open"] == OPEN
    assert {route.method for route in ROUTES if route.access == "open"} == {"GET"}


async def test_metrics_can_be_opened(services, keyed, line):
    assert (await line("/metrics", method="GET").run()).status == 401
    opened = [
        route
        for section in route_sections(open_metrics=True).values()
        for route in section
        if route.access == "open"
    ]
    assert [route.template for route in opened] == [*OPEN, "/metrics"]


async def test_what_is_not_there_needs_a_key_too(line, keyed):
    for method, path, status in (("GET", "/nowhere", 404), ("PATCH", "/embed", 405)):
        assert (await line(path, method=method).run()).status == 401
        for name in SCOPES:
            assert (await line(path, method=method, headers=bearer(name)).run()).status == status


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {key('reader')}"},
        {"authorization": f"bearer  {key('reader')} "},
        {"authorization": key("reader")},  # llama-index
        {"x-api-key": key("reader")},
        {"authorization": key("reader"), "x-api-key": "wrong"},
    ],
)
async def test_a_key_can_come_in_three_ways_of_which_authorization_wins(line, keyed, headers):
    assert (await line("/embed", {"inputs": "a"}, headers=headers).run()).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": "Bearer é"},
        {"authorization": f"Basic {key('reader')}"},
        {"authorization": key("reader") + "x"},
        {"authorization": key("reader")[:-1]},
        {"authorization": "wrong", "x-api-key": key("reader")},
    ],
)
async def test_no_key_and_a_wrong_one_are_refused_alike(line, keyed, headers):
    asked = await line("/v1/embeddings", {"input": "a"}, headers=headers).run()
    assert (asked.status, asked.error["code"]) == (401, "unauthenticated")
    assert key("reader")[:-1] not in asked.content.decode()


async def test_a_refusal_has_the_body_of_its_family(line, keyed):
    bodies = {
        path: json.loads((await line(path, b"{}").run()).content)
        for path in ("/embed", "/v1/rerank", "/v1/compress", "/rerank")
    }
    assert bodies["/embed"].keys() == bodies["/rerank"].keys() == {"error", "error_type"}
    assert bodies["/v1/rerank"].keys() == {"message", "detail", "error"}
    assert bodies["/v1/compress"].keys() == {"error"}
    asked = await line("/v2", method="GET").run()
    assert isinstance(asked.error, str)


async def test_the_keys_name_is_who_shares_the_queue(line, keyed, registry):
    from condensery.request_context import current_request

    seen = []
    embed = registry.encoders["words"].embed

    async def noting(texts, **options):
        seen.append(current_request().caller)
        return await embed(texts, **options)

    registry.encoders["words"].embed = noting
    await line("/embed", {"inputs": "a"}, headers=bearer("both")).run()
    assert seen == ["both"]


async def test_without_keys_every_door_is_open(line):
    headers = {"authorization": "Bearer anything"}
    assert (await line("/embed", {"inputs": "a"}, headers=headers).run()).status == 200
