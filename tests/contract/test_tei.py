"""What TEI's clients read beside the body, of a real server."""

from typing import Any

import httpx
import pytest

BODIES = {
    "/embed": {"inputs": ["a mill", "on a river"]},
    "/embed_all": {"inputs": ["a mill"]},
    "/rerank": {"query": "mill", "texts": ["a mill", "bread"]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/": {"inputs": "a mill"},
}


@pytest.mark.parametrize("path", BODIES)
def test_headers_tell_what_a_request_took(live_server: Any, path: str) -> None:
    reply = httpx.post(f"{live_server.url}{path}", json=BODIES[path])
    assert reply.status_code == 200
    headers = {name[2:]: value for name, value in reply.headers.items() if name.startswith("x-")}
    assert headers["compute-type"] == "cpu"
    assert int(headers["compute-characters"]) >= 2
    assert int(headers["compute-tokens"]) >= 3
    timing = dict(part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
    assert set(timing) == {"total", "tokenization", "queue", "inference"}
    assert all(0 <= float(part) <= float(timing["total"]) < 60_000 for part in timing.values())
    assert float(timing["inference"]) > 0
    total = int(headers["total-time"])
    for part in ("compute", "tokenization", "queue", "inference"):
        assert 0 <= int(headers[f"{part}-time"]) <= total + 1  # each is rounded by itself
