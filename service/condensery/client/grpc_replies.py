"""gRPC replies as values."""

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from condensery.answers import (
    Answer,
    AnswerEvent,
    Citation,
    Comparison,
    Compressed,
    CompressedDocument,
    Compression,
    Delta,
    Retrieved,
    Timings,
    TokenLogprob,
    Usage,
)
from condensery.encodings import Encoding, unpack
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
    Passage,
    Ranked,
    StoredDocument,
    StoredPassage,
    Upserted,
)


def read_vectors(reply: pb.EmbedBatchResponse) -> Floats:
    """Return the vectors, (texts, dims), float32, whatever they came in."""
    return unpack(reply.vectors, cast(Encoding, reply.dtype), reply.dims)


def read_ranked(reply: pb.RerankResponse, texts: Sequence[str]) -> list[Ranked]:
    """Return the passages in order; ``texts`` are those that were sent."""
    return [Ranked(one.index, one.score, texts[one.index]) for one in reply.results]


def read_answer(reply: pb.AnswerResponse) -> Answer:
    """Return a whole answer."""
    return Answer(
        id=reply.id,
        model=reply.model,
        text=reply.answer,
        finish_reason=_literal(reply.finish_reason),
        citations=_citations(reply.citations),
        compression=_compression(reply.compression),
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
        logprobs=_logprobs(reply),
    )


def read_comparison(reply: pb.CompareResponse) -> Comparison:
    """Return two answers, and how they agree."""
    agreement = reply.agreement
    return Comparison(
        compressed=read_answer(reply.compressed),
        plain=read_answer(reply.plain),
        exact=agreement.exact,
        f1=agreement.f1,
        cosine=agreement.cosine if agreement.HasField("cosine") else None,
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
        documents=tuple(
            CompressedDocument(
                index=one.index,
                id=one.id,
                relevance_score=one.relevance_score if one.HasField("relevance_score") else None,
                tokens_in=one.tokens_in,
                vectors_out=one.vectors_out,
                windows=one.windows,
                status=_literal(one.status),
                reason=one.reason or None,
            )
            for one in reply.results
        ),
        compression=_compression(reply.compression),
        tokens=reply.tokens,
    )


def read_event(reply: pb.AnswerEvent) -> list[AnswerEvent]:
    """Return what one message of a streamed answer says that is new."""
    match reply.WhichOneof("event"):
        case "retrieved":
            found = reply.retrieved
            compression = _compression(found.compression)
            return [Retrieved(found.id, found.model, _citations(found.citations), compression)]
        case "delta":
            return [Delta(reply.delta, _logprobs(reply))]
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
    return [read_index(one) for one in reply.indexes]


def read_upserted(reply: pb.UpsertResponse) -> Upserted:
    """Return what an upsert wrote."""
    return Upserted(reply.documents, reply.passages, reply.tokens)


def read_hits(reply: pb.QueryResponse) -> list[Hit]:
    """Return the passages found."""
    return [
        Hit(
            Passage(
                id=one.id,
                document_id=one.document_id,
                text=one.text,
                start=one.start,
                end=one.end,
                metadata=plain(one.metadata),
            ),
            one.score,
        )
        for one in reply.hits
    ]


def read_counts(reply: pb.CountResponse) -> tuple[int, int]:
    """Return (documents, passages)."""
    return reply.documents, reply.passages


def read_documents(reply: pb.GetDocumentsResponse) -> list[Document]:
    """Return documents."""
    return [Document(one.id, one.text, plain(one.metadata)) for one in reply.documents]


def read_page(reply: pb.ScrollResponse, *, with_vectors: bool) -> Page:
    """Return some of an index's documents; with passages, if they were asked for."""
    return Page(
        tuple(
            StoredDocument(
                id=one.id,
                text=one.text if one.HasField("text") else None,
                metadata=plain(one.metadata) if one.HasField("metadata") else None,
                passages=tuple(map(_stored, one.passages)) if with_vectors else None,
            )
            for one in reply.documents
        ),
        reply.next or None,
    )


def _stored(piece: pb.StoredPassage) -> StoredPassage:
    vector = np.frombuffer(piece.vector, dtype="<f4").astype(np.float32, copy=False)
    return StoredPassage(piece.id, piece.start, piece.end, vector)


def read_models(reply: pb.ListModelsResponse) -> list[ModelInfo]:
    """Return the models."""
    return [
        ModelInfo(
            name=one.name,
            kind=_literal(one.kind),
            method=one.method,
            fingerprint=one.fingerprint,
            dims=one.dims or None,
            max_tokens=one.max_tokens,
            dtype=one.dtype,
            device=one.device,
            licence=one.licence,
            created=one.created,
            pooling=one.pooling or None,
            pair=_pair(one.pair) if one.HasField("pair") else None,
            labels=tuple(one.labels),
            independent=one.independent,
            version=one.version,
            alias_of=one.alias_of or None,
            dimensions=tuple(one.dimensions),
        )
        for one in reply.models
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


def _pair(traits: pb.PairTraits) -> PairTraits:
    return PairTraits(
        vectors=tuple(traits.vectors),
        rates=tuple(traits.rates),
        scores=traits.scores,
        top_n=traits.top_n,
        min_relevance=traits.min_relevance,
    )


def plain(struct: Any) -> dict[str, Any]:
    """Return a Struct as JSON has it: its numbers are all floats, whole ones become int."""
    return {name: _plain(value) for name, value in struct.fields.items()}


def _plain(value: Any) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number: float = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return plain(value.struct_value)
        case "list_value":
            return [_plain(one) for one in value.list_value.values]
        case _:
            return None


def _citations(items: Any) -> tuple[Citation, ...]:
    return tuple(
        Citation(
            index=one.index,
            id=one.id,
            document_id=one.document_id,
            text=one.text,
            start=one.start,
            end=one.end,
            relevance_score=one.relevance_score if one.HasField("relevance_score") else None,
            metadata=plain(one.metadata),
        )
        for one in items
    )


def _compression(block: pb.Compression) -> Compression:
    return Compression(
        mode=_literal(block.mode),
        status=_literal(block.status),
        docs=block.docs,
        tokens_in=block.tokens_in,
        vectors_out=block.vectors_out,
        flops_plain=block.flops_plain,
        flops_used=block.flops_used,
        compress_ms=block.compress_ms,
        reason=block.reason or None,
        fallback=tuple(block.fallback),
        left_out=tuple(block.left_out),
    )


def _logprobs(reply: pb.AnswerResponse | pb.AnswerEvent) -> tuple[TokenLogprob, ...] | None:
    if not reply.HasField("logprobs"):
        return None
    return tuple(
        TokenLogprob(one.text, one.logprob, tuple((other.text, other.logprob) for other in one.top))
        for one in reply.logprobs.tokens
    )


def _literal(word: str) -> Any:
    """Return a word that the contract limits to some; a newer server's new one is no error."""
    return word
