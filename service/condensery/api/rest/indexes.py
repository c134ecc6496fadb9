"""Indexes: `/v1/indexes/**`."""

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.naming import renamed
from condensery.api.rest.bodies import read, read_body, validate
from condensery.api.rest.doors import reply
from condensery.api.rest.writing import TEXTS, reply_list
from condensery.errors import InputError
from condensery.jobs import indexes, search
from condensery.jobs.accounting import account
from condensery.jobs.services import Services
from condensery.schemas import (
    CountRequest,
    CreateIndexRequest,
    DeleteRequest,
    IdsRequest,
    NewDocument,
    QueryRequest,
    ScrollRequest,
    UpsertRequest,
)
from condensery.values import Document, Floats


async def create(request: Request, services: Services) -> Response:
    """Create an index; the same settings again return it as it is."""
    body = await read_body(request, services, CreateIndexRequest, optional=True)
    with account(services, body.encoder, "index", "rest"):
        info = await indexes.create_index(
            services,
            _name(request),
            encoder=body.encoder,
            metric=body.metric,
            kind=body.kind,
            dims=body.dims,
            options=body.options,
        )
        return reply(info)


async def list_all(request: Request, services: Services) -> Response:
    """List the indexes and what they hold."""
    del request
    with account(services, None, "index", "rest"):
        return reply({"object": "list", "data": await indexes.list_indexes(services)})


async def info(request: Request, services: Services) -> Response:
    """Return what an index is and holds."""
    name = _name(request)
    with account(services, None, "index", "rest", index=name):
        return reply(await indexes.index_info(services, name))


async def drop(request: Request, services: Services) -> Response:
    """Delete an index with all it holds."""
    name = _name(request)
    with account(services, None, "index", "rest", index=name):
        await indexes.drop_index(services, name)
        return reply({"name": name, "deleted": True})


async def upsert(request: Request, services: Services) -> Response:
    """Write documents, replacing those of the same ids; synced when this returns."""
    name = _name(request)
    body, vectors = await read(request, services, _with_vectors)
    with account(services, None, "index", "rest", index=name):
        written = await indexes.upsert(
            services,
            name,
            [Document(one.id, one.text, one.metadata) for one in body.documents],
            vectors=vectors,
            fingerprint=body.fingerprint,
        )
        return reply(written)


async def get(request: Request, services: Services) -> Response:
    """Return documents by id, those found."""
    name = _name(request)
    body = await read_body(request, services, IdsRequest)
    with account(services, None, "index", "rest", index=name):
        found = await indexes.get(services, name, body.ids)
        return await reply_list(found, TEXTS, within={"documents": None}, field="documents")


async def delete(request: Request, services: Services) -> Response:
    """Delete documents by id or by a filter; synced when this returns."""
    name = _name(request)
    body = await read_body(request, services, DeleteRequest)
    with account(services, None, "index", "rest", index=name):
        gone = await indexes.delete(services, name, body.ids, filter=body.filter)
        return reply({"deleted": gone})


async def count(request: Request, services: Services) -> Response:
    """Count an index's documents and passages, or those that a filter chooses."""
    name = _name(request)
    body = await read_body(request, services, CountRequest, optional=True)
    with account(services, None, "index", "rest", index=name):
        documents, passages = await indexes.count(services, name, filter=body.filter)
        return reply({"documents": documents, "passages": passages})


async def scroll(request: Request, services: Services) -> Response:
    """Return documents by id, page by page, all or those that a filter chooses."""
    name = _name(request)
    body = await read_body(request, services, ScrollRequest, optional=True)
    with account(services, None, "index", "rest", index=name):
        page = await indexes.scroll(
            services,
            name,
            filter=body.filter,
            limit=body.limit,
            after=body.after,
            with_text=body.with_text,
            with_metadata=body.with_metadata,
            with_vectors=body.with_vectors,
        )
        within = {"next": page.next, "documents": None}
        return await reply_list(page.documents, TEXTS, within=within, field="documents")


async def query(request: Request, services: Services) -> Response:
    """Find passages by a text, by its words or its meaning, or by a vector; the best first."""
    name = _name(request)
    body = await read_body(request, services, QueryRequest)
    with account(services, None, "index", "rest", index=name), renamed("search", "mode"):
        vector = None if body.vector is None else to_floats([body.vector], ["vector"])[0]
        hits = await search.query(
            services,
            name,
            body.query,
            vector=vector,
            fingerprint=body.fingerprint,
            top_k=body.top_k,
            search=body.mode,
            filter=body.filter,
        )
        results = [
            {
                "id": hit.passage.id,
                "document_id": hit.passage.document_id,
                "text": hit.passage.text,
                "start": hit.passage.start,
                "end": hit.passage.end,
                "metadata": hit.passage.metadata,
                "score": hit.score,
            }
            for hit in hits
        ]
        return reply({"index": name, "results": results})


def to_floats(rows: list[list[float]], names: list[str]) -> Floats:
    """Return rows of one length as float32, (rows, dims).

    Raises:
        InputError: They differ in length; the row is named.
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
        for place, row in enumerate(rows):  # one by one: the loop gets its turn between them
            floats[place] = row
    return floats


def _with_vectors(data: Any) -> tuple[UpsertRequest, Floats | None]:
    body = validate(data, UpsertRequest)
    return body, _vectors(body.documents)


def _vectors(documents: list[NewDocument]) -> Floats | None:
    """Return the documents' vectors; None if they have none."""
    rows = [one.vector for one in documents if one.vector is not None]
    if not rows:
        return None
    if len(rows) < len(documents):
        place = next(i for i, one in enumerate(documents) if one.vector is None)
        raise InputError(
            f"documents[{place}].vector: missing, while other documents have one; give all of them "
            "vectors, or none.",
            field=f"documents[{place}].vector",
        )
    return to_floats(rows, [f"documents[{place}].vector" for place in range(len(rows))])


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name
