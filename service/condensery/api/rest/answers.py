"""Answers, and what they are made of, as JSON holds them."""

from collections.abc import Sequence
from typing import Any

from condensery.answers import Answer, Compression, TokenLogprob, Usage

# What stands for minus infinity, which JSON has not; OpenAI's.
IMPOSSIBLE = -9999.0


def write_answer(whole: Answer) -> dict[str, Any]:
    """Return a whole answer, with what it is and says."""
    return {"id": whole.id, "object": "rag.answer", "answer": whole.text, **write_rest(whole)}


def write_rest(whole: Answer) -> dict[str, Any]:
    """Return all of an answer but its text and name."""
    return {
        "model": whole.model,
        "finish_reason": whole.finish_reason,
        "citations": whole.citations,
        "compression": write_block(whole.compression),
        "usage": write_usage(whole.usage),
        "timings": whole.timings,
        "logprobs": None if whole.logprobs is None else write_logprobs(whole.logprobs),
    }


def write_block(block: Compression) -> dict[str, Any]:
    """Return what compression did."""
    return {
        "mode": block.mode,
        "status": block.status,
        "reason": block.reason,
        "docs": block.docs,
        "tokens_in": block.tokens_in,
        "vectors_out": block.vectors_out,
        "ratio": block.ratio,
        "flops_plain": block.flops_plain,
        "flops_used": block.flops_used,
        "flops_saved": block.flops_saved,
        "compress_ms": block.compress_ms,
        "fallback_docs": block.fallback,
        "left_out": block.left_out,
    }


def write_usage(usage: Usage) -> dict[str, int]:
    """Return tokens and vectors."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "context_vectors": usage.context_vectors,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def write_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return tokens with their log-probabilities."""
    return [
        {
            "text": one.text,
            "logprob": finite(one.logprob),
            "top": [{"text": text, "logprob": finite(logprob)} for text, logprob in one.top],
        }
        for one in tokens
    ]


def finite(logprob: float) -> float:
    """Return a log-probability as JSON can hold it."""
    return max(logprob, IMPOSSIBLE)
