"""Requests that were good, and what becomes of them: bytes, values, paths and headers go wrong."""

import http.client
import json
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

INDEX = "fuzz-a"
FILTER = {
    "must": [{"key": "n", "range": {"gte": 1, "lt": 2.5}}, {"must_not": {"has_id": ["b"]}}],
    "should": {"key": "n[].x", "match": {"any": ["a", 2.5, True]}},
}


@dataclass(frozen=True)
class Asked:
    """A request; ``template`` is the route's, "" where the path was meddled with."""

    method: str
    path: bytes
    template: str
    body: bytes = b""
    headers: dict[str, bytes] = field(default_factory=dict)
    chunked: bool = False


def good() -> list[Asked]:
    """Return a request for each route that takes a body, and some that don't."""
    bodies: list[tuple[str, str, Any]] = [
        ("POST", "/v1/embeddings", {"input": ["a text", "another"], "encoding_format": "base64"}),
        ("POST", "/embed", {"inputs": "a text", "normalize": True}),
        ("POST", "/rerank", {"query": "q", "texts": ["one", "two"], "return_text": True}),
        ("POST", "/rerank", {"query": "q", "documents": ["one", {"text": "two"}], "top_n": 1}),
        ("POST", "/v1/rerank", {"query": "q", "documents": ["one", {"text": "two"}]}),
        (
            "POST",
            "/v1/rag/answer",
            {"query": "q", "documents": ["one", {"id": "b", "text": "two"}], "max_tokens": 2},
        ),
        ("POST", "/v1/rag/answer", {"query": "q", "documents": ["one"], "stream": True}),
        (
            "POST",
            "/v1/rag/answer",
            {
                "query": "q",
                "index": {"name": INDEX, "top_k": 2, "mode": "hybrid"},
                "rerank": {"top_n": 0},
                "compression": {"mode": "required", "ratio": None, "timeout_ms": 9000},
                "min_relevance": 0.1,
                "max_tokens": 2,
                "temperature": 0.5,
                "top_p": 0.9,
                "seed": 7,
                "stop": ["a", "b"],
                "logprobs": 2,
            },
        ),
        ("POST", "/v1/rag/compare", {"query": "q", "documents": ["one", "two"], "max_tokens": 2}),
        (
            "POST",
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": [{"type": "text", "text": "q"}]},
                ],
                "history": "ignore",
                "documents": ["one", {"id": "b", "text": "two"}],
                "max_completion_tokens": 2,
                "logprobs": True,
                "top_logprobs": 1,
                "n": 1,
            },
        ),
        (
            "POST",
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "q"}],
                "index": INDEX,
                "max_tokens": 2,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ),
        (
            "POST",
            "/v1/compress",
            {"query": "q", "documents": ["one", {"text": "two"}], "ttl_s": 1, "return": "handle"},
        ),
        ("PUT", f"/v1/indexes/{INDEX}", {"metric": "ip", "kind": "flat"}),
        (
            "POST",
            f"/v1/indexes/{INDEX}/documents",
            {"documents": [{"id": "a", "text": "one", "metadata": {"n": [1, None, {"x": 2.5}]}}]},
        ),
        ("POST", f"/v1/indexes/{INDEX}/documents/get", {"ids": ["a", "b"]}),
        ("POST", f"/v1/indexes/{INDEX}/documents/count", {"filter": FILTER}),
        (
            "POST",
            f"/v1/indexes/{INDEX}/documents/scroll",
            {"filter": FILTER, "limit": 2, "after": "a", "with_vectors": True},
        ),
        ("POST", f"/v1/indexes/{INDEX}/documents/delete", {"ids": ["z"]}),
        ("POST", f"/v1/indexes/{INDEX}/documents/delete", {"filter": FILTER}),
        ("POST", f"/v1/indexes/{INDEX}/query", {"query": "one", "top_k": 3, "mode": "bm25"}),
        ("POST", f"/v1/indexes/{INDEX}/query", {"query": "one", "filter": FILTER}),
        ("POST", "/v1/models/aliases", {"aliases": {"fuzz": "nobody", "other": None}}),
        ("POST", "/v2/repository/index", {"ready": True}),
    ]
    asked = [
        Asked(method, path.encode(), path.replace(INDEX, "{name}"), json.dumps(body).encode())
        for method, path, body in bodies
    ]
    asked.append(Asked("DELETE", b"/v1/contexts/ctx_0", "/v1/contexts/{name}"))
    for path, template in (
        (f"/v1/indexes/{INDEX}", "/v1/indexes/{name}"),
        ("/v1/models/minilm-l6", "/v1/models/{name}"),
        ("/v1/models/oscar-mini/report", "/v1/models/{name}/report"),
        (
            "/v1/models/oscar-mini/report/plots/cost.png",
            "/v1/models/{name}/report/plots/{plot}.png",
        ),
        ("/v2/models/minilm-l6", "/v2/models/{name}"),
        ("/info", "/info"),
        ("/readyz", "/readyz"),
    ):
        asked.append(Asked("GET", path.encode(), template))
    return asked


def meddled(count: int, seed: int) -> Iterator[Asked]:
    """Return ``count`` requests, each meddled with once or several times."""
    dice = random.Random(seed)
    requests = good()
    for place in range(count):
        asked = requests[place % len(requests)]
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            asked = dice.choice(MEDDLING)(asked, dice)
        yield asked


VALUES = [
    *(None, True, 0, -1, 1, 2.5, 1e308, 2**31, 2**63, 2**64, -(2**70), 10**400),
    *("", " ", "a", "\0", "\ud800", "é" * 50, "a" * 70_000, "../../etc/passwd", "NaN"),
    *([], {}, [[]], [None], [1, 2], [[1, 2]], {"a": 1}, {"text": None}, ["a"] * 3000),
]
SNIPPETS = [
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf"),
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"//", b"\\ud800", b"\\u0000", b"'", b"[" * 100),
]


def value(asked: Asked, dice: random.Random) -> Asked:
    """Put another value in the place of one."""
    try:
        body = json.loads(asked.body)
    except (ValueError, RecursionError):
        return snippet(asked, dice)
    if not isinstance(body, dict) or not body:
        return replace(asked, body=written(dice.choice(VALUES)))
    inside, key = body, dice.choice(list(body))
    while isinstance(inside[key], (dict, list)) and inside[key] and dice.random() < 0.6:
        inside = inside[key]
        key = dice.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
    what = dice.random()
    if what < 0.15:
        del inside[key]
    elif what < 0.25 and isinstance(inside, dict):
        inside[dice.choice(["unknown", "", "model", "\0", "a" * 300])] = dice.choice(VALUES)
    elif what < 0.3:
        inside[key] = "nest"
        depth = dice.choice((5, 64, 70, 500, 1100, 100_000))
        nest = dice.choice((b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
        return replace(asked, body=written(body).replace(b'"nest"', nest))
    else:
        inside[key] = dice.choice(VALUES)
    return replace(asked, body=written(body))


def written(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=True).encode()


def snippet(asked: Asked, dice: random.Random) -> Asked:
    """Put bytes somewhere."""
    at = dice.randint(0, len(asked.body))
    return replace(asked, body=asked.body[:at] + dice.choice(SNIPPETS) + asked.body[at:])


def cut(asked: Asked, dice: random.Random) -> Asked:
    at, end = sorted(dice.randint(0, len(asked.body)) for _ in range(2))
    return replace(asked, body=asked.body[:at] + asked.body[end:])


def flip(asked: Asked, dice: random.Random) -> Asked:
    if not asked.body:
        return snippet(asked, dice)
    body = bytearray(asked.body)
    for _ in range(dice.randint(1, 3)):
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    return replace(asked, body=bytes(body))


def noise(asked: Asked, dice: random.Random) -> Asked:
    return replace(asked, body=dice.randbytes(dice.choice((0, 1, 10, 1000))))


def path(asked: Asked, dice: random.Random) -> Asked:
    parts = [
        *(b"/", b"//", b"/..", b"/.", b"%2f", b"%00", b"%", b"%zz", b"%ff", b"?", b"?a=b", b"#"),
        *(quote("é/ü").encode(), b"a" * 300, b";x", b"\\", b"|", b"%0d%0a", b"+", b"*"),
    ]
    at = dice.randint(1, len(asked.path))
    changed = (
        asked.path[:at] + dice.choice(parts) + asked.path[dice.choice((at, len(asked.path))) :]
    )
    return replace(asked, path=changed, template="")


def method(asked: Asked, dice: random.Random) -> Asked:
    other = dice.choice(["GET", "HEAD", "OPTIONS", "PATCH", "DELETE", "TRACE", "PROPFIND", "POST"])
    return replace(asked, method=other, template="")


def headers(asked: Asked, dice: random.Random) -> Asked:
    name = dice.choice(
        [
            "x-request-timeout-ms",
            "x-request-id",
            "content-type",
            "authorization",
            "expect",
            "x-api-key",
        ]
    )
    values = [
        *(
            b"",
            b"0",
            b"-1",
            b"1.5",
            b"99999999",
            b"9" * 400,
            b"\xff\xfe",
            b"a" * 300,
            b"text/plain",
        ),
        *(b"application/x-www-form-urlencoded", b"Bearer x", b"gzip", b"\x01", b"100-continue"),
    ]
    return replace(asked, headers={**asked.headers, name: dice.choice(values)})


def chunked(asked: Asked, dice: random.Random) -> Asked:
    del dice
    return replace(asked, chunked=True)


MEDDLING: list[Callable[[Asked, random.Random], Asked]] = [
    *([value] * 6),
    *([snippet] * 3),
    *(cut, cut, flip, flip, noise, path, method, headers, chunked),
]


class Door:
    """A connection to a server, made anew whenever it ends."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname
        assert address.port
        self._address = (address.hostname, address.port)
        self._line: socket.socket | None = None

    def ask(self, asked: Asked) -> tuple[int, http.client.HTTPMessage, bytes]:
        if self._line is None:
            self._line = socket.create_connection(self._address, timeout=30)
            self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._line.sendall(_written(asked))
        reply = http.client.HTTPResponse(self._line, method=asked.method)
        reply.begin()
        content = reply.read()
        if reply.will_close:
            self.close()
        return reply.status, reply.headers, content

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def _written(asked: Asked) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (asked.method.encode(), asked.path), b"host: localhost"]
    lines += [name.encode() + b": " + content for name, content in asked.headers.items()]
    if asked.chunked:
        lines.append(b"transfer-encoding: chunked")
        half = len(asked.body) // 2
        pieces = [piece for piece in (asked.body[:half], asked.body[half:]) if piece]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        lines.append(b"content-length: %d" % len(asked.body))
        body = asked.body
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
