"""What is said of a reading: its citations, and what compression did."""

from collections.abc import Iterable

from condensery.answers import Citation, CompressedPassage, Compression
from condensery.jobs.choosing import Reading
from condensery.jobs.ports import Reader, ReadingCost
from condensery.metrics import FallbackReason, Metrics
from condensery.questions import Question


def cite(reading: Reading) -> tuple[Citation, ...]:
    """Name the passages in context, best first; a long one by the window that was read.

    ``index`` is a passage's place among the documents given, or among those found.
    """
    citations = []
    for one in reading.kept:
        start, end = one.span
        passage = one.passage
        citations.append(
            Citation(
                index=one.place,
                id=passage.id,
                document_id=passage.document_id,
                text=one.text,
                start=passage.start + start,
                end=passage.start + end,
                relevance_score=one.score,
                metadata=passage.metadata,
            )
        )
    return tuple(citations)


def cost_of(
    reader: Reader, question: Question, reading: Reading, completion_tokens: int
) -> ReadingCost:
    """Count what an answer takes, or has taken."""
    return reader.cost(
        question.text,
        reading.gathered.read if reading.mode != "off" else (),
        reading.context,
        reading.texts,
        completion_tokens=completion_tokens,
    )


def block(reader: Reader, question: Question, reading: Reading, cost: ReadingCost) -> Compression:
    """Say what compression did to the passages in context; FLOPs count every passage read.

    Where nothing is generated, the FLOPs used are the compressor's alone.
    """
    memories = [one.compressed for one in reading.as_vectors if one.compressed is not None]
    used = cost.flops_used
    if not reading.found:
        used = compressor_flops(reader, question.text, reading.gathered.read)
    return Compression(
        mode=reading.mode,
        status=reading.status,
        docs=len(memories),
        tokens_in=sum(one.tokens_in for one in memories),
        vectors_out=sum(min(len(one.memory), reading.vectors) for one in memories),
        flops_plain=cost.flops_plain,
        flops_used=used,
        compress_ms=reading.gathered.compress_ms if reading.mode != "off" else 0.0,
        reason="; ".join([*reading.reasons, *cut_question(cost)]) or None,
        fallback=tuple(one.place for one in reading.as_text),
        left_out=reading.left_out,
    )


def compressor_flops(reader: Reader, question: str, read: tuple[CompressedPassage, ...]) -> int:
    """Return what compressing passages took: that of an answer from nothing taken off."""
    with_them = reader.cost(question, read, [], [], completion_tokens=0)
    return with_them.flops_used - reader.cost(question, [], [], [], completion_tokens=0).flops_used


def count_block(
    metrics: Metrics, model: str, told: Compression, causes: Iterable[FallbackReason] = ()
) -> None:
    """Count a block once: the metrics are the sums of the blocks.

    Args:
        metrics: Where to.
        model: The pair's name.
        told: The block.
        causes: Why each of those in ``told.fallback`` is read as text.
    """
    metrics.compressed_docs.labels(model, "applied").inc(told.docs)
    metrics.compressed_docs.labels(model, "fallback").inc(len(told.fallback))
    metrics.compressed_docs.labels(model, "left_out").inc(len(told.left_out))
    metrics.context_tokens_in.labels(model).inc(told.tokens_in)
    metrics.context_vectors_out.labels(model).inc(told.vectors_out)
    metrics.flops_used.labels(model).inc(told.flops_used)
    metrics.flops_plain.labels(model).inc(told.flops_plain)
    for cause in causes:
        metrics.compression_fallback.labels(model, cause).inc()


def cut_question(cost: ReadingCost) -> list[str]:
    """Say that a question was cut, if it was."""
    if cost.question_tokens <= cost.question_limit:
        return []
    return [f"the question was cut to {cost.question_limit} of its {cost.question_tokens} tokens"]
