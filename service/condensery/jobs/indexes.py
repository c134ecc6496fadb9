"""Create, fill, read and empty indexes, with the encoder and prompts that each was made with.

A job on an index is done again where another index takes its place meanwhile (``retry_on_swap``).
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from condensery.errors import (
    EncoderMismatch,
    IndexClosed,
    IndexNotFound,
    InputError,
    ModelNotFound,
    shorten,
)
from condensery.index.checks import MAX_COMPONENT
from condensery.index.filters import read_filter
from condensery.index.kinds import KINDS
from condensery.index.prompts import make_index_prompts, make_older_index_prompts
from condensery.index.selecting import PageQuery
from condensery.index.splitting import find_heading, heading_room, split
from condensery.jobs.interfaces import Encoder, JsonObject
from condensery.jobs.services import RequestLimits, Services
from condensery.jobs.validation import check_choice, check_count, check_range, check_text
from condensery.values import (
    Document,
    Floats,
    IndexInfo,
    IndexPrompts,
    IndexSpec,
    Page,
    Passage,
    RebuildPlan,
    Upserted,
)

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# A passage's id is its document's, "#" and its number: kept under the index's limit of 512.
MAX_DOCUMENT_ID_CHARS = 500
INDEX_METRICS = ("ip", "l2")
PAGE_DOCUMENTS = 100

SWAP_WAIT_SECONDS = 0.005
# What a text is embedded for, of an index's description.
EMBEDDING_FIELDS = ("name", "fingerprint", "prompts")

IndexJob = Callable[Concatenate[Services, str, P], Coroutine[Any, Any, T]]


def retry_on_swap(job: IndexJob[P, T]) -> IndexJob[P, T]:
    """Do a job again where its index was replaced under it: by an alias, a restore, a rebuild.

    Between a text's embedding and the search or write, the index may get another encoder or other
    prompts, or be gone; the caller named neither. A job that failed for that has done nothing yet.
    """

    @functools.wraps(job)
    async def retrying(services: Services, name: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            before = services.indexes.info(name)
            try:
                return await job(services, name, *args, **kwargs)
            except IndexClosed:
                services.indexes.info(name)  # raises if it was dropped
                await asyncio.sleep(SWAP_WAIT_SECONDS)  # closed, and not yet replaced
            except (EncoderMismatch, IndexNotFound):
                after = services.indexes.info(name)
                if all(
                    getattr(after, field) == getattr(before, field) for field in EMBEDDING_FIELDS
                ):
                    raise

    return retrying


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
    check_index_settings(metric, kind)
    running, own_dims = find_embedder(services, encoder)
    info = running.info
    if dims is not None and dims != own_dims:
        raise InputError.at(
            "dims", f"{dims}, but {info.name} gives vectors of {own_dims} dimensions.", dims
        )
    spec = make_index_spec(running, own_dims, metric, kind, options)
    return describe_index(services, await asyncio.to_thread(services.indexes.create, name, spec))


def make_index_spec(
    encoder: Encoder, dims: int, metric: str, kind: str, options: JsonObject | None
) -> IndexSpec:
    """Return what an index is made with today for an encoder that gives vectors of ``dims``."""
    return IndexSpec(
        encoder=encoder.info.name,
        fingerprint=encoder.info.fingerprint,
        dims=dims,
        metric=metric,
        kind=kind,
        options=options,
        prompts=make_index_prompts(encoder),
    )


async def list_indexes(services: Services) -> list[IndexInfo]:
    """List the indexes and what they hold."""
    return [describe_index(services, info) for info in services.indexes.list()]


async def get_index(services: Services, name: str) -> IndexInfo:
    """Return what an index is and holds."""
    return describe_index(services, services.indexes.info(name))


async def drop_index(services: Services, name: str) -> None:
    """Delete an index with all it holds.

    Raises:
        IndexNotFound: No such index.
        IndexAliased: An alias points at it.
    """
    await services.rebuilds.run_to_end(_drop_index(services, name))


async def _drop_index(services: Services, name: str) -> None:
    async with services.rebuilds.lock:  # of the next index of this name, too
        await asyncio.to_thread(services.indexes.drop, name)
        await services.rebuilds.stop(name)


@retry_on_swap
async def upsert_documents(
    services: Services,
    name: str,
    documents: Sequence[Document],
    *,
    vectors: Floats | None = None,
    fingerprint: str | None = None,
) -> Upserted:
    """Split documents into passages, embed and write them; synced on return.

    Args:
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
        encoder = find_index_encoder(services, info)
        passages = await asyncio.to_thread(split_documents, encoder, documents, services.limits)
        embedded = await encoder.embed(
            [passage.headed_text for passage in passages],
            prompt=find_index_prompts(encoder, info).passage,
        )
        vectors, tokens, fingerprint = embedded.vectors, embedded.tokens, embedded.fingerprint
        embedded_for = info
    else:
        fingerprint = check_vectors(info, vectors, fingerprint, "documents")
        passages = [make_passage(document, f"{document.id}#0") for document in documents]
    await services.rebuilds.wait_for_last_steps(info.name)
    with services.metrics.stage(info.encoder, "index"):
        await asyncio.to_thread(
            services.indexes.upsert,
            name,
            documents,
            passages,
            vectors,
            fingerprint=fingerprint,
            embedded_for=embedded_for,
        )
    return Upserted(documents=len(documents), passages=len(passages), tokens=tokens)


@retry_on_swap
async def delete_documents(
    services: Services,
    name: str,
    ids: Sequence[str] | None = None,
    *,
    filter: JsonObject | None = None,
) -> int:
    """Delete documents by id or by a filter; synced on return.

    In one transaction; returns how many there were.

    Args:
        ids: Those to delete; or
        filter: what chooses them, which must hold a condition.

    Raises:
        IndexNotFound: No such index.
        InputError: Neither or both; malformed ones; a filter that would choose every document.
        StorageFull, StorageReadOnly: The disk refused; nothing is deleted.
    """
    info = services.indexes.info(name)
    if (ids is None) == (filter is None):
        got = "neither" if ids is None else "both"
        raise InputError.at("ids", f"give `ids` or `filter`, one of them; got {got}.")
    if ids is not None:
        check_count(ids, "ids", services.limits.max_items)
        delete = functools.partial(services.indexes.delete, name, ids)
    elif (condition := read_filter(filter)) is not None and any(True for _ in condition.leaves):
        delete = functools.partial(services.indexes.delete, name, condition)
    else:
        raise InputError.at(
            "filter",
            "it holds no condition, and so would delete every document; to do that, drop "
            "the index.",
            filter,
        )
    await services.rebuilds.wait_for_last_steps(info.name)
    with services.metrics.stage(info.encoder, "index"):
        return await asyncio.to_thread(delete)


@retry_on_swap
async def get_documents(services: Services, name: str, ids: Sequence[str]) -> list[Document]:
    """Return the documents of these ids that there are, in the order of the ids."""
    check_count(ids, "ids", services.limits.max_items)
    return await asyncio.to_thread(services.indexes.get, name, ids)


@retry_on_swap
async def count_documents(
    services: Services, name: str, *, filter: JsonObject | None = None
) -> tuple[int, int]:
    """Count an index's documents and passages, or those that a filter chooses.

    Raises:
        IndexNotFound: No such index.
        InputError: A malformed filter.
    """
    return await asyncio.to_thread(services.indexes.count, name, read_filter(filter))


@retry_on_swap
async def scroll_documents(
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

    A document that exists all the while is on exactly one page, whatever is written or deleted
    between them, and whether or not it is itself replaced.

    Args:
        filter: Which documents; None is all.
        limit: Most documents of this page; None is ``PAGE_DOCUMENTS``, or as many as a request
            may have. One that gets too long for a request is shorter: only ``next`` says whether
            more are to come.
        after: The ``next`` of the page before; None begins.
        with_vectors: Whether their passages do, with their vectors.

    Raises:
        IndexNotFound: No such index.
        InputError: ``limit`` out of range; a malformed filter or cursor.
    """
    if limit is None:
        limit = min(PAGE_DOCUMENTS, services.limits.max_items)
    check_range(limit, "limit", 1, services.limits.max_items)
    check_text(after or "", "after", MAX_DOCUMENT_ID_CHARS)
    page_query = PageQuery(
        filter=read_filter(filter),
        after=after or "",
        limit=limit,
        max_bytes=services.limits.max_body_bytes,
        text=with_text,
        metadata=with_metadata,
        vectors=with_vectors,
    )
    return await asyncio.to_thread(services.indexes.scroll, name, page_query)


def check_index_settings(metric: str, kind: str) -> None:
    """Refuse a metric or a kind that indexes can't have."""
    check_choice(metric, "metric", INDEX_METRICS)
    check_choice(kind, "kind", KINDS)


def find_embedder(services: Services, name: str | None) -> tuple[Encoder, int]:
    """Return an encoder and its dimensions; ModelNotFound, or InputError if it gives no vectors."""
    encoder = services.registry.encoder(name)
    info = encoder.info
    if info.dims is None:
        raise InputError.at("encoder", f"{info.name} gives no vectors.", name)
    return encoder, info.dims


def find_index_encoder(services: Services, index: IndexInfo) -> Encoder:
    """Return the running encoder that made the index's vectors.

    Raises:
        EncoderMismatch: It does not run, or has changed since.
    """
    try:
        encoder = services.registry.encoder(index.encoder)
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


def find_index_prompts(encoder: Encoder, index: IndexInfo | RebuildPlan) -> IndexPrompts:
    """Return the prompts of an index: of its passages, and of queries.

    Args:
        encoder: The index's, as ``find_index_encoder`` returns it.
    """
    return make_older_index_prompts(encoder) if index.prompts is None else index.prompts


def describe_index(services: Services, index: IndexInfo) -> IndexInfo:
    """Return an index's description with its prompts, as far as its encoder runs."""
    try:
        encoder = find_index_encoder(services, index)
    except EncoderMismatch:
        return index
    own = find_index_prompts(encoder, index)
    return replace(index, prompts=own, prompts_outdated=own != make_index_prompts(encoder))


def log_outdated_prompts(
    services: Services, *, encoder: str | None = None, index: str | None = None
) -> None:
    """Log which indexes were embedded without prompts that their encoder has.

    Args:
        encoder: Only the indexes of this one; None is of all.
        index: Only this one.
    """
    for info in services.indexes.list():
        asked = encoder in (None, info.encoder) and index in (None, info.name)
        if asked and describe_index(services, info).prompts_outdated:
            _log.warning(
                "index_prompts_outdated",
                extra={
                    "index": info.name,
                    "model": info.encoder,
                    "reason": "an older version made it without all of its encoder's prompts, and "
                    "it is searched and written without them; a rebuild takes them",
                },
            )


def check_vectors(
    info: IndexInfo,
    vectors: Floats,
    fingerprint: str | None,
    field: Literal["documents", "vector"],
) -> str:
    """Check vectors that a caller made, (count, dims); returns their fingerprint."""
    if fingerprint is None:
        raise InputError.at(
            "fingerprint",
            f"needed beside vectors, since index {info.name!r} takes those of encoder "
            f"{info.encoder!r} only, whose fingerprint is {info.fingerprint}.",
        )
    if fingerprint != info.fingerprint:
        raise EncoderMismatch(
            f"Index {info.name!r} holds vectors of encoder {info.encoder!r} with fingerprint "
            f"{info.fingerprint}, not {shorten(fingerprint)}.",
            field="fingerprint",
            value=fingerprint,
        )
    rows = range(len(vectors))
    names = ["vector"] if field == "vector" else [f"documents[{row}].vector" for row in rows]
    if vectors.ndim != 2 or vectors.shape[1] != info.dims:
        got = vectors.shape[-1]
        raise InputError(
            f"{names[0]}: {got} numbers, but index {info.name!r} has {info.dims} dimensions.",
            field=names[0],
            value=got,
        )
    good = np.abs(vectors) <= MAX_COMPONENT  # which NaN is not
    if not good.all():
        row, column = (int(place) for place in np.argwhere(~good)[0])
        raise InputError.at(
            f"{names[row]}[{column}]",
            f"{vectors[row, column]} is not a finite number up to {MAX_COMPONENT:g}.",
            float(vectors[row, column]),
        )
    return fingerprint


def split_documents(
    encoder: Encoder, documents: Sequence[Document], limits: RequestLimits
) -> list[Passage]:
    """Cut each document into passages that fit the encoder, at the ends of sentences.

    Those after a document's first have its heading, if it begins with one, and fit with it.
    """
    # Two special tokens stand around a passage; a prompt may stand before it and is cut for.
    size = max(2, min(limits.passage_tokens, encoder.info.max_tokens) - 2)
    overlap = min(limits.passage_overlap, size // 2)
    passages = []
    for document in documents:
        text, offsets = document.text, encoder.offsets(document.text)
        above = find_heading(text, offsets, heading_room(size, overlap))
        heading = text[:above]
        for number, (start, end) in enumerate(split(text, offsets, size, overlap, above)):
            passages.append(
                Passage(
                    id=f"{document.id}#{number}",
                    document_id=document.id,
                    text=text[start:end],
                    start=start,
                    end=end,
                    metadata=document.metadata,
                    heading=heading if start >= above else "",
                )
            )
    return passages


def make_passage(document: Document, identity: str) -> Passage:
    """Return a whole document as a passage."""
    text = document.text
    return Passage(identity, document.id, text, 0, len(text), document.metadata)


def _check_document(document: Document, field: str, limits: RequestLimits) -> None:
    if not 1 <= len(document.id) <= MAX_DOCUMENT_ID_CHARS:
        raise InputError.at(
            f"{field}.id",
            f"{shorten(document.id)} is not an id of 1 to {MAX_DOCUMENT_ID_CHARS} characters.",
            document.id,
        )
    check_text(document.text, f"{field}.text", limits.max_body_bytes)
