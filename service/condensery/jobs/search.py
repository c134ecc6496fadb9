"""Indexes: make, fill, ask and empty them."""

import asyncio
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from condensery.errors import EncoderMismatch, InputError, ModelNotFound, shorten
from condensery.index.splitting import split
from condensery.jobs.checks import check_choice, check_count, check_range, check_text
from condensery.jobs.embed import find_prompt
from condensery.jobs.fusion import fuse
from condensery.jobs.ports import Encoder
from condensery.jobs.services import Limits, Services
from condensery.questions import SearchMode
from condensery.values import Document, Floats, Hit, IndexInfo, Passage, Upserted

# What sentence-transformers models call the two sides.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage")
# A passage's id is its document's, "#" and its number: kept under the index's limit of 512.
MAX_DOCUMENT_ID_CHARS = 500
METRICS = ("ip", "l2")
KINDS = ("flat", "hnsw")
MODES: tuple[SearchMode, ...] = get_args(SearchMode)
# Characters of a query that is looked for by its words alone, so that no encoder limits it.
MAX_WORDS_CHARS = 100_000
# Passages that each half of a hybrid search puts up at least; of fewer, too few are in both.
LEAST_CANDIDATES = 50


async def create_index(
    services: Services,
    name: str,
    *,
    encoder: str | None = None,
    metric: str = "ip",
    kind: str = "flat",
    dims: int | None = None,
) -> IndexInfo:
    """Create an index for an encoder's vectors; the same settings again return it as it is.

    Args:
        services: The running parts.
        name: 1 to 64 of a-z, 0-9, '.', '_', '-'.
        encoder: A running encoder's name; None takes the default.
        metric: ``ip`` (inner product) or ``l2`` (minus squared distance).
        kind: ``flat`` (exact) or ``hnsw`` (approximate).
        dims: Refused unless it is what the encoder gives.

    Raises:
        ModelNotFound: No such encoder.
        InputError: A malformed name or setting.
        IndexExists: The name is taken, with other settings.
    """
    check_choice(metric, "metric", METRICS)
    check_choice(kind, "kind", KINDS)
    info = services.pool.encoder(encoder).info
    if info.dims is None:
        raise InputError(f"encoder: {info.name} gives no vectors.", field="encoder", value=encoder)
    if dims is not None and dims != info.dims:
        raise InputError(
            f"dims: {dims}, but {info.name} gives vectors of {info.dims} dimensions.",
            field="dims",
            value=dims,
        )
    return await asyncio.to_thread(
        services.indexes.create,
        name,
        encoder=info.name,
        fingerprint=info.fingerprint,
        dims=info.dims,
        metric=metric,
        kind=kind,
    )


async def list_indexes(services: Services) -> list[IndexInfo]:
    """List every index."""
    return services.indexes.list()


async def index_info(services: Services, name: str) -> IndexInfo:
    """Return what the index is and holds."""
    return services.indexes.info(name)


async def drop_index(services: Services, name: str) -> None:
    """Delete the index with all it holds."""
    await asyncio.to_thread(services.indexes.drop, name)


async def upsert(
    services: Services,
    name: str,
    documents: Sequence[Document],
    *,
    vectors: Floats | None = None,
    fingerprint: str | None = None,
) -> Upserted:
    """Split documents into passages, embed and write them; synced on return.

    Args:
        services: The running parts.
        name: The index.
        documents: They replace those of the same ids.
        vectors: Made by the caller, (documents, dims): each document is then one passage.
        fingerprint: Of the encoder that made ``vectors``; needed beside them.

    Raises:
        IndexNotFound: No such index.
        EncoderMismatch: The vectors, or the index, are another encoder's.
        InputError: Malformed documents or vectors; nothing is written.
        StorageFull, StorageReadOnly: The disk refused; nothing is written.
    """
    info = services.indexes.info(name)
    check_count(documents, "documents", services.limits.max_items)
    for place, document in enumerate(documents):
        _check_document(document, f"documents[{place}]", services.limits)
    tokens = 0
    if vectors is None:
        encoder = encoder_of(services, info)
        passages = await asyncio.to_thread(split_documents, encoder, documents, services.limits)
        embedded = await encoder.embed(
            [passage.text for passage in passages], prompt=_first_prompt(encoder, DOCUMENT_PROMPTS)
        )
        vectors, tokens, fingerprint = embedded.vectors, embedded.tokens, embedded.fingerprint
    else:
        fingerprint = _check_vectors(info, vectors, fingerprint, "documents")
        passages = [_whole(document) for document in documents]
    with services.metrics.stage(info.encoder, "index"):
        await asyncio.to_thread(
            services.indexes.upsert, name, documents, passages, vectors, fingerprint=fingerprint
        )
    return Upserted(documents=len(documents), passages=len(passages), tokens=tokens)


async def delete(services: Services, name: str, ids: Sequence[str]) -> int:
    """Delete documents by id; returns how many were there. Synced on return."""
    info = services.indexes.info(name)
    check_count(ids, "ids", services.limits.max_items)
    with services.metrics.stage(info.encoder, "index"):
        return await asyncio.to_thread(services.indexes.delete, name, ids)


async def get(services: Services, name: str, ids: Sequence[str]) -> list[Document]:
    """Return the documents found, in the order asked."""
    check_count(ids, "ids", services.limits.max_items)
    return await asyncio.to_thread(services.indexes.get, name, ids)


async def count(services: Services, name: str) -> tuple[int, int]:
    """Return (documents, passages)."""
    return await asyncio.to_thread(services.indexes.count, name)


async def query(
    services: Services,
    name: str,
    text: str | None = None,
    *,
    vector: Floats | None = None,
    fingerprint: str | None = None,
    top_k: int = 10,
    search: SearchMode | None = None,
) -> list[Hit]:
    """Return the passages nearest to a text, or to a vector of the index's encoder, best first.

    A hit's score is what it was ranked by: the index's metric (``dense``), BM25 (``bm25``; no
    forward pass is made, and the encoder need not run), or the fusion of the two (``hybrid``; see
    ``fuse``). Scores of different modes can't be compared.

    Args:
        services: The running parts.
        name: The index.
        text: What to look for; or
        vector: its vector, (dims,), with
        fingerprint: that of the encoder which made it.
        top_k: Most passages to return.
        search: How a text is looked for; None is the server's default. A vector is ``dense``.

    Raises:
        IndexNotFound: No such index.
        EncoderMismatch: The vector, or the index, is another encoder's.
        InputError: Neither or both of text and vector; a malformed one; ``top_k`` out of range; an
            unknown ``search``, or one by words beside a vector.
    """
    info = services.indexes.info(name)
    check_range(top_k, "top_k", 1, services.limits.max_top_k)
    if (text is None) == (vector is None):
        got = "neither" if text is None else "both"
        raise InputError(f"query: give `query` or `vector`, one of them; got {got}.", field="query")
    if search is not None:
        check_choice(search, "search", MODES)
    if text is not None:
        mode = search or services.search
        if mode == "bm25":
            check_text(text, "query", MAX_WORDS_CHARS)
            with services.metrics.stage(info.encoder, "index"):
                return await asyncio.to_thread(services.indexes.match, name, text, top_k=top_k)
        encoder = encoder_of(services, info)
        check_text(text, "query", encoder.info.max_tokens * services.limits.chars_per_token)
        embedded = await encoder.embed([text], prompt=_first_prompt(encoder, QUERY_PROMPTS))
        vector, fingerprint = embedded.vectors[0], embedded.fingerprint
        if mode == "hybrid":
            with services.metrics.stage(info.encoder, "index"):
                return await _query_both(services, name, text, vector, fingerprint, top_k)
    else:
        assert vector is not None  # checked above
        if search not in (None, "dense"):
            raise InputError(
                f"search: {search!r} looks for words, and a vector has none; give `query`.",
                field="search",
                value=search,
            )
        fingerprint = _check_vectors(info, vector[None], fingerprint, "vector")
    with services.metrics.stage(info.encoder, "index"):
        return await asyncio.to_thread(
            services.indexes.query, name, vector, top_k=top_k, fingerprint=fingerprint
        )


async def _query_both(
    services: Services, name: str, text: str, vector: Floats, fingerprint: str, top_k: int
) -> list[Hit]:
    candidates = max(top_k, LEAST_CANDIDATES)
    indexes = services.indexes
    near, alike = await asyncio.gather(
        asyncio.to_thread(indexes.query, name, vector, top_k=candidates, fingerprint=fingerprint),
        asyncio.to_thread(indexes.match, name, text, top_k=candidates),
    )
    return fuse([near, alike], top_k)


def encoder_of(services: Services, index: IndexInfo) -> Encoder:
    """Return the running encoder that made the index's vectors.

    Raises:
        EncoderMismatch: It does not run, or has changed since.
    """
    try:
        encoder = services.pool.encoder(index.encoder)
    except ModelNotFound as error:
        raise EncoderMismatch(
            f"Index {index.name!r} was made by encoder {index.encoder!r} "
            f"({index.fingerprint}), which does not run here.",
            field="index",
            value=index.name,
        ) from error
    if encoder.info.fingerprint != index.fingerprint:
        raise EncoderMismatch(
            f"Index {index.name!r} was made by encoder {index.encoder!r} with fingerprint "
            f"{index.fingerprint}; the one that runs has {encoder.info.fingerprint}.",
            field="index",
            value=index.name,
        )
    return encoder


def split_documents(
    encoder: Encoder, documents: Sequence[Document], limits: Limits
) -> list[Passage]:
    """Cut each document into passages that fit the encoder, at the ends of sentences."""
    # Two special tokens stand around a passage; a prompt may stand before it and is cut for.
    size = max(2, min(limits.passage_tokens, encoder.info.max_tokens) - 2)
    overlap = min(limits.passage_overlap, size // 2)
    passages = []
    for document in documents:
        spans = split(document.text, encoder.offsets(document.text), size, overlap)
        for number, (start, end) in enumerate(spans):
            passages.append(
                Passage(
                    id=f"{document.id}#{number}",
                    document_id=document.id,
                    text=document.text[start:end],
                    start=start,
                    end=end,
                    metadata=document.metadata,
                )
            )
    return passages


def _whole(document: Document) -> Passage:
    text = document.text
    return Passage(f"{document.id}#0", document.id, text, 0, len(text), document.metadata)


def _check_document(document: Document, field: str, limits: Limits) -> None:
    if not 1 <= len(document.id) <= MAX_DOCUMENT_ID_CHARS:
        raise InputError(
            f"{field}.id: {shorten(document.id)} is not an id of 1 to {MAX_DOCUMENT_ID_CHARS} "
            "characters.",
            field=f"{field}.id",
            value=document.id,
        )
    check_text(document.text, f"{field}.text", limits.max_body_bytes)


def _check_vectors(
    info: IndexInfo,
    vectors: Floats,
    fingerprint: str | None,
    field: Literal["documents", "vector"],
) -> str:
    """Check vectors that a caller made, (count, dims); returns their fingerprint."""
    if fingerprint is None:
        raise InputError(
            f"fingerprint: needed beside vectors, since index {info.name!r} takes those of encoder "
            f"{info.encoder!r} only, whose fingerprint is {info.fingerprint}.",
            field="fingerprint",
        )
    if fingerprint != info.fingerprint:
        raise EncoderMismatch(
            f"Index {info.name!r} holds vectors of encoder {info.encoder!r} with fingerprint "
            f"{info.fingerprint}, not {shorten(fingerprint)}.",
            field="fingerprint",
            value=fingerprint,
        )
    names = ["vector"] if field == "vector" else _vector_names(len(vectors))
    if vectors.ndim != 2 or vectors.shape[1] != info.dims:
        got = vectors.shape[-1]
        raise InputError(
            f"{names[0]}: {got} numbers, but index {info.name!r} has {info.dims} dimensions.",
            field=names[0],
            value=got,
        )
    finite = np.isfinite(vectors)
    if not finite.all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        raise InputError(
            f"{names[row]}[{column}]: {vectors[row, column]} is not a finite number.",
            field=f"{names[row]}[{column}]",
            value=float(vectors[row, column]),
        )
    return fingerprint


def _vector_names(rows: int) -> list[str]:
    return [f"documents[{row}].vector" for row in range(rows)]


def _first_prompt(encoder: Encoder, names: Sequence[str]) -> str:
    """Return the first of the prompts that the model has, "" if it has none."""
    return next((find_prompt(encoder, name) for name in names if name in encoder.prompts), "")
