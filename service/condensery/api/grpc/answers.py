"""Questions, answers and contexts as protobuf messages. No decisions here."""

from collections.abc import Sequence
from typing import Any, cast

from google.protobuf.message import Message

from condensery import answers, values
from condensery.api.grpc.messages import filter_of, struct_of
from condensery.questions import Question, Sampling, SearchMode
from condensery.stubs import condensery_v1_pb2 as pb


def question(
    given: pb.AnswerRequest, documents: Sequence[values.Document], model: str | None
) -> Question:
    """Read a question; ``documents`` are its documents, read, and ``model`` the pair it names.

    Raises:
        InputError: A value is out of its range.
    """
    elsewhere = given.index or given.context
    top_p = optional(given, "top_p")
    return Question(
        given.query,
        documents=documents or (None if elsewhere else []),
        index=given.index or None,
        context=given.context or None,
        model=model,
        top_k=given.top_k or 20,
        search=cast(
            SearchMode | None, given.search_mode or None
        ),  # the job checks it, and the mode
        filter=filter_of(given, "index.filter"),
        top_n=optional(given, "top_n"),
        mode=cast(answers.CompressionMode, given.compression_mode or "auto"),
        rate=optional(given, "ratio"),
        max_context_vectors=optional(given, "max_context_vectors"),
        target_ms=optional(given, "target_ms"),
        compress_timeout_ms=optional(given, "compress_timeout_ms"),
        min_relevance=optional(given, "min_relevance"),
        max_tokens=given.max_tokens or 64,
        stop=tuple(given.stop),
        sampling=Sampling(
            temperature=given.temperature,
            top_p=1.0 if top_p is None else top_p,
            seed=optional(given, "seed"),
            logprobs=optional(given, "logprobs"),
        ),
    )


def optional(given: Message, field: str) -> Any:
    """Return an optional field's value; None where the caller left it out."""
    return getattr(given, field) if given.HasField(field) else None


def answer(found: answers.Answer) -> pb.AnswerResponse:
    """Write a whole answer."""
    usage, timings = found.usage, found.timings
    return pb.AnswerResponse(
        id=found.id,
        model=found.model,
        answer=found.text,
        finish_reason=found.finish_reason,
        citations=[_citation(one) for one in found.citations],
        compression=_compression(found.compression),
        usage=pb.Usage(
            prompt_tokens=usage.prompt_tokens,
            context_vectors=usage.context_vectors,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
        ),
        timings=pb.Timings(
            retrieve_ms=timings.retrieve_ms,
            compress_ms=timings.compress_ms,
            generate_ms=timings.generate_ms,
            ttft_ms=timings.ttft_ms,
            total_ms=timings.total_ms,
            queue_ms=timings.queue_ms,
            tokenize_ms=timings.tokenize_ms,
        ),
        logprobs=_logprobs(found.logprobs),
    )


def event(found: answers.AnswerEvent) -> pb.AnswerEvent:
    """Write one event of a streamed answer."""
    if isinstance(found, answers.Retrieved):
        return pb.AnswerEvent(
            retrieved=pb.Retrieved(
                id=found.id,
                model=found.model,
                citations=[_citation(one) for one in found.citations],
                compression=_compression(found.compression),
            )
        )
    if isinstance(found, answers.Delta):
        return pb.AnswerEvent(delta=found.text, logprobs=_logprobs(found.logprobs))
    return pb.AnswerEvent(final=answer(found))


def comparison(found: answers.Comparison) -> pb.CompareResponse:
    """Write two answers, and how they agree."""
    return pb.CompareResponse(
        compressed=answer(found.compressed),
        plain=answer(found.plain),
        agreement=pb.Agreement(exact=found.exact, f1=found.f1, cosine=found.cosine),
        speedup=found.speedup,
        flops_saved=found.flops_saved,
    )


def compressed(found: answers.Compressed) -> pb.CompressResponse:
    """Write what became of documents, and the handle of their vectors."""
    return pb.CompressResponse(
        id=found.id,
        model=found.model,
        fingerprint=found.fingerprint,
        context=found.context or "",
        expires_at=found.expires_at,
        results=[
            pb.CompressedDocument(
                index=one.index,
                id=one.id,
                relevance_score=one.relevance_score,
                tokens_in=one.tokens_in,
                vectors_out=one.vectors_out,
                windows=one.windows,
                status=one.status,
                reason=one.reason or "",
            )
            for one in found.documents
        ],
        compression=_compression(found.compression),
        tokens=found.tokens,
    )


def _citation(cited: answers.Citation) -> pb.Citation:
    return pb.Citation(
        index=cited.index,
        id=cited.id,
        document_id=cited.document_id,
        text=cited.text,
        start=cited.start,
        end=cited.end,
        relevance_score=cited.relevance_score,
        metadata=struct_of(cited.metadata),
    )


def _compression(block: answers.Compression) -> pb.Compression:
    return pb.Compression(
        mode=block.mode,
        status=block.status,
        docs=block.docs,
        tokens_in=block.tokens_in,
        vectors_out=block.vectors_out,
        ratio=block.ratio,
        flops_plain=block.flops_plain,
        flops_used=block.flops_used,
        flops_saved=block.flops_saved,
        compress_ms=block.compress_ms,
        reason=block.reason or "",
        fallback=block.fallback,
        left_out=block.left_out,
    )


def _logprobs(found: Sequence[answers.TokenLogprob] | None) -> pb.Logprobs | None:
    if found is None:
        return None
    return pb.Logprobs(
        tokens=[
            pb.TokenLogprob(
                text=one.text,
                logprob=one.logprob,
                top=[pb.Likely(text=text, logprob=logprob) for text, logprob in one.top],
            )
            for one in found
        ]
    )
