"""Each call in three lines: read the message, do the job, write the reply; answers in ``rag``."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message

from condensery.api.grpc import admin, messages, rag, upkeep
from condensery.api.grpc.bodies import read_documents, write
from condensery.api.grpc.errors import Family
from condensery.api.naming import renamed
from condensery.encodings import ENCODINGS, Encoding
from condensery.jobs import indexes, models, reports, search
from condensery.jobs.checks import check_choice
from condensery.jobs.embed import check_scaled, embed, encoded
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.keys import Scope
from condensery.metrics import Task
from condensery.questions import SearchMode
from condensery.stubs import condensery_v1_pb2 as pb

Given = TypeVar("Given", bound=Message)

# Given the services, the request and the model it names, the reply's bytes.
Unary = Callable[[Services, Given, str | None], Awaitable[bytes]]
Streaming = Callable[[Services, Given, str | None], AsyncGenerator[bytes, None]]
# The same, given all messages of a stream.
Gathering = Callable[[Services, Sequence[Given], str | None], Awaitable[bytes]]

AT_ONCE = 256  # messages of one stream: some batches' worth


@dataclass(frozen=True, slots=True)
class Call(Generic[Given]):
    """A method: its path, its request, and what does it.

    Exactly one of ``unary``, ``stream``, ``each`` and ``gather`` is set: a message or a stream of
    them in, a reply or a stream of them out.

    Attributes:
        scope: What a key must be allowed, once there are keys.
        task: What it counts as in the metrics; None is not counted.
        model_field: The request's field that names the model, if it has it.
        index_field: The one that names the index whose encoder it counts for.
        each: What answers each message of a stream, in the same order.
        gather: What answers a stream once its last message has come.
        at_once: Messages of a stream of replies that are in the house at once.
        package: The contract's.
        family: How its errors look.
    """

    service: str
    name: str
    request: type[Given]
    scope: Scope
    task: Task | None
    unary: Unary[Given] | None = None
    stream: Streaming[Given] | None = None
    model_field: str = "model"
    index_field: str | None = None
    each: Unary[Given] | None = None
    gather: Gathering[Given] | None = None
    at_once: int = AT_ONCE
    package: str = pb.DESCRIPTOR.package
    family: Family = "condensery"

    @property
    def path(self) -> str:
        """As clients call it."""
        return f"/{self.package}.{self.service}/{self.name}"

    @property
    def streamed(self) -> bool:
        """Whether its messages come as a stream."""
        return self.each is not None or self.gather is not None


async def embed_batch(services: Services, given: pb.EmbedBatchRequest, model: str | None) -> bytes:
    """Embed texts."""
    normalize = given.normalize if given.HasField("normalize") else None
    encoding = cast(Encoding, given.dtype or "float32")
    check_choice(encoding, "dtype", ENCODINGS)
    check_scaled(normalize, encoding, field="dtype")
    found = await embed(
        services,
        list(given.texts),
        model=model,
        prompt_name=given.prompt_name if given.HasField("prompt_name") else None,
        input_type=given.input_type or None,
        normalize=normalize,
        truncate=given.truncate if given.HasField("truncate") else True,
        side="left" if given.truncate_left else "right",
        dimensions=given.dimensions if given.HasField("dimensions") else None,
        field="texts",
    )
    packed = await encoded(found, encoding, field="dtype")
    return write(services, found, partial(messages.embedded, encoded=packed, encoding=encoding))


async def rerank_passages(services: Services, given: pb.RerankRequest, model: str | None) -> bytes:
    """Order passages."""
    found = await rerank(
        services,
        given.query,
        list(given.passages),
        model=model,
        truncate=given.truncate if given.HasField("truncate") else True,
        raw_scores=given.raw_scores,
        top_n=given.top_n or None,
        field="passages",
    )
    return write(services, found, partial(messages.reranked, with_text=given.return_text))


async def create_index(
    services: Services, given: pb.CreateIndexRequest, model: str | None
) -> bytes:
    """Create an index."""
    info = await indexes.create_index(
        services,
        given.name,
        encoder=model,
        metric=given.metric or "ip",
        kind=given.kind or "flat",
        dims=given.dims if given.HasField("dims") else None,
        options=dict(given.options),
    )
    return messages.index_info(info).SerializeToString()


async def list_indexes(
    services: Services, given: pb.ListIndexesRequest, model: str | None
) -> bytes:
    """List indexes."""
    infos = await indexes.list_indexes(services)
    reply = pb.ListIndexesResponse(indexes=[messages.index_info(info) for info in infos])
    return reply.SerializeToString()


async def get_index(services: Services, given: pb.GetIndexRequest, model: str | None) -> bytes:
    """Describe an index."""
    info = await indexes.index_info(services, given.name)
    return messages.index_info(info).SerializeToString()


async def drop_index(services: Services, given: pb.DropIndexRequest, model: str | None) -> bytes:
    """Drop an index."""
    await indexes.drop_index(services, given.name)
    return pb.DropIndexResponse().SerializeToString()


async def upsert(services: Services, given: pb.UpsertRequest, model: str | None) -> bytes:
    """Write documents."""
    documents = await read_documents(services, given.documents, services.limits.max_items)
    vectors = None
    if given.vectors:
        vectors = messages.unpack(given.vectors, "vectors", rows=len(documents))
    found = await indexes.upsert(
        services,
        given.index,
        documents,
        vectors=vectors,
        fingerprint=given.fingerprint or None,
    )
    reply = pb.UpsertResponse(
        documents=found.documents, passages=found.passages, tokens=found.tokens
    )
    return reply.SerializeToString()


async def delete(services: Services, given: pb.DeleteRequest, model: str | None) -> bytes:
    """Delete documents."""
    filter = messages.filter_of(given)
    # none, which the job refuses, where neither is given
    ids = list(given.ids) if given.ids or filter is None else None
    deleted = await indexes.delete(services, given.index, ids, filter=filter)
    return pb.DeleteResponse(deleted=deleted).SerializeToString()


async def query(services: Services, given: pb.QueryRequest, model: str | None) -> bytes:
    """Find the nearest passages."""
    by = given.WhichOneof("by")
    vector = messages.unpack(given.vector, "vector", rows=1)[0] if by == "vector" else None
    with renamed("search", "mode"):
        hits = await search.query(
            services,
            given.index,
            given.query if by == "query" else None,
            vector=vector,
            fingerprint=given.fingerprint or None,
            top_k=given.top_k or 10,
            search=cast(SearchMode | None, given.mode or None),  # the job checks it
            filter=messages.filter_of(given),
        )
    return pb.QueryResponse(hits=[messages.hit(one) for one in hits]).SerializeToString()


async def count(services: Services, given: pb.CountRequest, model: str | None) -> bytes:
    """Count documents and passages."""
    filter = messages.filter_of(given)
    documents, passages = await indexes.count(services, given.index, filter=filter)
    return pb.CountResponse(documents=documents, passages=passages).SerializeToString()


async def get_documents(
    services: Services, given: pb.GetDocumentsRequest, model: str | None
) -> bytes:
    """Return documents by id."""
    found = await indexes.get(services, given.index, list(given.ids))
    documents = await asyncio.to_thread(lambda: [messages.document(one) for one in found])
    return pb.GetDocumentsResponse(documents=documents).SerializeToString()


async def scroll(services: Services, given: pb.ScrollRequest, model: str | None) -> bytes:
    """Return documents by id, page by page."""
    found = await indexes.scroll(
        services,
        given.index,
        filter=messages.filter_of(given),
        limit=given.limit or None,
        after=given.after or None,
        with_text=given.with_text if given.HasField("with_text") else True,
        with_metadata=given.with_metadata if given.HasField("with_metadata") else True,
        with_vectors=given.with_vectors,
    )
    reply = await asyncio.to_thread(messages.page, found)
    return reply.SerializeToString()


async def list_models(services: Services, given: pb.ListModelsRequest, model: str | None) -> bytes:
    """List what serves, aliases among it, and what could not."""
    reply = pb.ListModelsResponse(
        models=[messages.model_info(info) for info in models.list_models(services)],
        refused=services.pool.refused(),
    )
    return reply.SerializeToString()


async def get_report(services: Services, given: pb.GetReportRequest, model: str | None) -> bytes:
    """Return what a model was measured at."""
    name = model or ""
    found = await reports.model_report(services, name)
    reply = messages.model_report(found)
    if given.with_card:
        reply.card = await reports.model_card(services, name)
    for plot in dict.fromkeys(given.with_plots):
        reply.pictures[plot] = await reports.model_plot(services, name, plot)
    return reply.SerializeToString()


_INFER: Scope = "infer"
_WRITE: Scope = "index-write"
_ADMIN: Scope = "admin"

CALLS: tuple[Call[Any], ...] = (
    Call("Embedding", "EmbedBatch", pb.EmbedBatchRequest, _INFER, "embed", embed_batch),
    Call("Rerank", "Rerank", pb.RerankRequest, _INFER, "rerank", rerank_passages),
    Call(
        *("Index", "Create", pb.CreateIndexRequest, _WRITE, "index", create_index),
        model_field="encoder",
    ),
    Call("Index", "List", pb.ListIndexesRequest, _INFER, "index", list_indexes),
    Call("Index", "Get", pb.GetIndexRequest, _INFER, "index", get_index, index_field="name"),
    Call("Index", "Drop", pb.DropIndexRequest, _WRITE, "index", drop_index, index_field="name"),
    Call("Index", "Upsert", pb.UpsertRequest, _WRITE, "index", upsert, index_field="index"),
    Call("Index", "Delete", pb.DeleteRequest, _WRITE, "index", delete, index_field="index"),
    Call("Index", "Query", pb.QueryRequest, _INFER, "index", query, index_field="index"),
    Call("Index", "Count", pb.CountRequest, _INFER, "index", count, index_field="index"),
    Call(
        *("Index", "GetDocuments", pb.GetDocumentsRequest, _INFER, "index", get_documents),
        index_field="index",
    ),
    Call("Index", "Scroll", pb.ScrollRequest, _INFER, "index", scroll, index_field="index"),
    Call(
        *("IndexUpkeep", "UpdateAliases", pb.UpdateAliasesRequest),
        *(_WRITE, "index", upkeep.update_aliases),
    ),
    Call(
        *("IndexUpkeep", "ListAliases", pb.ListAliasesRequest),
        *(_INFER, "index", upkeep.list_aliases),
    ),
    Call(
        *("IndexUpkeep", "CreateSnapshot", pb.CreateSnapshotRequest),
        *(_WRITE, "index", upkeep.create_snapshot),
        index_field="index",
    ),
    Call(
        *("IndexUpkeep", "ListSnapshots", pb.ListSnapshotsRequest),
        *(_INFER, "index", upkeep.list_snapshots),
        index_field="index",
    ),
    Call(
        *("IndexUpkeep", "DeleteSnapshot", pb.DeleteSnapshotRequest),
        *(_WRITE, "index", upkeep.delete_snapshot),
        index_field="index",
    ),
    Call(
        *("IndexUpkeep", "RestoreSnapshot", pb.RestoreSnapshotRequest),
        *(_WRITE, "index", upkeep.restore_snapshot),
        index_field="index",
    ),
    Call(
        *("IndexUpkeep", "RebuildIndex", pb.RebuildIndexRequest),
        *(_WRITE, "index", upkeep.rebuild_index),
        model_field="encoder",
        index_field="index",
    ),
    Call(
        *("IndexUpkeep", "GetRebuild", pb.GetRebuildRequest),
        *(_INFER, "index", upkeep.get_rebuild),
        index_field="index",
    ),
    Call(
        *("IndexUpkeep", "CancelRebuild", pb.CancelRebuildRequest),
        *(_WRITE, "index", upkeep.cancel_rebuild),
        index_field="index",
    ),
    Call("Rag", "Answer", pb.AnswerRequest, _INFER, "answer", rag.answer),
    Call("Rag", "AnswerStream", pb.AnswerRequest, _INFER, "answer", stream=rag.answer_stream),
    Call("Rag", "Compare", pb.AnswerRequest, _INFER, "compare", rag.compare),
    Call("Rag", "Compress", pb.CompressRequest, _INFER, "compress", rag.compress),
    Call("Rag", "ReleaseContext", pb.ReleaseContextRequest, _INFER, "compress", rag.release),
    Call("Models", "List", pb.ListModelsRequest, _INFER, None, list_models),
    Call("Models", "GetReport", pb.GetReportRequest, _INFER, None, get_report),
    Call("Admin", "ListModels", pb.StoredModelsRequest, _ADMIN, None, admin.list_versions),
    Call("Admin", "LoadModel", pb.LoadModelRequest, _ADMIN, None, admin.load),
    Call("Admin", "UnloadModel", pb.UnloadModelRequest, _ADMIN, None, admin.unload),
    Call("Admin", "SetAlias", pb.SetAliasRequest, _ADMIN, None, admin.set_aliases),
)
