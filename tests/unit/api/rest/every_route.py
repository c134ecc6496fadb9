"""A request of every REST route that replies with JSON, in an order in which each can be served."""

from collections.abc import AsyncIterator
from typing import Any

from condensery.api.rest import notices, replies, replies_rag, replies_upkeep

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
    ("POST", "/v1/rag/answer", QUESTION, replies_rag.WholeAnswer),
    ("POST", "/v1/rag/answer", {**QUESTION, "logprobs": 2}, replies_rag.WholeAnswer),
    (
        *("POST", "/v1/rag/answer", {**QUESTION, "compression": {"mode": "off"}}),
        replies_rag.WholeAnswer,
    ),
    ("POST", "/v1/rag/compare", QUESTION, replies_rag.Comparison),
    ("POST", "/v1/chat/completions", CHAT, replies_rag.ChatCompletion),
    (
        *("POST", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1}),
        replies_rag.ChatCompletion,
    ),
    ("POST", "/v1/compress", QUESTION, replies_rag.Compressed),
    ("POST", "/v1/compress", {**QUESTION, "return": "stats"}, replies_rag.Compressed),
    ("DELETE", "/v1/contexts/ctx_...", None, replies_rag.Released),
    ("PUT", "/v1/indexes/kb", {}, replies.Index),
    ("GET", "/v1/indexes", None, replies.Indexes),
    ("GET", "/v1/indexes/kb", None, replies.Index),
    ("POST", "/v1/indexes/kb/documents", {"documents": DOCUMENTS}, replies.Written),
    ("GET", "/v1/indexes/aliases", None, replies_upkeep.Aliases),
    (
        *("POST", "/v1/indexes/aliases"),
        {"actions": [{"create_alias": {"alias": "live", "index": "kb"}}]},
        replies_upkeep.Aliases,
    ),
    (
        *("POST", "/v1/indexes/aliases"),
        {"actions": [{"delete_alias": {"alias": "live"}}]},
        replies_upkeep.Aliases,
    ),
    ("POST", "/v1/indexes/kb/snapshots", None, replies_upkeep.Snapshot),
    ("GET", "/v1/indexes/kb/snapshots", None, replies_upkeep.Snapshots),
    ("GET", "/v1/indexes/kb/snapshots/snap_...", None, replies_upkeep.Snapshot),
    ("POST", "/v1/indexes/kb/snapshots/snap_.../restore", {}, replies.Index),
    ("DELETE", "/v1/indexes/kb/snapshots/snap_...", None, replies_upkeep.SnapshotDeleted),
    ("POST", "/v1/indexes/kb/rebuild", {"encoder": "other"}, replies_upkeep.Rebuild),
    ("GET", "/v1/indexes/kb/rebuild", None, replies_upkeep.Rebuild),
    ("DELETE", "/v1/indexes/kb/rebuild", None, replies_upkeep.RebuildCancelled),
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
    ("GET", "/v1/models", None, notices.Models),
    ("GET", "/models", None, notices.InfinityModels),
    ("GET", "/v1/models/words", None, notices.Model),
    ("GET", "/v1/models/pair/report", None, notices.Report),
    ("POST", "/v1/models/aliases", {"aliases": {"best": "other"}}, notices.ModelAliases),
    ("GET", "/v1/models/aliases", None, notices.ModelAliases),
    ("POST", "/v1/models/words/load", {"version": "2"}, notices.Loaded),
    ("POST", "/v1/models/words/reload", {}, notices.Loaded),
    ("POST", "/v1/models/pair/unload", {}, notices.Unloaded),
    ("POST", "/v2/repository/index", {"ready": True}, list[notices.KServeVersion]),
    ("POST", "/v2/repository/models/words/load", {}, notices.KServeVersion),
    ("POST", "/v2/repository/models/pair/unload", {}, notices.KServeVersion),
    ("GET", "/info", None, notices.TeiInfo),
    ("GET", "/version", None, notices.Version),
    ("GET", "/openapi.json", None, dict[str, Any]),
    ("GET", "/v2", None, notices.KServeServer),
    ("GET", "/v2/models/pair", None, notices.KServeModel),
    ("GET", "/v2/models/words/ready", None, notices.KServeModelReady),
    ("GET", "/livez", None, notices.Status),
    ("GET", "/readyz", None, notices.Status),
    ("GET", "/startupz", None, notices.Status),
    ("GET", "/health", None, notices.Status),
    ("GET", "/ping", None, notices.Status),
    ("GET", "/v2/health/live", None, notices.KServeLive),
    ("GET", "/v2/health/ready", None, notices.KServeReady),
]


async def walk(door, pool) -> AsyncIterator[tuple[str, str, Any, Any, Any]]:
    """Ask all of ``REPLIES`` of one server; yields method, template, body, schema and reply."""
    held, made = "", ""
    pool.encoders["other"].delay = 60  # so that there is a rebuild to cancel
    for method, path, body, schema in REPLIES:
        template = path.replace("/kb", "/{name}").replace("/ctx_...", "/{name}")
        template = template.replace("/snap_...", "/{snapshot}")
        for name in ("words", "pair"):
            template = template.replace(f"/{name}", "/{name}")
        asked = path.replace("ctx_...", held).replace("snap_...", made)
        reply = await door.request(method, asked, json=body)
        if schema is replies_rag.Compressed:
            held = reply.json()["context"] or held
        if schema is replies_upkeep.Snapshot:
            made = reply.json()["id"]
        yield method, template, body, schema, reply
