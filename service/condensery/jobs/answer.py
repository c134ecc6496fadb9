"""A question to an answer: find passages, compress them, read the best, say what was done."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from condensery.errors import CondenseryError, InputError, ModelFault
from condensery.jobs import search
from condensery.jobs.checks import check_choice, check_count, check_range, check_text
from condensery.jobs.ports import Reader, ReadingCost, Token
from condensery.jobs.rerank import sigmoid
from condensery.jobs.services import Services
from condensery.questions import Question
from condensery.values import (
    Answer,
    AnswerEvent,
    Citation,
    CompressedPassage,
    Compression,
    CompressionMode,
    Delta,
    Document,
    FinishReason,
    Hit,
    Passage,
    Retrieved,
    Timings,
    Usage,
)

MODES: tuple[CompressionMode, ...] = ("auto", "required", "off")

T = TypeVar("T")


@dataclass(slots=True)
class Reading:
    """What is known of an answer before its first token.

    ``found`` is every passage, in retrieval order; ``kept`` the places in it of those that the
    generator reads, best first; ``scores`` the relevance of those.
    """

    found: list[Passage]
    kept: list[int]
    scores: list[float]
    compressed: list[CompressedPassage]
    retrieve_ms: float = 0.0
    compress_ms: float = 0.0

    @property
    def texts(self) -> list[str]:
        """The texts that the generator reads, best first."""
        return [self.found[place].text for place in self.kept]

    @property
    def in_context(self) -> list[CompressedPassage]:
        """The compressed passages that the generator reads, best first; none if it reads text."""
        return [self.compressed[place] for place in self.kept] if self.compressed else []


async def answer(services: Services, asked: Question) -> AsyncIterator[AnswerEvent]:
    """Answer a question; yields events as they happen.

    First ``Retrieved`` (the passages in context), then ``Delta``s, last the ``Answer``, whose text
    is the deltas joined. Errors in the request are raised before the first event.

    Raises:
        ModelNotFound, IndexNotFound: No such pair or index.
        EncoderMismatch: The index is another encoder's.
        InputError: As the message says.
        ModelFault: Compressor or generator failed.
    """
    started = time.perf_counter()
    reader = services.pool.reader(asked.model)
    question, mode, max_tokens = asked.text, asked.mode, asked.max_tokens
    documents, index, top_k = asked.documents, asked.index, asked.top_k
    top_n = reader.traits.top_n if asked.top_n is None else asked.top_n
    _check(services, reader, question, documents, index, top_k, top_n, mode, max_tokens)
    top_n = top_n or None
    name = reader.info.name
    identity = f"ans_{secrets.token_hex(12)}"
    hits = await _retrieve(services, question, documents, index, top_k)
    retrieve_ms = _since(started)
    reading = await _read(services, reader, question, hits, top_n, mode)
    reading.retrieve_ms = retrieve_ms
    citations = _cite(reading)
    cost = _cost(reader, question, reading, mode, 0)
    yield Retrieved(identity, name, citations, _block(reading, mode, cost))

    text: list[str] = []
    count, ttft_ms = 0, 0.0
    finish: FinishReason = "length"
    generating = time.perf_counter()
    async with _closing(_generate(reader, question, reading, mode, max_tokens)) as tokens:
        async for token in tokens:
            if not count:
                ttft_ms = _since(started)
                services.metrics.ttft_seconds.labels(name).observe(ttft_ms / 1000)
            count, finish = token.count, token.finish or finish
            if token.text:
                text.append(token.text)
                yield Delta(token.text)
    generate_ms = _since(generating)
    services.metrics.stage_seconds.labels(name, "generate").observe(generate_ms / 1000)
    services.metrics.output_tokens.labels(name).inc(count)
    cost = _cost(reader, question, reading, mode, count)
    yield Answer(
        id=identity,
        model=name,
        text="".join(text),
        finish_reason=finish,
        citations=citations,
        compression=_block(reading, mode, cost),
        usage=Usage(cost.prompt_tokens, cost.context_vectors, count),
        timings=Timings(
            retrieve_ms=reading.retrieve_ms,
            compress_ms=reading.compress_ms,
            generate_ms=generate_ms,
            ttft_ms=ttft_ms,
            total_ms=_since(started),
        ),
    )


async def answered(services: Services, asked: Question) -> Answer:
    """Answer as ``answer`` does, and return only the whole."""
    events = answer(services, asked)
    async with _closing(events) as stream:
        async for event in stream:
            if isinstance(event, Answer):
                return event
    raise ModelFault("The generator ended without an answer.")


def _check(
    services: Services,
    reader: Reader,
    question: str,
    documents: Sequence[Document] | None,
    index: str | None,
    top_k: int,
    top_n: int | None,
    mode: str,
    max_tokens: int,
) -> None:
    limits = services.limits
    most = reader.info.max_tokens * limits.chars_per_token
    check_text(question, "query", most)
    if not question.strip():
        raise InputError("query: the question is empty.", field="query", value=question)
    if (documents is None) == (index is None):
        got = "neither" if documents is None else "both"
        raise InputError(
            f"documents: give `documents` or `index`, one of them; got {got}.", field="documents"
        )
    if documents is not None:
        check_count(documents, "documents", limits.max_answer_documents)
        for place, document in enumerate(documents):
            check_text(document.text, f"documents[{place}].text", most)
    check_range(top_k, "index.top_k", 1, limits.max_answer_documents)
    if top_n is not None:
        check_range(top_n, "rerank.top_n", 0, limits.max_answer_documents)
    check_choice(mode, "compression.mode", MODES)
    check_range(max_tokens, "max_tokens", 1, limits.max_answer_tokens)


async def _retrieve(
    services: Services,
    question: str,
    documents: Sequence[Document] | None,
    index: str | None,
    top_k: int,
) -> list[Hit]:
    """Return the passages to read. Documents that came with the request have no score: 0."""
    if index is not None:
        return await search.query(services, index, question, top_k=top_k)
    return [
        Hit(Passage(one.id, one.id, one.text, 0, len(one.text), one.metadata), 0.0)
        for one in documents or ()
    ]


async def _read(
    services: Services,
    reader: Reader,
    question: str,
    hits: Sequence[Hit],
    top_n: int | None,
    mode: CompressionMode,
) -> Reading:
    """Compress and score every passage in one forward pass, and keep the best."""
    found = [hit.passage for hit in hits]
    if mode == "off" or not found:
        kept = list(range(len(found)))[:top_n]
        return Reading(found, kept, [hits[place].score for place in kept], [])
    started = time.perf_counter()
    compressed = []
    for one in await reader.compress(question, [passage.text for passage in found]):
        if isinstance(one, CondenseryError):
            raise one
        compressed.append(one)
    compress_ms = _since(started)
    raw = np.array([one.relevance for one in compressed], np.float32)
    order = [int(place) for place in np.argsort(-raw, kind="stable")[:top_n]]
    relevance = sigmoid(raw)
    reading = Reading(found, order, [float(relevance[place]) for place in order], compressed)
    reading.compress_ms = compress_ms
    metrics, name = services.metrics, reader.info.name
    metrics.stage_seconds.labels(name, "compress").observe(compress_ms / 1000)
    metrics.compressed_docs.labels(name).inc(len(reading.in_context))
    metrics.context_tokens_in.labels(name).inc(sum(one.tokens_in for one in reading.in_context))
    metrics.context_vectors_out.labels(name).inc(_vectors(reading))
    return reading


def _generate(
    reader: Reader, question: str, reading: Reading, mode: CompressionMode, max_tokens: int
) -> AsyncIterator[Token]:
    context = reading.texts if mode == "off" else [one.memory for one in reading.in_context]
    return reader.generate(question, context, max_tokens=max_tokens)


def _cost(
    reader: Reader, question: str, reading: Reading, mode: CompressionMode, completion: int
) -> ReadingCost:
    return reader.cost(
        question,
        reading.compressed,
        reading.texts if mode == "off" else [one.memory for one in reading.in_context],
        reading.texts,
        completion_tokens=completion,
    )


def _block(reading: Reading, mode: CompressionMode, cost: ReadingCost) -> Compression:
    """Say what compression did to the passages in context; FLOPs count every passage read."""
    return Compression(
        mode=mode,
        status="off" if mode == "off" or not reading.found else "applied",
        docs=len(reading.in_context),
        tokens_in=sum(one.tokens_in for one in reading.in_context),
        vectors_out=_vectors(reading),
        flops_plain=cost.flops_plain,
        flops_used=cost.flops_used,
        compress_ms=reading.compress_ms,
        reason=_reason(reading, cost, mode),
    )


def _reason(reading: Reading, cost: ReadingCost, mode: CompressionMode) -> str | None:
    """Say what the caller would not expect; None if there is nothing."""
    reasons = []
    if mode == "off":
        reasons.append("asked for")
    if not reading.found:
        reasons.append("no passages were found")
    if cost.question_tokens > cost.question_limit:
        reasons.append(
            f"the question was cut to {cost.question_limit} of its {cost.question_tokens} tokens"
        )
    return "; ".join(reasons) or None


def _vectors(reading: Reading) -> int:
    return sum(len(one.memory) for one in reading.in_context)


def _cite(reading: Reading) -> tuple[Citation, ...]:
    """Name the passages in context, best first; a long one by the window that was read.

    ``index`` is a passage's place among the documents given, or among the hits.
    """
    citations = []
    for rank, place in enumerate(reading.kept):
        passage = reading.found[place]
        text, start, end = passage.text, passage.start, passage.end
        if reading.compressed and reading.compressed[place].windows > 1:
            window = reading.compressed[place]
            text = passage.text[window.start : window.end]
            start, end = passage.start + window.start, passage.start + window.end
        citations.append(
            Citation(
                index=place,
                id=passage.id,
                document_id=passage.document_id,
                text=text,
                start=start,
                end=end,
                relevance_score=reading.scores[rank],
                metadata=passage.metadata,
            )
        )
    return tuple(citations)


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


@asynccontextmanager
async def _closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close an async generator when its reader leaves early, not when it is collected."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
