"""A question to an answer: retrieve passages, compress them, read the best, report on it.

Two more jobs share the report: the same question answered from vectors and from plain text
(``compare_answers``), and documents compressed now for answers later (``compress_documents``).
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from condensery.errors import InputError, ModelFault, ModelNotFound
from condensery.jobs.contexts import (
    CompressedContext,
    PassageFailure,
    RetrievedContext,
    blank_reasons,
    check_lifetime,
    count_text_bytes,
    failure_reasons,
)
from condensery.jobs.interfaces import CountedAnswer, OscarModel
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
from condensery.jobs.validation import check_documents, check_query, choose_vector_counts, is_blank
from condensery.metrics import FallbackReason, Metrics
from condensery.question import (
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

# The answer where the best passage is under the threshold: nothing is generated then.
NOT_FOUND = "The passages do not hold the answer."
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
        ModelFault: The generator failed.
        Overloaded, Unavailable, DeadlineExceeded: Nothing is free, or no time is left.
    """
    began = time.perf_counter()
    oscar, context = find_model_and_context(services, question)
    retrieved = await retrieve_context(services, oscar, question, context)
    selected = await select_context(oscar, question, retrieved)
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
        services: The running parts.
        oscar: The OSCAR model.
        question: As it was asked.
        selected: What the generator reads.
        began: When work on the answer began, by ``time.perf_counter``.
    """
    metrics, name, retrieved = services.metrics, oscar.info.name, selected.retrieved
    # Reading the same passages as text took none of their compression.
    compression = retrieved if selected.mode != "off" else RetrievedContext((), ())
    metrics.observe(name, "tokenize", selected.tokenize_ms / 1000)
    current_request().spent.tokenizing += selected.tokenize_ms / 1000
    identity = f"ans_{secrets.token_hex(12)}"
    citations = cite_passages(selected)
    text: list[str] = []
    logprobs: list[TokenLogprob] = []
    count, ttft_ms, waited_ms = 0, 0.0, 0.0
    finish: FinishReason = "length" if selected.may_answer else "not_found"
    started = time.perf_counter()
    try:
        report = compression_report(selected, count_answer_cost(selected, 0))
        yield Retrieved(identity, name, citations, report)
        started = time.perf_counter()
        if not selected.may_answer:
            text.append(NOT_FOUND)
            ttft_ms = milliseconds_since(began)
            yield Delta(NOT_FOUND)
        else:
            stream = oscar.generate_from_prompt(
                selected.prompt,
                max_tokens=question.max_tokens,
                sampling=question.sampling,
                stop=question.stop,
            )
            async with closing(stream) as tokens:
                async for token in tokens:
                    if not count:
                        waited_ms = 1000 * token.waited
                        ttft_ms = milliseconds_since(began)
                        metrics.ttft_seconds.labels(name).observe(ttft_ms / 1000)
                    count, finish = token.count, token.finish or finish
                    logprob = None if token.logprob is None else (token.logprob,)
                    logprobs += logprob or ()
                    if token.text or logprob:
                        text.append(token.text)
                        yield Delta(token.text, logprob)
            metrics.observe(
                name, "generate", max(0.0, milliseconds_since(started) - waited_ms) / 1000
            )
    finally:
        generate_ms = max(0.0, milliseconds_since(started) - waited_ms)
        metrics.output_tokens.labels(name).inc(count)
        current_request().spent.generated += count
        cost = count_answer_cost(selected, count)
        report = compression_report(selected, cost)
        causes = [
            candidate.failure.cause
            for candidate in selected.as_text
            if candidate.failure is not None
        ]
        count_compression(metrics, name, report, causes)
    wanted = question.logprobs is not None and selected.may_answer
    yield Answer(
        id=identity,
        answer="".join(text),
        model=name,
        finish_reason=finish,
        citations=citations,
        compression=report,
        usage=Usage(cost.prompt_tokens, cost.context_vectors, count)
        if selected.may_answer
        else Usage(0, 0, 0),
        timings=Timings(
            retrieve_ms=retrieved.retrieve_ms,
            compress_ms=max(
                0.0, compression.compress_ms - compression.queue_ms - compression.tokenize_ms
            ),
            generate_ms=generate_ms,
            ttft_ms=ttft_ms,
            total_ms=milliseconds_since(began),
            queue_ms=compression.queue_ms + waited_ms,
            tokenize_ms=compression.tokenize_ms + selected.tokenize_ms,
        ),
        logprobs=tuple(logprobs) if wanted else None,
    )


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
    citations = []
    for candidate in selected.kept:
        start, end = candidate.span
        passage = candidate.passage
        citations.append(
            Citation(
                index=candidate.place,
                id=passage.id,
                document_id=passage.document_id,
                text=candidate.text,
                start=passage.start + start,
                end=passage.start + end,
                relevance_score=candidate.score,
                metadata=passage.metadata,
            )
        )
    return tuple(citations)


def count_answer_cost(selected: SelectedContext, completion_tokens: int) -> AnswerCost:
    """Count what an answer takes, or has taken."""
    read = selected.retrieved.read if selected.mode != "off" else ()
    return selected.counted.cost(read, completion_tokens=completion_tokens)


def compression_report(selected: SelectedContext, cost: AnswerCost) -> Compression:
    """Say what compression did to the passages in context; FLOPs count every passage read.

    Where nothing is generated, the FLOPs used are the compressor's alone.
    """
    passages = [
        candidate.compressed
        for candidate in selected.as_vectors
        if candidate.compressed is not None
    ]
    used = cost.flops_used
    if not selected.may_answer:
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
        flops_plain=cost.flops_plain,
        flops_used=used,
        compress_ms=selected.retrieved.compress_ms if selected.mode != "off" else 0.0,
        reason="; ".join([*selected.reasons, *cut]) or None,
        fallback_docs=tuple(candidate.place for candidate in selected.as_text),
        left_out=selected.left_out,
    )


def count_compression(
    metrics: Metrics, model: str, report: Compression, causes: Iterable[FallbackReason] = ()
) -> None:
    """Count a report once: the metrics are the sums of the reports.

    Args:
        metrics: Where to.
        model: The OSCAR model's name.
        report: Of an answer, or of documents compressed.
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
        raise InputError(
            "compression.mode: 'off' leaves nothing to compare with; give auto or required.",
            field="compression.mode",
            value=question.compression.mode,
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
    return Comparison(
        compressed=compressed,
        plain=plain,
        agreement=Agreement(
            exact=bool(exact_match(compressed.answer, [plain.answer])),
            f1=f1_score(compressed.answer, [plain.answer]),
            cosine=await _cosine(services, compressed.answer, plain.answer),
        ),
        speedup=_speedup(compressed, plain),
    )


def _speedup(compressed: Answer, plain: Answer) -> float:
    took = compressed.timings.compress_ms + compressed.timings.generate_ms
    return plain.timings.generate_ms / max(took, MIN_MILLISECONDS)


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
        services: The running parts.
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
    started = time.perf_counter()
    texts = [document.text for document in documents if not is_blank(document.text)]
    compressed = await compress_passages(services, oscar, query, texts)
    compress_ms = milliseconds_since(started)
    _raise_if_all_failed(compressed)
    read = tuple(outcome for outcome in compressed if isinstance(outcome, CompressedPassage))
    remaining = iter(compressed)
    outcomes = [
        None if is_blank(document.text) else _detach_outcome(next(remaining), vectors)
        for document in documents
    ]
    counted = await run_tokenizing([query], lambda: _count_question_cost(oscar, query))
    report = _documents_report(counted, outcomes, read, compress_ms)
    count_compression(services.metrics, oscar.info.name, report)
    handle, expires_at = None, None
    if keep:
        context = CompressedContext(
            pair=oscar.info.name,
            fingerprint=oscar.info.fingerprint,
            question=query,
            documents=tuple(documents),
            passages=tuple(outcomes),
            vectors=vectors,
            text_bytes=size,
        )
        handle = services.contexts.put(caller, context, ttl_s)
        expires_at = time.time() + ttl_s
    return Compressed(
        id=f"cmp_{secrets.token_hex(12)}",
        model=oscar.info.name,
        fingerprint=oscar.info.fingerprint,
        context=handle,
        expires_at=expires_at,
        results=tuple(
            _document_report(place, document.id, outcome)
            for place, (document, outcome) in enumerate(zip(documents, outcomes, strict=True))
        ),
        compression=report,
        usage=TokenUsage(report.tokens_in),
    )


def release_context(services: Services, context: str) -> None:
    """Let go of a context before its time is over.

    Raises:
        ContextNotFound: There is none, or it is another caller's; ContextExpired among them.
    """
    services.contexts.release(current_request().caller, context)


def _raise_if_all_failed(outcomes: Sequence[CompressedPassage | PassageFailure]) -> None:
    """Raise the first error where there is nothing else."""
    if all(isinstance(outcome, PassageFailure) for outcome in outcomes):
        first = outcomes[0]
        assert isinstance(first, PassageFailure)
        assert first.error is not None
        raise first.error


def _detach_outcome(
    outcome: CompressedPassage | PassageFailure, vectors: int
) -> CompressedPassage | PassageFailure:
    """Return what is held of an outcome, and nothing that it refers to.

    A memory is a view of its whole batch's, and an error holds the frames that it went through.
    """
    if isinstance(outcome, PassageFailure):
        return replace(outcome, error=None)
    return outcome.coarsened(vectors)


def _count_question_cost(oscar: OscarModel, question: str) -> CountedAnswer:
    return oscar.count_answer(question, oscar.make_prompt(question, []), None)


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
    return CompressedDocument(
        index=place,
        id=identity,
        relevance_score=None,
        tokens_in=0,
        vectors_out=0,
        windows=0,
        status="failed",
        reason=reason,
    )
