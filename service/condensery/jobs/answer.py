"""A question to an answer: retrieve passages, compress them, read the best, report on it."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from condensery.errors import ModelFault
from condensery.jobs.grounding import AnswerWords, PassageRead
from condensery.jobs.interfaces import AnswerGenerator, OscarModel
from condensery.jobs.reports import (
    cite_answer,
    cite_passages,
    compression_report,
    count_answer_cost,
    count_compression,
    nearest_snippets,
)
from condensery.jobs.retrieval import (
    apply_model_index,
    find_model_and_context,
    milliseconds_since,
    relevance_score,
    retrieve_context,
)
from condensery.jobs.selection import SelectedContext, run_tokenizing, select_context
from condensery.jobs.services import Services
from condensery.jobs.validation import check_server_question
from condensery.metrics import Metrics
from condensery.question import (
    NOT_FOUND,
    Answer,
    AnswerEvent,
    Delta,
    FinishReason,
    Question,
    Retrieved,
    Timings,
    TokenLogprob,
    Usage,
    says_not_found,
)
from condensery.request_context import current_request
from condensery.sentences import Span

T = TypeVar("T")


async def answer(services: Services, question: Question) -> AsyncIterator[AnswerEvent]:
    """Answer a question from documents, an index or a context; yields events as they happen.

    First ``Retrieved`` (the passages in context), then ``Delta``s, last the ``Answer``, whose text
    is the deltas joined. Errors in the request are raised before the first event. Closing the
    stream ends the work.

    Raises:
        ModelNotFound, IndexNotFound, ContextNotFound: No such model, index or context.
        EncoderMismatch, ContextMismatch: The index is another encoder's; the context another
            question's or model's.
        InputError: As the message says; ContextTooLong where not even one passage fits.
        CompressionFailed: A passage could not be compressed, and compression is required.
        ModelFault: The generator failed; AnswerServerFault, AnswerServerUnavailable where that is
            another server's.
        Overloaded, Unavailable, DeadlineExceeded: Nothing is free, or no time is left.
    """
    began = time.perf_counter()
    question = apply_model_index(services, question)
    oscar, context = find_model_and_context(services, question)
    server, retrieving = services.answer_server, question
    if server is not None:
        check_server_question(question)
        # How long that takes, nobody here knows.
        retrieving = replace(question, compression=replace(question.compression, target_ms=None))
    retrieved = await retrieve_context(services, oscar, retrieving, context)
    selected = await select_context(oscar, question, retrieved, server)
    async with closing(stream_answer(services, oscar, question, selected, began)) as events:
        async for event in events:
            if services.shadows is not None and isinstance(event, Answer):
                services.shadows.offer(oscar.info, question, selected, event)
            yield event


async def answer_whole(services: Services, question: Question) -> Answer:
    """Answer as ``answer`` does, and return only the whole."""
    return await collect_answer(answer(services, question))


async def collect_answer(events: AsyncIterator[AnswerEvent]) -> Answer:
    """Return the whole answer that ends a stream of events."""
    async with closing(events) as stream:
        async for event in stream:
            if isinstance(event, Answer):
                return event
    raise ModelFault("The generator ended without an answer.")


async def stream_answer(
    services: Services,
    oscar: OscarModel,
    question: Question,
    selected: SelectedContext,
    began: float,
) -> AsyncIterator[AnswerEvent]:
    """Generate from what was selected; yields the events of an answer.

    What was done is counted once, also where the caller leaves or the generator fails.

    Args:
        began: When work on the answer began, by ``time.perf_counter``.
    """
    metrics, name = services.metrics, oscar.info.name
    metrics.observe(name, "tokenize", selected.tokenize_ms / 1000)
    current_request().stats.tokenizing += selected.tokenize_ms / 1000
    identity = f"ans_{secrets.token_hex(12)}"
    server = selected.server
    elsewhere = oscar.writer if server is None else server.model
    writer = elsewhere if selected.may_answer else None
    citations = cite_passages(selected)
    generation = Generation(began)
    try:
        report = compression_report(selected, count_answer_cost(selected, 0))
        yield Retrieved(identity, name, citations, report, writer)
        stream = generate_text(metrics, oscar, question, selected, generation)
        async with closing(stream) as deltas:
            async for delta in deltas:
                yield delta
    finally:
        if server is None:
            metrics.output_tokens.labels(name).inc(generation.tokens)
        current_request().stats.generated += generation.tokens
        cost = count_answer_cost(selected, generation.tokens)
        report = compression_report(selected, cost)
        failures = (candidate.failure for candidate in selected.as_text)
        causes = [failure.cause for failure in failures if failure is not None]
        count_compression(metrics, name, report, causes)
        for candidate in selected.ranked:
            if candidate.compressed is not None:
                score = relevance_score(candidate.compressed)
                if score is not None:
                    metrics.relevance.labels(name).observe(score)
    read = cost.prompt_tokens if server is None else generation.prompt_tokens
    usage = Usage(read, cost.context_vectors, generation.tokens)
    wanted = question.logprobs is not None and selected.may_answer
    not_found = generation.finish == "not_found"
    metrics.answers.labels(name, generation.finish).inc()
    yield Answer(
        id=identity,
        answer="".join(generation.texts),
        model=name,
        finish_reason=generation.finish,
        citations=(
            cite_answer(selected, citations, generation.spans) if generation.grounded else citations
        ),
        compression=report,
        usage=usage if selected.may_answer else Usage(0, 0, 0),
        timings=generation.timings(selected),
        logprobs=tuple(generation.logprobs) if wanted else None,
        generator=writer,
        grounded=generation.grounded,
        snippets=nearest_snippets(question.query, selected) if not_found else (),
    )


@dataclass(slots=True)
class Generation:
    """What has been generated of an answer, and when (by ``time.perf_counter``)."""

    began: float  # work on the answer
    started: float = 0.0  # generating
    waited_ms: float = 0.0  # for space in the generator's key/value cache
    ttft_ms: float = 0.0  # from `began` to the first token
    finish: FinishReason = "length"
    tokens: int = 0
    prompt_tokens: int = 0  # as another server says
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    # Of each passage read, and then of their headings, the answer's words in it.
    spans: tuple[Span | None, ...] = ()
    grounded: bool | None = None  # whether there are any; None where no answer was found

    @property
    def generate_ms(self) -> float:
        """Milliseconds of generating until now."""
        return max(0.0, milliseconds_since(self.started) - self.waited_ms)

    def add(self, text: str, logprob: TokenLogprob | None = None) -> Delta:
        """Add a stretch of text, and return its event."""
        self.texts.append(text)
        if logprob is None:
            return Delta(text)
        self.logprobs.append(logprob)
        return Delta(text, (logprob,))

    def timings(self, selected: SelectedContext) -> Timings:
        """Return where the answer's time went until now."""
        retrieved = selected.retrieved
        waited_ms, tokenize_ms = retrieved.queue_ms, retrieved.tokenize_ms
        return Timings(
            retrieve_ms=retrieved.retrieve_ms,
            compress_ms=max(0.0, retrieved.compress_ms - waited_ms - tokenize_ms),
            generate_ms=self.generate_ms,
            ttft_ms=self.ttft_ms,
            total_ms=milliseconds_since(self.began),
            queue_ms=waited_ms + self.waited_ms,
            tokenize_ms=tokenize_ms + selected.tokenize_ms,
        )


async def generate_text(
    metrics: Metrics,
    oscar: OscarModel,
    question: Question,
    selected: SelectedContext,
    generation: Generation,
) -> AsyncIterator[Delta]:
    """Generate into ``generation``; or say at once that the passages don't hold the answer."""
    generation.started = time.perf_counter()
    if not selected.may_answer:
        generation.finish = "not_found"
        generation.ttft_ms = milliseconds_since(generation.began)
        yield generation.add(NOT_FOUND)
        return
    name = oscar.info.name
    # An answer is taken from a passage, or from the heading that it stands under.
    passages = [PassageRead(candidate.text, candidate.pointer) for candidate in selected.kept]
    passages += [PassageRead(c.heading, c.heading_pointer) for c in selected.headed]
    as_vectors = {candidate.place for candidate in selected.as_vectors}
    pointed = [
        passage.pointer if candidate.place in as_vectors else None
        for candidate, passage in zip((*selected.kept, *selected.headed), passages, strict=True)
    ]
    generator: AnswerGenerator = selected.server or oscar
    words, quotes = await run_tokenizing(
        selected.texts,
        lambda: (
            AnswerWords(question.query, passages),
            generator.quotes([passage.text for passage in passages], pointed),
        ),
    )
    stream = generator.generate_from_prompt(
        selected.prompt,
        max_tokens=question.max_tokens,
        sampling=question.sampling,
        stop=question.stop,
        quotes=quotes,
    )
    try:
        async with closing(stream) as tokens:
            async for token in tokens:
                if not generation.tokens:
                    generation.waited_ms = 1000 * token.waited
                    generation.ttft_ms = milliseconds_since(generation.began)
                    metrics.ttft_seconds.labels(name).observe(generation.ttft_ms / 1000)
                generation.tokens = token.count
                if selected.server is not None:
                    generation.prompt_tokens = token.prompt_tokens or 0
                generation.finish = token.finish or generation.finish
                text = words.push(token.text)
                if text or token.logprob is not None:
                    yield generation.add(text, token.logprob)
    except Exception:
        # What was written before it failed was held back only to find its letters.
        rest, _ = words.end(cut=True, stop=question.stop)
        if rest:
            yield generation.add(rest)
        raise
    cut = generation.finish != "stop" or bool(question.stop)
    rest, whole = words.end(cut=cut, stop=question.stop)
    if rest:
        yield generation.add(rest)
    if whole.stopped:
        generation.finish = "stop"
    if selected.server is not None and says_not_found(whole.text):
        generation.finish = "not_found"
    else:
        generation.spans, generation.grounded = whole.spans, whole.grounded
    metrics.observe(name, "generate", generation.generate_ms / 1000)


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close an async generator when its consumer leaves early, not when it is collected."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
