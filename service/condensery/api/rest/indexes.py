"""Indexes, and their aliases, snapshots and rebuilds: `/v1/indexes/**`."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.io import (
    PIECE_TEXTS,
    read_as,
    read_body,
    write_json,
    write_list,
)
from condensery.api.rest.schemas.index import (
    AliasChange,
    AliasesRequest,
    CountRequest,
    CreateIndexRequest,
    DeleteRequest,
    IdsRequest,
    NewDocument,
    QueryRequest,
    RebuildRequest,
    RestoreRequest,
    ScrollRequest,
    UpsertRequest,
)
from condensery.api.rest.validation import validate_body
from condensery.errors import InputError
from condensery.jobs import indexes, maintenance, retrieval
from condensery.jobs.accounting import count_request
from condensery.jobs.services import Services
from condensery.values import Alias, AliasAction, Document, Floats, Hit, IndexInfo


@dataclass(frozen=True, slots=True)
class Indexes:
    """Every index."""

    object: Literal["list"] = field(init=False, default="list")
    data: list[IndexInfo]


@dataclass(frozen=True, slots=True)
class Dropped:
    """An index that is no more."""

    name: str
    deleted: Literal[True] = field(init=False, default=True)


@dataclass(frozen=True, slots=True)
class Documents:
    """Those found, in the order asked."""

    documents: list[Document] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Deleted:
    """How many documents there were."""

    deleted: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What an index holds."""

    documents: int
    passages: int


@dataclass(frozen=True, slots=True)
class Hits:
    """Passages, the nearest first."""

    index: str
    results: list[Hit]


@dataclass(frozen=True, slots=True)
class Aliases:
    """Every alias, by name."""

    object: Literal["list"] = field(init=False, default="list")
    data: list[Alias]


@dataclass(frozen=True, slots=True)
class SnapshotDeleted:
    """A snapshot that is no more."""

    id: str
    deleted: Literal[True] = field(init=False, default=True)


@dataclass(frozen=True, slots=True)
class RebuildCancelled:
    """A rebuild that was given up."""

    index: str
    cancelled: Literal[True] = field(init=False, default=True)


async def create_index(request: Request, services: Services) -> Response:
    """Create an index; the same settings again return it as it is."""
    body = await read_body(request, services, CreateIndexRequest, optional=True)
    with count_request(services, body.encoder, "index", "rest"):
        info = await indexes.create_index(
            services,
            request.path_params["name"],
            encoder=body.encoder,
            metric=body.metric,
            kind=body.kind,
            dims=body.dims,
            options=body.options,
        )
        return write_json(info)


async def list_indexes(_request: Request, services: Services) -> Response:
    """List the indexes and what they hold."""
    with count_request(services, None, "index", "rest"):
        return write_json(Indexes(await indexes.list_indexes(services)))


async def show_index(request: Request, services: Services) -> Response:
    """Return what an index is and holds."""
    name = request.path_params["name"]
    with count_request(services, None, "index", "rest", index=name):
        return write_json(await indexes.get_index(services, name))


async def drop_index(request: Request, services: Services) -> Response:
    """Delete an index with all it holds."""
    name = request.path_params["name"]
    with count_request(services, None, "index", "rest", index=name):
        await indexes.drop_index(services, name)
        return write_json(Dropped(name))


async def upsert_documents(request: Request, services: Services) -> Response:
    """Write documents, replacing those of the same ids; synced when this returns."""
    name = request.path_params["name"]
    body, vectors = await read_as(request, services, _parse_upsert)
    with count_request(services, None, "index", "rest", index=name):
        written = await indexes.upsert_documents(
            services,
            name,
            [Document(item.id, item.text, item.metadata) for item in body.documents],
            vectors=vectors,
            fingerprint=body.fingerprint,
        )
        return write_json(written)


async def get_documents(request: Request, services: Services) -> Response:
    """Return documents by id, those found."""
    name = request.path_params["name"]
    body = await read_body(request, services, IdsRequest)
    with count_request(services, None, "index", "rest", index=name):
        documents = await indexes.get_documents(services, name, body.ids)
        return await write_list(documents, PIECE_TEXTS, within=Documents(), field="documents")


async def delete_documents(request: Request, services: Services) -> Response:
    """Delete documents by id or by a filter; synced when this returns."""
    name = request.path_params["name"]
    body = await read_body(request, services, DeleteRequest)
    with count_request(services, None, "index", "rest", index=name):
        deleted = await indexes.delete_documents(services, name, body.ids, filter=body.filter)
        return write_json(Deleted(deleted))


async def count_documents(request: Request, services: Services) -> Response:
    """Count an index's documents and passages, or those that a filter chooses."""
    name = request.path_params["name"]
    body = await read_body(request, services, CountRequest, optional=True)
    with count_request(services, None, "index", "rest", index=name):
        counts = await indexes.count_documents(services, name, filter=body.filter)
        return write_json(Counts(*counts))


async def scroll_documents(request: Request, services: Services) -> Response:
    """Return documents by id, page by page, all or those that a filter chooses."""
    name = request.path_params["name"]
    body = await read_body(request, services, ScrollRequest, optional=True)
    with count_request(services, None, "index", "rest", index=name):
        page = await indexes.scroll_documents(
            services,
            name,
            filter=body.filter,
            limit=body.limit,
            after=body.after,
            with_text=body.with_text,
            with_metadata=body.with_metadata,
            with_vectors=body.with_vectors,
        )
        within = replace(page, documents=())
        return await write_list(page.documents, PIECE_TEXTS, within=within, field="documents")


async def query_index(request: Request, services: Services) -> Response:
    """Find passages by a text, by its words or its meaning, or by a vector; the best first."""
    name = request.path_params["name"]
    body = await read_body(request, services, QueryRequest)
    with count_request(services, None, "index", "rest", index=name):
        vector = None if body.vector is None else make_vectors([body.vector], ["vector"])[0]
        hits = await retrieval.query_index(
            services,
            name,
            body.query,
            vector=vector,
            fingerprint=body.fingerprint,
            top_k=body.top_k,
            mode=body.mode,
            filter=body.filter,
        )
        return write_json(Hits(name, hits))


# Aliases, snapshots and rebuilds


async def list_aliases(_request: Request, services: Services) -> Response:
    """List the aliases, and where they lead."""
    with count_request(services, None, "index", "rest"):
        return write_json(Aliases(await maintenance.list_index_aliases(services)))


async def update_aliases(request: Request, services: Services) -> Response:
    """Create, move, rename and delete aliases: all that is asked, at one moment, or nothing."""
    body = await read_body(request, services, AliasesRequest)
    with count_request(services, None, "index", "rest"):
        actions = [_read_action(item, f"actions[{i}]") for i, item in enumerate(body.actions)]
        aliases = await maintenance.update_index_aliases(services, actions)
        return write_json(Aliases(aliases))


async def create_snapshot(request: Request, services: Services) -> Response:
    """Copy an index as it is now, while it goes on; synced when this returns."""
    name = request.path_params["name"]
    with count_request(services, None, "index", "rest", index=name):
        return write_json(await maintenance.create_snapshot(services, name))


async def list_snapshots(request: Request, services: Services) -> Response:
    """List an index's snapshots, also of one that is no more."""
    name = request.path_params["name"]
    with count_request(services, None, "index", "rest", index=name):
        return write_json(await maintenance.list_snapshots(services, name))


async def show_snapshot(request: Request, services: Services) -> Response:
    """Tell what a snapshot is."""
    name = request.path_params["name"]
    with count_request(services, None, "index", "rest", index=name):
        return write_json(
            await maintenance.get_snapshot(services, name, request.path_params["snapshot"])
        )


async def delete_snapshot(request: Request, services: Services) -> Response:
    """Delete a snapshot."""
    name, snapshot = request.path_params["name"], request.path_params["snapshot"]
    with count_request(services, None, "index", "rest", index=name):
        await maintenance.delete_snapshot(services, name, snapshot)
        return write_json(SnapshotDeleted(snapshot))


async def restore_snapshot(request: Request, services: Services) -> Response:
    """Make an index of a snapshot: over its own, which serves until then, or under a new name."""
    name = request.path_params["name"]
    body = await read_body(request, services, RestoreRequest, optional=True)
    with count_request(services, None, "index", "rest", index=name):
        return write_json(
            await maintenance.restore_snapshot(
                services, name, request.path_params["snapshot"], into=body.into
            )
        )


async def rebuild_index(request: Request, services: Services) -> Response:
    """Begin to make an index anew for another encoder, while it serves; or go on with that."""
    name = request.path_params["name"]
    body = await read_body(request, services, RebuildRequest, optional=True)
    with count_request(services, None, "index", "rest", index=name):
        return write_json(
            await maintenance.rebuild_index(
                services,
                name,
                encoder=body.encoder,
                metric=body.metric,
                kind=body.kind,
                options=body.options,
            )
        )


async def show_rebuild(request: Request, services: Services) -> Response:
    """Tell how far an index's rebuild has come, or how the last one ended."""
    name = request.path_params["name"]
    with count_request(services, None, "index", "rest", index=name):
        return write_json(await maintenance.get_rebuild(services, name))


async def cancel_rebuild(request: Request, services: Services) -> Response:
    """Give up an index's rebuild; the index goes on as it was."""
    name = request.path_params["name"]
    with count_request(services, None, "index", "rest", index=name):
        await maintenance.cancel_rebuild(services, name)
        return write_json(RebuildCancelled(name))


def make_vectors(rows: list[list[float]], names: list[str]) -> Floats:
    """Return rows of equal length as float32, (rows, dims).

    Raises:
        InputError: Their lengths differ; the row is named.
    """
    for name, row in zip(names, rows, strict=True):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{name}: {len(row)} numbers, but {names[0]} has {len(rows[0])}.",
                field=name,
                value=len(row),
            )
    floats = np.empty((len(rows), len(rows[0])), np.float32)
    with np.errstate(over="ignore"):  # over float32's range is infinite, and refused as that
        for index, row in enumerate(rows):  # row by row: lets other threads run in between
            floats[index] = row
    return floats


def _parse_upsert(data: Any) -> tuple[UpsertRequest, Floats | None]:
    body = validate_body(data, UpsertRequest)
    return body, _document_vectors(body.documents)


def _document_vectors(documents: list[NewDocument]) -> Floats | None:
    """Return the documents' vectors; None if they have none."""
    rows = [item.vector for item in documents if item.vector is not None]
    if not rows:
        return None
    if len(rows) < len(documents):
        place = next(i for i, item in enumerate(documents) if item.vector is None)
        raise InputError(
            f"documents[{place}].vector: missing, while other documents have one; give all of them "
            "vectors, or none.",
            field=f"documents[{place}].vector",
        )
    return make_vectors(rows, [f"documents[{place}].vector" for place in range(len(rows))])


def _read_action(change: AliasChange, field: str) -> AliasAction:
    verbs = [name for name in AliasChange.model_fields if getattr(change, name) is not None]
    if len(verbs) != 1:
        got = " and ".join(verbs) or "none"
        raise InputError(
            f"{field}: give one of {', '.join(AliasChange.model_fields)}; got {got}.", field=field
        )
    if change.create_alias is not None:
        return AliasAction("create", change.create_alias.alias, change.create_alias.index)
    if change.rename_alias is not None:
        return AliasAction("rename", change.rename_alias.alias, change.rename_alias.to)
    assert change.delete_alias is not None  # counted above
    return AliasAction("delete", change.delete_alias.alias)
