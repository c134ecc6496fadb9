"""The contract condensery.v1: each method reads its request, does the job, writes the reply."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message

from condensery import protobuf, values
from condensery.api.grpc import convert
from condensery.api.grpc.convert import read_optional
from condensery.api.grpc.errors import Family
from condensery.auth import KeyScope
from condensery.encodings import ENCODINGS, Encoding
from condensery.errors import InputError
from condensery.jobs import answer, indexes, maintenance, models, retrieval
from condensery.jobs.embed import check_scaled, embed, encode_vectors
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.jobs.validation import check_choice, check_count
from condensery.metrics import Task
from condensery.question import Question, SearchMode
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Document

Request = TypeVar("Request", bound=Message)

# Takes the services, the request and the model it names; returns the reply's bytes.
UnaryHandler = Callable[[Services, Request, str | None], Awaitable[bytes]]
StreamHandler = Callable[[Services, Request, str | None], AsyncGenerator[bytes, None]]
# The same, with all messages of a stream.
GatherHandler = Callable[[Services, Sequence[Request], str | None], Awaitable[bytes]]

MESSAGES_AT_ONCE = 256  # of one stream: several batches' worth
DEFAULT_CONTEXT_SECONDS = 600.0  # as the contract says


@dataclass(frozen=True, slots=True)
class RpcMethod(Generic[Request]):
    """A method: its path, its request, and what does it.

    Exactly one of ``unary``, ``stream``, ``each`` and ``gather`` is set: a message or a stream of
    them in, a reply or a stream of them out.

    Attributes:
        scope: What a key must be allowed, where keys are needed.
        task: What it counts as in the metrics; None is not counted.
        model_field: The request's field that names the model, if it has it.
        index_field: The one that names the index whose encoder it counts for.
        each: What answers each message of a stream, in the same order.
        gather: What answers a stream once its last message has come.
        at_once: Messages of a stream that may be in work, or wait to be written, at once.
        package: The contract's.
        family: How its errors look.
    """

    service: str
    name: str
    request: type[Request]
    scope: KeyScope
    task: Task | None
    unary: UnaryHandler[Request] | None = None
    stream: StreamHandler[Request] | None = None
    model_field: str = "model"
    index_field: str | None = None
    each: UnaryHandler[Request] | None = None
    gather: GatherHandler[Request] | None = None
    at_once: int = MESSAGES_AT_ONCE
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


async def embed_batch(
    services: Services, request: pb.EmbedBatchRequest, model: str | None
) -> bytes:
    """Embed texts."""
    normalize = read_optional(request, "normalize")
    encoding = cast(Encoding, request.dtype or "float32")
    with convert.rename_fields(request):
        check_choice(encoding, "embed_dtype", ENCODINGS)
        check_scaled(normalize, encoding)
        result = await embed(
            services,
            list(request.texts),
            model=model,
            prompt_name=read_optional(request, "prompt_name"),
            input_type=request.input_type or None,
            normalize=normalize,
            truncate=read_optional(request, "truncate", True),
            side="left" if request.truncate_left else "right",
            dimensions=read_optional(request, "dimensions"),
        )
        packed = await encode_vectors(result, encoding)
    return convert.serialize_timed(
        services, result, partial(convert.write_embeddings, encoded=packed, encoding=encoding)
    )


async def rerank_passages(
    services: Services, request: pb.RerankRequest, model: str | None
) -> bytes:
    """Order passages."""
    with convert.rename_fields(request):
        result = await rerank(
            services,
            request.query,
            list(request.passages),
            model=model,
            truncate=read_optional(request, "truncate", True),
            raw_scores=request.raw_scores,
            top_n=request.top_n or None,
        )
    return convert.serialize_timed(
        services, result, partial(convert.write_ranking, with_text=request.return_text)
    )


async def create_index(
    services: Services, request: pb.CreateIndexRequest, model: str | None
) -> bytes:
    """Create an index."""
    info = await indexes.create_index(
        services,
        request.name,
        encoder=model,
        metric=request.metric or "ip",
        kind=request.kind or "flat",
        dims=read_optional(request, "dims"),
        options=dict(request.options),
    )
    return protobuf.write(pb.IndexInfo, info).SerializeToString()


async def list_indexes(
    services: Services, request: pb.ListIndexesRequest, model: str | None
) -> bytes:
    """List indexes."""
    infos = await indexes.list_indexes(services)
    return protobuf.write(pb.ListIndexesResponse, {"data": infos}).SerializeToString()


async def get_index(services: Services, request: pb.GetIndexRequest, model: str | None) -> bytes:
    """Describe an index."""
    info = await indexes.get_index(services, request.name)
    return protobuf.write(pb.IndexInfo, info).SerializeToString()


async def drop_index(services: Services, request: pb.DropIndexRequest, model: str | None) -> bytes:
    """Drop an index."""
    await indexes.drop_index(services, request.name)
    return pb.DropIndexResponse().SerializeToString()


async def upsert_documents(
    services: Services, request: pb.UpsertRequest, model: str | None
) -> bytes:
    """Write documents."""
    documents = await convert.read_documents(services, request.documents, services.limits.max_items)
    vectors = None
    if request.vectors:
        vectors = convert.read_vectors(request.vectors, "vectors", rows=len(documents))
    written = await indexes.upsert_documents(
        services,
        request.index,
        documents,
        vectors=vectors,
        fingerprint=request.fingerprint or None,
    )
    return protobuf.write(pb.UpsertResponse, written).SerializeToString()


async def delete_documents(
    services: Services, request: pb.DeleteRequest, model: str | None
) -> bytes:
    """Delete documents."""
    filter = convert.read_filter(request)
    # An empty list where the request holds neither: the job refuses that.
    ids = list(request.ids) if request.ids or filter is None else None
    deleted = await indexes.delete_documents(services, request.index, ids, filter=filter)
    return pb.DeleteResponse(deleted=deleted).SerializeToString()


async def query_index(services: Services, request: pb.QueryRequest, model: str | None) -> bytes:
    """Find the nearest passages."""
    by = request.WhichOneof("by")
    vector = convert.read_vectors(request.vector, "vector", rows=1)[0] if by == "vector" else None
    hits = await retrieval.query_index(
        services,
        request.index,
        request.query if by == "query" else None,
        vector=vector,
        fingerprint=request.fingerprint or None,
        top_k=request.top_k or 10,
        mode=cast(SearchMode | None, request.mode or None),  # the job checks it
        filter=convert.read_filter(request),
    )
    return protobuf.write(pb.QueryResponse, {"results": hits}).SerializeToString()


async def count_documents(services: Services, request: pb.CountRequest, model: str | None) -> bytes:
    """Count documents and passages."""
    filter = convert.read_filter(request)
    documents, passages = await indexes.count_documents(services, request.index, filter=filter)
    return pb.CountResponse(documents=documents, passages=passages).SerializeToString()


async def get_documents(
    services: Services, request: pb.GetDocumentsRequest, model: str | None
) -> bytes:
    """Return documents by id."""
    documents = await indexes.get_documents(services, request.index, list(request.ids))
    reply = await asyncio.to_thread(
        protobuf.write, pb.GetDocumentsResponse, {"documents": documents}
    )
    return reply.SerializeToString()


async def scroll_documents(
    services: Services, request: pb.ScrollRequest, model: str | None
) -> bytes:
    """Return documents by id, page by page."""
    page = await indexes.scroll_documents(
        services,
        request.index,
        filter=convert.read_filter(request),
        limit=request.limit or None,
        after=request.after or None,
        with_text=read_optional(request, "with_text", True),
        with_metadata=read_optional(request, "with_metadata", True),
        with_vectors=request.with_vectors,
    )
    reply = await asyncio.to_thread(protobuf.write, pb.ScrollResponse, page)
    return reply.SerializeToString()


async def update_aliases(
    services: Services, request: pb.UpdateAliasesRequest, model: str | None
) -> bytes:
    """Change aliases."""
    check_count(request.actions, "actions", services.limits.max_items)
    actions = [
        _read_action(action, f"actions[{place}]") for place, action in enumerate(request.actions)
    ]
    return _write_aliases(await maintenance.update_index_aliases(services, actions))


async def list_aliases(
    services: Services, request: pb.ListAliasesRequest, model: str | None
) -> bytes:
    """List aliases."""
    return _write_aliases(await maintenance.list_index_aliases(services))


async def create_snapshot(
    services: Services, request: pb.CreateSnapshotRequest, model: str | None
) -> bytes:
    """Make a snapshot."""
    snapshot = await maintenance.create_snapshot(services, request.index)
    return protobuf.write(pb.Snapshot, snapshot).SerializeToString()


async def list_snapshots(
    services: Services, request: pb.ListSnapshotsRequest, model: str | None
) -> bytes:
    """List snapshots."""
    snapshots = await maintenance.list_snapshots(services, request.index)
    return protobuf.write(pb.ListSnapshotsResponse, snapshots).SerializeToString()


async def delete_snapshot(
    services: Services, request: pb.DeleteSnapshotRequest, model: str | None
) -> bytes:
    """Delete a snapshot."""
    await maintenance.delete_snapshot(services, request.index, request.snapshot)
    return pb.DeleteSnapshotResponse().SerializeToString()


async def restore_snapshot(
    services: Services, request: pb.RestoreSnapshotRequest, model: str | None
) -> bytes:
    """Make an index of a snapshot."""
    info = await maintenance.restore_snapshot(
        services, request.index, request.snapshot, into=request.into or None
    )
    return protobuf.write(pb.IndexInfo, info).SerializeToString()


async def rebuild_index(
    services: Services, request: pb.RebuildIndexRequest, model: str | None
) -> bytes:
    """Begin a rebuild."""
    rebuild = await maintenance.rebuild_index(
        services,
        request.index,
        encoder=model,
        metric=request.metric or None,
        kind=request.kind or None,
        options=dict(request.options.values) if request.HasField("options") else None,
    )
    return protobuf.write(pb.Rebuild, rebuild).SerializeToString()


async def get_rebuild(
    services: Services, request: pb.GetRebuildRequest, model: str | None
) -> bytes:
    """Return how far a rebuild has come."""
    rebuild = await maintenance.get_rebuild(services, request.index)
    return protobuf.write(pb.Rebuild, rebuild).SerializeToString()


async def cancel_rebuild(
    services: Services, request: pb.CancelRebuildRequest, model: str | None
) -> bytes:
    """Cancel a rebuild."""
    await maintenance.cancel_rebuild(services, request.index)
    return pb.CancelRebuildResponse().SerializeToString()


def _read_action(action: pb.AliasAction, field: str) -> values.AliasAction:
    kind = action.WhichOneof("action")
    if kind == "create_alias":
        return values.AliasAction("create", action.create_alias.alias, action.create_alias.index)
    if kind == "delete_alias":
        return values.AliasAction("delete", action.delete_alias.alias)
    if kind == "rename_alias":
        return values.AliasAction("rename", action.rename_alias.alias, action.rename_alias.to)
    raise InputError(
        f"{field}: it holds no action; set one of create_alias, delete_alias, rename_alias.",
        field=field,
    )


def _write_aliases(aliases: Iterable[values.Alias]) -> bytes:
    return protobuf.write(pb.AliasesResponse, {"data": aliases}).SerializeToString()


async def answer_question(
    services: Services, request: pb.AnswerRequest, model: str | None
) -> bytes:
    """Answer a question."""
    result = await answer.answer_whole(services, await _read_question(services, request, model))
    return convert.serialize_timed(services, result, partial(protobuf.write, pb.AnswerResponse))


async def answer_events(
    services: Services, request: pb.AnswerRequest, model: str | None
) -> AsyncGenerator[bytes, None]:
    """Answer a question, event by event."""
    events: Any = answer.answer(services, await _read_question(services, request, model))
    async with aclosing(events) as stream:
        async for event in stream:
            yield convert.write_event(event).SerializeToString()


async def compare_answers(
    services: Services, request: pb.AnswerRequest, model: str | None
) -> bytes:
    """Answer a question twice, from vectors and from text."""
    comparison = await answer.compare_answers(
        services, await _read_question(services, request, model)
    )
    with services.metrics.stage(comparison.compressed.model, "serialize"):
        return protobuf.write(pb.CompareResponse, comparison).SerializeToString()


async def compress_documents(
    services: Services, request: pb.CompressRequest, model: str | None
) -> bytes:
    """Compress documents for a question."""
    result = await answer.compress_documents(
        services,
        request.query,
        await _read_documents(services, request.documents),
        model=model,
        ratio=read_optional(request, "ratio"),
        keep=read_optional(request, "keep", True),
        ttl_s=read_optional(request, "ttl_s", DEFAULT_CONTEXT_SECONDS),
    )
    return convert.serialize_timed(services, result, partial(protobuf.write, pb.CompressResponse))


async def release_context(
    services: Services, request: pb.ReleaseContextRequest, model: str | None
) -> bytes:
    """Release a context."""
    answer.release_context(services, request.context)
    return pb.ReleaseContextResponse().SerializeToString()


async def _read_question(
    services: Services, request: pb.AnswerRequest, model: str | None
) -> Question:
    documents = await _read_documents(services, request.documents) if request.documents else []
    return convert.read_question(request, documents, model)


async def _read_documents(services: Services, messages: Sequence[pb.Document]) -> list[Document]:
    documents = await convert.read_documents(
        services, messages, services.limits.max_answer_documents
    )
    return [
        document if document.id else replace(document, id=str(place))
        for place, document in enumerate(documents)
    ]


async def list_models(
    services: Services, request: pb.ListModelsRequest, model: str | None
) -> bytes:
    """List the models that serve, aliases too, and those that could not be loaded."""
    listing = {"data": models.list_models(services), "refused": services.registry.refusals()}
    return protobuf.write(pb.ListModelsResponse, listing).SerializeToString()


async def get_report(services: Services, request: pb.GetReportRequest, model: str | None) -> bytes:
    """Return what a model was measured at."""
    name = model or ""
    reply = protobuf.write(pb.GetReportResponse, await models.read_model_report(services, name))
    if request.with_card:
        reply.card = await models.read_model_card(services, name)
    for plot in dict.fromkeys(request.with_plots):
        reply.pictures[plot] = await models.read_model_plot(services, name, plot)
    return reply.SerializeToString()


async def list_stored_models(
    services: Services, request: pb.StoredModelsRequest, model: str | None
) -> bytes:
    """List every stored version of every model, and which of them serve."""
    versions = await models.list_versions(services)
    return protobuf.write(pb.StoredModelsResponse, {"data": versions}).SerializeToString()


async def load_model(services: Services, request: pb.LoadModelRequest, model: str | None) -> bytes:
    """Load a stored model, and let it serve in place of the version that does."""
    loaded = await models.load_model(
        services, _check_model_named(model), request.version or None, again=request.again
    )
    return protobuf.write(pb.LoadModelResponse, loaded).SerializeToString()


async def unload_model(
    services: Services, request: pb.UnloadModelRequest, model: str | None
) -> bytes:
    """Unload a model."""
    unloaded = await models.unload_model(services, _check_model_named(model), force=request.force)
    return protobuf.write(pb.UnloadModelResponse, unloaded).SerializeToString()


async def set_model_aliases(
    services: Services, request: pb.SetAliasRequest, model: str | None
) -> bytes:
    """Set aliases of models, or remove them."""
    changes = {alias: target or None for alias, target in request.aliases.items()}
    aliases = await models.set_model_aliases(services, changes)
    return pb.SetAliasResponse(aliases=aliases).SerializeToString()


def _check_model_named(model: str | None) -> str:
    if not model:
        raise InputError("model: it is missing; there is no default for this call.", field="model")
    return model


_index: Callable[..., RpcMethod[Any]] = partial(RpcMethod, "Index", task="index")
_maintenance: Callable[..., RpcMethod[Any]] = partial(RpcMethod, "IndexUpkeep", task="index")
_rag: Callable[..., RpcMethod[Any]] = partial(RpcMethod, "Rag", scope="infer")
_models: Callable[..., RpcMethod[Any]] = partial(RpcMethod, "Models", scope="infer", task=None)
_admin: Callable[..., RpcMethod[Any]] = partial(RpcMethod, "Admin", scope="admin", task=None)
_WRITE: KeyScope = "index-write"

METHODS: tuple[RpcMethod[Any], ...] = (
    RpcMethod("Embedding", "EmbedBatch", pb.EmbedBatchRequest, "infer", "embed", embed_batch),
    RpcMethod("Rerank", "Rerank", pb.RerankRequest, "infer", "rerank", rerank_passages),
    _index("Create", pb.CreateIndexRequest, _WRITE, unary=create_index, model_field="encoder"),
    _index("List", pb.ListIndexesRequest, "infer", unary=list_indexes),
    _index("Get", pb.GetIndexRequest, "infer", unary=get_index, index_field="name"),
    _index("Drop", pb.DropIndexRequest, _WRITE, unary=drop_index, index_field="name"),
    _index("Upsert", pb.UpsertRequest, _WRITE, unary=upsert_documents, index_field="index"),
    _index("Delete", pb.DeleteRequest, _WRITE, unary=delete_documents, index_field="index"),
    _index("Query", pb.QueryRequest, "infer", unary=query_index, index_field="index"),
    _index("Count", pb.CountRequest, "infer", unary=count_documents, index_field="index"),
    _index(
        "GetDocuments", pb.GetDocumentsRequest, "infer", unary=get_documents, index_field="index"
    ),
    _index("Scroll", pb.ScrollRequest, "infer", unary=scroll_documents, index_field="index"),
    _maintenance("UpdateAliases", pb.UpdateAliasesRequest, _WRITE, unary=update_aliases),
    _maintenance("ListAliases", pb.ListAliasesRequest, "infer", unary=list_aliases),
    _maintenance(
        "CreateSnapshot",
        pb.CreateSnapshotRequest,
        _WRITE,
        unary=create_snapshot,
        index_field="index",
    ),
    _maintenance(
        "ListSnapshots", pb.ListSnapshotsRequest, "infer", unary=list_snapshots, index_field="index"
    ),
    _maintenance(
        "DeleteSnapshot",
        pb.DeleteSnapshotRequest,
        _WRITE,
        unary=delete_snapshot,
        index_field="index",
    ),
    _maintenance(
        "RestoreSnapshot",
        pb.RestoreSnapshotRequest,
        _WRITE,
        unary=restore_snapshot,
        index_field="index",
    ),
    _maintenance(
        "RebuildIndex",
        pb.RebuildIndexRequest,
        _WRITE,
        unary=rebuild_index,
        model_field="encoder",
        index_field="index",
    ),
    _maintenance(
        "GetRebuild", pb.GetRebuildRequest, "infer", unary=get_rebuild, index_field="index"
    ),
    _maintenance(
        "CancelRebuild", pb.CancelRebuildRequest, _WRITE, unary=cancel_rebuild, index_field="index"
    ),
    _rag("Answer", pb.AnswerRequest, task="answer", unary=answer_question),
    _rag("AnswerStream", pb.AnswerRequest, task="answer", stream=answer_events),
    _rag("Compare", pb.AnswerRequest, task="compare", unary=compare_answers),
    _rag("Compress", pb.CompressRequest, task="compress", unary=compress_documents),
    _rag("ReleaseContext", pb.ReleaseContextRequest, task="compress", unary=release_context),
    _models("List", pb.ListModelsRequest, unary=list_models),
    _models("GetReport", pb.GetReportRequest, unary=get_report),
    _admin("ListModels", pb.StoredModelsRequest, unary=list_stored_models),
    _admin("LoadModel", pb.LoadModelRequest, unary=load_model),
    _admin("UnloadModel", pb.UnloadModelRequest, unary=unload_model),
    _admin("SetAlias", pb.SetAliasRequest, unary=set_model_aliases),
)
