"""What each route replies, byte for byte almost; of other people's families more than one reply.

A client sees a change here before its users do. To accept one, delete the file and run the test.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.rest.every_route import request_every_route

import condensery

FOLDER = Path(__file__).parent / "golden"
EVERY = FOLDER / "every_route.json"
QUESTION = {"query": "where?", "documents": ["some words", {"text": "gold"}]}
SENTENCES = {"source_sentence": "a", "sentences": ["a", "b"]}
PASSAGES = {"query": "q", "texts": ["a", "gold"], "return_text": True}

ASKED: dict[str, tuple[str, Any]] = {
    "openai": ("/v1/embeddings", {"input": ["a", "two words"]}),
    "openai_base64": ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    "openai_int8": ("/v1/embeddings", {"input": "a", "embed_dtype": "int8"}),
    "openai_fault": ("/v1/embeddings", {"input": []}),
    "openai_unknown": ("/v1/embeddings", {"input": "a", "model": "nope"}),
    "tei_embed": ("/embed", {"inputs": "a"}),
    "tei_embed_fault": ("/embed", {"inputs": "a", "dimensions": 3}),
    "tei_embed_empty": ("/embed", {"inputs": []}),
    "tei_embed_all": ("/embed_all", {"inputs": "a b"}),
    "tei_similarity": ("/similarity", {"inputs": SENTENCES}),
    "tei_tokenize": ("/tokenize", {"inputs": "ab  c"}),
    "tei_decode": ("/decode", {"ids": [0, 5]}),
    "tei_rerank": ("/rerank", PASSAGES),
    "tei_predict_without": ("/predict", {"inputs": "a"}),
    "tei_root": ("/", {"inputs": "a"}),
    "infinity_rerank": ("/rerank", {**QUESTION, "return_documents": True}),
    "jina_rerank": ("/v1/rerank", {**QUESTION, "return_documents": True}),
    "cohere_rerank": ("/v2/rerank", QUESTION),
    "nim_ranking": ("/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "gold"}]}),
    "cohere_v1": ("/v1/embed", {"texts": ["a"]}),
    "cohere_v1_types": ("/v1/embed", {"texts": ["a"], "embedding_types": ["int8", "binary"]}),
    "cohere_v2": ("/v2/embed", {"texts": ["a"], "embedding_types": ["float", "uint8", "base64"]}),
    "cohere_fault": ("/v2/embed", {"texts": ["a"], "truncate": "MIDDLE"}),
}
# New each time, if they are of this type.
CHANGING = {
    **dict.fromkeys(("id", "object_id", "context", "sha256", "snapshot", "index_file"), str),
    **dict.fromkeys(("created", "began", "ended", "expires_at", "bytes"), (int, float)),
    **dict.fromkeys(("pending", "state", "overlap"), (int, str)),  # of a rebuild under way
    **dict.fromkeys(("queue_fraction", "batch_size", "results_pending", "speedup"), (int, float)),
}
TAKEN = re.compile(r".*_ms|.*seconds")
BASE64 = re.compile(r"[A-Za-z0-9+/]{40,}=*")


def settled(value: Any) -> Any:
    """Replace what is new each time, and what hangs on the last digit of a library's number."""
    if isinstance(value, dict):
        return {
            key: (
                type(one).__name__
                if isinstance(one, CHANGING.get(key, ()))
                or (TAKEN.fullmatch(key) and isinstance(one, float))
                else settled(one)
            )
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [settled(one) for one in value]
    if value == condensery.__version__:
        return "our version"
    if isinstance(value, str) and BASE64.fullmatch(value):
        return f"base64 of {len(base64.b64decode(value))} bytes"
    return round(value, 5) if isinstance(value, float) else value


@pytest.mark.parametrize("name", ASKED)
async def test_the_reply_is_as_it_was(client, name):
    path, body = ASKED[name]
    reply = await client.post(path, json=body)
    headers = sorted(one for one in reply.headers if one.startswith("x-"))
    found = {"status": reply.status_code, "headers": headers, "body": settled(reply.json())}
    file = FOLDER / f"{name}.json"
    if not file.exists():
        written = json.dumps({"path": path, "asked": body, **found}, indent=1, ensure_ascii=False)
        file.write_text(written + "\n")
        pytest.fail(f"{file.name} was not there, and is written now: look at it and commit it")
    golden = json.loads(file.read_text())
    assert (golden["path"], golden["asked"]) == (path, body)
    assert found == {key: golden[key] for key in found}
    assert list(found["body"]) == list(golden["body"]), "fields in another order"


async def test_every_route_replies_as_it_did(client, classifiers):
    found = [
        {"route": f"{method} {template}", "asked": body, "body": settled(reply.json())}
        async for method, template, body, reply in request_every_route(client, classifiers)
        if template != "/openapi.json"  # which is checked in as it is
    ]
    if not EVERY.exists():
        EVERY.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        pytest.fail(f"{EVERY.name} was not there, and is written now: look at it and commit it")
    for one, golden in zip(found, json.loads(EVERY.read_text()), strict=True):
        assert one == golden


def test_nothing_golden_is_left_over():
    assert {file.stem for file in FOLDER.glob("*.json")} == {*ASKED, EVERY.stem}
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in ASKED)
