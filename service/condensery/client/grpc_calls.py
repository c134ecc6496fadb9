"""The service's operations as gRPC calls; their arguments are described in ``rest_calls``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from google.protobuf.message import Message

from condensery.client import grpc_replies as replies
from condensery.client.calls import Call
from condensery.errors import InputError
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import (
    Answer,
    AnswerEvent,
    CompressionMode,
    Document,
    Floats,
    Hit,
    IndexInfo,
    ModelInfo,
    Ranked,
    Upserted,
)

T = TypeVar("T")

# The health service's own messages are in a package that the client does without: the request for
# the whole server is empty, and the reply has one field, number 1, whose value 1 is SERVING.
HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"


@dataclass(frozen=True, slots=True)
class RpcCall(Call[T], Generic[T]):
    """A request message to a method; ``read`` gets the reply (or each of them)."""

    method: str
    request: Message
    reply_type: type[Message]


def embed(
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    normalize: bool | None = None,
    truncate: bool = True,
) -> RpcCall[Floats]:
    """Embed each text; returns vectors, (texts, dims), float32."""
    request = pb.EmbedBatchRequest(
        model=model or "",
        texts=texts,
        prompt_name=prompt_name,
        truncate=truncate,
    )
    if normalize is not None:
        request.normalize = normalize
    return _call("Embedding/EmbedBatch", request, pb.EmbedBatchResponse, replies.read_vectors)


def rerank(
    query: str,
    passages: Sequence[str],
    *,
    model: str | None = None,
    top_n: int | None = None,
    raw_scores: bool = False,
    truncate: bool = True,
) -> RpcCall[list[Ranked]]:
    """Order passages by their relevance to ``query``, the best first."""
    texts = list(passages)
    request = pb.RerankRequest(
        model=model or "",
        query=query,
        passages=texts,
        truncate=truncate,
        raw_scores=raw_scores,
        top_n=top_n or 0,
    )
    return _call(
        "Rerank/Rerank", request, pb.RerankResponse, lambda reply: replies.read_ranked(reply, texts)
    )


def answer(
    question: str,
    *,
    documents: Sequence[str | Document] | None = None,
    index: str | None = None,
    top_k: int = 20,
    top_n: int | None = 5,
    model: str | None = None,
    mode: CompressionMode = "auto",
    max_tokens: int = 64,
) -> RpcCall[Answer]:
    """Answer a question from passages: documents, or those found in an index."""
    request = _answer_request(question, documents, index, top_k, top_n, model, mode, max_tokens)
    return _call("Rag/Answer", request, pb.AnswerResponse, replies.read_answer)


def answer_stream(
    question: str,
    *,
    documents: Sequence[str | Document] | None = None,
    index: str | None = None,
    top_k: int = 20,
    top_n: int | None = 5,
    model: str | None = None,
    mode: CompressionMode = "auto",
    max_tokens: int = 64,
) -> RpcCall[Iterable[AnswerEvent]]:
    """Answer a question as ``answer`` does, while it is generated.

    Yields:
        First ``Retrieved``, then ``Delta`` by ``Delta``, at last the whole ``Answer``, whose text
        is what the deltas join to.
    """
    request = _answer_request(question, documents, index, top_k, top_n, model, mode, max_tokens)
    return _call("Rag/AnswerStream", request, pb.AnswerEvent, replies.read_event)


def create_index(
    name: str, *, encoder: str | None = None, kind: str = "flat", metric: str = "ip"
) -> RpcCall[IndexInfo]:
    """Create an index; with the same settings again, it stays as it is."""
    request = pb.CreateIndexRequest(name=name, encoder=encoder or "", kind=kind, metric=metric)
    return _call("Index/Create", request, pb.IndexInfo, replies.read_index)


def list_indexes() -> RpcCall[list[IndexInfo]]:
    """List the indexes and what they hold."""
    return _call(
        "Index/List", pb.ListIndexesRequest(), pb.ListIndexesResponse, replies.read_indexes
    )


def drop_index(name: str) -> RpcCall[None]:
    """Delete an index and all it holds."""
    return _call("Index/Drop", pb.DropIndexRequest(name=name), pb.DropIndexResponse, _read_nothing)


def upsert(
    name: str,
    documents: Sequence[Document],
    *,
    vectors: Floats | None = None,
    fingerprint: str | None = None,
) -> RpcCall[Upserted]:
    """Write documents, replacing those of the same ids; they are on disk when this returns."""
    request = pb.UpsertRequest(
        index=name,
        documents=[_document(document) for document in documents],
        vectors=b"" if vectors is None else _pack(vectors),
        fingerprint=fingerprint or "",
    )
    return _call("Index/Upsert", request, pb.UpsertResponse, replies.read_upserted)


def delete(name: str, ids: Sequence[str]) -> RpcCall[int]:
    """Delete documents by id; returns how many were there."""
    request = pb.DeleteRequest(index=name, ids=ids)
    return _call("Index/Delete", request, pb.DeleteResponse, lambda reply: int(reply.deleted))


def query(
    name: str,
    text: str | None = None,
    *,
    vector: Floats | None = None,
    fingerprint: str | None = None,
    top_k: int = 10,
) -> RpcCall[list[Hit]]:
    """Find the passages nearest to a text, or to a vector, the best first."""
    if text is not None and vector is not None:  # one would silently replace the other
        raise InputError("query: give a text or a vector, not both", field="query")
    request = pb.QueryRequest(
        index=name,
        query=text,
        vector=None if vector is None else _pack(vector),
        fingerprint=fingerprint or "",
        top_k=top_k,
    )
    return _call("Index/Query", request, pb.QueryResponse, replies.read_hits)


def count(name: str) -> RpcCall[tuple[int, int]]:
    """Count an index's documents and passages."""
    return _call("Index/Count", pb.CountRequest(index=name), pb.CountResponse, replies.read_counts)


def models() -> RpcCall[list[ModelInfo]]:
    """List the models that serve, defaults first."""
    return _call("Models/List", pb.ListModelsRequest(), pb.ListModelsResponse, replies.read_models)


def _call(
    method: str, request: Message, reply_type: type[Message], read: Callable[[Any], T]
) -> RpcCall[T]:
    return RpcCall(read, f"/condensery.v1.{method}", request, reply_type)


def _answer_request(
    question: str,
    documents: Sequence[str | Document] | None,
    index: str | None,
    top_k: int,
    top_n: int | None,
    model: str | None,
    mode: CompressionMode,
    max_tokens: int,
) -> pb.AnswerRequest:
    most = top_k if documents is None else len(documents)
    return pb.AnswerRequest(
        model=model or "",
        query=question,
        documents=[
            pb.Document(id=str(place), text=one) if isinstance(one, str) else _document(one)
            for place, one in enumerate(documents or ())
        ],
        index=index or "",
        top_k=top_k,
        top_n=most if top_n is None else top_n,
        compression_mode=mode,
        max_tokens=max_tokens,
    )


def _document(document: Document) -> pb.Document:
    message = pb.Document(id=document.id, text=document.text)
    if document.metadata:
        message.metadata.update(dict(document.metadata))
    return message


def _pack(vectors: Floats) -> bytes:
    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def _read_nothing(reply: Any) -> None:
    del reply
