"""Indexes: make, fill and empty them."""

import asyncio
from collections.abc import Sequence

from condensery.errors import InputError, shorten
from condensery.index.filters import read_filter
from condensery.index.kinds import KINDS
from condensery.index.selecting import Wanted
from condensery.index.splitting import split
from condensery.jobs.checks import check_choice, check_count, check_range, check_text
from condensery.jobs.index_ports import JsonObject
from condensery.jobs.index_vectors import check_vectors, describe, encoder_of, prompts_of
from condensery.jobs.ports import Encoder
from condensery.jobs.services import Limits, Services
from condensery.jobs.swapping import across_swaps
from condensery.prompts import index_prompts
from condensery.values import Document, Floats, IndexInfo, Page, Passage, Upserted

# A passage's id is its document's, "#" and its number: kept under the index's limit of 512.
MAX_DOCUMENT_ID_CHARS = 500
METRICS = ("ip", "l2")
PAGE_DOCUMENTS = 100


async def create_index(
    services: Services,
    name: str,
    *,
    encoder: str | None = None,
    metric: str = "ip",
    kind: str = "flat",
    dims: int | None = None,
    options: JsonObject | None = None,
) -> IndexInfo:
    """Create an index for an encoder's vectors; the same settings again return it as it is.

    Args:
        services: The running parts.
        name: 1 to 64 of a-z, 0-9, '.', '_', '-'.
        encoder: A running encoder's name; None takes the default.
        metric: ``ip`` (inner product) or ``l2`` (minus squared distance).
        kind: ``flat`` (exact), ``hnsw`` or ``ivf_pq`` (approximate).
        dims: Refused unless it is what the encoder gives.
        options: The kind's (``kinds.OPTIONS``); what is left out follows from the index's size.

    Raises:
        ModelNotFound: No such encoder.
        InputError: A malformed name or setting.
        IndexExists: The name is taken, with other settings.
        LimitReached: There are as many as there may be.
    """
    check_choice(metric, "metric", METRICS)
    check_choice(kind, "kind", KINDS)
    running = services.pool.encoder(encoder)
    info = running.info
    if info.dims is None:
        raise InputError(f"encoder: {info.name} gives no vectors.", field="encoder", value=encoder)
    if dims is not None and dims != info.dims:
        raise InputError(
            f"dims: {dims}, but {info.name} gives vectors of {info.dims} dimensions.",
            field="dims",
            value=dims,
        )
    made = await asyncio.to_thread(
        services.indexes.create,
        name,
        encoder=info.name,
        fingerprint=info.fingerprint,
        dims=info.dims,
        metric=metric,
        kind=kind,
        options=options,
        prompts=index_prompts(running),
    )
    return describe(services, made)


async def list_indexes(services: Services) -> list[IndexInfo]:
    """List every index."""
    return [describe(services, one) for one in services.indexes.list()]


async def index_info(services: Services, name: str) -> IndexInfo:
    """Return what the index is and holds."""
    return describe(services, services.indexes.info(name))


async def drop_index(services: Services, name: str) -> None:
    """Delete the index with all it holds; IndexAliased if an alias points at it."""
    await services.rebuilds.whole(_drop(services, name))


async def _drop(services: Services, name: str) -> None:
    async with services.rebuilds.beginning:  # of the next index of this name, too
        await asyncio.to_thread(services.indexes.drop, name)
        await services.rebuilds.stop(name)


@across_swaps
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
    tokens, embedded_for = 0, None
    if vectors is None:
        encoder = encoder_of(services, info)
        passages = await asyncio.to_thread(split_documents, encoder, documents, services.limits)
        embedded = await encoder.embed(
            [passage.text for passage in passages], prompt=prompts_of(encoder, info).passage
        )
        vectors, tokens, fingerprint = embedded.vectors, embedded.tokens, embedded.fingerprint
        embedded_for = info
    else:
        fingerprint = check_vectors(info, vectors, fingerprint, "documents")
        passages = [_whole(document) for document in documents]
    await services.rebuilds.passing(info.name)
    with services.metrics.stage(info.encoder, "index"):
        await asyncio.to_thread(
            services.indexes.upsert,
            *(name, documents, passages, vectors),
            fingerprint=fingerprint,
            embedded_for=embedded_for,
        )
    return Upserted(documents=len(documents), passages=len(passages), tokens=tokens)


@across_swaps
async def delete(
    services: Services,
    name: str,
    ids: Sequence[str] | None = None,
    *,
    filter: JsonObject | None = None,
) -> int:
    """Delete documents, in one transaction; returns how many there were. Synced on return.

    Args:
        services: The running parts.
        name: The index.
        ids: Those to delete; or
        filter: what chooses them, which must hold a condition.

    Raises:
        IndexNotFound: No such index.
        InputError: Neither or both; malformed ones; a filter that would choose every document.
        StorageFull, StorageReadOnly: The disk refused; nothing is deleted.
    """
    info = services.indexes.info(name)
    await services.rebuilds.passing(info.name)
    if (ids is None) == (filter is None):
        got = "neither" if ids is None else "both"
        raise InputError(f"ids: give `ids` or `filter`, one of them; got {got}.", field="ids")
    if ids is not None:
        check_count(ids, "ids", services.limits.max_items)
        await services.rebuilds.passing(info.name)
        with services.metrics.stage(info.encoder, "index"):
            return await asyncio.to_thread(services.indexes.delete, name, ids)
    chosen = read_filter(filter)
    if chosen is None or not any(True for _ in chosen.leaves):
        raise InputError(
            "filter: it holds no condition, and so would delete every document; to do that, drop "
            "the index.",
            field="filter",
            value=filter,
        )
    await services.rebuilds.passing(info.name)
    with services.metrics.stage(info.encoder, "index"):
        return await asyncio.to_thread(services.indexes.delete_chosen, name, chosen)


@across_swaps
async def get(services: Services, name: str, ids: Sequence[str]) -> list[Document]:
    """Return the documents found, in the order asked."""
    check_count(ids, "ids", services.limits.max_items)
    return await asyncio.to_thread(services.indexes.get, name, ids)


@across_swaps
async def count(
    services: Services, name: str, *, filter: JsonObject | None = None
) -> tuple[int, int]:
    """Return the (documents, passages) that there are, or that a filter chooses.

    Raises:
        IndexNotFound: No such index.
        InputError: A malformed filter.
    """
    return await asyncio.to_thread(services.indexes.count, name, read_filter(filter))


@across_swaps
async def scroll(
    services: Services,
    name: str,
    *,
    filter: JsonObject | None = None,
    limit: int | None = None,
    after: str | None = None,
    with_text: bool = True,
    with_metadata: bool = True,
    with_vectors: bool = False,
) -> Page:
    """Return documents by id, page by page.

    A document that is there all the while is on exactly one page, whatever is written or deleted
    between them, and whether or not it is itself replaced.

    Args:
        services: The running parts.
        name: The index.
        filter: Which documents; None is all.
        limit: Most documents of this page; None is ``PAGE_DOCUMENTS``, or as many as a request
            may have. One that gets too long for a request is shorter: only ``next`` says whether
            more are to come.
        after: The ``next`` of the page before; None begins.
        with_text: Whether texts come with them.
        with_metadata: Whether metadata does.
        with_vectors: Whether their passages do, with their vectors.

    Raises:
        IndexNotFound: No such index.
        InputError: ``limit`` out of range; a malformed filter or cursor.
    """
    if limit is None:
        limit = min(PAGE_DOCUMENTS, services.limits.max_items)
    check_range(limit, "limit", 1, services.limits.max_items)
    check_text(after or "", "after", MAX_DOCUMENT_ID_CHARS)
    wanted = Wanted(
        chosen=read_filter(filter),
        after=after or "",
        limit=limit,
        max_bytes=services.limits.max_body_bytes,
        text=with_text,
        metadata=with_metadata,
        vectors=with_vectors,
    )
    return await asyncio.to_thread(services.indexes.read_page, name, wanted)


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
