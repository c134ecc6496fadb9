"""Whose web pages may ask, and by which names: told from what a browser sends."""

from collections.abc import Iterable

import pytest

from condensery.errors import Forbidden
from condensery.origins import Origins, read_hosts, read_networks, read_origins

OWN = "127.0.0.1:8080"


def refused(origins: Origins, *headers: tuple[str, str], address: str = "127.0.0.1") -> str | None:
    """Return the header that a request is refused for; None if it is let in."""
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    try:
        origins.check(encoded, address, "10.0.0.7")
    except Forbidden as error:
        return error.field
    return None


def each(origins: Origins, values: Iterable[tuple[str, str]]) -> list[tuple[str, str, str | None]]:
    return [
        (host, origin, refused(origins, ("host", host), ("origin", origin)))
        for host, origin in values
    ]


def test_a_page_of_another_host_or_port_is_foreign_and_its_own_is_not() -> None:
    own = [
        (OWN, "http://127.0.0.1:8080"),
        ("LOCALHOST:8080", "http://localhost:8080"),
        ("localhost.:8080", "http://localhost:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("localhost:80", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("rag.example.com", "https://rag.example.com"),  # a proxy before it ends TLS
        ("rag.example.com:443", "https://rag.example.com"),
        ("rag.example.com:8443", "https://rag.example.com:8443"),
    ]
    foreign = [
        (OWN, "null"),
        (OWN, ""),
        (OWN, "http://127.0.0.1:3000"),
        (OWN, "http://127.0.0.1"),
        (OWN, "http://localhost:8080"),  # a name of its own, as browsers have it
        (OWN, "http://127.0.0.1:8080.evil.example"),
        (OWN, "http://evil.example:8080"),
        (OWN, "http://evil.example@127.0.0.1:8080"),
        (OWN, "http://127.0.0.1:8080/"),
        (OWN, "http://127.0.0.1:8080, http://127.0.0.1:8080"),
        (OWN, "tauri://127.0.0.1:8080"),
        (OWN, "file://"),
        (OWN, "127.0.0.1:8080"),
        ("localhost", "https://localhost:80"),
        ("rag.example.com", "https://rag.example.com:8080"),
        ("xn--caf-dma.example", "http://caf\xe9.example"),
        ("", "http://localhost:8080"),
    ]
    assert [case for case in each(Origins(), own) if case[2]] == []
    assert [case for case in each(Origins(), foreign) if case[2] != "origin"] == []


def test_several_origins_or_hosts_are_refused() -> None:
    origin, host = ("origin", f"http://{OWN}"), ("host", OWN)
    assert refused(Origins(), host, origin) is None
    assert refused(Origins(), host, origin, origin) == "origin"
    assert refused(Origins(), host, host) == "host"
    assert refused(Origins(), ("host", OWN), ("host", "evil.example")) == "host"


def test_who_is_no_page_is_asked_for_nothing() -> None:
    strict = Origins(hosts=frozenset())
    assert refused(strict, ("host", OWN), ("content-type", "text/plain")) is None
    assert refused(strict) is None, "HTTP/1.0 needs no host"


def test_what_a_foreign_page_asks_without_an_origin_is_refused_too() -> None:
    for site, expected in (("cross-site", "sec-fetch-site"), ("same-origin", None), ("none", None)):
        assert refused(Origins(), ("host", OWN), ("sec-fetch-site", site)) == expected
    own = ("host", OWN), ("origin", f"http://{OWN}")
    assert refused(Origins(), *own, ("sec-fetch-site", "cross-site")) == "sec-fetch-site"


def test_pages_that_are_named_may_ask_and_no_others() -> None:
    origins = Origins(read_origins("https://App.example.com:443, http://localhost:3000"))
    for origin, expected in (
        ("https://app.example.com", None),
        ("http://localhost:3000", None),
        ("http://app.example.com", "origin"),
        ("https://app.example.com:8443", "origin"),
        ("https://app.example.com.evil.example", "origin"),
        ("https://evil.app.example.com", "origin"),
        ("null", "origin"),
    ):
        sent = ("host", OWN), ("origin", origin), ("sec-fetch-site", "cross-site")
        assert refused(origins, *sent) == expected, origin
    assert refused(origins, ("host", OWN), ("sec-fetch-site", "cross-site")) == "sec-fetch-site"
    for origin in ("null", "http://evil.example"):
        anyone = Origins(read_origins("*"))
        assert refused(anyone, ("host", OWN), ("origin", origin)) is None


def test_names_of_others_are_refused_where_names_are_checked() -> None:
    ours = ["127.0.0.1", "127.8.8.8", "localhost", "LocalHost.", "a.localhost", "[::1]", "10.0.0.5"]
    ours += ["rag.example.com", "RAG.example.com.", "b.example.org", "[fd00::1]", "[::ffff:7f00:1]"]
    others = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.6"]
    others += [
        "example.org",
        "evilexample.org",
        "[fd00::2]",
        "local host",
        "a@localhost",
        "0.0.0.0",
    ]
    others += ["localhost:http", "localhost:99999", "[::1", "\xe9"]
    strict = Origins(hosts=read_hosts("rag.example.com, *.example.org, fd00::1"))
    for port in ("", ":8080"):
        for name in ours:
            assert refused(strict, ("host", name + port), address="10.0.0.5") is None, name
        for name in others:
            assert refused(strict, ("host", name + port), address="10.0.0.5") == "host", name
            assert refused(Origins(), ("host", name + port)) is None, name
    anyone = Origins(hosts=read_hosts("*"))
    assert [name for name in ours + others if refused(anyone, ("host", name))] == []


def test_only_a_trusted_proxy_says_by_which_name_it_was_asked() -> None:
    asked = ("host", OWN), ("origin", "https://rag.example.com")
    forwarded = ("x-forwarded-host", "rag.example.com, inner.example")
    trusting = Origins(hosts=read_hosts("rag.example.com"), proxies=read_networks("10.0.0.0/8"))
    for origins, expected in ((Origins(), "origin"), (trusting, None)):
        assert refused(origins, *asked, forwarded) == expected
    # A name that was let to the proxy's address is no name of the server's, whoever passes it on.
    evil = ("host", OWN), ("origin", "https://evil.example"), ("x-forwarded-host", "evil.example")
    assert refused(trusting, *evil) == "x-forwarded-host"
    everywhere = Origins(proxies=read_networks("10.0.0.0/8"))
    assert refused(everywhere, *asked, ("x-forwarded-host", "evil.example")) == "origin"
    # A page that was let to another address by name can send that header; not its name.
    rebound = ("host", "evil.example:8080"), ("x-forwarded-host", OWN)
    assert refused(trusting, *rebound) == "host"


def test_a_preflight_is_answered_where_pages_may_ask() -> None:
    asked = [
        (b"origin", b"https://app.example.com"),
        (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"authorization,x-stainless-lang"),
    ]
    origins = Origins(read_origins("https://app.example.com"))
    answer = origins.preflight_headers(asked, ["GET", "POST"])
    assert answer is not None
    assert answer["access-control-allow-methods"] == "GET, POST"
    assert answer["access-control-allow-headers"] == "authorization,x-stainless-lang"
    assert Origins().preflight_headers(asked, ["POST"]) is None
    for missing in (0, 1):
        rest = [header for place, header in enumerate(asked) if place != missing]
        assert origins.preflight_headers(rest, ["POST"]) is None
    odd = [*asked[:2], (b"access-control-request-headers", b"a:b")]
    assert "access-control-allow-headers" not in (origins.preflight_headers(odd, ["POST"]) or {})


@pytest.mark.parametrize("pages", ["*", "https://app.example.com"])
def test_replies_can_be_read_by_pages_that_may_ask_and_by_no_others(pages: str) -> None:
    origins = Origins(read_origins(pages))
    own = (b"origin", b"https://app.example.com")
    reply = dict(origins.reply_headers([own]))
    expected = b"*" if pages == "*" else own[1]
    assert reply[b"access-control-allow-origin"] == expected
    assert reply[b"access-control-expose-headers"] == b"*"
    for headers in ([], [own, own], [(b"origin", b"null")], [(b"origin", b"https://evil.example")]):
        open_ = pages == "*" and len(headers) == 1
        assert (b"access-control-allow-origin" in dict(origins.reply_headers(headers))) is open_
        assert (b"vary", b"Origin") in origins.reply_headers(headers) or pages == "*"
    assert Origins().reply_headers([own]) == []
