"""What an answer says of itself: the passages it was read from, and what compression did."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from condensery.documents.sections import skip_heading
from condensery.jobs.contexts import Candidate
from condensery.jobs.selection import SelectedContext
from condensery.metrics import FallbackReason, Metrics
from condensery.question import AnswerCost, Citation, Compression, Snippet
from condensery.sentences import Span, nearest_sentence, sentence_around

NEAREST = 3  # passages that a snippet is shown of, where no answer was found


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


def cite_answer(
    selected: SelectedContext, citations: Sequence[Citation], spans: Sequence[Span | None]
) -> tuple[Citation, ...]:
    """Return citations with the places of the answer.

    Where it stands in a heading alone, the best passage under it is cited by that: the one that
    points there, else the first.

    Args:
        citations: Of the passages in context.
        spans: Of each citation's text, and then of each heading (``selected.headed``), the
            characters that are the answer's words, if any are.
    """
    count = len(citations)
    if any(spans[:count]):
        return tuple(map(_cite_span, citations, spans[:count]))
    above = [
        (candidate.heading_pointer is None, candidate, span)
        for candidate, span in zip(selected.headed, spans[count:], strict=True)
        if span is not None
    ]
    if not above:
        return tuple(citations)
    _, best, span = min(above, key=lambda each: each[0])
    return tuple(
        _cite_heading(best, citation, span) if candidate is best else citation
        for candidate, citation in zip(selected.kept, citations, strict=True)
    )


def _cite_span(citation: Citation, span: Span | None) -> Citation:
    if span is None:
        return citation
    start, end = (citation.start + place for place in span)
    return replace(citation, answer_start=start, answer_end=end)


def _cite_heading(candidate: Candidate, citation: Citation, span: Span) -> Citation:
    end, text = len(candidate.passage.heading), candidate.heading
    return _cite_span(replace(citation, text=text, start=end - len(text), end=end), span)


def nearest_snippets(question: str, selected: SelectedContext) -> tuple[Snippet, ...]:
    """Return a sentence of each of the best passages, to show where no answer was found."""
    return tuple(_snippet(question, candidate) for candidate in selected.ranked[:NEAREST])


def _snippet(question: str, candidate: Candidate) -> Snippet:
    text, pointer = candidate.text, candidate.pointer
    if pointer:
        span = sentence_around(text, *pointer)
    else:
        heading = skip_heading(text, candidate.passage.metadata)
        span = nearest_sentence(text, question, heading)
    start = candidate.passage.start + candidate.span[0]
    return Snippet(
        index=candidate.place,
        id=candidate.passage.id,
        document_id=candidate.passage.document_id,
        text=text[slice(*span)],
        start=start + span[0],
        end=start + span[1],
        relevance_score=candidate.score,
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
