"""A question to an answer: retrieve passages, compress them, read the best, report on it.

Two more jobs share the report: the same question answered from vectors and from plain text
(``compare_answers``), and documents compressed now for answers later (``compress_documents``).
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from condensery.errors import InputError, ModelFault, ModelNotFound
from condensery.jobs.contexts import (
    CompressedContext,
    PassageFailure,
    blank_reasons,
    check_lifetime,
    count_text_bytes,
    failure_reasons,
)
from condensery.jobs.interfaces import AnswerGenerator, CountedAnswer, OscarModel
from condensery.jobs.retrieval import (
    compress_passages,
    find_model_and_context,
    milliseconds_since,
    relevance_score,
    retrieve_context,
)
from condensery.jobs.selection import (
    SelectedContext,
    run_tokenizing,
    select_context,
    select_plain_text,
)
from condensery.jobs.services import Services
from condensery.jobs.validation import (
    check_documents,
    check_query,
    check_server_question,
    choose_vector_counts,
    is_blank,
)
from condensery.metrics import FallbackReason, Metrics
from condensery.question import (
    NOT_FOUND,
    Agreement,
    Answer,
    AnswerCost,
    AnswerEvent,
    Citation,
    Comparison,
    Compressed,
    CompressedDocument,
    CompressedPassage,
    Compression,
    Delta,
    FinishReason,
    Question,
    Retrieved,
    Timings,
    TokenLogprob,
    Usage,
    exact_match,
    f1_score,
)
from condensery.request_context import current_request
from condensery.values import Document, TokenUsage

T = TypeVar("T")

MIN_MILLISECONDS = 1e-3  # under the clock's step; so that no time is divided by 0

PassageOutcome = CompressedPassage | PassageFailure | None  # None: there was nothing to compress


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
    writer = server.model if server is not None and selected.may_answer else None
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
    read = cost.prompt_tokens if server is None else generation.prompt_tokens
    usage = Usage(read, cost.context_vectors, generation.tokens)
    wanted = question.logprobs is not None and selected.may_answer
    yield Answer(
        id=identity,
        answer="".join(generation.texts),
        model=name,
        finish_reason=generation.finish,
        citations=citations,
        compression=report,
        usage=usage if selected.may_answer else Usage(0, 0, 0),
        timings=generation.timings(selected),
        logprobs=tuple(generation.logprobs) if wanted else None,
        generator=writer,
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
    generator: AnswerGenerator = selected.server or oscar
    stream = generator.generate_from_prompt(
        selected.prompt,
        max_tokens=question.max_tokens,
        sampling=question.sampling,
        stop=question.stop,
    )
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
            if token.text or token.logprob is not None:
                yield generation.add(token.text, token.logprob)
    if selected.server is not None and says_not_found("".join(generation.texts)):
        generation.finish = "not_found"
    metrics.observe(name, "generate", generation.generate_ms / 1000)


def says_not_found(text: str) -> bool:
    """Whether a text is the sentence by which other servers say that they find no answer."""
    return text.strip(' \t\r\n."').casefold() == NOT_FOUND.rstrip(".").casefold()


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close an async generator when its consumer leaves early, not when it is collected."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


# The report


def cite_passages(selected: SelectedContext) -> tuple[Citation, ...]:
    """Name the passages in context, best first; a long one by what was read of it.

    ``index`` is a passage's place among the request's documents, or among those retrieved.
    """
    return tuple(
        Citation(
            index=candidate.place,
            id=candidate.passage.id,
            document_id=candidate.passage.document_id,
            text=candidate.text,
            start=candidate.passage.start + candidate.span[0],
            end=candidate.passage.start + candidate.span[1],
            relevance_score=candidate.score,
            metadata=candidate.passage.metadata,
        )
        for candidate in selected.kept
    )


def count_answer_cost(selected: SelectedContext, completion_tokens: int) -> AnswerCost:
    """Count what an answer takes, or has taken."""
    return selected.counted.cost(selected.retrieved.read, completion_tokens=completion_tokens)


def compression_report(selected: SelectedContext, cost: AnswerCost) -> Compression:
    """Say what compression did to the passages in context; FLOPs count every passage read.

    Where nothing is generated here, the FLOPs used are the compressor's alone; what another server
    takes is not known, nor what it would save.
    """
    passages = [
        candidate.compressed
        for candidate in selected.as_vectors
        if candidate.compressed is not None
    ]
    used = cost.flops_used
    if not selected.may_answer or selected.server is not None:
        used = selected.counted.compressing(selected.retrieved.read)
    cut = cut_question_reasons(cost) if selected.mode != "off" else []
    return Compression(
        mode=selected.mode,
        status=selected.status,
        docs=len(passages),
        tokens_in=sum(passage.tokens_in for passage in passages),
        vectors_out=sum(
            min(len(memory), selected.vectors)
            for passage in passages
            for memory in passage.memories
        ),
        flops_plain=cost.flops_plain if selected.server is None else 0,
        flops_used=used,
        compress_ms=selected.retrieved.compress_ms,
        reason="; ".join([*selected.reasons, *cut]) or None,
        fallback_docs=tuple(candidate.place for candidate in selected.as_text),
        left_out=selected.left_out,
    )


def count_compression(
    metrics: Metrics, model: str, report: Compression, causes: Iterable[FallbackReason] = ()
) -> None:
    """Count a report once: the metrics are the sums of the reports.

    Args:
        causes: Why each of those in ``report.fallback_docs`` is read as text.
    """
    metrics.compressed_docs.labels(model, "applied").inc(report.docs)
    metrics.compressed_docs.labels(model, "fallback").inc(len(report.fallback_docs))
    metrics.compressed_docs.labels(model, "left_out").inc(len(report.left_out))
    metrics.context_tokens_in.labels(model).inc(report.tokens_in)
    metrics.context_vectors_out.labels(model).inc(report.vectors_out)
    metrics.flops_used.labels(model).inc(report.flops_used)
    metrics.flops_plain.labels(model).inc(report.flops_plain)
    for cause in causes:
        metrics.compression_fallback.labels(model, cause).inc()


def cut_question_reasons(cost: AnswerCost) -> list[str]:
    """Say that the compressor read a part of the question, if it did; the generator reads all."""
    if cost.question_limit is None or cost.question_tokens <= cost.question_limit:
        return []
    cut = f"{cost.question_limit} of its {cost.question_tokens} tokens"
    return [f"for compression the question was cut to {cut}"]


# The same question from vectors and from text


async def compare_answers(services: Services, question: Question) -> Comparison:
    """Answer a question twice from the same passages: from vectors, and from their text.

    Both by the pair's own generator, whatever writes other answers: it is what is compared.

    Passages are found and compressed once. The two answers are generated one after the other, so
    that neither takes the other's time.

    Raises:
        InputError: As for ``answer``; and where compression is off: nothing is compared then.
        ContextTooLong: Not even one passage fits the generator as text.
        Exception: What ``answer`` raises.
    """
    began = time.perf_counter()
    oscar, context = find_model_and_context(services, question)
    if question.compression.mode == "off":
        raise InputError.at(
            "compression.mode",
            "'off' leaves nothing to compare with; give auto or required.",
            question.compression.mode,
        )
    selected = await select_context(
        oscar, question, await retrieve_context(services, oscar, question, context)
    )
    plain_selected = await select_plain_text(oscar, question, selected)
    # Each answer's time is that of its own parts.
    began += plain_selected.tokenize_ms / 1000
    compressed = await collect_answer(stream_answer(services, oscar, question, selected, began))
    shared_ms = selected.retrieved.retrieve_ms + plain_selected.tokenize_ms
    again = time.perf_counter() - shared_ms / 1000
    plain = await collect_answer(stream_answer(services, oscar, question, plain_selected, again))
    took = compressed.timings.compress_ms + compressed.timings.generate_ms
    return Comparison(
        compressed=compressed,
        plain=plain,
        agreement=Agreement(
            exact=bool(exact_match(compressed.answer, [plain.answer])),
            f1=f1_score(compressed.answer, [plain.answer]),
            cosine=await _cosine(services, compressed.answer, plain.answer),
        ),
        speedup=plain.timings.generate_ms / max(took, MIN_MILLISECONDS),
    )


async def _cosine(services: Services, text: str, other: str) -> float | None:
    """Return the cosine of two texts' vectors by the default encoder; None if there is none."""
    try:
        encoder = services.registry.encoder()
    except ModelNotFound:
        return None
    vectors = (await encoder.embed([text, other], field="answer")).vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    return float(vectors[0] @ vectors[1] / max(lengths.prod(), 1e-12))


# Documents compressed now for answers later


async def compress_documents(
    services: Services,
    query: str,
    documents: Sequence[Document],
    *,
    model: str | None = None,
    ratio: int | None = None,
    keep: bool = True,
    ttl_s: float = 600.0,
) -> Compressed:
    """Compress and score documents for a question, in one forward pass.

    Args:
        query: The question: memory is made for it, and serves no other.
        documents: One passage each. A blank one is reported as failed.
        model: An OSCAR model's name; None takes the default.
        ratio: Tokens a vector; None is the model's finest.
        keep: Hold the vectors for answers; the caller gets a handle.
        ttl_s: For so long; 1 to 3600.

    Raises:
        ModelNotFound: No such OSCAR model.
        InputError: As the message says; EmptyInput and PayloadTooLarge among them.
        ModelFault: Not one document could be compressed; a part is reported document by document.
        Overloaded, Unavailable, DeadlineExceeded: Nothing is free, or no time is left.
    """
    oscar = services.registry.pair(model)
    check_query(services.limits, oscar, query)
    check_documents(services.limits, oscar, documents)
    vectors = choose_vector_counts(oscar.traits, ratio, field="ratio")[0]
    caller, size = current_request().caller, 0
    if keep:
        check_lifetime(ttl_s)
        # Metadata may be megabytes, and is counted as it would be printed.
        size = await asyncio.to_thread(count_text_bytes, query, documents)
        services.contexts.check_room(caller, size)
    outcomes, compressed = await _compress_and_report(services, oscar, query, documents, vectors)
    if not keep:
        return compressed
    context = CompressedContext(
        model=oscar.info.name,
        fingerprint=oscar.info.fingerprint,
        question=query,
        documents=tuple(documents),
        passages=tuple(outcomes),
        vectors=vectors,
        text_bytes=size,
    )
    handle = services.contexts.put(caller, context, ttl_s)
    return replace(compressed, context=handle, expires_at=time.time() + ttl_s)


def release_context(services: Services, context: str) -> None:
    """Release a context before its time is over.

    Raises:
        ContextNotFound: There is none, or it is another caller's; ContextExpired among them.
    """
    services.contexts.release(current_request().caller, context)


async def _compress_and_report(
    services: Services,
    oscar: OscarModel,
    query: str,
    documents: Sequence[Document],
    vectors: int,
) -> tuple[list[PassageOutcome], Compressed]:
    """Compress documents, and count it; returns what may be held of each, and the report."""
    started = time.perf_counter()
    texts = [document.text for document in documents if not is_blank(document.text)]
    compressed = await compress_passages(services, oscar, query, texts)
    compress_ms = milliseconds_since(started)
    read = tuple(outcome for outcome in compressed if isinstance(outcome, CompressedPassage))
    errors = [outcome.error for outcome in compressed if isinstance(outcome, PassageFailure)]
    if not read and errors[0] is not None:
        raise errors[0]
    remaining = iter(compressed)
    outcomes = [
        None if is_blank(document.text) else _detach_outcome(next(remaining), vectors)
        for document in documents
    ]
    counted = await run_tokenizing(
        [query], lambda: oscar.count_answer(query, oscar.make_prompt(query, []), None)
    )
    report = _documents_report(counted, outcomes, read, compress_ms)
    count_compression(services.metrics, oscar.info.name, report)
    return outcomes, Compressed(
        id=f"cmp_{secrets.token_hex(12)}",
        model=oscar.info.name,
        fingerprint=oscar.info.fingerprint,
        context=None,
        expires_at=None,
        results=tuple(
            _document_report(place, document.id, outcome)
            for place, (document, outcome) in enumerate(zip(documents, outcomes, strict=True))
        ),
        compression=report,
        usage=TokenUsage(report.tokens_in),
    )


def _detach_outcome(
    outcome: CompressedPassage | PassageFailure, vectors: int
) -> CompressedPassage | PassageFailure:
    """Return what is held of an outcome, and nothing that it refers to.

    A memory is a view of its whole batch's, and an error holds the frames that it went through.
    """
    if isinstance(outcome, PassageFailure):
        return replace(outcome, error=None)
    return outcome.coarsened(vectors)


def _documents_report(
    counted: CountedAnswer,
    outcomes: Sequence[PassageOutcome],
    read: tuple[CompressedPassage, ...],
    compress_ms: float,
) -> Compression:
    """Report what was done and its cost; what it saves, the reports of the answers say."""
    kept = [outcome for outcome in outcomes if isinstance(outcome, CompressedPassage)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, PassageFailure)]
    blank = tuple(place for place, outcome in enumerate(outcomes) if outcome is None)
    reasons = [*blank_reasons(blank)]
    if failed:
        causes = failure_reasons(failed)
        reasons.append(
            f"{len(failed)} of {len(outcomes)} passages could not be compressed ({causes})"
        )
    cost = counted.cost(read, completion_tokens=0)
    return Compression(
        mode="auto",
        status="partial" if failed else "applied",
        docs=len(kept),
        tokens_in=sum(outcome.tokens_in for outcome in kept),
        vectors_out=sum(_count_vectors(outcome) for outcome in kept),
        flops_plain=0,
        flops_used=counted.compressing(read),
        compress_ms=compress_ms,
        reason="; ".join([*reasons, *cut_question_reasons(cost)]) or None,
        left_out=blank,
    )


def _count_vectors(passage: CompressedPassage) -> int:
    return sum(map(len, passage.memories))


def _document_report(place: int, identity: str, outcome: PassageOutcome) -> CompressedDocument:
    if isinstance(outcome, CompressedPassage):
        return CompressedDocument(
            index=place,
            id=identity,
            relevance_score=relevance_score(outcome),
            tokens_in=outcome.tokens_in,
            vectors_out=_count_vectors(outcome),
            windows=outcome.windows,
        )
    reason = "there is no text in it"
    if outcome is not None:
        reason = f"{outcome.reason}: {outcome.message}" if outcome.message else outcome.reason
    return CompressedDocument(place, identity, None, 0, 0, 0, status="failed", reason=reason)
