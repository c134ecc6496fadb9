"""What an answer may read: its passages, found and compressed, and what failed on the way."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from condensery.answers import CompressedPassage
from condensery.callers import current
from condensery.errors import CompressionFailed, CondenseryError, ModelFault
from condensery.jobs import search
from condensery.jobs.budgets import affordable
from condensery.jobs.candidates import Candidate, Gathered, count_of
from condensery.jobs.contexts import Context
from condensery.jobs.failures import Failure
from condensery.jobs.ports import Reader
from condensery.jobs.question_checks import (
    FILTER,
    check_question,
    check_sources,
    is_blank,
    vectors_for,
)
from condensery.jobs.rerank import sigmoid
from condensery.jobs.services import Services
from condensery.questions import Question
from condensery.values import Document, Hit, Passage

_log = logging.getLogger(__name__)


def find_reader(services: Services, question: Question) -> tuple[Reader, Context | None]:
    """Return the pair that is asked, and the context it is asked about, checked.

    Raises:
        ModelNotFound, ContextNotFound, ContextMismatch: As they say.
        InputError: The question can't be answered as it is asked.
    """
    check_sources(question)
    context = None
    model = question.model
    if question.context is not None:
        context = services.contexts.get(current().caller, question.context)
        model = context.pair if model is None else model
    reader = services.pool.reader(model)
    check_question(services.limits, reader, question)
    if context is not None:
        context.check(reader.info, question.text)
    return reader, context


async def gather(
    services: Services, reader: Reader, question: Question, context: Context | None
) -> Gathered:
    """Find the passages, and compress and score them all in one forward pass.

    Raises:
        CompressionFailed: One could not be, and compression is required.
        IndexNotFound, EncoderMismatch: As in search.
        Overloaded, Unavailable, DeadlineExceeded: Nothing is answered.
    """
    held = context.vectors if context is not None else 0
    vectors = vectors_for(reader.traits, question.rate, held=held)
    if context is not None:
        return _recall(question, context, vectors)
    started = time.perf_counter()
    hits = await _retrieve(services, question)
    retrieve_ms = since(started)
    candidates = [
        # What came with the request was not found by anything that scores it.
        Candidate(place, hit.passage, None if question.index is None else hit.score)
        for place, hit in enumerate(hits)
        if not is_blank(hit.passage.text)
    ]
    blank = tuple(place for place, hit in enumerate(hits) if is_blank(hit.passage.text))
    reasons = [f"{count_of(len(blank), 'passage')} left out, for want of text"] if blank else []
    if question.mode == "off" or not candidates:
        return Gathered(
            tuple(candidates), vectors, (), blank, tuple(reasons), retrieve_ms=retrieve_ms
        )
    texts = [one.passage.text for one in candidates]
    most, spent = len(texts), current().spent
    waited, tokenised = spent.queued, spent.tokenizing

    def afford(sizes: Sequence[int]) -> int:
        nonlocal most
        most = affordable(reader, question, sizes, vectors[-1])
        return most

    started = time.perf_counter()
    found = await compress_all(
        services,
        reader,
        question.text,
        texts,
        timeout_ms=question.compress_timeout_ms,
        afford=afford if question.target_ms is not None else None,
    )
    compress_ms = since(started)
    unread = tuple(one.place for one in candidates[most:])
    if unread:
        reasons.append(
            f"the last {len(unread)} of {len(candidates)} passages are not compressed, to keep to "
            f"target_ms {question.target_ms:g}"
        )
    return Gathered(
        tuple(
            candidate_of(one.place, one.passage, one.score, outcome, question)
            for one, outcome in zip(candidates[:most], found[:most], strict=True)
        ),
        vectors,
        tuple(one for one in found if isinstance(one, CompressedPassage)),
        (*blank, *unread),
        tuple(reasons),
        retrieve_ms=retrieve_ms,
        compress_ms=compress_ms,
        queue_ms=1000 * (spent.queued - waited),
        tokenize_ms=1000 * (spent.tokenizing - tokenised),
    )


async def compress_all(
    services: Services,
    reader: Reader,
    question: str,
    texts: Sequence[str],
    *,
    timeout_ms: float | None = None,
    afford: Callable[[Sequence[int]], int] | None = None,
) -> list[CompressedPassage | Failure]:
    """Compress each text, or say why it can't be; order and count are kept.

    ``afford`` is the reader's: with it, there may be fewer.

    Raises:
        InputError: They can't be read at all.
        Overloaded, Unavailable, DeadlineExceeded: No fault of the compressor's.
    """
    seconds = None if timeout_ms is None else timeout_ms / 1000
    timeout = asyncio.timeout(seconds)
    started = time.perf_counter()
    try:
        async with timeout:
            found = await reader.compress(question, texts, afford=afford)
    except TimeoutError as error:
        failure = Failure.of(error)
        if timeout.expired():
            failure = Failure("timeout", f"longer than {timeout_ms:g} ms", error=error)
        return [failure] * len(texts)
    except CondenseryError as error:
        if not isinstance(error, ModelFault):
            raise
        return [Failure.of(error)] * len(texts)
    except Exception as error:  # a bug in the compressor is a fault of it, and must not be lost
        _log.exception("compression_failed", extra={"model": reader.info.name})
        return [Failure.of(error)] * len(texts)
    finally:
        services.metrics.observe(reader.info.name, "compress", since(started) / 1000)
    return [one if isinstance(one, CompressedPassage) else Failure.of(one) for one in found]


def candidate_of(
    place: int,
    passage: Passage,
    retrieved: float | None,
    outcome: CompressedPassage | Failure,
    question: Question,
) -> Candidate:
    """Make a candidate of what became of a passage.

    Raises:
        CompressionFailed: It failed, and compression is required.
    """
    if isinstance(outcome, CompressedPassage):
        score = relevance(outcome)
        return Candidate(place, passage, retrieved if score is None else score, outcome)
    if question.mode == "required":
        field = f"documents[{place}]" if question.index is None else "index"
        what = field if question.index is None else f"Passage {place} of those found"
        raise CompressionFailed(
            f"{what} could not be compressed ({outcome.why}), and compression.mode is required.",
            field=field,
        )
    return Candidate(place, passage, retrieved, failure=outcome)


def relevance(passage: CompressedPassage) -> float | None:
    """Return how relevant a passage is, 0 to 1; None where the pair does not score."""
    if passage.relevance is None:
        return None
    return float(sigmoid(np.array([passage.relevance], np.float32))[0])


def since(started: float) -> float:
    """Return the milliseconds since a ``time.perf_counter()``."""
    return (time.perf_counter() - started) * 1000


async def _retrieve(services: Services, question: Question) -> list[Hit]:
    """Return the passages to read; documents that came with the request have a score of 0."""
    if question.index is not None:
        return await search.query(
            services,
            question.index,
            question.text,
            top_k=question.top_k,
            search=question.search,
            filter=question.filter,
            filter_field=FILTER,
        )
    return [Hit(whole(document), 0.0) for document in question.documents or ()]


def whole(document: Document) -> Passage:
    """Return a document as one passage."""
    text = document.text
    return Passage(document.id, document.id, text, 0, len(text), document.metadata)


def _recall(question: Question, context: Context, vectors: tuple[int, ...]) -> Gathered:
    """Return what a context holds; nothing is compressed again."""
    candidates = []
    for place, (document, outcome) in enumerate(
        zip(context.documents, context.passages, strict=True)
    ):
        if outcome is None:
            continue
        passage = whole(document)
        if question.mode == "off":
            candidates.append(Candidate(place, passage))
        else:
            candidates.append(candidate_of(place, passage, None, outcome, question))
    blank = tuple(place for place, one in enumerate(context.passages) if one is None)
    reasons = (f"{count_of(len(blank), 'passage')} left out, for want of text",) if blank else ()
    return Gathered(tuple(candidates), vectors, left_out=blank, reasons=reasons)
