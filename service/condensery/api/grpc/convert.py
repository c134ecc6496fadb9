"""Requests of condensery.v1 as our values, and values as replies, where names alone don't do it.

All else is ``condensery.protobuf``'s. What values are allowed, jobs decide.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from condensery import protobuf, question, values
from condensery.encodings import Encoded, Encoding
from condensery.errors import InputError
from condensery.jobs.services import Services
from condensery.jobs.validation import check_count
from condensery.protobuf import read_struct
from condensery.question import Question
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Document

FilteredRequest = (
    pb.QueryRequest | pb.AnswerRequest | pb.DeleteRequest | pb.CountRequest | pb.ScrollRequest
)
DOCUMENT_DEPTH = 3  # the request, its list of documents, the document


def read_vectors(data: bytes, field: str, *, rows: int) -> values.Floats:
    """Read ``rows`` packed little-endian float32 vectors, (rows, dims).

    Raises:
        InputError: The bytes don't divide into that many vectors.
    """
    if not data or len(data) % (4 * rows):
        raise InputError.at(
            field, f"{len(data)} bytes are not {rows} vectors of float32.", len(data)
        )
    return protobuf.unpack_floats(data).reshape(rows, -1)


def read_filter(request: FilteredRequest, field: str = "filter") -> dict[str, Any] | None:
    """Return a request's filter, unchecked; None where there is none.

    Raises:
        InputError: As for ``read_struct``.
    """
    return read_struct(request.filter, field) if request.HasField("filter") else None


def read_question(
    request: pb.AnswerRequest, documents: Sequence[Document], model: str | None
) -> Question:
    """Read a question, whose documents are read already.

    ``model`` is the pair that the request names.

    Raises:
        InputError: A value is out of its range, or a filter has no index.
    """
    if request.HasField("filter") and not request.index:  # nested, it would have no place
        raise InputError.at(
            "index.filter", "there is no index to filter; give `index`, or no filter."
        )
    sources = documents or (None if request.index or request.context else [])
    return protobuf.read(Question, request, documents=sources, model=model)


async def read_documents(
    services: Services, messages: Sequence[pb.Document], limit: int
) -> list[Document]:
    """Read at most ``limit`` documents, in a thread.

    They are counted first: millions of empty ones would take half a minute. The metadata of two
    thousand takes 50 ms, in which other requests want their turn.
    """
    check_count(messages, "documents", limit)
    return await asyncio.to_thread(parse_documents, messages, services.limits.max_json_depth)


def parse_documents(messages: Iterable[pb.Document], max_depth: int) -> list[Document]:
    """Read documents.

    Args:
        max_depth: Objects and lists within each other, the request, its list of documents and the
            document counted, as they are over REST.

    Raises:
        InputError: As for ``read_struct``.
    """
    levels = max_depth - DOCUMENT_DEPTH
    return [
        Document(
            message.id,
            message.text,
            read_struct(message.metadata, f"documents[{place}].metadata", levels),
        )
        for place, message in enumerate(messages)
    ]


def write_embeddings(
    result: values.Embedded, encoded: Encoded, encoding: Encoding
) -> pb.EmbedBatchResponse:
    """Write vectors, packed in their encoding."""
    return pb.EmbedBatchResponse(
        model=result.model,
        fingerprint=result.fingerprint,
        vectors=encoded.tobytes(),
        dtype=encoding,
        dims=result.vectors.shape[1],
        tokens=result.tokens,
        truncated=result.truncated,
    )


def write_ranking(ranking: values.Reranked, *, with_text: bool) -> pb.RerankResponse:
    """Write passages in their order."""
    results = [
        pb.Ranked(index=item.index, score=item.relevance_score, text=item.text if with_text else "")
        for item in ranking.items
    ]
    return protobuf.write(pb.RerankResponse, ranking, results=results)


def write_event(event: question.AnswerEvent) -> pb.AnswerEvent:
    """Write one event of a streamed answer."""
    if isinstance(event, question.Delta):
        if event.logprobs is None:
            return pb.AnswerEvent(delta=event.text)
        return protobuf.write(pb.AnswerEvent, event, delta=event.text)
    if isinstance(event, question.Retrieved):
        return pb.AnswerEvent(retrieved=protobuf.write(pb.Retrieved, event))
    return pb.AnswerEvent(final=protobuf.write(pb.AnswerResponse, event))


def serialize_timed(services: Services, result: Any, write: Callable[[Any], Message]) -> bytes:
    """Serialize a job's result, timed as a stage of the model that it names."""
    with services.metrics.stage(result.model, "serialize"):
        return write(result).SerializeToString()


@contextmanager
def rename_fields(request: Message) -> Iterator[None]:
    """Let an error name a field as the request's message does, where the jobs call it as REST."""
    names = protobuf.NAMES[request.DESCRIPTOR.name]
    try:
        yield
    except InputError as error:
        field, bracket, place = (error.field or "").partition("[")
        if field not in names:
            raise
        raise type(error)(
            error.message.replace(field, names[field], 1),
            field=names[field] + bracket + place,
            value=error.value,
        ) from error
