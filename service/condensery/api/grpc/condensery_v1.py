"""The contract condensery.v1: each method reads its request, does the job, writes the reply.

Most are a job and no more (``_job_method``): the request's fields are the job's arguments, and what
it returns is the reply, both by their names (``protobuf``).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from condensery import protobuf, values
from condensery.api.grpc import convert
from condensery.api.grpc.errors import Family
from condensery.auth import KeyScope
from condensery.encodings import ENCODINGS, Encoding
from condensery.errors import InputError
from condensery.jobs import (
    answer,
    comparison,
    compression,
    indexes,
    maintenance,
    models,
    retrieval,
)
from condensery.jobs.embed import check_scaled, embed, encode_vectors
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.jobs.validation import check_choice, check_count
from condensery.metrics import Task
from condensery.question import Question
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Document, SearchMode

Request = TypeVar("Request", bound=Message)

# Takes the services, the request and the model it names; returns the reply: its bytes, a message,
# or what ``protobuf.write`` makes one of (None is an empty one).
UnaryHandler = Callable[[Services, Request, str | None], Awaitable[Any]]
StreamHandler = Callable[[Services, Request, str | None], AsyncGenerator[bytes, None]]
# The same, with all messages of a stream.
GatherHandler = Callable[[Services, Sequence[Request], str | None], Awaitable[Any]]

MESSAGES_AT_ONCE = 256  # of one stream: several batches' worth


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
        contract: The file that describes it.
    """

    service: str
    name: str
    scope: KeyScope
    task: Task | None
    unary: UnaryHandler[Request] | None = None
    stream: StreamHandler[Request] | None = None
    model_field: str = "model"
    index_field: str | None = None
    each: UnaryHandler[Request] | None = None
    gather: GatherHandler[Request] | None = None
    at_once: int = MESSAGES_AT_ONCE
    contract: Any = pb.DESCRIPTOR
    family: Family = "condensery"
    request: type[Request] = field(init=False)
    reply: type[Message] = field(init=False)

    def __post_init__(self) -> None:
        described = self.contract.services_by_name[self.service].methods_by_name[self.name]
        request = GetMessageClass(described.input_type)
        reply = GetMessageClass(described.output_type)
        values.set_derived(self, request=request, reply=reply)

    @property
    def service_name(self) -> str:
        """The service's, with its package."""
        return f"{self.contract.package}.{self.service}"

    @property
    def path(self) -> str:
        """As clients call it."""
        return f"/{self.service_name}/{self.name}"

    @property
    def streamed(self) -> bool:
        """Whether its messages come as a stream."""
        return self.each is not None or self.gather is not None

    async def run(self, services: Services, request: Any, model: str | None) -> bytes:
        """Return the reply to a message, or to all messages of a stream."""
        handler: Any = self.unary or self.each or self.gather
        reply = await handler(services, request, model)
        if isinstance(reply, bytes):
            return reply
        if not isinstance(reply, Message):
            reply = protobuf.write(self.reply, {} if reply is None else reply)
        return reply.SerializeToString()


async def embed_batch(
    services: Services, request: pb.EmbedBatchRequest, model: str | None
) -> bytes:
    """Embed texts."""
    normalize = request.normalize if request.HasField("normalize") else None
    encoding = cast(Encoding, request.dtype or "float32")
    side = "left" if request.truncate_left else "right"
    with convert.rename_fields(request):
        check_choice(encoding, "embed_dtype", ENCODINGS)
        check_scaled(normalize, encoding)
        result = await protobuf.call(embed, (services,), request, model=model, side=side)
        packed = await encode_vectors(result, encoding)
    return convert.serialize_timed(
        services, result, partial(convert.write_embeddings, encoded=packed, encoding=encoding)
    )


async def rerank_passages(
    services: Services, request: pb.RerankRequest, model: str | None
) -> bytes:
    """Order passages."""
    with convert.rename_fields(request):
        result = await protobuf.call(rerank, (services,), request, model=model)
    return convert.serialize_timed(
        services, result, partial(convert.write_ranking, with_text=request.return_text)
    )


async def upsert_documents(
    services: Services, request: pb.UpsertRequest, model: str | None
) -> values.Upserted:
    """Write documents."""
    documents = await convert.read_documents(services, request.documents, services.limits.max_items)
    vectors = None
    if request.vectors:
        vectors = convert.read_vectors(request.vectors, "vectors", rows=len(documents))
    return await indexes.upsert_documents(
        services,
        request.index,
        documents,
        vectors=vectors,
        fingerprint=request.fingerprint or None,
    )


async def delete_documents(
    services: Services, request: pb.DeleteRequest, model: str | None
) -> dict[str, int]:
    """Delete documents."""
    filter = convert.read_filter(request)
    # An empty list where the request holds neither: the job refuses that.
    ids = list(request.ids) if request.ids or filter is None else None
    return {"deleted": await indexes.delete_documents(services, request.index, ids, filter=filter)}


async def query_index(
    services: Services, request: pb.QueryRequest, model: str | None
) -> dict[str, list[values.Hit]]:
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
    return {"results": hits}


async def get_documents(
    services: Services, request: pb.GetDocumentsRequest, model: str | None
) -> pb.GetDocumentsResponse:
    """Return documents by id; their metadata take a while to write."""
    documents = await indexes.get_documents(services, request.index, list(request.ids))
    reply = {"documents": documents}
    return await asyncio.to_thread(protobuf.write, pb.GetDocumentsResponse, reply)


async def scroll_documents(
    services: Services, request: pb.ScrollRequest, model: str | None
) -> pb.ScrollResponse:
    """Return documents by id, page by page."""
    page = await protobuf.call(indexes.scroll_documents, (services, request.index), request)
    return await asyncio.to_thread(protobuf.write, pb.ScrollResponse, page)


async def update_aliases(
    services: Services, request: pb.UpdateAliasesRequest, model: str | None
) -> dict[str, list[values.Alias]]:
    """Change aliases."""
    check_count(request.actions, "actions", services.limits.max_items)
    actions = [
        _read_action(action, f"actions[{place}]") for place, action in enumerate(request.actions)
    ]
    return {"data": await maintenance.update_index_aliases(services, actions)}


def _read_action(action: pb.AliasAction, field: str) -> values.AliasAction:
    kind = action.WhichOneof("action")
    if kind == "create_alias":
        return values.AliasAction("create", action.create_alias.alias, action.create_alias.index)
    if kind == "delete_alias":
        return values.AliasAction("delete", action.delete_alias.alias)
    if kind == "rename_alias":
        return values.AliasAction("rename", action.rename_alias.alias, action.rename_alias.to)
    raise InputError.at(
        field, "it holds no action; set one of create_alias, delete_alias, rename_alias."
    )


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
    compared = await comparison.compare_answers(
        services, await _read_question(services, request, model)
    )
    with services.metrics.stage(compared.compressed.model, "serialize"):
        return protobuf.write(pb.CompareResponse, compared).SerializeToString()


async def compress_documents(
    services: Services, request: pb.CompressRequest, model: str | None
) -> bytes:
    """Compress documents for a question."""
    documents = await _read_documents(services, request.documents)
    result = await protobuf.call(
        compression.compress_documents, (services,), request, documents=documents, model=model
    )
    return convert.serialize_timed(services, result, partial(protobuf.write, pb.CompressResponse))


async def release_context(
    services: Services, request: pb.ReleaseContextRequest, model: str | None
) -> None:
    """Release a context."""
    compression.release_context(services, request.context)


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
) -> dict[str, Any]:
    """List the models that serve, aliases too, and those that could not be loaded."""
    return {"data": models.list_models(services), "refused": services.registry.refusals()}


async def get_report(
    services: Services, request: pb.GetReportRequest, model: str | None
) -> pb.GetReportResponse:
    """Return what a model was measured at."""
    name = model or ""
    reply = protobuf.write(pb.GetReportResponse, await models.read_model_report(services, name))
    if request.with_card:
        reply.card = await models.read_model_card(services, name)
    for plot in dict.fromkeys(request.with_plots):
        reply.pictures[plot] = await models.read_model_plot(services, name, plot)
    return reply


async def load_model(
    services: Services, request: pb.LoadModelRequest, model: str | None
) -> values.ModelLoad:
    """Load a stored model, and let it serve in place of the version that does."""
    name = _check_model_named(model)
    return await protobuf.call(models.load_model, (services, name), request)


async def unload_model(
    services: Services, request: pb.UnloadModelRequest, model: str | None
) -> values.ModelUnload:
    """Unload a model."""
    name = _check_model_named(model)
    return await protobuf.call(models.unload_model, (services, name), request)


async def set_model_aliases(
    services: Services, request: pb.SetAliasRequest, model: str | None
) -> dict[str, Any]:
    """Set aliases of models, or remove them."""
    changes = {alias: target or None for alias, target in request.aliases.items()}
    return {"aliases": await models.set_model_aliases(services, changes)}


def _check_model_named(model: str | None) -> str:
    if not model:
        raise InputError.at("model", "it is missing; there is no default for this call.")
    return model


def _job_method(
    service: str,
    name: str,
    scope: KeyScope,
    job: Callable[..., Awaitable[Any]],
    within: str | tuple[str, ...] | None = None,
    *,
    task: Task | None = "index",
    index_field: str | None = None,
    takes_encoder: bool = False,
) -> RpcMethod[Any]:
    """Return the method that is a job and no more.

    Args:
        job: Takes the services, the index's name, and the request's fields by their names.
        within: The reply's field, by REST's name, that holds what the job returns, or the fields of
            a tuple; None is the reply itself.
        task: What it counts as; None is not counted, and a write to an index is ``index-write``.
        takes_encoder: Whether the model that the request names is the job's ``encoder``.
    """
    if task == "index" and scope == _WRITE:
        task = "index-write"

    async def run(services: Services, request: Message, model: str | None) -> Any:
        index = () if index_field is None else (getattr(request, index_field),)
        known = {"encoder": model} if takes_encoder else {}
        result = await protobuf.call(job, (services, *index), request, **known)
        if isinstance(within, tuple):
            return dict(zip(within, result, strict=True))
        return result if within is None else {within: result}

    model_field = "encoder" if takes_encoder else "model"
    return RpcMethod(
        service, name, scope, task, run, model_field=model_field, index_field=index_field
    )


COUNTS = ("documents", "passages")
_READ: KeyScope = "infer"
_WRITE: KeyScope = "index-write"
_index = partial(_job_method, "Index")
_index_documents: Callable[..., RpcMethod[Any]] = partial(RpcMethod, "Index", index_field="index")
_upkeep = partial(_job_method, "IndexUpkeep")
_answer: Callable[..., RpcMethod[Any]] = partial(RpcMethod, "Rag", scope="infer", task="answer")
_compress: Callable[..., RpcMethod[Any]] = partial(RpcMethod, "Rag", scope="infer", task="compress")

METHODS: tuple[RpcMethod[Any], ...] = (
    RpcMethod("Embedding", "EmbedBatch", _READ, "embed", embed_batch),
    RpcMethod("Rerank", "Rerank", _READ, "rerank", rerank_passages),
    _index("Create", _WRITE, indexes.create_index, takes_encoder=True),
    _index("List", _READ, indexes.list_indexes, "data"),
    _index("Get", _READ, indexes.get_index, index_field="name"),
    _index("Drop", _WRITE, indexes.drop_index, index_field="name"),
    _index_documents("Upsert", _WRITE, "index-write", unary=upsert_documents),
    _index_documents("Delete", _WRITE, "index-write", unary=delete_documents),
    _index_documents("Query", _READ, "index", unary=query_index),
    _index("Count", _READ, indexes.count_documents, COUNTS, index_field="index"),
    _index_documents("GetDocuments", _READ, "index", unary=get_documents),
    _index_documents("Scroll", _READ, "index", unary=scroll_documents),
    RpcMethod("IndexUpkeep", "UpdateAliases", _WRITE, "index-write", update_aliases),
    _upkeep("ListAliases", _READ, maintenance.list_index_aliases, "data"),
    _upkeep("CreateSnapshot", _WRITE, maintenance.create_snapshot, index_field="index"),
    _upkeep("ListSnapshots", _READ, maintenance.list_snapshots, index_field="index"),
    _upkeep("DeleteSnapshot", _WRITE, maintenance.delete_snapshot, index_field="index"),
    _upkeep("RestoreSnapshot", _WRITE, maintenance.restore_snapshot, index_field="index"),
    _upkeep(
        "RebuildIndex", _WRITE, maintenance.rebuild_index, index_field="index", takes_encoder=True
    ),
    _upkeep("GetRebuild", _READ, maintenance.get_rebuild, index_field="index"),
    _upkeep("CancelRebuild", _WRITE, maintenance.cancel_rebuild, index_field="index"),
    _answer("Answer", unary=answer_question),
    _answer("AnswerStream", stream=answer_events),
    _answer("Compare", task="compare", unary=compare_answers),
    _compress("Compress", unary=compress_documents),
    _compress("ReleaseContext", unary=release_context),
    RpcMethod("Models", "List", _READ, None, list_models),
    RpcMethod("Models", "GetReport", _READ, None, get_report),
    _job_method("Admin", "ListModels", "admin", models.list_versions, "data", task=None),
    RpcMethod("Admin", "LoadModel", "admin", None, load_model),
    RpcMethod("Admin", "UnloadModel", "admin", None, unload_model),
    RpcMethod("Admin", "SetAlias", "admin", None, set_model_aliases),
)
