"""The service's operations as gRPC calls; ``rest_calls`` describes their arguments."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast

import numpy as np
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from condensery.client import grpc_replies as replies
from condensery.client.grpc_replies import read_index, read_models
from condensery.client.operations import (
    Call,
    DocumentInputs,
    QuestionOptions,
    make_documents,
    make_question,
)
from condensery.encodings import Encoding
from condensery.errors import InputError, shorten
from condensery.question import Answer, AnswerEvent, Comparison, Compressed, Question, SearchMode
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import (
    ALIAS_VERBS,
    Alias,
    AliasAction,
    Document,
    Floats,
    Hit,
    IndexInfo,
    Metadata,
    ModelInfo,
    ModelLoad,
    ModelReport,
    ModelState,
    ModelUnload,
    ModelVersion,
    Page,
    Ranked,
    Rebuild,
    RebuildState,
    Revision,
    Snapshot,
    SnapshotList,
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


def raise_encoding_errors(operation: Callable[P, RpcCall[T]]) -> Callable[P, RpcCall[T]]:
    """Turn what no message can hold (a number too big, a lone surrogate) into our error."""

    @functools.wraps(operation)
    def make(*args: P.args, **kwargs: P.kwargs) -> RpcCall[T]:
        try:
            return operation(*args, **kwargs)
        except ValueError as error:
            raise InputError(f"the request can't be written as a message: {error}") from error

    return make


@raise_encoding_errors
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


@raise_encoding_errors
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


@raise_encoding_errors
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


@raise_encoding_errors
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
        vectors=b"" if vectors is None else _pack_floats(vectors),
        fingerprint=fingerprint or "",
    )
    return make_call("Index/Upsert", request, pb.UpsertResponse, replies.read_upserted)


@raise_encoding_errors
def delete(
    name: str, ids: Sequence[str] | None = None, *, filter: Metadata | None = None
) -> RpcCall[int]:
    """Delete documents; returns how many there were. They are off the disk when this returns."""
    # In a message, no ids and an empty list are the same.
    if ids is not None and not ids and filter is not None:
        raise InputError("ids: give `ids` or `filter`, one of them; got both", field="ids")
    request = pb.DeleteRequest(index=name, ids=ids, filter=write_struct(filter))
    return make_call("Index/Delete", request, pb.DeleteResponse, lambda reply: int(reply.deleted))


@raise_encoding_errors
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
        vector=None if vector is None else _pack_floats(vector),
        fingerprint=fingerprint or "",
        top_k=top_k,
        mode=search or "",
        filter=write_struct(filter),
    )
    return make_call("Index/Query", request, pb.QueryResponse, replies.read_hits)


@raise_encoding_errors
def count(name: str, *, filter: Metadata | None = None) -> RpcCall[tuple[int, int]]:
    """Count an index's documents and passages, or those that a filter chooses."""
    request = pb.CountRequest(index=name, filter=write_struct(filter))
    return make_call("Index/Count", request, pb.CountResponse, replies.read_counts)


@raise_encoding_errors
def get(name: str, ids: Sequence[str]) -> RpcCall[list[Document]]:
    """Return documents by id: those found, in the order of ``ids``."""
    request = pb.GetDocumentsRequest(index=name, ids=ids)
    return make_call("Index/GetDocuments", request, pb.GetDocumentsResponse, replies.read_documents)


@raise_encoding_errors
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


@raise_encoding_errors
def report(name: str) -> RpcCall[ModelReport]:
    """Return what a model was measured at; ReportNotFound if it never was."""
    request = pb.GetReportRequest(model=name)
    return make_call("Models/GetReport", request, pb.GetReportResponse, replies.read_report)


@raise_encoding_errors
def report_card(name: str) -> RpcCall[str]:
    """Return a model's card: its report for people, Markdown."""
    request = pb.GetReportRequest(model=name, with_card=True)
    return make_call(
        "Models/GetReport", request, pb.GetReportResponse, lambda reply: str(reply.card)
    )


@raise_encoding_errors
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


def write_struct(metadata: Metadata | None) -> Struct | None:
    """Write an object as messages hold it."""
    if metadata is None:
        return None
    struct = Struct()
    struct.update(dict(metadata))
    return struct


def _pack_floats(vectors: Floats) -> bytes:
    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def read_nothing(_reply: Any) -> None:
    """Ignore a reply that only says that it is done."""


# Questions, answers and contexts


@raise_encoding_errors
def answer(question: str, **how: Unpack[QuestionOptions]) -> RpcCall[Answer]:
    """Answer a question from passages: documents, those found in an index, or a context's."""
    return make_call(
        "Rag/Answer",
        _write_question(make_question(question, **how)),
        pb.AnswerResponse,
        replies.read_answer,
    )


@raise_encoding_errors
def answer_stream(question: str, **how: Unpack[QuestionOptions]) -> RpcCall[Iterable[AnswerEvent]]:
    """Answer a question as ``answer`` does, while it is generated.

    Yields:
        First ``Retrieved``, then ``Delta`` by ``Delta``, at last the whole ``Answer``, whose text
        is what the deltas join to.
    """
    return make_call(
        "Rag/AnswerStream",
        _write_question(make_question(question, **how)),
        pb.AnswerEvent,
        replies.read_event,
    )


@raise_encoding_errors
def compare(question: str, **how: Unpack[QuestionOptions]) -> RpcCall[Comparison]:
    """Answer a question as ``answer`` does, and from the passages' own text, and compare."""
    request = _write_question(make_question(question, **how))
    return make_call("Rag/Compare", request, pb.CompareResponse, replies.read_comparison)


@raise_encoding_errors
def compress(
    question: str,
    documents: DocumentInputs,
    *,
    model: str | None = None,
    rate: int | None = None,
    ttl_seconds: float | None = None,
    keep: bool = True,
) -> RpcCall[Compressed]:
    """Compress and score documents for a question; the server keeps the vectors for its answer."""
    request = pb.CompressRequest(
        model=model or "",
        query=question,
        documents=[write_document(document) for document in make_documents(documents)],
        ratio=rate,
        keep=keep,
        ttl_s=ttl_seconds,
    )
    return make_call("Rag/Compress", request, pb.CompressResponse, replies.read_compressed)


@raise_encoding_errors
def release(context: str) -> RpcCall[None]:
    """Release kept vectors before their time is over."""
    request = pb.ReleaseContextRequest(context=context)
    return make_call("Rag/ReleaseContext", request, pb.ReleaseContextResponse, read_nothing)


def _write_question(question: Question) -> pb.AnswerRequest:
    _check_no_zeros(question)
    index, compression = question.index, question.compression
    searched: dict[str, Any] = {}
    if index is not None:
        searched = {
            "index": index.name,
            "top_k": index.top_k,
            "search_mode": index.mode or "",
            "filter": write_struct(index.filter),
        }
    return pb.AnswerRequest(
        model=question.model or "",
        query=question.query,
        documents=[write_document(document) for document in question.documents or ()],
        context=question.context or "",
        top_n=question.rerank.top_n,
        compression_mode=compression.mode,
        ratio=compression.ratio,
        max_context_vectors=compression.max_context_vectors,
        target_ms=compression.target_ms,
        compress_timeout_ms=compression.timeout_ms,
        min_relevance=question.min_relevance,
        max_tokens=question.max_tokens,
        stop=question.stop,
        temperature=question.temperature,
        top_p=question.top_p,
        seed=question.seed,
        logprobs=question.logprobs,
        **searched,
    )


def _check_no_zeros(question: Question) -> None:
    """Refuse zeros and empty texts: in a message they look unset, and get the server's default."""
    index = question.index
    values = {"context": question.context, "max_tokens": question.max_tokens}
    if index is not None:
        values |= {"index": index.name, "top_k": index.top_k}
    for name, value in values.items():
        if value is not None and not value:
            raise InputError(f"{name}: {value!r} is not allowed.", field=name, value=value)
    if (
        question.documents is not None
        and not question.documents
        and (question.index or question.context)
    ):
        raise InputError(
            "documents: there are none, and an index or a context; give one of the three.",
            field="documents",
        )


# Maintenance of indexes: aliases, snapshots, rebuilds


def aliases() -> RpcCall[list[Alias]]:
    """List every alias and where it leads, by name."""
    return make_call(
        "IndexUpkeep/ListAliases", pb.ListAliasesRequest(), pb.AliasesResponse, _read_index_aliases
    )


@raise_encoding_errors
def update_aliases(actions: Sequence[AliasAction]) -> RpcCall[list[Alias]]:
    """Make all of these changes, at one moment, or none; returns the aliases then."""
    request = pb.UpdateAliasesRequest(actions=[_write_action(action) for action in actions])
    return make_call("IndexUpkeep/UpdateAliases", request, pb.AliasesResponse, _read_index_aliases)


@raise_encoding_errors
def create_snapshot(name: str) -> RpcCall[Snapshot]:
    """Copy an index as it is now, while it goes on; the copy is on disk when this returns."""
    request = pb.CreateSnapshotRequest(index=name)
    return make_call("IndexUpkeep/CreateSnapshot", request, pb.Snapshot, _read_snapshot)


@raise_encoding_errors
def list_snapshots(name: str) -> RpcCall[SnapshotList]:
    """List an index's snapshots, also of an index that is no more."""
    request = pb.ListSnapshotsRequest(index=name)
    return make_call(
        "IndexUpkeep/ListSnapshots", request, pb.ListSnapshotsResponse, _read_snapshots
    )


@raise_encoding_errors
def delete_snapshot(name: str, snapshot: str) -> RpcCall[None]:
    """Delete a snapshot, whether it can be used or not."""
    request = pb.DeleteSnapshotRequest(index=name, snapshot=snapshot)
    return make_call("IndexUpkeep/DeleteSnapshot", request, pb.DeleteSnapshotResponse, read_nothing)


@raise_encoding_errors
def restore_snapshot(name: str, snapshot: str, *, into: str | None = None) -> RpcCall[IndexInfo]:
    """Make an index of a snapshot; on disk when this returns."""
    request = pb.RestoreSnapshotRequest(index=name, snapshot=snapshot, into=into or "")
    return make_call("IndexUpkeep/RestoreSnapshot", request, pb.IndexInfo, read_index)


@raise_encoding_errors
def rebuild_index(
    name: str,
    *,
    encoder: str | None = None,
    metric: str | None = None,
    kind: str | None = None,
    options: Mapping[str, int] | None = None,
) -> RpcCall[Rebuild]:
    """Begin to make an index anew for another encoder, while it serves and is written; or go on."""
    request = pb.RebuildIndexRequest(
        index=name, encoder=encoder or "", metric=metric or "", kind=kind or ""
    )
    if options is not None:
        request.options.values.update(options)
        request.options.SetInParent()
    return make_call("IndexUpkeep/RebuildIndex", request, pb.Rebuild, _read_rebuild)


@raise_encoding_errors
def rebuild_status(name: str) -> RpcCall[Rebuild]:
    """Return how far an index's rebuild has come, or how the last one ended."""
    request = pb.GetRebuildRequest(index=name)
    return make_call("IndexUpkeep/GetRebuild", request, pb.Rebuild, _read_rebuild)


@raise_encoding_errors
def cancel_rebuild(name: str) -> RpcCall[None]:
    """Cancel an index's rebuild; the index stays as it was."""
    request = pb.CancelRebuildRequest(index=name)
    return make_call("IndexUpkeep/CancelRebuild", request, pb.CancelRebuildResponse, read_nothing)


def _read_rebuild(reply: pb.Rebuild) -> Rebuild:
    return Rebuild(
        index=reply.index,
        encoder=reply.encoder,
        fingerprint=reply.fingerprint,
        kind=reply.kind,
        metric=reply.metric,
        documents=reply.documents,
        began=reply.began,
        state=cast(RebuildState, reply.state),
        pending=reply.pending,
        ended=reply.ended if reply.HasField("ended") else None,
        reason=reply.reason if reply.HasField("reason") else None,
        overlap=reply.overlap if reply.HasField("overlap") else None,
    )


def _read_snapshot(reply: pb.Snapshot) -> Snapshot:
    return Snapshot(
        id=reply.id,
        index=reply.index,
        created=reply.created,
        encoder=reply.encoder,
        fingerprint=reply.fingerprint,
        dims=reply.dims,
        kind=reply.kind,
        metric=reply.metric,
        documents=reply.documents,
        passages=reply.passages,
        bytes=reply.bytes,
    )


def _read_snapshots(reply: pb.ListSnapshotsResponse) -> SnapshotList:
    return SnapshotList(
        tuple(_read_snapshot(snapshot) for snapshot in reply.snapshots), dict(reply.refused)
    )


def _write_action(action: AliasAction) -> pb.AliasAction:
    alias, target = action.alias, action.target or ""
    if action.verb == "create":
        return pb.AliasAction(create_alias=pb.CreateAlias(alias=alias, index=target))
    if action.verb == "rename":
        return pb.AliasAction(rename_alias=pb.RenameAlias(alias=alias, to=target))
    if action.verb == "delete":
        return pb.AliasAction(delete_alias=pb.DeleteAlias(alias=alias))
    raise InputError(
        f"actions: {shorten(action.verb)} is not one of {', '.join(ALIAS_VERBS)}", field="actions"
    )


def _read_index_aliases(reply: pb.AliasesResponse) -> list[Alias]:
    return [Alias(alias.alias, alias.target, alias.index or None) for alias in reply.aliases]


# Loading and unloading models, and their aliases; these need a key of scope ``admin``


@raise_encoding_errors
def load_model(name: str, *, version: str | None = None, again: bool = False) -> RpcCall[ModelLoad]:
    """Load a stored model and let it serve, in place of the version that does."""
    request = pb.LoadModelRequest(model=name, version=version or "", again=again)
    return make_call("Admin/LoadModel", request, pb.LoadModelResponse, _read_load)


@raise_encoding_errors
def unload_model(name: str, *, force: bool = False) -> RpcCall[ModelUnload]:
    """Unload a model; its last requests are finished when this returns, and its memory is free."""
    request = pb.UnloadModelRequest(model=name, force=force)
    return make_call(
        "Admin/UnloadModel",
        request,
        pb.UnloadModelResponse,
        lambda reply: _read_unload(name, reply),
    )


def stored_models() -> RpcCall[list[ModelVersion]]:
    """List every stored version of every model, and which of them serve."""
    request = pb.StoredModelsRequest()
    return make_call("Admin/ListModels", request, pb.StoredModelsResponse, _read_versions)


@raise_encoding_errors
def set_aliases(aliases: Mapping[str, str | None]) -> RpcCall[dict[str, str]]:
    """Set aliases of models, or remove them, all at once; returns all that there are."""
    request = pb.SetAliasRequest(aliases={alias: target or "" for alias, target in aliases.items()})
    return make_call(
        "Admin/SetAlias", request, pb.SetAliasResponse, lambda reply: dict(reply.aliases)
    )


def _read_load(reply: pb.LoadModelResponse) -> ModelLoad:
    (info,) = read_models(pb.ListModelsResponse(models=[reply.model]))
    return ModelLoad(
        model=info,
        previous=_read_revision(reply.previous) if reply.HasField("previous") else None,
        changed=reply.changed,
        seconds=reply.seconds,
        memory_bytes=reply.memory_bytes,
        stranded_indexes=tuple(reply.stranded_indexes),
    )


def _read_unload(name: str, reply: pb.UnloadModelResponse) -> ModelUnload:
    indexes = tuple(reply.stranded_indexes)
    version, fingerprint = reply.revision.version, reply.revision.fingerprint
    return ModelUnload(name, version, fingerprint, reply.seconds, indexes)


def _read_versions(reply: pb.StoredModelsResponse) -> list[ModelVersion]:
    return [
        ModelVersion(model.name, model.version, cast(ModelState, model.state), model.reason)
        for model in reply.models
    ]


def _read_revision(revision: pb.Revision) -> Revision:
    return Revision(revision.version, revision.fingerprint)
