"""Each call in three lines: read the message, do the job, write the reply."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message

from condensery.api.grpc import messages
from condensery.errors import InputError
from condensery.jobs import answer as answering
from condensery.jobs import search
from condensery.jobs.embed import embed
from condensery.jobs.rerank import rerank
from condensery.jobs.services import Services
from condensery.metrics import Task
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import CompressionMode

Given = TypeVar("Given", bound=Message)

Unary = Callable[[Services, Given, str | None], Awaitable[Message]]
Streaming = Callable[[Services, Given, str | None], AsyncIterator[Message]]


@dataclass(frozen=True, slots=True)
class Call(Generic[Given]):
    """A method: its path, its request, and what does it.

    Exactly one of ``unary`` and ``stream`` is set. ``task`` is what it counts as in the metrics;
    None is not counted.
    """

    service: str
    name: str
    request: type[Given]
    task: Task | None
    unary: Unary[Given] | None = None
    stream: Streaming[Given] | None = None


async def embed_batch(
    services: Services, given: pb.EmbedBatchRequest, model: str | None
) -> Message:
    """Embed texts."""
    found = await embed(
        services,
        list(given.texts),
        model=model,
        prompt_name=given.prompt_name if given.HasField("prompt_name") else None,
        normalize=given.normalize if given.HasField("normalize") else None,
        truncate=given.truncate if given.HasField("truncate") else True,
        dimensions=given.dimensions if given.HasField("dimensions") else None,
        field="texts",
    )
    return messages.embedded(found)


async def rerank_passages(
    services: Services, given: pb.RerankRequest, model: str | None
) -> Message:
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
    return messages.reranked(found, with_text=given.return_text)


async def create_index(
    services: Services, given: pb.CreateIndexRequest, model: str | None
) -> Message:
    """Create an index."""
    info = await search.create_index(
        services,
        given.name,
        encoder=given.encoder or model,
        metric=given.metric or "ip",
        kind=given.kind or "flat",
    )
    return messages.index_info(info)


async def list_indexes(
    services: Services, given: pb.ListIndexesRequest, model: str | None
) -> Message:
    """List indexes."""
    infos = await search.list_indexes(services)
    return pb.ListIndexesResponse(indexes=[messages.index_info(info) for info in infos])


async def get_index(services: Services, given: pb.GetIndexRequest, model: str | None) -> Message:
    """Describe an index."""
    return messages.index_info(await search.index_info(services, given.name))


async def drop_index(services: Services, given: pb.DropIndexRequest, model: str | None) -> Message:
    """Drop an index."""
    await search.drop_index(services, given.name)
    return pb.DropIndexResponse()


async def upsert(services: Services, given: pb.UpsertRequest, model: str | None) -> Message:
    """Write documents."""
    documents = [messages.document(one, place) for place, one in enumerate(given.documents)]
    for place, one in enumerate(given.documents):
        if not one.id:
            where = f"documents[{place}].id"
            raise InputError(f"{where} is empty", field=where, value="")
    vectors = None
    if given.vectors:
        vectors = messages.unpack(given.vectors, "vectors", rows=max(1, len(documents)))
    found = await search.upsert(
        services,
        given.index,
        documents,
        vectors=vectors,
        fingerprint=given.fingerprint or None,
    )
    return pb.UpsertResponse(
        documents=found.documents, passages=found.passages, tokens=found.tokens
    )


async def delete(services: Services, given: pb.DeleteRequest, model: str | None) -> Message:
    """Delete documents."""
    return pb.DeleteResponse(deleted=await search.delete(services, given.index, list(given.ids)))


async def query(services: Services, given: pb.QueryRequest, model: str | None) -> Message:
    """Find the nearest passages."""
    by = given.WhichOneof("by")
    vector = None
    if by == "vector":
        vector = messages.unpack(given.vector, "vector", rows=1)[0]
    hits = await search.query(
        services,
        given.index,
        given.query if by == "query" else None,
        vector=vector,
        fingerprint=given.fingerprint or None,
        top_k=given.top_k or 10,
    )
    return pb.QueryResponse(hits=[messages.hit(one) for one in hits])


async def count(services: Services, given: pb.CountRequest, model: str | None) -> Message:
    """Count documents and passages."""
    documents, passages = await search.count(services, given.index)
    return pb.CountResponse(documents=documents, passages=passages)


async def list_models(
    services: Services, given: pb.ListModelsRequest, model: str | None
) -> Message:
    """List what serves."""
    return pb.ListModelsResponse(
        models=[messages.model_info(info) for info in services.pool.models()]
    )


def _arguments(given: pb.AnswerRequest, model: str | None) -> dict[str, Any]:
    return {
        "documents": [messages.document(one, place) for place, one in enumerate(given.documents)]
        or (None if given.index else []),
        "index": given.index or None,
        "top_k": given.top_k or 20,
        "top_n": given.top_n if given.HasField("top_n") else 5,
        "model": model,
        # The job checks it.
        "mode": cast(CompressionMode, given.compression_mode or "auto"),
        "max_tokens": given.max_tokens or 64,
    }


async def answer(services: Services, given: pb.AnswerRequest, model: str | None) -> Message:
    """Answer a question."""
    return messages.answer(
        await answering.answered(services, given.query, **_arguments(given, model))
    )


async def answer_stream(
    services: Services, given: pb.AnswerRequest, model: str | None
) -> AsyncIterator[Message]:
    """Answer a question as it happens."""
    events = answering.answer(services, given.query, **_arguments(given, model))
    async with aclosing(events) as stream:  # type: ignore[type-var]  # an async generator
        async for event in stream:
            yield messages.event(event)


CALLS: tuple[Call[Any], ...] = (
    Call("Embedding", "EmbedBatch", pb.EmbedBatchRequest, "embed", embed_batch),
    Call("Rerank", "Rerank", pb.RerankRequest, "rerank", rerank_passages),
    Call("Index", "Create", pb.CreateIndexRequest, "index", create_index),
    Call("Index", "List", pb.ListIndexesRequest, "index", list_indexes),
    Call("Index", "Get", pb.GetIndexRequest, "index", get_index),
    Call("Index", "Drop", pb.DropIndexRequest, "index", drop_index),
    Call("Index", "Upsert", pb.UpsertRequest, "index", upsert),
    Call("Index", "Delete", pb.DeleteRequest, "index", delete),
    Call("Index", "Query", pb.QueryRequest, "index", query),
    Call("Index", "Count", pb.CountRequest, "index", count),
    Call("Rag", "Answer", pb.AnswerRequest, "answer", answer),
    Call("Rag", "AnswerStream", pb.AnswerRequest, "answer", stream=answer_stream),
    Call("Models", "List", pb.ListModelsRequest, None, list_models),
)
