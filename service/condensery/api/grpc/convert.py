"""Our values as messages of condensery.v1, and back. What values are allowed, jobs decide."""

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value

from condensery import question, values
from condensery.encodings import Encoded, Encoding
from condensery.errors import InputError
from condensery.jobs.services import Services
from condensery.jobs.validation import check_count
from condensery.question import Question, SearchMode
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Document

LITTLE_ENDIAN_FLOAT = np.dtype("<f4")
FilteredRequest = (
    pb.QueryRequest | pb.AnswerRequest | pb.DeleteRequest | pb.CountRequest | pb.ScrollRequest
)
DOCUMENT_DEPTH = 3  # the request, its list of documents, the document


def read_vectors(data: bytes, field: str, *, rows: int) -> values.Floats:
    """Read ``rows`` packed little-endian float32 vectors, (rows, dims).

    Raises:
        InputError: The bytes don't divide into that many vectors.
    """
    if not data or len(data) % (LITTLE_ENDIAN_FLOAT.itemsize * rows):
        raise InputError(
            f"{field}: {len(data)} bytes are not {rows} vectors of float32.",
            field=field,
            value=len(data),
        )
    return np.frombuffer(data, dtype=LITTLE_ENDIAN_FLOAT).astype(np.float32).reshape(rows, -1)


def write_vectors(vectors: values.Floats) -> bytes:
    """Write vectors row by row, little-endian float32."""
    return vectors.astype(LITTLE_ENDIAN_FLOAT, copy=False).tobytes()


def read_struct(struct: Struct, field: str, levels: int = 64) -> dict[str, Any]:
    """Return a Struct's object; whole numbers come back as ints, as they do over REST.

    Args:
        struct: It knows one kind of number, the double.
        field: Its name in messages.
        levels: Objects and lists that may lie within each other, this one counted.

    Raises:
        InputError: A number is not finite, a value is empty or nested too deep; the message names
            its path.
    """
    _check_depth(levels, field)
    return {
        key: _read_struct_value(value, f"{field}.{key}", levels)
        for key, value in struct.fields.items()
    }


def read_filter(request: FilteredRequest, field: str = "filter") -> dict[str, Any] | None:
    """Return a request's filter, unchecked; None where there is none.

    Raises:
        InputError: As for ``read_struct``.
    """
    return read_struct(request.filter, field) if request.HasField("filter") else None


def _check_depth(levels: int, field: str) -> None:
    if levels < 1:
        raise InputError(
            f"{field}: it is nested too deep, over the limit of objects and lists within each "
            "other (max_json_depth).",
            field=field,
        )


def _read_struct_value(value: Value, field: str, levels: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        return _read_number(value.number_value, field)
    if kind == "bool_value":
        return value.bool_value
    if kind == "null_value":
        return None
    if kind == "struct_value":
        return read_struct(value.struct_value, field, levels - 1)
    if kind == "list_value":
        _check_depth(levels - 1, field)
        items = value.list_value.values
        return [
            _read_struct_value(item, f"{field}[{place}]", levels - 1)
            for place, item in enumerate(items)
        ]
    raise InputError(f"{field}: the value is empty.", field=field)


def _read_number(number: float, field: str) -> int | float:
    if not math.isfinite(number):
        raise InputError(f"{field}: {number} is not a finite number.", field=field, value=number)
    # Over 2^53 not every whole number is a double: it may have been another one.
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number


def write_struct(metadata: Mapping[str, Any]) -> Struct:
    """Return an object as a Struct."""
    struct = Struct()
    struct.update(dict(metadata))
    return struct


def parse_documents(messages: Iterable[pb.Document], max_depth: int) -> list[Document]:
    """Read documents.

    Args:
        messages: The documents.
        max_depth: Objects and lists within each other, the request, its list of documents and the
            document counted, as they are over REST.

    Raises:
        InputError: As for ``read_struct``.
    """
    levels = max_depth - DOCUMENT_DEPTH
    return [
        Document(
            message.id,
            message.text,
            read_struct(message.metadata, f"documents[{place}].metadata", levels),
        )
        for place, message in enumerate(messages)
    ]


def write_document(document: Document) -> pb.Document:
    """Write a document."""
    return pb.Document(id=document.id, text=document.text, metadata=write_struct(document.metadata))


def write_page(page: values.Page) -> pb.ScrollResponse:
    """Write some of an index's documents."""
    return pb.ScrollResponse(
        documents=[
            pb.StoredDocument(
                id=document.id,
                text=document.text,
                metadata=None if document.metadata is None else write_struct(document.metadata),
                passages=[
                    pb.StoredPassage(
                        id=passage.id,
                        start=passage.start,
                        end=passage.end,
                        vector=write_vectors(passage.vector),
                    )
                    for passage in document.passages or ()
                ],
            )
            for document in page.documents
        ],
        next=page.next or "",
    )


def write_embeddings(
    result: values.Embedded, encoded: Encoded, encoding: Encoding
) -> pb.EmbedBatchResponse:
    """Write vectors, packed in their encoding."""
    return pb.EmbedBatchResponse(
        model=result.model,
        fingerprint=result.fingerprint,
        vectors=encoded.tobytes(),
        dtype=encoding,
        dims=result.vectors.shape[1],
        tokens=result.tokens,
        truncated=result.truncated,
    )


def write_ranking(ranking: values.Reranked, *, with_text: bool) -> pb.RerankResponse:
    """Write passages in their order."""
    return pb.RerankResponse(
        model=ranking.model,
        results=[
            pb.Ranked(
                index=item.index, score=item.relevance_score, text=item.text if with_text else ""
            )
            for item in ranking.items
        ],
        tokens=ranking.tokens,
        truncated=ranking.truncated,
        query_truncated=ranking.query_truncated,
    )


def write_index(info: values.IndexInfo) -> pb.IndexInfo:
    """Write what an index is and holds."""
    prompts = info.prompts
    return pb.IndexInfo(
        name=info.name,
        encoder=info.encoder,
        fingerprint=info.fingerprint,
        dims=info.dims,
        kind=info.kind,
        metric=info.metric,
        documents=info.documents,
        passages=info.passages,
        options=info.options,
        searched_as=info.searched_as,
        trains_at=info.trains_at,
        tombstones=info.tombstones,
        prompts=None
        if prompts is None
        else pb.IndexPrompts(query=prompts.query, passage=prompts.passage),
        prompts_outdated=info.prompts_outdated,
    )


def write_hit(hit: values.Hit) -> pb.Hit:
    """Write a passage and its score."""
    return pb.Hit(
        id=hit.id,
        document_id=hit.document_id,
        score=hit.score,
        text=hit.text,
        start=hit.start,
        end=hit.end,
        metadata=write_struct(hit.metadata),
    )


def write_model(info: values.ModelInfo) -> pb.ModelInfo:
    """Write what a running model is."""
    return pb.ModelInfo(
        name=info.id,
        kind=info.kind,
        method=info.method,
        fingerprint=info.fingerprint,
        dims=info.dims or 0,
        max_tokens=info.max_tokens,
        dtype=info.dtype,
        device=info.device,
        licence=info.licence,
        pooling=info.pooling or "",
        created=info.created,
        pair=None if info.pair is None else _write_pair(info.pair),
        labels=info.labels,
        independent=info.independent,
        version=info.version,
        alias_of=info.alias_of or "",
        dimensions=info.dimensions,
    )


def write_report(report: values.ModelReport) -> pb.GetReportResponse:
    """Write a model's report, without its card and plots."""
    return pb.GetReportResponse(
        model=report.model,
        version=report.version,
        fingerprint=report.fingerprint,
        report=json.dumps(report.report, ensure_ascii=False),
        has_card=report.card,
        plots=report.plots,
    )


def _write_pair(traits: values.PairTraits) -> pb.PairTraits:
    return pb.PairTraits(
        vectors=traits.vectors,
        rates=traits.rates,
        scores=traits.scores,
        top_n=traits.top_n,
        min_relevance=traits.min_relevance,
    )


def read_question(
    request: pb.AnswerRequest, documents: Sequence[Document], model: str | None
) -> Question:
    """Read a question, whose documents are read already.

    ``model`` is the pair that the request names.

    Raises:
        InputError: A value is out of its range.
    """
    top_p = read_optional(request, "top_p")
    return Question(
        request.query,
        documents=documents or (None if request.index or request.context else []),
        index=_read_answer_index(request),
        context=request.context or None,
        rerank=question.AnswerRerank(read_optional(request, "top_n")),
        compression=question.AnswerCompression(
            # The job checks the search mode, and the mode of compression.
            mode=cast(question.CompressionMode, request.compression_mode or "auto"),
            ratio=read_optional(request, "ratio"),
            max_context_vectors=read_optional(request, "max_context_vectors"),
            target_ms=read_optional(request, "target_ms"),
            timeout_ms=read_optional(request, "compress_timeout_ms"),
        ),
        min_relevance=read_optional(request, "min_relevance"),
        model=model,
        max_tokens=request.max_tokens or question.ANSWER_TOKENS,
        temperature=request.temperature,
        top_p=1.0 if top_p is None else top_p,
        seed=read_optional(request, "seed"),
        stop=tuple(request.stop),
        logprobs=read_optional(request, "logprobs"),
    )


def _read_answer_index(request: pb.AnswerRequest) -> question.AnswerIndex | None:
    filter = read_filter(request, "index.filter")
    if request.index:
        mode = cast(SearchMode | None, request.search_mode or None)
        return question.AnswerIndex(request.index, request.top_k or 20, mode, filter)
    if filter is not None:
        raise InputError(
            "index.filter: there is no index to filter; give `index`, or no filter.",
            field="index.filter",
        )
    return None


def read_optional(message: Message, field: str) -> Any:
    """Return an optional field's value; None where the caller left it out."""
    return getattr(message, field) if message.HasField(field) else None


def write_answer(answer: question.Answer) -> pb.AnswerResponse:
    """Write a whole answer."""
    usage, timings = answer.usage, answer.timings
    return pb.AnswerResponse(
        id=answer.id,
        model=answer.model,
        answer=answer.answer,
        finish_reason=answer.finish_reason,
        citations=[_write_citation(citation) for citation in answer.citations],
        compression=_write_compression(answer.compression),
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
        logprobs=_write_logprobs(answer.logprobs),
    )


def write_event(event: question.AnswerEvent) -> pb.AnswerEvent:
    """Write one event of a streamed answer."""
    if isinstance(event, question.Retrieved):
        return pb.AnswerEvent(
            retrieved=pb.Retrieved(
                id=event.id,
                model=event.model,
                citations=[_write_citation(citation) for citation in event.citations],
                compression=_write_compression(event.compression),
            )
        )
    if isinstance(event, question.Delta):
        return pb.AnswerEvent(delta=event.text, logprobs=_write_logprobs(event.logprobs))
    return pb.AnswerEvent(final=write_answer(event))


def write_comparison(comparison: question.Comparison) -> pb.CompareResponse:
    """Write two answers, and how they agree."""
    agreement = comparison.agreement
    return pb.CompareResponse(
        compressed=write_answer(comparison.compressed),
        plain=write_answer(comparison.plain),
        agreement=pb.Agreement(exact=agreement.exact, f1=agreement.f1, cosine=agreement.cosine),
        speedup=comparison.speedup,
        flops_saved=comparison.flops_saved,
    )


def write_compressed(result: question.Compressed) -> pb.CompressResponse:
    """Write the outcome of each document, and the handle of their vectors."""
    return pb.CompressResponse(
        id=result.id,
        model=result.model,
        fingerprint=result.fingerprint,
        context=result.context or "",
        expires_at=result.expires_at,
        results=[
            pb.CompressedDocument(
                index=document.index,
                id=document.id,
                relevance_score=document.relevance_score,
                tokens_in=document.tokens_in,
                vectors_out=document.vectors_out,
                windows=document.windows,
                status=document.status,
                reason=document.reason or "",
            )
            for document in result.results
        ],
        compression=_write_compression(result.compression),
        tokens=result.usage.prompt_tokens,
    )


def _write_citation(citation: question.Citation) -> pb.Citation:
    return pb.Citation(
        index=citation.index,
        id=citation.id,
        document_id=citation.document_id,
        text=citation.text,
        start=citation.start,
        end=citation.end,
        relevance_score=citation.relevance_score,
        metadata=write_struct(citation.metadata),
    )


def _write_compression(compression: question.Compression) -> pb.Compression:
    return pb.Compression(
        mode=compression.mode,
        status=compression.status,
        docs=compression.docs,
        tokens_in=compression.tokens_in,
        vectors_out=compression.vectors_out,
        ratio=compression.ratio,
        flops_plain=compression.flops_plain,
        flops_used=compression.flops_used,
        flops_saved=compression.flops_saved,
        compress_ms=compression.compress_ms,
        reason=compression.reason or "",
        fallback=compression.fallback_docs,
        left_out=compression.left_out,
    )


def _write_logprobs(logprobs: Sequence[question.TokenLogprob] | None) -> pb.Logprobs | None:
    if logprobs is None:
        return None
    return pb.Logprobs(
        tokens=[
            pb.TokenLogprob(
                text=token.text,
                logprob=token.logprob,
                top=[pb.Likely(text=other.text, logprob=other.logprob) for other in token.top],
            )
            for token in logprobs
        ]
    )


class ModelResult(Protocol):
    """A job's result that names its model."""

    @property
    def model(self) -> str:
        """The model's name."""
        ...


Result = TypeVar("Result", bound=ModelResult)


async def read_documents(
    services: Services, messages: Sequence[pb.Document], limit: int
) -> list[Document]:
    """Read at most ``limit`` documents, in a thread.

    They are counted first: millions of empty ones would take half a minute. The metadata of two
    thousand takes 50 ms, in which other requests want their turn.
    """
    check_count(messages, "documents", limit)
    return await asyncio.to_thread(parse_documents, messages, services.limits.max_json_depth)


def serialize_timed(
    services: Services, result: Result, write: Callable[[Result], Message]
) -> bytes:
    """Serialize a job's result, timed as a stage of its model."""
    with services.metrics.stage(result.model, "serialize"):
        return write(result).SerializeToString()
