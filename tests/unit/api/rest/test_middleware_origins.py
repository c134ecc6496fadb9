"""Foreign web pages are refused over REST, and allowed origins are let in."""

import hashlib
import json

import pytest
from tests.unit.api.rest.wire import connected, post, read_reply

from condensery.api.rest.app import build_app
from condensery.api.rest.routes import route_sections
from condensery.auth import Key
from condensery.origins import Origins, read_origins

ROUTES = [route for section in route_sections().values() for route in section]
APP = "https://app.example.com"
FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
]
KEY = "a-key-0123456789"


def path_of(route):
    return route.template.replace("{name}", "kb")


@pytest.fixture
def keyed(services):
    digest = hashlib.sha256(KEY.encode()).digest()
    services.keys.replace([Key("boss", frozenset({"admin"}), digest)])


@pytest.fixture
def open_line(services, line):
    """Return a request, not made yet, to a server that lets in the pages of one origin."""

    def make(path, body=b"", **options):
        asked = line(path, body, **options)
        asked.app = build_app(services, Origins(read_origins(APP)))
        return asked

    return make


async def test_a_foreign_page_is_refused_on_every_route_before_its_body_is_read(line, services):
    """Health too, and what is not there; in the body of the route's family."""
    assert (await line("/v1/indexes/kb", {}, method="PUT").run()).status in (200, 201)
    asked_for = [(route.method, path_of(route)) for route in ROUTES]
    for method, path in (*asked_for, ("GET", "/nowhere"), ("OPTIONS", "/embed")):
        for headers in FOREIGN:
            asked = await line(path, b"{}", method=method, headers=headers).run()
            assert asked.status == 403, (method, path, headers)
            assert asked.received == 0, "the body was read"
            assert "--cors-origin" in asked.content.decode()
            assert "access-control-allow-origin" not in asked.reply_headers
    assert services.indexes.info("kb").name == "kb"


async def test_a_key_lets_no_foreign_page_in(line, keyed):
    for headers in FOREIGN:
        with_key = {**headers, "authorization": f"Bearer {KEY}"}
        asked = await line("/v1/embeddings", {"input": "a"}, headers=with_key).run()
        assert (asked.status, asked.error["param"]) == (403, next(iter(headers)))


async def test_clients_that_are_no_web_page_are_served_as_before(line):
    """curl's bare -d names a form, and no origin."""
    headers = {"content-type": "application/x-www-form-urlencoded", "host": "anything"}
    assert (await line("/embed", {"inputs": "a"}, headers=headers).run()).status == 200
    own = {"host": "localhost:8080", "origin": "http://localhost:8080"}
    assert (await line("/embed", {"inputs": "a"}, headers=own).run()).status == 200


async def test_a_page_that_is_named_reads_replies_errors_and_streams(open_line):
    headers = {"origin": APP, "sec-fetch-site": "cross-site"}
    question = {"query": "why", "documents": ["gold"], "stream": True}
    for path, body, status in (
        ("/embed", {"inputs": "a"}, 200),
        ("/embed", {"inputs": []}, 400),
        ("/nowhere", {}, 404),
        ("/v1/rag/answer", question, 200),
    ):
        asked = await open_line(path, body, headers=headers).run()
        assert asked.status == status
        assert asked.reply_headers["access-control-allow-origin"] == APP
        assert asked.reply_headers["vary"] == "Origin"
        assert asked.reply_headers["access-control-expose-headers"] == "*"
        assert "x-request-id" in asked.reply_headers
    assert b"[DONE]" in asked.content
    assert asked.reply_headers["content-type"].startswith("text/event-stream")
    asked = await open_line("/embed", {"inputs": "a"}, headers=FOREIGN[0]).run()
    assert (asked.status, asked.reply_headers["vary"]) == (403, "Origin")
    assert "access-control-allow-origin" not in asked.reply_headers


async def test_a_preflight_needs_no_key_and_what_follows_does(open_line, keyed):
    asking = {"access-control-request-method": "POST", "origin": APP}
    asking["access-control-request-headers"] = "authorization,content-type"
    asked = await open_line("/v1/embeddings", method="OPTIONS", headers=asking).run()
    assert (asked.status, asked.content) == (204, b"")
    assert asked.reply_headers["access-control-allow-origin"] == APP
    assert asked.reply_headers["access-control-allow-headers"] == "authorization,content-type"
    assert asked.reply_headers["access-control-allow-methods"] == "POST"
    asked = await open_line("/v1/embeddings", {"input": "a"}, headers={"origin": APP}).run()
    assert asked.status == 401
    assert asked.reply_headers["access-control-allow-origin"] == APP
    foreign = {**asking, "origin": "http://evil.example"}
    asked = await open_line("/v1/embeddings", method="OPTIONS", headers=foreign).run()
    assert asked.status == 403
    asked = await open_line("/v1/embeddings", method="OPTIONS", headers={"origin": APP}).run()
    assert asked.status == 401, "it is no preflight"


async def ask(port, head, body=b""):
    async with connected(port) as (reader, writer):
        writer.write(head.encode() + b"\r\n\r\n" + body)
        return await read_reply(reader)


async def test_on_loopback_a_name_that_was_let_lead_there_is_refused(serve):
    """By DNS a page's own name leads to 127.0.0.1: to the browser it is then no foreign page."""
    rebound = {"host": "evil.example:8080", "origin": "http://evil.example:8080"}
    rebound["sec-fetch-site"] = "same-origin"
    lines = "".join(f"\r\n{name}: {value}" for name, value in rebound.items())
    async with serve() as port:
        status, _, body = await ask(port, f"DELETE /v1/indexes/kb HTTP/1.1{lines}")
        assert (status, body["error"]["param"]) == (403, "host")
        assert "--allowed-hosts" in body["error"]["message"]
        assert (await ask(port, f"GET /livez HTTP/1.1\r\nhost: 127.0.0.1:{port}"))[0] == 200
        assert (await ask(port, "GET /livez HTTP/1.0"))[0] == 200
        # The host of a target counts, not the header's.
        for target, header, status in (
            ("http://evil.example/livez", "localhost", 403),
            ("http://[::1]:80/livez", "evil.example", 200),
        ):
            reply = await ask(port, f"GET {target} HTTP/1.1\r\nhost: {header}")
            assert reply[0] == status, target
    async with serve(allowed_hosts="evil.example") as port:
        assert (await ask(port, f"GET /livez HTTP/1.1{lines}"))[0] == 200


async def test_elsewhere_any_name_will_do_until_some_are_listed(serve):
    """A probe asks a container by its address, whatever is listed."""
    for options, evil in (({}, 200), ({"allowed_hosts": "rag.example.com"}, 403)):
        async with serve(host="0.0.0.0", **options) as port:
            for host, status in (
                ("evil.example", evil),
                ("rag.example.com", 200),
                (f"127.0.0.1:{port}", 200),
            ):
                reply = await ask(port, f"GET /livez HTTP/1.1\r\nhost: {host}")
                assert reply[0] == status, host
            foreign = f"GET /livez HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\norigin: http://localhost"
            assert (await ask(port, foreign))[0] == 403


async def test_behind_a_trusted_proxy_a_page_is_compared_with_the_name_that_it_asked(serve):
    """Also where the proxy tells who asks: it is trusted by its own address."""
    named = {"origin": "https://rag.example.com", "x_forwarded_host": "rag.example.com"}
    named["x_forwarded_for"] = "203.0.113.9"
    for trusted, status in (("127.0.0.1", 200), ("10.0.0.1", 403), (None, 403)):
        for listed, expected in (("rag.example.com", status), (None, 403)):
            options = {"trusted_proxies": trusted, "allowed_hosts": listed}
            async with serve(**options) as port, connected(port) as (reader, writer):
                writer.write(post("/embed", **named))
                assert (await read_reply(reader))[0] == expected, (trusted, listed)


async def test_a_page_that_is_named_reads_why_its_connection_is_one_too_many(serve):
    async with (
        serve(max_connections=1, cors_origin=APP) as port,
        connected(port),
        connected(port) as (reader, writer),
    ):
        writer.write(post("/embed", origin=APP))
        status, headers, body = await read_reply(reader)
        assert (status, headers["access-control-allow-origin"]) == (429, APP)
        assert "max_connections" in json.dumps(body)
