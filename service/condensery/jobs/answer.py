"""A question to an answer: find passages, compress them, read the best, say what was done."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from condensery.answers import (
    Answer,
    AnswerEvent,
    Delta,
    FinishReason,
    Retrieved,
    Timings,
    TokenLogprob,
    Usage,
)
from condensery.callers import current
from condensery.errors import ModelFault
from condensery.jobs.blocks import block, cite, cost_of, count_block
from condensery.jobs.candidates import Gathered
from condensery.jobs.choosing import Reading, choose
from condensery.jobs.ports import Reader
from condensery.jobs.reading import find_reader, gather, since
from condensery.jobs.services import Services
from condensery.questions import Question

# The answer where the best passage is under the threshold: nothing is generated then.
NOT_FOUND = "The passages do not hold the answer."

T = TypeVar("T")


async def answer(services: Services, question: Question) -> AsyncIterator[AnswerEvent]:
    """Answer a question from documents, an index or a context; yields events as they happen.

    First ``Retrieved`` (the passages in context), then ``Delta``s, last the ``Answer``, whose text
    is the deltas joined. Errors in the request are raised before the first event. Closing the
    stream ends the work.

    Raises:
        ModelNotFound, IndexNotFound, ContextNotFound: No such pair, index or context.
        EncoderMismatch, ContextMismatch: The index is another encoder's; the context another
            question's or pair's.
        InputError: As the message says; ContextTooLong where not even one passage fits.
        CompressionFailed: A passage could not be compressed, and compression is required.
        ModelFault: The generator failed.
        Overloaded, Unavailable, DeadlineExceeded: There is no room, or no time left.
    """
    began = time.perf_counter()
    reader, context = find_reader(services, question)
    gathered = await gather(services, reader, question, context)
    reading = await choose(reader, question, gathered)
    async with closing(say(services, reader, question, reading, began)) as events:
        async for event in events:
            yield event


async def answered(services: Services, question: Question) -> Answer:
    """Answer as ``answer`` does, and return only the whole."""
    return await last(answer(services, question))


async def last(events: AsyncIterator[AnswerEvent]) -> Answer:
    """Return the whole answer that ends a stream of events."""
    async with closing(events) as stream:
        async for event in stream:
            if isinstance(event, Answer):
                return event
    raise ModelFault("The generator ended without an answer.")


async def say(
    services: Services, reader: Reader, question: Question, reading: Reading, began: float
) -> AsyncIterator[AnswerEvent]:
    """Generate from a reading; yields the events of an answer.

    What was done is counted once, also where the caller leaves or the generator fails.

    Args:
        services: The running parts.
        reader: The pair.
        question: As it was asked.
        reading: What the generator reads.
        began: When work on the answer began, by ``time.perf_counter``.
    """
    metrics, name, gathered = services.metrics, reader.info.name, reading.gathered
    # A plain reading of passages that were compressed for another took none of that.
    compression = gathered if reading.mode != "off" else Gathered((), ())
    metrics.observe(name, "tokenize", reading.tokenize_ms / 1000)
    current().spent.tokenizing += reading.tokenize_ms / 1000
    identity = f"ans_{secrets.token_hex(12)}"
    citations = cite(reading)
    text: list[str] = []
    logprobs: list[TokenLogprob] = []
    count, ttft_ms, waited_ms = 0, 0.0, 0.0
    finish: FinishReason = "length" if reading.found else "not_found"
    started = time.perf_counter()
    try:
        told = block(reading, cost_of(reading, 0))
        yield Retrieved(identity, name, citations, told)
        started = time.perf_counter()
        if not reading.found:
            text.append(NOT_FOUND)
            ttft_ms = since(began)
            yield Delta(NOT_FOUND)
        else:
            stream = reader.generate_from(
                reading.prompt,
                max_tokens=question.max_tokens,
                sampling=question.sampling,
                stop=question.stop,
            )
            async with closing(stream) as tokens:
                async for token in tokens:
                    if not count:
                        waited_ms = 1000 * token.waited
                        ttft_ms = since(began)
                        metrics.ttft_seconds.labels(name).observe(ttft_ms / 1000)
                    count, finish = token.count, token.finish or finish
                    said = None if token.logprob is None else (token.logprob,)
                    logprobs += said or ()
                    if token.text or said:
                        text.append(token.text)
                        yield Delta(token.text, said)
            metrics.observe(name, "generate", max(0.0, since(started) - waited_ms) / 1000)
    finally:
        generate_ms = max(0.0, since(started) - waited_ms)
        metrics.output_tokens.labels(name).inc(count)
        current().spent.generated += count
        cost = cost_of(reading, count)
        told = block(reading, cost)
        causes = [one.failure.cause for one in reading.as_text if one.failure is not None]
        count_block(metrics, name, told, causes)
    wanted = question.sampling.logprobs is not None and reading.found
    yield Answer(
        id=identity,
        model=name,
        text="".join(text),
        finish_reason=finish,
        citations=citations,
        compression=told,
        usage=Usage(cost.prompt_tokens, cost.context_vectors, count)
        if reading.found
        else Usage(0, 0, 0),
        timings=Timings(
            retrieve_ms=gathered.retrieve_ms,
            compress_ms=max(
                0.0, compression.compress_ms - compression.queue_ms - compression.tokenize_ms
            ),
            generate_ms=generate_ms,
            ttft_ms=ttft_ms,
            total_ms=since(began),
            queue_ms=compression.queue_ms + waited_ms,
            tokenize_ms=compression.tokenize_ms + reading.tokenize_ms,
        ),
        logprobs=tuple(logprobs) if wanted else None,
    )


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close an async generator when its reader leaves early, not when it is collected."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
