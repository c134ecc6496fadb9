"""Answers to questions, whole or as server-sent events; comparisons; compressed contexts.

Memory vectors neither leave the server nor come in: a handle stands for them.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.io import END_OF_EVENTS, read_body, stream_events, write_json
from condensery.api.rest.schemas.rag import (
    AnswerDocument,
    AnswerIndex,
    AnswerRequest,
    ChatRequest,
    CompareRequest,
    CompressRequest,
)
from condensery.jobs import answer as job
from condensery.jobs.accounting import count_request
from condensery.jobs.answer import answer, answer_whole
from condensery.jobs.services import Services
from condensery.question import (
    Answer,
    AnswerEvent,
    Compression,
    Delta,
    Question,
    Retrieved,
    Sampling,
    TokenLogprob,
    Usage,
)
from condensery.values import Document

# OpenAI's value for minus infinity, which JSON lacks.
MIN_LOGPROB = -9999.0

_NO_INDEX = AnswerIndex(name="")  # whose fields are the defaults


async def answer_question(request: Request, services: Services) -> Response:
    """Answer a question from documents, an index or a context."""
    body = await read_body(request, services, AnswerRequest)
    question = read_question(body)
    if body.stream:
        return await stream_events(
            request, answer_events(services, question), _AnswerWriter(request.state.request_id)
        )
    with count_request(services, question.model, "answer", "rest") as counted:
        result = await answer_whole(services, question)
        counted.model = result.model  # of a context it is known only now
        with services.metrics.stage(result.model, "serialize"):
            return write_json(write_answer(result), headers={"x-model": result.model})


async def answer_events(
    services: Services, question: Question
) -> AsyncGenerator[AnswerEvent, None]:
    """Answer a question, and count it as one request."""
    with count_request(services, question.model, "answer", "rest") as counted:
        answering: Any = answer(services, question)
        async with aclosing(answering) as events:
            async for event in events:
                if isinstance(event, Retrieved):
                    counted.model = event.model  # of a context it is known only now
                yield event


async def compare_answers(request: Request, services: Services) -> Response:
    """Answer a question from vectors and from the passages' own text, and compare."""
    body = await read_body(request, services, CompareRequest)
    with count_request(services, body.model, "compare", "rest") as counted:
        comparison = await job.compare_answers(services, read_question(body))
        model = counted.model = comparison.compressed.model  # of a context it is known only now
        with services.metrics.stage(model, "serialize"):
            return write_json(
                {
                    "object": "rag.comparison",
                    "compressed": write_answer(comparison.compressed),
                    "plain": write_answer(comparison.plain),
                    "agreement": {
                        "exact": comparison.exact,
                        "f1": comparison.f1,
                        "cosine": comparison.cosine,
                    },
                    "speedup": comparison.speedup,
                    "flops_saved": comparison.flops_saved,
                },
                headers={"x-model": model},
            )


async def compress_documents(request: Request, services: Services) -> Response:
    """Compress and score documents for a question, in one pass; the vectors stay here."""
    body = await read_body(request, services, CompressRequest)
    with count_request(services, body.model, "compress", "rest"):
        result = await job.compress_documents(
            services,
            body.query,
            read_documents(body.documents),
            model=body.model,
            rate=body.ratio,
            keep=body.returns == "handle",
            ttl_seconds=body.ttl_s,
        )
        with services.metrics.stage(result.model, "serialize"):
            return write_json(
                {
                    "id": result.id,
                    "object": "rag.compression",
                    "model": result.model,
                    "fingerprint": result.fingerprint,
                    "context": result.context,
                    "expires_at": result.expires_at,
                    "results": result.documents,
                    "compression": write_compression(result.compression),
                    "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
                },
                headers={"x-model": result.model, "x-model-revision": result.fingerprint},
            )


async def release_context(request: Request, services: Services) -> Response:
    """Let go of a context before its time is over."""
    context: str = request.path_params["name"]
    with count_request(services, None, "compress", "rest"):
        job.release_context(services, context)
        return write_json({"id": context, "object": "context", "deleted": True})


# Bodies as questions


def read_question(body: AnswerRequest) -> Question:
    """Return the question of a body."""
    sampling = Sampling(body.temperature, body.top_p, body.seed, body.logprobs)
    return make_question(body, body.query, body.max_tokens, sampling)


def make_question(
    body: AnswerRequest | ChatRequest, text: str, max_tokens: int, sampling: Sampling
) -> Question:
    """Return a question with a body's passages and options."""
    index = body.index or _NO_INDEX
    compression = body.compression
    return Question(
        text,
        documents=None if body.documents is None else read_documents(body.documents),
        index=body.index.name if body.index else None,
        context=body.context,
        model=body.model,
        top_k=index.top_k,
        search=index.mode,
        filter=index.filter,
        top_n=body.rerank.top_n,
        mode=compression.mode,
        rate=compression.ratio,
        max_context_vectors=compression.max_context_vectors,
        target_ms=compression.target_ms,
        compress_timeout_ms=compression.timeout_ms,
        min_relevance=body.min_relevance,
        max_tokens=max_tokens,
        stop=tuple(body.stop or ()),
        sampling=sampling,
    )


def read_documents(documents: Sequence[AnswerDocument]) -> list[Document]:
    """Return documents as the jobs take them; the default id is the place."""
    return [
        Document(item.id if item.id is not None else str(place), item.text, item.metadata)
        for place, item in enumerate(documents)
    ]


# Answers as JSON


def write_answer(result: Answer) -> dict[str, Any]:
    """Return a whole answer."""
    return {
        "id": result.id,
        "object": "rag.answer",
        "answer": result.text,
        **_answer_fields(result),
    }


def _answer_fields(result: Answer) -> dict[str, Any]:
    """Return an answer's fields but for its id and text."""
    return {
        "model": result.model,
        "finish_reason": result.finish_reason,
        "citations": result.citations,
        "compression": write_compression(result.compression),
        "usage": write_usage(result.usage),
        "timings": result.timings,
        "logprobs": None if result.logprobs is None else write_logprobs(result.logprobs),
    }


def write_compression(compression: Compression) -> dict[str, Any]:
    """Return the report of an answer's compression."""
    return {
        "mode": compression.mode,
        "status": compression.status,
        "reason": compression.reason,
        "docs": compression.docs,
        "tokens_in": compression.tokens_in,
        "vectors_out": compression.vectors_out,
        "ratio": compression.ratio,
        "flops_plain": compression.flops_plain,
        "flops_used": compression.flops_used,
        "flops_saved": compression.flops_saved,
        "compress_ms": compression.compress_ms,
        "fallback_docs": compression.fallback,
        "left_out": compression.left_out,
    }


def write_usage(usage: Usage) -> dict[str, int]:
    """Return the counts of tokens and vectors."""
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
            "text": token.text,
            "logprob": clamp_logprob(token.logprob),
            "top": [{"text": text, "logprob": clamp_logprob(value)} for text, value in token.top],
        }
        for token in tokens
    ]


def clamp_logprob(logprob: float) -> float:
    """Return a log-probability that is finite, as JSON wants it."""
    return max(logprob, MIN_LOGPROB)


class _AnswerWriter:
    """Events named as R2R names them.

    Args:
        request_id: For the id of a failure.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def event(self, event: AnswerEvent) -> bytes:
        """Write one event."""
        if isinstance(event, Retrieved):
            results = {
                "id": event.id,
                "object": "rag.search_results",
                "model": event.model,
                "data": {
                    "citations": event.citations,
                    "compression": write_compression(event.compression),
                },
            }
            return _event_line("search_results", results)
        if isinstance(event, Delta):
            payload: dict[str, Any] = {"value": event.text, "annotations": []}
            if event.logprobs is not None:
                payload["logprobs"] = write_logprobs(event.logprobs)
            part = {"type": "text", "payload": payload}
            delta = {"object": "agent.message.delta", "delta": {"content": [part]}}
            return _event_line("message", delta)
        final = {
            "id": event.id,
            "object": "rag.final_answer",
            "generated_answer": event.text,
            **_answer_fields(event),
        }
        compression = _event_line("compression", write_compression(event.compression))
        return compression + _event_line("final_answer", final)

    def failure(self, body: dict[str, Any]) -> bytes:
        """Write a failure."""
        return _event_line(
            "error", {"id": f"err_{self._request_id}", "object": "agent.error", **body}
        )

    def end(self) -> bytes:
        """Write the last event."""
        return b"event: done\ndata: %b\n\n" % END_OF_EVENTS


def _event_line(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))
