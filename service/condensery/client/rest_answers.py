"""Questions, answers and contexts as REST calls."""

from collections.abc import Iterable
from typing import Any, Unpack
from urllib.parse import quote

from condensery.answers import Answer, AnswerEvent, Comparison, Compressed
from condensery.client import rest_replies as replies
from condensery.client.asking import Asking, Passages, ask, read_passages
from condensery.client.rest_calls import RestCall, make_body, read_nothing, write_document
from condensery.questions import Question


def answer(question: str, **how: Unpack[Asking]) -> RestCall[Answer]:
    """Answer a question from passages.

    Args:
        question: What to answer.
        **how: Where the passages are: ``documents`` (texts, or values with ids and metadata), an
            ``index`` (of which ``search`` takes ``top_k`` that ``filter`` allows), or the
            ``context`` of passages that ``compress`` read for this question. How to read them:
            ``model`` (a pair), ``top_n`` (0 is all), ``mode``, ``rate``, ``max_context_vectors``,
            ``target_ms``, ``compress_timeout_ms``, ``min_relevance``. How to answer:
            ``max_tokens``, ``stop``, ``temperature``, ``top_p``, ``seed``, ``logprobs``.
            ``condensery.questions`` says what each means; what is left out is as there, or the
            pair's own default.
    """
    return RestCall(replies.read_answer, "POST", "/v1/rag/answer", _question(ask(question, **how)))


def answer_stream(question: str, **how: Unpack[Asking]) -> RestCall[Iterable[AnswerEvent]]:
    """Answer a question as ``answer`` does, while it is generated.

    Yields:
        First ``Retrieved``, then ``Delta`` by ``Delta``, at last the whole ``Answer``, whose text
        is what the deltas join to.
    """
    body = {**_question(ask(question, **how)), "stream": True}
    return RestCall(replies.read_event, "POST", "/v1/rag/answer", body)


def compare(question: str, **how: Unpack[Asking]) -> RestCall[Comparison]:
    """Answer a question as ``answer`` does, and from the passages' own text, and compare."""
    body = _question(ask(question, **how))
    return RestCall(replies.read_comparison, "POST", "/v1/rag/compare", body)


def compress(
    question: str,
    documents: Passages,
    *,
    model: str | None = None,
    rate: int | None = None,
    ttl_seconds: float | None = None,
    keep: bool = True,
) -> RestCall[Compressed]:
    """Compress and score documents for a question; the server keeps the vectors for its answer.

    Args:
        question: What they are read for; ``answer`` takes the context for the same one only.
        documents: Texts, or values with ids.
        model: Name of a pair; None takes the server's default.
        rate: Tokens a memory vector, of the rates that the pair has; None is the finest.
        ttl_seconds: How long to keep the vectors; None is the server's ten minutes.
        keep: Whether to keep them; else there is no ``context``, only what became of each.
    """
    body = make_body(
        query=question,
        documents=[write_document(one) for one in read_passages(documents)],
        model=model,
        ratio=rate,
        ttl_s=ttl_seconds,
        **{"return": "handle" if keep else "stats"},
    )
    return RestCall(replies.read_compressed, "POST", "/v1/compress", body)


def release(context: str) -> RestCall[None]:
    """Let go of kept vectors before their time is over."""
    return RestCall(read_nothing, "DELETE", f"/v1/contexts/{quote(context, safe='')}")


def _question(asked: Question) -> dict[str, Any]:
    documents, sampling = asked.documents, asked.sampling
    index = make_body(name=asked.index, top_k=asked.top_k, mode=asked.search, filter=asked.filter)
    return make_body(
        query=asked.text,
        documents=None if documents is None else [write_document(one) for one in documents],
        index=None if asked.index is None else index,
        context=asked.context,
        rerank=make_body(top_n=asked.top_n),
        compression=make_body(
            mode=asked.mode,
            ratio=asked.rate,
            max_context_vectors=asked.max_context_vectors,
            target_ms=asked.target_ms,
            timeout_ms=asked.compress_timeout_ms,
        ),
        min_relevance=asked.min_relevance,
        model=asked.model,
        max_tokens=asked.max_tokens,
        stop=list(asked.stop),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        logprobs=sampling.logprobs,
    )
