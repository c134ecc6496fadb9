"""The service's operations as gRPC calls; those on answers are in ``grpc_answers``.

Their arguments are described in ``rest_calls`` and ``rest_answers``.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from condensery.client import grpc_replies as replies
from condensery.client.calls import Call
from condensery.encodings import Encoding
from condensery.errors import InputError
from condensery.questions import SearchMode
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import (
    Document,
    Floats,
    Hit,
    IndexInfo,
    Metadata,
    ModelInfo,
    ModelReport,
    Page,
    Ranked,
    Upserted,
)

P = ParamSpec("P")
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


def checked(operation: Callable[P, RpcCall[T]]) -> Callable[P, RpcCall[T]]:
    """Turn what no message can hold (a number too big, a lone surrogate) into our error."""

    @functools.wraps(operation)
    def make(*args: P.args, **kwargs: P.kwargs) -> RpcCall[T]:
        try:
            return operation(*args, **kwargs)
        except ValueError as error:
            raise InputError(f"the request can't be written as a message: {error}") from error

    return make


@checked
def embed(
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    normalize: bool | None = None,
    truncate: bool = True,
    dimensions: int | None = None,
    dtype: Encoding = "float32",
) -> RpcCall[Floats]:
    """Embed each text; returns vectors, (texts, dims), float32."""
    request = pb.EmbedBatchRequest(
        model=model or "",
        texts=texts,
        prompt_name=prompt_name,
        truncate=truncate,
        dimensions=dimensions,
        dtype="" if dtype == "float32" else dtype,
    )
    if normalize is not None:
        request.normalize = normalize
    return make_call("Embedding/EmbedBatch", request, pb.EmbedBatchResponse, replies.read_vectors)


@checked
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
    return make_call(
        "Rerank/Rerank", request, pb.RerankResponse, lambda reply: replies.read_ranked(reply, texts)
    )


@checked
def create_index(
    name: str,
    *,
    encoder: str | None = None,
    kind: str = "flat",
    metric: str = "ip",
    options: Mapping[str, int] | None = None,
) -> RpcCall[IndexInfo]:
    """Create an index; with the same settings again, it stays as it is."""
    request = pb.CreateIndexRequest(
        name=name, encoder=encoder or "", kind=kind, metric=metric, options=options
    )
    return make_call("Index/Create", request, pb.IndexInfo, replies.read_index)


def list_indexes() -> RpcCall[list[IndexInfo]]:
    """List the indexes and what they hold."""
    return make_call(
        "Index/List", pb.ListIndexesRequest(), pb.ListIndexesResponse, replies.read_indexes
    )


def drop_index(name: str) -> RpcCall[None]:
    """Delete an index and all it holds."""
    return make_call(
        "Index/Drop", pb.DropIndexRequest(name=name), pb.DropIndexResponse, read_nothing
    )


@checked
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
        documents=[write_document(document) for document in documents],
        vectors=b"" if vectors is None else _pack(vectors),
        fingerprint=fingerprint or "",
    )
    return make_call("Index/Upsert", request, pb.UpsertResponse, replies.read_upserted)


@checked
def delete(
    name: str, ids: Sequence[str] | None = None, *, filter: Metadata | None = None
) -> RpcCall[int]:
    """Delete documents; returns how many there were. They are off the disk when this returns."""
    if ids is not None and not ids and filter is not None:  # a message can't tell it from None
        raise InputError("ids: give `ids` or `filter`, one of them; got both", field="ids")
    request = pb.DeleteRequest(index=name, ids=ids, filter=write_struct(filter))
    return make_call("Index/Delete", request, pb.DeleteResponse, lambda reply: int(reply.deleted))


@checked
def query(
    name: str,
    text: str | None = None,
    *,
    vector: Floats | None = None,
    fingerprint: str | None = None,
    top_k: int = 10,
    search: SearchMode | None = None,
    filter: Metadata | None = None,
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
        mode=search or "",
        filter=write_struct(filter),
    )
    return make_call("Index/Query", request, pb.QueryResponse, replies.read_hits)


@checked
def count(name: str, *, filter: Metadata | None = None) -> RpcCall[tuple[int, int]]:
    """Count an index's documents and passages, or those that a filter chooses."""
    request = pb.CountRequest(index=name, filter=write_struct(filter))
    return make_call("Index/Count", request, pb.CountResponse, replies.read_counts)


@checked
def get(name: str, ids: Sequence[str]) -> RpcCall[list[Document]]:
    """Return documents by id: those found, in the order asked."""
    request = pb.GetDocumentsRequest(index=name, ids=ids)
    return make_call("Index/GetDocuments", request, pb.GetDocumentsResponse, replies.read_documents)


@checked
def scroll(
    name: str,
    *,
    filter: Metadata | None = None,
    limit: int | None = None,
    after: str | None = None,
    with_text: bool = True,
    with_metadata: bool = True,
    with_vectors: bool = False,
) -> RpcCall[Page]:
    """Return documents by id, page by page."""
    if limit == 0:  # which the server would take for its default
        raise InputError(f"limit: {limit} is not allowed", field="limit", value=limit)
    request = pb.ScrollRequest(
        index=name,
        filter=write_struct(filter),
        limit=limit or 0,
        after=after or "",
        with_text=with_text,
        with_metadata=with_metadata,
        with_vectors=with_vectors,
    )
    return make_call(
        "Index/Scroll",
        request,
        pb.ScrollResponse,
        lambda reply: replies.read_page(reply, with_vectors=with_vectors),
    )


def models() -> RpcCall[list[ModelInfo]]:
    """List the models that serve, defaults first."""
    return make_call(
        "Models/List", pb.ListModelsRequest(), pb.ListModelsResponse, replies.read_models
    )


@checked
def report(name: str) -> RpcCall[ModelReport]:
    """Return what a model was measured at; ReportNotFound if it never was."""
    request = pb.GetReportRequest(model=name)
    return make_call("Models/GetReport", request, pb.GetReportResponse, replies.read_report)


@checked
def report_card(name: str) -> RpcCall[str]:
    """Return a model's card: its report for people, Markdown."""
    request = pb.GetReportRequest(model=name, with_card=True)
    return make_call(
        "Models/GetReport", request, pb.GetReportResponse, lambda reply: str(reply.card)
    )


@checked
def report_plot(name: str, plot: str) -> RpcCall[bytes]:
    """Return a plot of a model's report, PNG."""
    request = pb.GetReportRequest(model=name, with_plots=[plot])
    return make_call(
        "Models/GetReport", request, pb.GetReportResponse, lambda reply: bytes(reply.pictures[plot])
    )


def make_call(
    method: str, request: Message, reply_type: type[Message], read: Callable[[Any], T]
) -> RpcCall[T]:
    """Make a call to a method of ours, ``Service/Method``."""
    return RpcCall(read, f"/condensery.v1.{method}", request, reply_type)


def write_document(document: Document) -> pb.Document:
    """Write a document as messages hold it."""
    message = pb.Document(id=document.id, text=document.text)
    if document.metadata:
        message.metadata.update(dict(document.metadata))
    return message


def write_struct(given: Metadata | None) -> Struct | None:
    """Write an object as messages hold it."""
    if given is None:
        return None
    struct = Struct()
    struct.update(dict(given))
    return struct


def _pack(vectors: Floats) -> bytes:
    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def read_nothing(reply: Any) -> None:
    """Read a reply that says nothing but that it was done."""
    del reply
