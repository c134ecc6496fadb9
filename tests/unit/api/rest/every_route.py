"""A request of every REST route that replies with JSON, in an order in which each can be served."""

from collections.abc import AsyncIterator
from typing import Any

from condensery.api.rest.schemas import index, rag, replies, service

QUESTION = {"query": "where?", "documents": ["some words", {"id": "best", "text": "gold"}]}
DOCUMENTS = [{"id": "a", "text": "alpha", "metadata": {"n": [1, None, {"x": "y"}]}}]
CHAT = {"messages": [{"role": "user", "content": "where?"}], "documents": QUESTION["documents"]}
COHERE = {"texts": ["a", "b"], "input_type": "search_query"}
TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
REPLIES = [
    ("POST", "/v1/embeddings", {"input": ["a", "b"]}, replies.Embeddings),
    ("POST", "/v1/embeddings", {"input": "a", "encoding_format": "base64"}, replies.Embeddings),
    ("POST", "/v1/embeddings", {"input": "a", "embed_dtype": "ubinary"}, replies.Embeddings),
    ("POST", "/embeddings", {"input": "a"}, replies.Embeddings),
    ("POST", "/openai/v1/embeddings", {"input": "a"}, replies.Embeddings),
    ("POST", "/embed", {"inputs": ["a", "b"]}, replies.Vectors),
    ("POST", "/", {"inputs": ["a", "b"]}, replies.Anything),
    ("POST", "/", {"query": "q", "texts": ["a", "gold"]}, replies.Anything),
    ("POST", "/invocations", {"inputs": "a"}, replies.Anything),
    ("POST", "/embed_all", {"inputs": ["a", "b"]}, replies.TokenVectors),
    (
        *("POST", "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
        replies.Cosines,
    ),
    ("POST", "/tokenize", {"inputs": ["a", "b"]}, replies.Tokenized),
    ("POST", "/decode", {"ids": [1, 2]}, replies.Decoded),
    ("POST", "/predict", {"inputs": "a"}, replies.Predictions),
    ("POST", "/predict", {"inputs": [["a"], ["a", "b"]]}, replies.Predictions),
    ("POST", "/rerank", {"query": "q", "texts": ["a", "gold"]}, replies.AnyRanking),
    ("POST", "/rerank", {"query": "q", "texts": ["a"], "return_text": True}, replies.AnyRanking),
    ("POST", "/rerank", {**QUESTION, "return_documents": True}, replies.AnyRanking),
    ("POST", "/v1/embed", {"texts": ["a", "b"]}, replies.CohereEmbeddings),
    ("POST", "/v1/embed", {**COHERE, "embedding_types": ["int8"]}, replies.CohereEmbeddings),
    ("POST", "/v2/embed", {**COHERE, "embedding_types": TYPES}, replies.CohereByType),
    ("POST", "/v1/rerank", QUESTION, replies.Ranking),
    ("POST", "/v2/rerank", QUESTION, replies.Ranking),
    (
        *("POST", "/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "a"}]}),
        replies.NimRanking,
    ),
    ("POST", "/v1/rerank", {**QUESTION, "return_documents": True}, replies.Ranking),
    ("POST", "/v1/rag/answer", QUESTION, rag.WholeAnswer),
    ("POST", "/v1/rag/answer", {**QUESTION, "logprobs": 2}, rag.WholeAnswer),
    (
        *("POST", "/v1/rag/answer", {**QUESTION, "compression": {"mode": "off"}}),
        rag.WholeAnswer,
    ),
    ("POST", "/v1/rag/compare", QUESTION, rag.Comparison),
    ("POST", "/v1/chat/completions", CHAT, rag.ChatCompletion),
    (
        *("POST", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1}),
        rag.ChatCompletion,
    ),
    ("POST", "/v1/compress", QUESTION, rag.Compressed),
    ("POST", "/v1/compress", {**QUESTION, "return": "stats"}, rag.Compressed),
    ("DELETE", "/v1/contexts/ctx_...", None, rag.Released),
    ("PUT", "/v1/indexes/kb", {}, replies.Index),
    ("GET", "/v1/indexes", None, replies.Indexes),
    ("GET", "/v1/indexes/kb", None, replies.Index),
    ("POST", "/v1/indexes/kb/documents", {"documents": DOCUMENTS}, replies.Written),
    ("GET", "/v1/indexes/aliases", None, index.Aliases),
    (
        *("POST", "/v1/indexes/aliases"),
        {"actions": [{"create_alias": {"alias": "live", "index": "kb"}}]},
        index.Aliases,
    ),
    (
        *("POST", "/v1/indexes/aliases"),
        {"actions": [{"delete_alias": {"alias": "live"}}]},
        index.Aliases,
    ),
    ("POST", "/v1/indexes/kb/snapshots", None, index.Snapshot),
    ("GET", "/v1/indexes/kb/snapshots", None, index.Snapshots),
    ("GET", "/v1/indexes/kb/snapshots/snap_...", None, index.Snapshot),
    ("POST", "/v1/indexes/kb/snapshots/snap_.../restore", {}, replies.Index),
    ("DELETE", "/v1/indexes/kb/snapshots/snap_...", None, index.SnapshotDeleted),
    ("POST", "/v1/indexes/kb/rebuild", {"encoder": "other"}, index.Rebuild),
    ("GET", "/v1/indexes/kb/rebuild", None, index.Rebuild),
    ("DELETE", "/v1/indexes/kb/rebuild", None, index.RebuildCancelled),
    ("POST", "/v1/indexes/kb/documents/get", {"ids": ["a", "b"]}, replies.Documents),
    ("POST", "/v1/indexes/kb/documents/count", {}, replies.Counts),
    ("POST", "/v1/indexes/kb/documents/scroll", {}, replies.Page),
    ("POST", "/v1/indexes/kb/documents/scroll", {"with_vectors": True}, replies.Page),
    (
        *("POST", "/v1/indexes/kb/documents/scroll"),
        *({"with_text": False, "with_metadata": False, "limit": 1}, replies.Page),
    ),
    ("POST", "/v1/indexes/kb/query", {"query": "alpha"}, replies.Hits),
    ("POST", "/v1/indexes/kb/documents/delete", {"ids": ["a"]}, replies.Deleted),
    ("DELETE", "/v1/indexes/kb", None, replies.Dropped),
    ("GET", "/v1/models", None, service.Models),
    ("GET", "/models", None, service.InfinityModels),
    ("GET", "/v1/models/words", None, service.Model),
    ("GET", "/v1/models/pair/report", None, service.Report),
    ("POST", "/v1/models/aliases", {"aliases": {"best": "other"}}, service.ModelAliases),
    ("GET", "/v1/models/aliases", None, service.ModelAliases),
    ("POST", "/v1/models/words/load", {"version": "2"}, service.Loaded),
    ("POST", "/v1/models/words/reload", {}, service.Loaded),
    ("POST", "/v1/models/pair/unload", {}, service.Unloaded),
    ("POST", "/v2/repository/index", {"ready": True}, list[service.KServeVersion]),
    ("POST", "/v2/repository/models/words/load", {}, service.KServeVersion),
    ("POST", "/v2/repository/models/pair/unload", {}, service.KServeVersion),
    ("GET", "/info", None, service.TeiInfo),
    ("GET", "/version", None, service.Version),
    ("GET", "/openapi.json", None, dict[str, Any]),
    ("GET", "/v2", None, service.KServeServer),
    ("GET", "/v2/models/pair", None, service.KServeModel),
    ("GET", "/v2/models/words/ready", None, service.KServeModelReady),
    ("GET", "/livez", None, service.Status),
    ("GET", "/readyz", None, service.Status),
    ("GET", "/startupz", None, service.Status),
    ("GET", "/health", None, service.Status),
    ("GET", "/ping", None, service.Status),
    ("GET", "/v2/health/live", None, service.KServeLive),
    ("GET", "/v2/health/ready", None, service.KServeReady),
]


async def request_every_route(client, pool) -> AsyncIterator[tuple[str, str, Any, Any, Any]]:
    """Send all of ``REPLIES`` to a server; yields method, template, body, schema and reply."""
    held, made = "", ""
    pool.encoders["other"].delay = 60  # so that there is a rebuild to cancel
    for method, path, body, schema in REPLIES:
        template = path.replace("/kb", "/{name}").replace("/ctx_...", "/{name}")
        template = template.replace("/snap_...", "/{snapshot}")
        for name in ("words", "pair"):
            template = template.replace(f"/{name}", "/{name}")
        asked = path.replace("ctx_...", held).replace("snap_...", made)
        reply = await client.request(method, asked, json=body)
        if schema is rag.Compressed:
            held = reply.json()["context"] or held
        if schema is index.Snapshot:
            made = reply.json()["id"]
        yield method, template, body, schema, reply
