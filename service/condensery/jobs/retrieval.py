"""Retrieve passages from an index (by vectors, BM25, or both), and compress them for a question."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from condensery.errors import (
    CompressionFailed,
    CondenseryError,
    EncoderMismatch,
    IndexNotFound,
    InputError,
    ModelFault,
    ModelNotFound,
    shorten,
)
from condensery.index.filters import read_filter
from condensery.index.fusion import LEAST_CANDIDATES, fuse
from condensery.jobs.contexts import (
    Candidate,
    CompressedContext,
    PassageFailure,
    RetrievedContext,
    blank_reasons,
)
from condensery.jobs.indexes import (
    check_vectors,
    find_index_encoder,
    find_index_prompts,
    make_passage,
    retry_on_swap,
)
from condensery.jobs.interfaces import JsonObject, OscarModel
from condensery.jobs.rerank import sigmoid
from condensery.jobs.services import Services
from condensery.jobs.validation import (
    FILTER_FIELD,
    PASSAGE_SOURCES,
    check_choice,
    check_question,
    check_range,
    check_sources,
    check_text,
    choose_vector_counts,
    is_blank,
    max_chars_of,
)
from condensery.question import AnswerIndex, CompressedPassage, Question
from condensery.request_context import current_request
from condensery.values import SEARCH_MODES, Embedded, Floats, Hit, IndexInfo, SearchMode, make_hit

_log = logging.getLogger(__name__)

# Characters of a query for BM25 alone, which no encoder limits.
MAX_BM25_QUERY_CHARS = 100_000


@retry_on_swap
async def query_index(
    services: Services,
    name: str,
    text: str | None = None,
    *,
    vector: Floats | None = None,
    fingerprint: str | None = None,
    top_k: int = 10,
    mode: SearchMode | None = None,
    filter: JsonObject | None = None,
    filter_field: str = "filter",
) -> list[Hit]:
    """Return the passages nearest to a text, or to a vector of the index's encoder, best first.

    A hit's score is what it was ranked by: the index's metric (``dense``), BM25 (``bm25``; no
    forward pass is made, and the encoder need not run), or the fusion of the two (``hybrid``; see
    ``fuse``). Scores of different modes can't be compared.

    Args:
        text: What to search for; or
        vector: its vector, (dims,), with
        fingerprint: that of the encoder which made it.
        top_k: Most passages to return.
        mode: How a text is searched for; None is the server's default. A vector is ``dense``.
        filter: Which documents' passages are searched, as ``read_filter`` reads it.

    Raises:
        IndexNotFound: No such index.
        EncoderMismatch: The vector, or the index, is another encoder's.
        InputError: Neither or both of text and vector; a malformed one; ``top_k`` out of range; an
            unknown ``mode``, or one by BM25 beside a vector; a malformed ``filter``.
    """
    info = services.indexes.info(name)
    _check_search(services, text, vector, top_k, mode)
    options: dict[str, Any] = {"top_k": top_k, "filter": read_filter(filter, filter_field)}
    if vector is not None:
        options["fingerprint"] = check_vectors(info, vector[None], fingerprint, "vector")
        return await _search(services, info, name, vector, options)
    assert text is not None  # checked above
    mode = mode or services.search_mode
    if mode == "bm25":
        check_text(text, "query", MAX_BM25_QUERY_CHARS)
        return await _search(services, info, name, text, options)
    encoder = find_index_encoder(services, info)
    check_text(text, "query", max_chars_of(services.limits, encoder.info))
    embedded = await encoder.embed([text], prompt=find_index_prompts(encoder, info).query)
    if mode == "hybrid":
        return await _search_hybrid(services, info, text, embedded, options)
    options |= {"fingerprint": embedded.fingerprint, "embedded_for": info}
    return await _search(services, info, name, embedded.vectors[0], options)


def _check_search(
    services: Services,
    text: str | None,
    vector: Floats | None,
    top_k: int,
    mode: SearchMode | None,
) -> None:
    check_range(top_k, "top_k", 1, services.limits.max_top_k)
    if (text is None) == (vector is None):
        got = "neither" if text is None else "both"
        raise InputError.at("query", f"give `query` or `vector`, one of them; got {got}.")
    if mode is not None:
        check_choice(mode, "mode", SEARCH_MODES)
    if vector is not None and mode not in (None, "dense"):
        raise InputError.at(
            "mode", f"{mode!r} needs words, and a vector has none; give `query`.", mode
        )


async def _search(
    services: Services, info: IndexInfo, name: str, query: Floats | str, options: dict[str, Any]
) -> list[Hit]:
    with services.metrics.stage(info.encoder, "index"):
        return await asyncio.to_thread(services.indexes.query, name, query, **options)


async def _search_hybrid(
    services: Services, info: IndexInfo, text: str, embedded: Embedded, options: dict[str, Any]
) -> list[Hit]:
    more = options | {"top_k": max(options["top_k"], LEAST_CANDIDATES)}
    made_by: dict[str, Any] = {"fingerprint": embedded.fingerprint, "embedded_for": info}
    indexes = services.indexes
    with services.metrics.stage(info.encoder, "index"):
        by_vector, by_words = await asyncio.gather(
            asyncio.to_thread(indexes.query, info.name, embedded.vectors[0], **made_by, **more),
            asyncio.to_thread(indexes.query, info.name, text, **more),
        )
        now = indexes.info(info.name)
        # Else passages of two indexes, split in two ways, would mix
        if (now.fingerprint, now.prompts) != (embedded.fingerprint, info.prompts):
            raise EncoderMismatch(
                f"Index {now.name!r} was made anew by encoder {now.encoder!r} with fingerprint "
                f"{now.fingerprint} while it was searched.",
                field="index",
                value=now.name,
            )
        return fuse([by_vector, by_words], options["top_k"])


def apply_model_index(services: Services, question: Question) -> Question:
    """Return a question whose model's name carries an index with that pair and index as its own.

    Raises:
        InputError: The name is malformed, or the question says itself where its passages are.
        ModelNotFound, IndexNotFound: The pair, or the index, is not there (any more).
    """
    name = question.model
    if name is None or (index := services.registry.aliases.index_of(name)) is None:
        return question
    pair = services.registry.aliases.resolve(name)
    for source in PASSAGE_SOURCES:
        if getattr(question, source) is not None:
            raise InputError.at(
                source,
                f"model {shorten(name)} answers from an index of its own, {index.name!r}: leave "
                f"this field out, or name the pair alone, {pair!r}.",
            )
    what = f"{shorten(name)} is {pair!r} with the index {index.name!r}"
    try:
        services.registry.pair(pair)
        services.indexes.info(index.name)
    except (ModelNotFound, IndexNotFound) as error:
        raise type(error).at("model", f"{what}, and can't answer: {error.message}", name) from error
    limit = services.limits.max_answer_documents
    if index.top_k is not None and index.top_k > limit:
        raise InputError.at("model", f"{what}; its top_k {index.top_k} is over {limit}.", name)
    searched = AnswerIndex(index.name, mode=index.mode)
    if index.top_k is not None:
        searched = replace(searched, top_k=index.top_k)
    return replace(question, model=pair, index=searched)


def find_model_and_context(
    services: Services, question: Question
) -> tuple[OscarModel, CompressedContext | None]:
    """Return the OSCAR model and the held context that a question names, checked.

    Raises:
        ModelNotFound, ContextNotFound, ContextMismatch: As they say.
        InputError: The question can't be answered as it is asked.
    """
    check_sources(question)
    context = None
    model = question.model
    if question.context is not None:
        context = services.contexts.get(current_request().caller, question.context)
        model = context.model if model is None else model
    oscar = services.registry.pair(model)
    check_question(services.limits, oscar, question)
    if context is not None:
        context.check(oscar.info, question.query)
    return oscar, context


async def retrieve_context(
    services: Services, oscar: OscarModel, question: Question, context: CompressedContext | None
) -> RetrievedContext:
    """Find the passages, and compress and score them all in one forward pass.

    Raises:
        CompressionFailed: One could not be, and compression is required.
        IndexNotFound, EncoderMismatch: As in search.
        Overloaded, Unavailable, DeadlineExceeded: Nothing is answered.
    """
    held = context.vectors if context is not None else 0
    vectors = choose_vector_counts(oscar.traits, question.compression.ratio, held=held)
    if context is not None:
        return _reuse_context(question, context, vectors)
    started = time.perf_counter()
    hits = await _find_passages(services, question)
    retrieve_ms = milliseconds_since(started)
    candidates = [
        # What came with the request was not retrieved, and has no score.
        Candidate(place, hit.passage, None if question.index is None else hit.score)
        for place, hit in enumerate(hits)
        if not is_blank(hit.text)
    ]
    blank = tuple(place for place, hit in enumerate(hits) if is_blank(hit.text))
    retrieved = RetrievedContext(
        tuple(candidates), vectors, (), blank, blank_reasons(blank), retrieve_ms=retrieve_ms
    )
    if question.compression.mode == "off" or not candidates:
        return retrieved
    return await _compress_retrieved(services, oscar, question, retrieved)


async def _compress_retrieved(
    services: Services, oscar: OscarModel, question: Question, retrieved: RetrievedContext
) -> RetrievedContext:
    """Compress and score what was retrieved; by ``target_ms``, perhaps only the first passages."""
    candidates, compression = retrieved.candidates, question.compression
    affordable, stats = len(candidates), current_request().stats
    queued, tokenizing = stats.queued, stats.tokenizing

    def afford(sizes: Sequence[int]) -> int:
        nonlocal affordable
        affordable = count_affordable(oscar, question, sizes, retrieved.vectors[-1])
        return affordable

    started = time.perf_counter()
    outcomes = await compress_passages(
        services,
        oscar,
        question.query,
        [candidate.passage.headed_text for candidate in candidates],
        timeout_ms=compression.timeout_ms,
        afford=afford if compression.target_ms is not None else None,
    )
    compress_ms = milliseconds_since(started)
    reasons, unread = retrieved.reasons, candidates[affordable:]
    if unread:
        what = f"the last {len(unread)} of {len(candidates)} passages are not compressed"
        reasons += (f"{what}, to keep to target_ms {compression.target_ms:g}",)
    return replace(
        retrieved,
        candidates=tuple(
            add_outcome(candidate, outcome, question)
            for candidate, outcome in zip(
                candidates[:affordable], outcomes[:affordable], strict=True
            )
        ),
        read=tuple(outcome for outcome in outcomes if isinstance(outcome, CompressedPassage)),
        left_out=(*retrieved.left_out, *(candidate.place for candidate in unread)),
        reasons=reasons,
        compress_ms=compress_ms,
        queue_ms=1000 * (stats.queued - queued),
        tokenize_ms=1000 * (stats.tokenizing - tokenizing),
    )


def count_affordable(
    oscar: OscarModel, question: Question, sizes: Sequence[int], vectors: int
) -> int:
    """Return how many of the first texts can be compressed and read by ``target_ms``; 1 at least.

    Args:
        sizes: Tokens of each text, in the order of retrieval.
        vectors: That each may become, at the coarsest.
    """
    assert question.compression.target_ms is not None
    top_n = oscar.traits.top_n if question.rerank.top_n is None else question.rerank.top_n
    for count in range(len(sizes), 1, -1):
        kept = min(count, top_n or count)
        if (
            oscar.expected_ms(sum(sizes[:count]), vectors * kept, 0, kept)
            <= question.compression.target_ms
        ):
            return count
    return 1


async def compress_passages(
    services: Services,
    oscar: OscarModel,
    question: str,
    texts: Sequence[str],
    *,
    timeout_ms: float | None = None,
    afford: Callable[[Sequence[int]], int] | None = None,
) -> list[CompressedPassage | PassageFailure]:
    """Compress each text, or say why it can't be; order and count are kept.

    ``afford`` is as of ``OscarModel.compress``: with it, there may be fewer.

    Raises:
        InputError: They can't be read at all.
        Overloaded, Unavailable, DeadlineExceeded: No fault of the compressor's.
    """
    seconds = None if timeout_ms is None else timeout_ms / 1000
    timeout = asyncio.timeout(seconds)
    started = time.perf_counter()
    try:
        async with timeout:
            outcomes = await oscar.compress(question, texts, afford=afford)
    except TimeoutError as error:
        failure = PassageFailure.of(error)
        if timeout.expired():
            failure = PassageFailure("timeout", f"longer than {timeout_ms:g} ms", error=error)
        return [failure] * len(texts)
    except CondenseryError as error:
        if not isinstance(error, ModelFault):
            raise
        return [PassageFailure.of(error)] * len(texts)
    except Exception as error:  # a bug in the compressor is reported as its fault, and logged
        _log.exception("compression_failed", extra={"model": oscar.info.name})
        return [PassageFailure.of(error)] * len(texts)
    finally:
        services.metrics.observe(oscar.info.name, "compress", milliseconds_since(started) / 1000)
    return [
        outcome if isinstance(outcome, CompressedPassage) else PassageFailure.of(outcome)
        for outcome in outcomes
    ]


def add_outcome(
    candidate: Candidate, outcome: CompressedPassage | PassageFailure, question: Question
) -> Candidate:
    """Return a candidate with what became of its passage; its relevance comes before its score.

    Raises:
        CompressionFailed: It failed, and compression is required.
    """
    if isinstance(outcome, CompressedPassage):
        score = relevance_score(outcome)
        score = candidate.score if score is None else score
        return replace(candidate, score=score, compressed=outcome)
    if question.compression.mode == "required":
        place = candidate.place
        field = f"documents[{place}]" if question.index is None else "index"
        what = field if question.index is None else f"Passage {place} of those retrieved"
        raise CompressionFailed(
            f"{what} could not be compressed ({outcome.reason}), and compression.mode is required.",
            field=field,
        )
    return replace(candidate, failure=outcome)


def relevance_score(passage: CompressedPassage) -> float | None:
    """Return how relevant a passage is, 0 to 1; None where the model does not score."""
    if passage.relevance is None:
        return None
    return float(sigmoid(np.array([passage.relevance], np.float32))[0])


def milliseconds_since(started: float) -> float:
    """Return the milliseconds since a ``time.perf_counter()``."""
    return (time.perf_counter() - started) * 1000


async def _find_passages(services: Services, question: Question) -> list[Hit]:
    """Return the passages to read; documents that came with the request have a score of 0."""
    if question.index is not None:
        return await query_index(
            services,
            question.index.name,
            question.query,
            top_k=question.index.top_k,
            mode=question.index.mode,
            filter=question.index.filter,
            filter_field=FILTER_FIELD,
        )
    return [
        make_hit(make_passage(document, document.id), 0.0) for document in question.documents or ()
    ]


def _reuse_context(
    question: Question, context: CompressedContext, vectors: tuple[int, ...]
) -> RetrievedContext:
    """Return what a context holds; nothing is compressed again."""
    candidates = []
    for place, (document, outcome) in enumerate(
        zip(context.documents, context.passages, strict=True)
    ):
        if outcome is None:
            continue
        candidate = Candidate(place, make_passage(document, document.id))
        if question.compression.mode != "off":
            candidate = add_outcome(candidate, outcome, question)
        candidates.append(candidate)
    blank = tuple(place for place, outcome in enumerate(context.passages) if outcome is None)
    return RetrievedContext(
        tuple(candidates), vectors, left_out=blank, reasons=blank_reasons(blank)
    )
