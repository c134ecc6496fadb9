"""What is said of a reading: its citations, and what compression did."""

from collections.abc import Iterable

from condensery.answers import Citation, Compression
from condensery.jobs.choosing import Reading
from condensery.jobs.ports import ReadingCost
from condensery.metrics import FallbackReason, Metrics


def cite(reading: Reading) -> tuple[Citation, ...]:
    """Name the passages in context, best first; a long one by what was read of it.

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


def cost_of(reading: Reading, completion_tokens: int) -> ReadingCost:
    """Count what an answer takes, or has taken."""
    read = reading.gathered.read if reading.mode != "off" else ()
    return reading.counted.cost(read, completion_tokens=completion_tokens)


def block(reading: Reading, cost: ReadingCost) -> Compression:
    """Say what compression did to the passages in context; FLOPs count every passage read.

    Where nothing is generated, the FLOPs used are the compressor's alone.
    """
    memories = [one.compressed for one in reading.as_vectors if one.compressed is not None]
    used = cost.flops_used
    if not reading.found:
        used = reading.counted.compressing(reading.gathered.read)
    cut = cut_question(cost) if reading.mode != "off" else []
    return Compression(
        mode=reading.mode,
        status=reading.status,
        docs=len(memories),
        tokens_in=sum(one.tokens_in for one in memories),
        vectors_out=sum(
            min(len(memory), reading.vectors) for one in memories for memory in one.memories
        ),
        flops_plain=cost.flops_plain,
        flops_used=used,
        compress_ms=reading.gathered.compress_ms if reading.mode != "off" else 0.0,
        reason="; ".join([*reading.reasons, *cut]) or None,
        fallback=tuple(one.place for one in reading.as_text),
        left_out=reading.left_out,
    )


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
    """Say that the compressor read a part of the question, if it did; the generator reads all."""
    if cost.question_limit is None or cost.question_tokens <= cost.question_limit:
        return []
    said = f"{cost.question_limit} of its {cost.question_tokens} tokens"
    return [f"for compression the question was cut to {said}"]
