"""REST replies as values. Fields that a newer server adds are ignored."""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from condensery.client.transports import make_refusal
from condensery.errors import CondenseryError
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
from condensery.values import (
    Document,
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

V = TypeVar("V")

# Stands for minus infinity, which JSON can't write.
LEAST_LOGPROB = -9999.0


def read_dataclass(kind: type[V], data: dict[str, Any], **more: Any) -> V:
    """Make a ``kind`` (a dataclass) of what ``data`` holds of its fields, and ``more``."""
    known = {entry.name for entry in fields(kind) if entry.init}  # type: ignore[arg-type]  # V is a dataclass
    return kind(**{name: value for name, value in data.items() if name in known}, **more)


def read_ranked(reply: Any, texts: Sequence[str]) -> list[Ranked]:
    """Read a rerank reply, in its order; ``texts`` are those that were sent."""
    return [
        Ranked(item["index"], item["relevance_score"], texts[item["index"]])
        for item in reply["results"]
    ]


def read_answer(reply: Any) -> Answer:
    """Read a whole answer."""
    return Answer(
        id=reply["id"],
        model=reply["model"],
        answer=reply["answer"],
        finish_reason=reply["finish_reason"],
        citations=tuple(read_dataclass(Citation, item) for item in reply["citations"]),
        compression=_read_compression(reply["compression"]),
        usage=read_dataclass(Usage, reply["usage"]),
        timings=read_dataclass(Timings, reply["timings"]),
        logprobs=_read_logprobs(reply),
    )


def read_comparison(reply: Any) -> Comparison:
    """Read two answers, and how they agree."""
    return Comparison(
        compressed=read_answer(reply["compressed"]),
        plain=read_answer(reply["plain"]),
        speedup=reply["speedup"],
        agreement=read_dataclass(Agreement, reply["agreement"]),
    )


def read_compressed(reply: Any) -> Compressed:
    """Read what became of documents, and the handle of their vectors."""
    return Compressed(
        id=reply["id"],
        model=reply["model"],
        fingerprint=reply["fingerprint"],
        context=reply["context"],
        expires_at=reply["expires_at"],
        results=tuple(read_dataclass(CompressedDocument, item) for item in reply["results"]),
        compression=_read_compression(reply["compression"]),
        usage=read_dataclass(TokenUsage, reply["usage"]),
    )


def read_index(reply: Any) -> IndexInfo:
    """Read what describes one index."""
    prompts = reply.get("prompts")  # an older server says nothing of them
    own = None if prompts is None else read_dataclass(IndexPrompts, prompts)
    return read_dataclass(IndexInfo, {**reply, "prompts": own})


def read_indexes(reply: Any) -> list[IndexInfo]:
    """Read a list of indexes."""
    return [read_index(item) for item in reply["data"]]


def read_upserted(reply: Any) -> Upserted:
    """Read what an upsert wrote."""
    return read_dataclass(Upserted, reply)


def read_deleted(reply: Any) -> int:
    """Read how many documents were deleted."""
    return int(reply["deleted"])


def read_hits(reply: Any) -> list[Hit]:
    """Read the passages found."""
    return [read_dataclass(Hit, item) for item in reply["results"]]


def read_counts(reply: Any) -> tuple[int, int]:
    """Read (documents, passages)."""
    return reply["documents"], reply["passages"]


def read_documents(reply: Any) -> list[Document]:
    """Read documents."""
    return [read_dataclass(Document, item) for item in reply["documents"]]


def read_page(reply: Any) -> Page:
    """Read some of an index's documents."""
    return Page(reply["next"], tuple(_read_stored_document(item) for item in reply["documents"]))


def _read_stored_document(item: Any) -> StoredDocument:
    pieces = item["passages"]
    if pieces is not None:
        pieces = tuple(
            read_dataclass(
                StoredPassage, {**piece, "vector": np.array(piece["vector"], np.float32)}
            )
            for piece in pieces
        )
    return read_dataclass(StoredDocument, {**item, "passages": pieces})


def read_models(reply: Any) -> list[ModelInfo]:
    """Read the list of models."""
    return [
        read_dataclass(
            ModelInfo,
            {
                **item,
                "pair": _read_pair_traits(item.get("pair")),
                "labels": tuple(item.get("labels", ())),
                "dimensions": tuple(item.get("dimensions", ())),
            },
        )
        for item in reply["data"]
    ]


def read_report(reply: Any) -> ModelReport:
    """Read what a model was measured at."""
    return read_dataclass(ModelReport, {**reply, "plots": tuple(reply["plots"])})


def read_event(event: tuple[str, Any]) -> list[AnswerEvent]:
    """Read one event of a streamed answer; raises the error that it may be."""
    name, data = event
    if name == "search_results":
        citations = tuple(read_dataclass(Citation, item) for item in data["data"]["citations"])
        compression = _read_compression(data["data"]["compression"])
        return [Retrieved(data["id"], data["model"], citations, compression)]
    if name == "message":
        payloads = [part["payload"] for part in data["delta"]["content"]]
        return [Delta(payload["value"], _read_logprobs(payload)) for payload in payloads]
    if name == "final_answer":
        return [read_answer({**data, "answer": data["generated_answer"]})]
    if name == "error":
        content = data["error"]
        raise make_refusal(
            content.get("code"), CondenseryError, content["message"], field=content.get("param")
        ).error
    return []  # what a newer server may add; the compression block comes with the answer too


def _read_pair_traits(content: dict[str, Any] | None) -> PairTraits | None:
    if content is None:
        return None
    lists = {name: tuple(content[name]) for name in ("vectors", "rates")}
    return read_dataclass(PairTraits, {**content, **lists})


def _read_compression(block: dict[str, Any]) -> Compression:
    return read_dataclass(
        Compression,
        {
            **block,
            "fallback_docs": tuple(block.get("fallback_docs", ())),
            "left_out": tuple(block.get("left_out", ())),
        },
    )


def _read_logprobs(content: dict[str, Any]) -> tuple[TokenLogprob, ...] | None:
    if content.get("logprobs") is None:
        return None
    return tuple(
        TokenLogprob(
            *_read_logprob(token), tuple(Likely(*_read_logprob(other)) for other in token["top"])
        )
        for token in content["logprobs"]
    )


def _read_logprob(content: dict[str, Any]) -> tuple[str, float]:
    logprob = float(content["logprob"])
    return content["text"], logprob if logprob > LEAST_LOGPROB else -math.inf
