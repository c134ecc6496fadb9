"""Our values as protobuf messages, and back; answers are in ``answers``. No decisions here."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.struct_pb2 import Struct, Value

from condensery import values
from condensery.encodings import Encoded, Encoding
from condensery.errors import InputError
from condensery.stubs import condensery_v1_pb2 as pb

LITTLE = np.dtype("<f4")
Filtered = (
    pb.QueryRequest | pb.AnswerRequest | pb.DeleteRequest | pb.CountRequest | pb.ScrollRequest
)
DOCUMENT_DEPTH = 3  # the request, its list of documents, the document


def unpack(data: bytes, field: str, *, rows: int) -> values.Floats:
    """Read ``rows`` packed little-endian float32 vectors, (rows, dims).

    Raises:
        InputError: The bytes don't divide into that many vectors.
    """
    if not data or len(data) % (LITTLE.itemsize * rows):
        raise InputError(
            f"{field}: {len(data)} bytes are not {rows} vectors of float32.",
            field=field,
            value=len(data),
        )
    return np.frombuffer(data, dtype=LITTLE).astype(np.float32).reshape(rows, -1)


def pack(vectors: values.Floats) -> bytes:
    """Write vectors row by row, little-endian float32."""
    return vectors.astype(LITTLE, copy=False).tobytes()


def metadata_of(struct: Struct, field: str, levels: int = 64) -> dict[str, Any]:
    """Return a Struct's object; whole numbers come back as ints, as they do over REST.

    Args:
        struct: It knows one kind of number, the double.
        field: Its name in messages.
        levels: Objects and lists that may lie within each other, this one counted.

    Raises:
        InputError: A number is none, a value holds nothing, or lies too deep; it is named by its
            path.
    """
    _check_depth(levels, field)
    return {key: _plain(value, f"{field}.{key}", levels) for key, value in struct.fields.items()}


def filter_of(given: Filtered, field: str = "filter") -> dict[str, Any] | None:
    """Return a request's filter as it was given; None where there is none.

    Raises:
        InputError: As for ``metadata_of``.
    """
    return metadata_of(given.filter, field) if given.HasField("filter") else None


def _check_depth(levels: int, field: str) -> None:
    if levels < 1:
        raise InputError(
            f"{field}: it lies too deep, over the limit of objects and lists within each other "
            "(max_json_depth).",
            field=field,
        )


def _plain(value: Value, field: str, levels: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        return _number(value.number_value, field)
    if kind == "bool_value":
        return value.bool_value
    if kind == "null_value":
        return None
    if kind == "struct_value":
        return metadata_of(value.struct_value, field, levels - 1)
    if kind == "list_value":
        _check_depth(levels - 1, field)
        items = value.list_value.values
        return [_plain(one, f"{field}[{place}]", levels - 1) for place, one in enumerate(items)]
    raise InputError(f"{field}: the value is of no kind.", field=field)


def _number(number: float, field: str) -> int | float:
    if not math.isfinite(number):
        raise InputError(f"{field}: {number} is not a finite number.", field=field, value=number)
    # Over 2^53 not every whole number is a double: it may have been another one.
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number


def struct_of(metadata: Mapping[str, Any]) -> Struct:
    """Return an object as a Struct."""
    struct = Struct()
    struct.update(dict(metadata))
    return struct


def documents(given: Iterable[pb.Document], max_depth: int) -> list[values.Document]:
    """Read documents.

    Args:
        given: The messages.
        max_depth: Objects and lists within each other, the request, its list of documents and the
            document counted, as they are over REST.

    Raises:
        InputError: As for ``metadata_of``.
    """
    levels = max_depth - DOCUMENT_DEPTH
    return [
        values.Document(
            one.id, one.text, metadata_of(one.metadata, f"documents[{place}].metadata", levels)
        )
        for place, one in enumerate(given)
    ]


def document(stored: values.Document) -> pb.Document:
    """Write a document."""
    return pb.Document(id=stored.id, text=stored.text, metadata=struct_of(stored.metadata))


def page(found: values.Page) -> pb.ScrollResponse:
    """Write some of an index's documents."""
    return pb.ScrollResponse(
        documents=[
            pb.StoredDocument(
                id=one.id,
                text=one.text,
                metadata=None if one.metadata is None else struct_of(one.metadata),
                passages=[
                    pb.StoredPassage(
                        id=piece.id, start=piece.start, end=piece.end, vector=pack(piece.vector)
                    )
                    for piece in one.passages or ()
                ],
            )
            for one in found.documents
        ],
        next=found.next or "",
    )


def embedded(found: values.Embedded, encoded: Encoded, encoding: Encoding) -> pb.EmbedBatchResponse:
    """Write vectors, packed in their encoding."""
    return pb.EmbedBatchResponse(
        model=found.model,
        fingerprint=found.fingerprint,
        vectors=encoded.tobytes(),
        dtype=encoding,
        dims=found.vectors.shape[1],
        tokens=found.tokens,
        truncated=found.truncated,
    )


def reranked(found: values.Reranked, *, with_text: bool) -> pb.RerankResponse:
    """Write passages in their order."""
    return pb.RerankResponse(
        model=found.model,
        results=[
            pb.Ranked(index=one.index, score=one.score, text=one.text if with_text else "")
            for one in found.items
        ],
        tokens=found.tokens,
        truncated=found.truncated,
        query_truncated=found.query_truncated,
    )


def index_info(info: values.IndexInfo) -> pb.IndexInfo:
    """Write what an index is and holds."""
    own = info.prompts
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
        prompts=None if own is None else pb.IndexPrompts(query=own.query, passage=own.passage),
        prompts_outdated=info.prompts_outdated,
    )


def hit(found: values.Hit) -> pb.Hit:
    """Write a passage found."""
    passage = found.passage
    return pb.Hit(
        id=passage.id,
        document_id=passage.document_id,
        score=found.score,
        text=passage.text,
        start=passage.start,
        end=passage.end,
        metadata=struct_of(passage.metadata),
    )


def model_info(info: values.ModelInfo) -> pb.ModelInfo:
    """Write what a running model is."""
    return pb.ModelInfo(
        name=info.name,
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
        pair=None if info.pair is None else _pair(info.pair),
        labels=info.labels,
        independent=info.independent,
        version=info.version,
        alias_of=info.alias_of or "",
        dimensions=info.dimensions,
    )


def model_report(found: values.ModelReport) -> pb.GetReportResponse:
    """Write what a model was measured at, without its card and plots."""
    return pb.GetReportResponse(
        model=found.model,
        version=found.version,
        fingerprint=found.fingerprint,
        report=json.dumps(found.report, ensure_ascii=False),
        has_card=found.card,
        plots=found.plots,
    )


def _pair(traits: values.PairTraits) -> pb.PairTraits:
    return pb.PairTraits(
        vectors=traits.vectors,
        rates=traits.rates,
        scores=traits.scores,
        top_n=traits.top_n,
        min_relevance=traits.min_relevance,
    )
