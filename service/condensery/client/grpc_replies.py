"""gRPC replies as values."""

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from condensery.encodings import Encoding, unpack
from condensery.question import (
    Agreement,
    Answer,
    AnswerEvent,
    Citation,
    Comparison,
    Compressed,
    CompressedDocument,
    Compression,
    Delta,
    Likely,
    Retrieved,
    Timings,
    TokenLogprob,
    Usage,
)
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import (
    Document,
    Floats,
    Hit,
    IndexInfo,
    IndexPrompts,
    ModelInfo,
    ModelReport,
    Page,
    PairTraits,
    Ranked,
    StoredDocument,
    StoredPassage,
    TokenUsage,
    Upserted,
)


def read_vectors(reply: pb.EmbedBatchResponse) -> Floats:
    """Return the vectors, (texts, dims), float32, whatever they came in."""
    return unpack(reply.vectors, cast(Encoding, reply.dtype), reply.dims)


def read_ranked(reply: pb.RerankResponse, texts: Sequence[str]) -> list[Ranked]:
    """Return the passages in order; ``texts`` are those that were sent."""
    return [Ranked(item.index, item.score, texts[item.index]) for item in reply.results]


def read_answer(reply: pb.AnswerResponse) -> Answer:
    """Return a whole answer."""
    return Answer(
        id=reply.id,
        model=reply.model,
        answer=reply.answer,
        finish_reason=_trust_literal(reply.finish_reason),
        citations=_read_citations(reply.citations),
        compression=_read_compression(reply.compression),
        usage=Usage(
            prompt_tokens=reply.usage.prompt_tokens,
            context_vectors=reply.usage.context_vectors,
            completion_tokens=reply.usage.completion_tokens,
        ),
        timings=Timings(
            retrieve_ms=reply.timings.retrieve_ms,
            compress_ms=reply.timings.compress_ms,
            generate_ms=reply.timings.generate_ms,
            ttft_ms=reply.timings.ttft_ms,
            total_ms=reply.timings.total_ms,
            queue_ms=reply.timings.queue_ms,
            tokenize_ms=reply.timings.tokenize_ms,
        ),
        logprobs=_read_logprobs(reply),
    )


def read_comparison(reply: pb.CompareResponse) -> Comparison:
    """Return two answers, and how they agree."""
    agreement = reply.agreement
    return Comparison(
        compressed=read_answer(reply.compressed),
        plain=read_answer(reply.plain),
        agreement=Agreement(
            exact=agreement.exact,
            f1=agreement.f1,
            cosine=agreement.cosine if agreement.HasField("cosine") else None,
        ),
        speedup=reply.speedup,
    )


def read_compressed(reply: pb.CompressResponse) -> Compressed:
    """Return what became of documents, and the handle of their vectors."""
    return Compressed(
        id=reply.id,
        model=reply.model,
        fingerprint=reply.fingerprint,
        context=reply.context or None,
        expires_at=reply.expires_at if reply.HasField("expires_at") else None,
        results=tuple(
            CompressedDocument(
                index=item.index,
                id=item.id,
                relevance_score=item.relevance_score if item.HasField("relevance_score") else None,
                tokens_in=item.tokens_in,
                vectors_out=item.vectors_out,
                windows=item.windows,
                status=_trust_literal(item.status),
                reason=item.reason or None,
            )
            for item in reply.results
        ),
        compression=_read_compression(reply.compression),
        usage=TokenUsage(reply.tokens),
    )


def read_event(reply: pb.AnswerEvent) -> list[AnswerEvent]:
    """Return what one message of a streamed answer says that is new."""
    match reply.WhichOneof("event"):
        case "retrieved":
            retrieved = reply.retrieved
            compression = _read_compression(retrieved.compression)
            return [
                Retrieved(
                    retrieved.id, retrieved.model, _read_citations(retrieved.citations), compression
                )
            ]
        case "delta":
            return [Delta(reply.delta, _read_logprobs(reply))]
        case "final":
            return [read_answer(reply.final)]
        case _:
            return []  # what a newer server may add


def read_index(reply: pb.IndexInfo) -> IndexInfo:
    """Return what describes one index."""
    own = reply.prompts
    return IndexInfo(
        name=reply.name,
        encoder=reply.encoder,
        fingerprint=reply.fingerprint,
        dims=reply.dims,
        kind=reply.kind,
        metric=reply.metric,
        documents=reply.documents,
        passages=reply.passages,
        options=dict(reply.options),
        searched_as=reply.searched_as,
        trains_at=reply.trains_at if reply.HasField("trains_at") else None,
        tombstones=reply.tombstones,
        prompts=IndexPrompts(own.query, own.passage) if reply.HasField("prompts") else None,
        prompts_outdated=reply.prompts_outdated,
    )


def read_indexes(reply: pb.ListIndexesResponse) -> list[IndexInfo]:
    """Return the indexes."""
    return [read_index(item) for item in reply.indexes]


def read_upserted(reply: pb.UpsertResponse) -> Upserted:
    """Return what an upsert wrote."""
    return Upserted(reply.documents, reply.passages, reply.tokens)


def read_hits(reply: pb.QueryResponse) -> list[Hit]:
    """Return the passages found."""
    return [
        Hit(
            id=item.id,
            document_id=item.document_id,
            text=item.text,
            start=item.start,
            end=item.end,
            metadata=read_struct(item.metadata),
            score=item.score,
        )
        for item in reply.hits
    ]


def read_counts(reply: pb.CountResponse) -> tuple[int, int]:
    """Return (documents, passages)."""
    return reply.documents, reply.passages


def read_documents(reply: pb.GetDocumentsResponse) -> list[Document]:
    """Return documents."""
    return [Document(item.id, item.text, read_struct(item.metadata)) for item in reply.documents]


def read_page(reply: pb.ScrollResponse, *, with_vectors: bool) -> Page:
    """Return some of an index's documents; with passages, if they were asked for."""
    return Page(
        reply.next or None,
        tuple(
            StoredDocument(
                id=item.id,
                text=item.text if item.HasField("text") else None,
                metadata=read_struct(item.metadata) if item.HasField("metadata") else None,
                passages=tuple(map(_read_stored_passage, item.passages)) if with_vectors else None,
            )
            for item in reply.documents
        ),
    )


def _read_stored_passage(piece: pb.StoredPassage) -> StoredPassage:
    vector = np.frombuffer(piece.vector, dtype="<f4").astype(np.float32, copy=False)
    return StoredPassage(piece.id, piece.start, piece.end, vector)


def read_models(reply: pb.ListModelsResponse) -> list[ModelInfo]:
    """Return the models."""
    return [
        ModelInfo(
            id=item.name,
            kind=item.kind,
            method=item.method,
            fingerprint=item.fingerprint,
            dims=item.dims or None,
            max_tokens=item.max_tokens,
            dtype=item.dtype,
            device=item.device,
            licence=item.licence,
            created=item.created,
            pooling=item.pooling or None,
            pair=_read_pair_traits(item.pair) if item.HasField("pair") else None,
            labels=tuple(item.labels),
            independent=item.independent,
            version=item.version,
            alias_of=item.alias_of or None,
            dimensions=tuple(item.dimensions),
        )
        for item in reply.models
    ]


def read_report(reply: pb.GetReportResponse) -> ModelReport:
    """Return what a model was measured at."""
    return ModelReport(
        model=reply.model,
        version=reply.version,
        fingerprint=reply.fingerprint,
        report=json.loads(reply.report),
        card=reply.has_card,
        plots=tuple(reply.plots),
    )


def _read_pair_traits(traits: pb.PairTraits) -> PairTraits:
    return PairTraits(
        vectors=tuple(traits.vectors),
        rates=tuple(traits.rates),
        scores=traits.scores,
        top_n=traits.top_n,
        min_relevance=traits.min_relevance,
    )


def read_struct(struct: Any) -> dict[str, Any]:
    """Return a Struct as JSON has it: its numbers are all floats, whole ones become int."""
    return {name: _read_struct_value(value) for name, value in struct.fields.items()}


def _read_struct_value(value: Any) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number: float = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return read_struct(value.struct_value)
        case "list_value":
            return [_read_struct_value(item) for item in value.list_value.values]
        case _:
            return None


def _read_citations(items: Any) -> tuple[Citation, ...]:
    return tuple(
        Citation(
            index=item.index,
            id=item.id,
            document_id=item.document_id,
            text=item.text,
            start=item.start,
            end=item.end,
            relevance_score=item.relevance_score if item.HasField("relevance_score") else None,
            metadata=read_struct(item.metadata),
        )
        for item in items
    )


def _read_compression(block: pb.Compression) -> Compression:
    return Compression(
        mode=_trust_literal(block.mode),
        status=_trust_literal(block.status),
        docs=block.docs,
        tokens_in=block.tokens_in,
        vectors_out=block.vectors_out,
        flops_plain=block.flops_plain,
        flops_used=block.flops_used,
        compress_ms=block.compress_ms,
        reason=block.reason or None,
        fallback_docs=tuple(block.fallback),
        left_out=tuple(block.left_out),
    )


def _read_logprobs(reply: pb.AnswerResponse | pb.AnswerEvent) -> tuple[TokenLogprob, ...] | None:
    if not reply.HasField("logprobs"):
        return None
    return tuple(
        TokenLogprob(
            item.text, item.logprob, tuple(Likely(other.text, other.logprob) for other in item.top)
        )
        for item in reply.logprobs.tokens
    )


def _trust_literal(word: str) -> Any:
    """Return a word that the contract limits to some; a newer server's new one is no error."""
    return word
