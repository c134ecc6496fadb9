"""Documents compressed now for answers later: what became of each, and the vectors' handle."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from condensery.jobs.contexts import (
    CompressedContext,
    PassageFailure,
    blank_reasons,
    check_lifetime,
    count_text_bytes,
    failure_reasons,
)
from condensery.jobs.interfaces import CountedAnswer, OscarModel
from condensery.jobs.reports import count_compression, cut_question_reasons
from condensery.jobs.retrieval import compress_passages, milliseconds_since, relevance_score
from condensery.jobs.selection import run_tokenizing
from condensery.jobs.services import Services
from condensery.jobs.validation import (
    check_documents,
    check_query,
    choose_vector_counts,
    is_blank,
)
from condensery.question import Compressed, CompressedDocument, CompressedPassage, Compression
from condensery.request_context import current_request
from condensery.values import Document, TokenUsage

PassageOutcome = CompressedPassage | PassageFailure | None  # None: there was nothing to compress


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

    A memory that is cut by a view keeps what is cut off, and an error the frames that it went
    through.
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
