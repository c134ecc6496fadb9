"""A request of every REST route that replies with JSON, in an order in which each can be served."""

from collections.abc import AsyncIterator
from typing import Any

QUESTION = {"query": "where?", "documents": ["some words", {"id": "best", "text": "gold"}]}
DOCUMENTS = [{"id": "a", "text": "alpha", "metadata": {"n": [1, None, {"x": "y"}]}}]
CHAT = {"messages": [{"role": "user", "content": "where?"}], "documents": QUESTION["documents"]}
COHERE = {"texts": ["a", "b"], "input_type": "search_query"}
TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
CREATE_ALIAS = {"create_alias": {"alias": "live", "index": "kb"}}
BARE = {"with_text": False, "with_metadata": False}
TENSOR = {"name": "input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
FILES = "/v1/indexes/kb/files"  # whose body is a form
REQUESTS = [
    ("POST", "/v1/embeddings", {"input": ["a", "b"]}),
    ("POST", "/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    ("POST", "/v1/embeddings", {"input": "a", "embed_dtype": "ubinary"}),
    ("POST", "/embeddings", {"input": "a"}),
    ("POST", "/openai/v1/embeddings", {"input": "a"}),
    ("POST", "/embed", {"inputs": ["a", "b"]}),
    ("POST", "/", {"inputs": ["a", "b"]}),
    ("POST", "/", {"query": "q", "texts": ["a", "gold"]}),
    ("POST", "/invocations", {"inputs": "a"}),
    ("POST", "/embed_all", {"inputs": ["a", "b"]}),
    ("POST", "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("POST", "/tokenize", {"inputs": ["a", "b"]}),
    ("POST", "/decode", {"ids": [1, 2]}),
    ("POST", "/predict", {"inputs": "a"}),
    ("POST", "/predict", {"inputs": [["a"], ["a", "b"]]}),
    ("POST", "/rerank", {"query": "q", "texts": ["a", "gold"]}),
    ("POST", "/rerank", {"query": "q", "texts": ["a"], "return_text": True}),
    ("POST", "/rerank", {**QUESTION, "return_documents": True}),
    ("POST", "/api/embed", {"model": "words:latest", "input": ["a", "b"]}),
    ("GET", "/api/tags", None),
    ("GET", "/api/version", None),
    ("POST", "/v1/embed", {"texts": ["a", "b"]}),
    ("POST", "/v1/embed", {**COHERE, "embedding_types": ["int8"]}),
    ("POST", "/v2/embed", {**COHERE, "embedding_types": TYPES}),
    ("POST", "/v1/rerank", QUESTION),
    ("POST", "/v2/rerank", QUESTION),
    ("POST", "/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "a"}]}),
    ("POST", "/v1/rerank", {**QUESTION, "return_documents": True}),
    ("POST", "/v1/rerank", {**QUESTION, "top_k": 1}),
    ("POST", "/rerank/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "a"}]}),
    ("POST", "/v1/retrieval/pair/reranking", {"query": {"text": "q"}, "passages": [{"text": "a"}]}),
    ("POST", "/v1/rag/answer", QUESTION),
    ("POST", "/v1/rag/answer", {**QUESTION, "logprobs": 2}),
    ("POST", "/v1/rag/answer", {**QUESTION, "compression": {"mode": "off"}}),
    ("POST", "/v1/rag/compare", QUESTION),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1}),
    ("POST", "/v1/responses", {"input": "where?", "documents": QUESTION["documents"]}),
    ("POST", "/v1/compress", QUESTION),
    ("POST", "/v1/compress", {**QUESTION, "return": "stats"}),
    ("DELETE", "/v1/contexts/ctx_...", None),
    ("PUT", "/v1/indexes/kb", {}),
    ("GET", "/v1/indexes", None),
    ("GET", "/v1/indexes/kb", None),
    ("POST", "/v1/indexes/kb/documents", {"documents": DOCUMENTS}),
    ("POST", FILES, {"files": ("a.md", "# Alpha\n\nbeta")}),
    ("GET", "/v1/indexes/aliases", None),
    (
        "POST",
        "/v1/indexes/aliases",
        {"actions": [{"create_alias": {"alias": "live", "index": "kb"}}]},
    ),
    ("POST", "/v1/indexes/aliases", {"actions": [{"delete_alias": {"alias": "live"}}]}),
    ("POST", "/v1/indexes/kb/snapshots", None),
    ("GET", "/v1/indexes/kb/snapshots", None),
    ("GET", "/v1/indexes/kb/snapshots/snap_...", None),
    ("POST", "/v1/indexes/kb/snapshots/snap_.../restore", {}),
    ("DELETE", "/v1/indexes/kb/snapshots/snap_...", None),
    ("POST", "/v1/indexes/kb/rebuild", {"encoder": "other"}),
    ("GET", "/v1/indexes/kb/rebuild", None),
    ("DELETE", "/v1/indexes/kb/rebuild", None),
    ("POST", "/v1/indexes/kb/documents/get", {"ids": ["a", "b"]}),
    ("POST", "/v1/indexes/kb/documents/count", {}),
    ("POST", "/v1/indexes/kb/documents/scroll", {}),
    ("POST", "/v1/indexes/kb/documents/scroll", {"with_vectors": True}),
    (
        "POST",
        "/v1/indexes/kb/documents/scroll",
        {"with_text": False, "with_metadata": False, "limit": 1},
    ),
    ("POST", "/v1/indexes/kb/query", {"query": "alpha"}),
    ("POST", "/v1/indexes/kb/documents/delete", {"ids": ["a"]}),
    ("DELETE", "/v1/indexes/kb", None),
    ("GET", "/v1/models", None),
    ("GET", "/models", None),
    ("GET", "/rerank/v1/models", None),
    ("GET", "/v1/models/words", None),
    ("GET", "/v2/models/words/versions/sha256:words", None),
    ("POST", "/v2/models/words/infer", {"inputs": [TENSOR]}),
    ("POST", "/v2/models/words/versions/sha256:words/infer", {"inputs": [TENSOR], "id": "a"}),
    ("GET", "/v2/models/words/versions/sha256:words/ready", None),
    ("GET", "/v1/models/pair/report", None),
    ("POST", "/v1/models/aliases", {"aliases": {"best": "other"}}),
    ("GET", "/v1/models/aliases", None),
    ("POST", "/v1/models/words/load", {"version": "2"}),
    ("POST", "/v1/models/words/reload", {}),
    ("POST", "/v1/models/pair/unload", {}),
    ("POST", "/v2/repository/index", {"ready": True}),
    ("POST", "/v2/repository/models/words/load", {}),
    ("POST", "/v2/repository/models/pair/unload", {}),
    ("GET", "/info", None),
    ("GET", "/version", None),
    ("GET", "/openapi.json", None),
    ("GET", "/v2", None),
    ("GET", "/v2/models/pair", None),
    ("GET", "/v2/models/words/ready", None),
    ("GET", "/livez", None),
    ("GET", "/readyz", None),
    ("GET", "/startupz", None),
    ("GET", "/health", None),
    ("GET", "/ping", None),
    ("GET", "/v2/health/live", None),
    ("GET", "/v2/health/ready", None),
]


async def request_every_route(client, registry) -> AsyncIterator[tuple[str, str, Any, Any]]:
    """Send all of ``REQUESTS`` to a server; yields method, template, body and reply."""
    held, made = "", ""
    registry.encoders["other"].delay = 60  # so that there is a rebuild to cancel
    for method, path, body in REQUESTS:
        template = path.replace("/kb", "/{name}").replace("/ctx_...", "/{name}")
        template = template.replace("/snap_...", "/{snapshot}")
        template = template.replace("/sha256:words", "/{version}")
        for name in ("words", "pair"):
            template = template.replace(f"/{name}", "/{name}")
        asked = path.replace("ctx_...", held).replace("snap_...", made)
        sent = {"files": body} if path == FILES else {"json": body}
        reply = await client.request(method, asked, **sent)
        if path == "/v1/compress":
            held = reply.json()["context"] or held
        if method == "POST" and path.endswith("/snapshots"):
            made = reply.json()["id"]
        yield method, template, body, reply
