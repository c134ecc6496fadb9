"""Questions, answers and contexts as gRPC calls; ``rest_answers`` describes their arguments."""

from collections.abc import Iterable
from typing import Unpack

from condensery.answers import Answer, AnswerEvent, Comparison, Compressed
from condensery.client import grpc_replies as replies
from condensery.client.asking import Asking, Passages, ask, read_passages
from condensery.client.grpc_calls import (
    RpcCall,
    checked,
    make_call,
    read_nothing,
    write_document,
    write_struct,
)
from condensery.errors import InputError
from condensery.questions import Question
from condensery.stubs import condensery_v1_pb2 as pb


@checked
def answer(question: str, **how: Unpack[Asking]) -> RpcCall[Answer]:
    """Answer a question from passages: documents, those found in an index, or a context's."""
    return make_call(
        "Rag/Answer", _question(ask(question, **how)), pb.AnswerResponse, replies.read_answer
    )


@checked
def answer_stream(question: str, **how: Unpack[Asking]) -> RpcCall[Iterable[AnswerEvent]]:
    """Answer a question as ``answer`` does, while it is generated.

    Yields:
        First ``Retrieved``, then ``Delta`` by ``Delta``, at last the whole ``Answer``, whose text
        is what the deltas join to.
    """
    return make_call(
        "Rag/AnswerStream", _question(ask(question, **how)), pb.AnswerEvent, replies.read_event
    )


@checked
def compare(question: str, **how: Unpack[Asking]) -> RpcCall[Comparison]:
    """Answer a question as ``answer`` does, and from the passages' own text, and compare."""
    request = _question(ask(question, **how))
    return make_call("Rag/Compare", request, pb.CompareResponse, replies.read_comparison)


@checked
def compress(
    question: str,
    documents: Passages,
    *,
    model: str | None = None,
    rate: int | None = None,
    ttl_seconds: float | None = None,
    keep: bool = True,
) -> RpcCall[Compressed]:
    """Compress and score documents for a question; the server keeps the vectors for its answer."""
    request = pb.CompressRequest(
        model=model or "",
        query=question,
        documents=[write_document(one) for one in read_passages(documents)],
        ratio=rate,
        keep=keep,
        ttl_s=ttl_seconds,
    )
    return make_call("Rag/Compress", request, pb.CompressResponse, replies.read_compressed)


@checked
def release(context: str) -> RpcCall[None]:
    """Let go of kept vectors before their time is over."""
    request = pb.ReleaseContextRequest(context=context)
    return make_call("Rag/ReleaseContext", request, pb.ReleaseContextResponse, read_nothing)


def _question(asked: Question) -> pb.AnswerRequest:
    _check(asked)
    sampling = asked.sampling
    return pb.AnswerRequest(
        model=asked.model or "",
        query=asked.text,
        documents=[write_document(one) for one in asked.documents or ()],
        index=asked.index or "",
        context=asked.context or "",
        top_k=asked.top_k,
        search_mode=asked.search or "",
        filter=write_struct(asked.filter),
        top_n=asked.top_n,
        compression_mode=asked.mode,
        ratio=asked.rate,
        max_context_vectors=asked.max_context_vectors,
        target_ms=asked.target_ms,
        compress_timeout_ms=asked.compress_timeout_ms,
        min_relevance=asked.min_relevance,
        max_tokens=asked.max_tokens,
        stop=asked.stop,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        logprobs=sampling.logprobs,
    )


def _check(asked: Question) -> None:
    """Refuse what a message can't tell from nothing: the server would take its default instead."""
    for name in ("index", "context", "top_k", "max_tokens"):
        value = getattr(asked, name)
        if value is not None and not value:
            raise InputError(f"{name}: {value!r} is not allowed.", field=name, value=value)
    if asked.documents is not None and not asked.documents and (asked.index or asked.context):
        raise InputError(
            "documents: there are none, and an index or a context; give one of the three.",
            field="documents",
        )
