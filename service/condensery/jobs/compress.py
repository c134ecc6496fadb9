"""Documents compressed for a question, and held for answers to it."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from condensery.answers import Compressed, CompressedDocument, CompressedPassage, Compression
from condensery.callers import current
from condensery.jobs.aside import aside
from condensery.jobs.blocks import count_block, cut_question
from condensery.jobs.candidates import count_of
from condensery.jobs.contexts import Context, check_lifetime, text_bytes
from condensery.jobs.failures import Failure
from condensery.jobs.ports import Counted, Reader
from condensery.jobs.question_checks import check_documents, check_query, is_blank, vectors_for
from condensery.jobs.reading import compress_all, relevance, since
from condensery.jobs.services import Services
from condensery.values import Document

Outcome = CompressedPassage | Failure | None  # None: there was nothing to compress


async def compress(
    services: Services,
    text: str,
    documents: Sequence[Document],
    *,
    model: str | None = None,
    rate: int | None = None,
    keep: bool = True,
    ttl_seconds: float = 600.0,
) -> Compressed:
    """Compress and score documents for a question, in one forward pass.

    Args:
        services: The running parts.
        text: The question: memory is made for it, and serves no other.
        documents: One passage each. A blank one is told as failed.
        model: A pair's name; None takes the default.
        rate: Tokens a vector; None is the pair's finest.
        keep: Hold the vectors for answers; the caller gets a handle.
        ttl_seconds: For so long; 1 to 3600.

    Raises:
        ModelNotFound: No such pair.
        InputError: As the message says; EmptyInput and PayloadTooLarge among them.
        ModelFault: Not one document could be compressed; a part is told document by document.
        Overloaded, Unavailable, DeadlineExceeded: There is no room, or no time left.
    """
    reader = services.pool.reader(model)
    check_query(services.limits, reader, text)
    check_documents(services.limits, reader, documents)
    vectors = vectors_for(reader.traits, rate, field="ratio")[0]
    caller, size = current().caller, 0
    if keep:
        check_lifetime(ttl_seconds)
        # Metadata may be megabytes, and is counted as it would be printed.
        size = await asyncio.to_thread(text_bytes, text, documents)
        services.contexts.check_room(caller, size)
    started = time.perf_counter()
    texts = [one.text for one in documents if not is_blank(one.text)]
    found = await compress_all(services, reader, text, texts)
    compress_ms = since(started)
    _check_any(found)
    read = tuple(one for one in found if isinstance(one, CompressedPassage))
    waiting = iter(found)
    outcomes = [None if is_blank(one.text) else _kept(next(waiting), vectors) for one in documents]
    counted = await aside([text], lambda: _count(reader, text))
    told = _block(counted, outcomes, read, compress_ms)
    count_block(services.metrics, reader.info.name, told)
    handle, expires_at = None, None
    if keep:
        context = Context(
            *(reader.info.name, reader.info.fingerprint, text),
            documents=tuple(documents),
            passages=tuple(outcomes),
            vectors=vectors,
            text_bytes=size,
        )
        handle = services.contexts.put(caller, context, ttl_seconds)
        expires_at = time.time() + ttl_seconds
    return Compressed(
        id=f"cmp_{secrets.token_hex(12)}",
        model=reader.info.name,
        fingerprint=reader.info.fingerprint,
        context=handle,
        expires_at=expires_at,
        documents=tuple(
            _told(place, document.id, outcome)
            for place, (document, outcome) in enumerate(zip(documents, outcomes, strict=True))
        ),
        compression=told,
        tokens=told.tokens_in,
    )


def release(services: Services, context: str) -> None:
    """Let go of a context before its time is over.

    Raises:
        ContextNotFound: There is none, or it is another caller's; ContextExpired among them.
    """
    services.contexts.release(current().caller, context)


def _check_any(found: Sequence[CompressedPassage | Failure]) -> None:
    """Raise the first error where there is nothing else."""
    if all(isinstance(one, Failure) for one in found):
        first = found[0]
        assert isinstance(first, Failure)
        assert first.error is not None
        raise first.error


def _kept(outcome: CompressedPassage | Failure, vectors: int) -> CompressedPassage | Failure:
    """Return what is held of an outcome, and nothing that it hangs on.

    A memory is a view of its whole batch's, and an error holds the frames that it went through.
    """
    if isinstance(outcome, Failure):
        return replace(outcome, error=None)
    return outcome.coarsened(vectors)


def _count(reader: Reader, question: str) -> Counted:
    return reader.count(question, reader.tokenise(question, []), None)


def _block(
    counted: Counted,
    outcomes: Sequence[Outcome],
    read: tuple[CompressedPassage, ...],
    compress_ms: float,
) -> Compression:
    """Say what was done. Its price is paid here; what it saves is told by the answers."""
    kept = [one for one in outcomes if isinstance(one, CompressedPassage)]
    failed = [one for one in outcomes if isinstance(one, Failure)]
    blank = tuple(place for place, one in enumerate(outcomes) if one is None)
    reasons = [f"{count_of(len(blank), 'passage')} left out, for want of text"] if blank else []
    if failed:
        why = ", ".join(sorted({one.why for one in failed}))
        reasons.append(f"{len(failed)} of {len(outcomes)} passages could not be compressed ({why})")
    cost = counted.cost(read, completion_tokens=0)
    return Compression(
        mode="auto",
        status="partial" if failed else "applied",
        docs=len(kept),
        tokens_in=sum(one.tokens_in for one in kept),
        vectors_out=sum(_vectors(one) for one in kept),
        flops_plain=0,
        flops_used=counted.compressing(read),
        compress_ms=compress_ms,
        reason="; ".join([*reasons, *cut_question(cost)]) or None,
        left_out=blank,
    )


def _vectors(passage: CompressedPassage) -> int:
    return sum(map(len, passage.memories))


def _told(place: int, identity: str, outcome: Outcome) -> CompressedDocument:
    if isinstance(outcome, CompressedPassage):
        return CompressedDocument(
            index=place,
            id=identity,
            relevance_score=relevance(outcome),
            tokens_in=outcome.tokens_in,
            vectors_out=_vectors(outcome),
            windows=outcome.windows,
        )
    reason = "there is no text in it"
    if outcome is not None:
        reason = f"{outcome.why}: {outcome.message}" if outcome.message else outcome.why
    return CompressedDocument(*(place, identity, None, 0, 0, 0), status="failed", reason=reason)
