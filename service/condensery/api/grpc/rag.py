"""Answers, comparisons and contexts: each call in three lines, as in ``calls``."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from condensery.api.grpc import answers as messages
from condensery.api.grpc.bodies import read_documents, write
from condensery.jobs import answer as answering
from condensery.jobs import compare as comparing
from condensery.jobs import compress as compressing
from condensery.jobs.services import Services
from condensery.questions import Question
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Document

KEEP_SECONDS = 600.0  # as the contract says


async def answer(services: Services, given: pb.AnswerRequest, model: str | None) -> bytes:
    """Answer a question."""
    found = await answering.answered(services, await _question(services, given, model))
    return write(services, found, messages.answer)


async def answer_stream(
    services: Services, given: pb.AnswerRequest, model: str | None
) -> AsyncGenerator[bytes, None]:
    """Answer a question as it happens."""
    events: Any = answering.answer(services, await _question(services, given, model))
    async with aclosing(events) as stream:
        async for event in stream:
            yield messages.event(event).SerializeToString()


async def compare(services: Services, given: pb.AnswerRequest, model: str | None) -> bytes:
    """Answer a question twice, from vectors and from text."""
    found = await comparing.compare(services, await _question(services, given, model))
    with services.metrics.stage(found.compressed.model, "serialize"):
        return messages.comparison(found).SerializeToString()


async def compress(services: Services, given: pb.CompressRequest, model: str | None) -> bytes:
    """Compress documents for a question."""
    seconds = messages.optional(given, "ttl_s")
    found = await compressing.compress(
        services,
        given.query,
        await _documents(services, given.documents),
        model=model,
        rate=messages.optional(given, "ratio"),
        keep=given.keep if given.HasField("keep") else True,
        ttl_seconds=KEEP_SECONDS if seconds is None else seconds,
    )
    return write(services, found, messages.compressed)


async def release(services: Services, given: pb.ReleaseContextRequest, model: str | None) -> bytes:
    """Let go of a context."""
    compressing.release(services, given.context)
    return pb.ReleaseContextResponse().SerializeToString()


async def _question(services: Services, given: pb.AnswerRequest, model: str | None) -> Question:
    documents = await _documents(services, given.documents) if given.documents else []
    return messages.question(given, documents, model)


async def _documents(services: Services, given: Sequence[pb.Document]) -> list[Document]:
    read = await read_documents(services, given, services.limits.max_answer_documents)
    return [one if one.id else replace(one, id=str(place)) for place, one in enumerate(read)]
