"""Indexes, and their aliases, snapshots and rebuilds: `/v1/indexes/**`.

An endpoint that is a job and no more is one line (``io.job_endpoint``).
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from condensery.api.rest.forms import Form, open_form
from condensery.api.rest.io import (
    PIECE_TEXTS,
    job_endpoint,
    parse_json,
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
    FilesForm,
    IdsRequest,
    NewDocument,
    QueryRequest,
    RebuildRequest,
    RestoreRequest,
    ScrollRequest,
    UpsertRequest,
)
from condensery.api.rest.validation import validate_body
from condensery.documents.files import Reading, name_upload
from condensery.documents.records import Columns
from condensery.errors import EmptyInput, InputError, shorten
from condensery.jobs import files as upload
from condensery.jobs import indexes, maintenance, retrieval
from condensery.jobs.accounting import count_refusals, count_request
from condensery.jobs.files import UploadedFile
from condensery.jobs.services import Services
from condensery.values import (
    Alias,
    AliasAction,
    Document,
    Floats,
    Hit,
    IndexInfo,
    Rebuild,
    Snapshot,
    SnapshotList,
)


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


FILE_FIELDS = ("files", "file")
PIECE_FILES = 512  # results of files in one piece of a reply

_job = partial(job_endpoint, task="index")
_write = partial(job_endpoint, task="index-write")

list_indexes = _job(indexes.list_indexes, Indexes)
show_index = _job(indexes.get_index, IndexInfo)
drop_index = _write(indexes.drop_index, Dropped)
delete_documents = _write(indexes.delete_documents, Deleted, DeleteRequest)
count_documents = _job(indexes.count_documents, Counts, CountRequest, optional=True)
list_aliases = _job(maintenance.list_index_aliases, Aliases)
create_snapshot = _write(maintenance.create_snapshot, Snapshot)
list_snapshots = _job(maintenance.list_snapshots, SnapshotList)
show_snapshot = _job(maintenance.get_snapshot, Snapshot)
delete_snapshot = _write(maintenance.delete_snapshot, SnapshotDeleted)
restore_snapshot = _write(maintenance.restore_snapshot, IndexInfo, RestoreRequest, optional=True)
rebuild_index = _write(maintenance.rebuild_index, Rebuild, RebuildRequest, optional=True)
show_rebuild = _job(maintenance.get_rebuild, Rebuild)
cancel_rebuild = _write(maintenance.cancel_rebuild, RebuildCancelled)


async def create_index(request: Request, services: Services) -> Response:
    """Create an index; the same settings again return it as it is."""
    body = await read_body(request, services, CreateIndexRequest, optional=True)
    with count_request(services, body.encoder, "index-write", "rest"):
        name = request.path_params["name"]
        return write_json(await indexes.create_index(services, name, **dict(body)))


async def upsert_documents(request: Request, services: Services) -> Response:
    """Write documents, replacing those of the same ids; synced when this returns."""
    name = request.path_params["name"]
    body, vectors = await read_as(request, services, _parse_upsert, names_model=False)
    with count_request(services, None, "index-write", "rest", index=name):
        written = await indexes.upsert_documents(
            services,
            name,
            [Document(item.id, item.text, item.metadata) for item in body.documents],
            vectors=vectors,
            fingerprint=body.fingerprint,
        )
        return write_json(written)


async def add_files(request: Request, services: Services) -> Response:
    """Write the documents of files, each in place of what is there of it; synced on return."""
    name = request.path_params["name"]
    services.indexes.info(name)  # before the files are taken
    async with services.uploads.receiving, AsyncExitStack() as stack:
        with count_refusals(services, request.state.task, "rest"):
            form = await stack.enter_async_context(open_form(request, services))
            how, files = _read_files_form(form)
        columns = Columns(how.id_column, tuple(how.text_column))
        with count_request(services, None, "index-write", "rest", index=name):
            added = await upload.add_files(
                services,
                name,
                files,
                Reading(how.format, how.encoding, columns),
                again=how.again == "true",
                check=partial(_check_document, max_depth=services.limits.max_json_depth),
            )
        within = replace(added, files=())
        return await write_list(added.files, PIECE_FILES, within=within, field="files")


async def get_documents(request: Request, services: Services) -> Response:
    """Return documents by id, those found."""
    name = request.path_params["name"]
    body = await read_body(request, services, IdsRequest)
    with count_request(services, None, "index", "rest", index=name):
        documents = await indexes.get_documents(services, name, body.ids)
        return await write_list(documents, PIECE_TEXTS, within=Documents(), field="documents")


async def scroll_documents(request: Request, services: Services) -> Response:
    """Return documents by id, page by page, all or those that a filter chooses."""
    name = request.path_params["name"]
    body = await read_body(request, services, ScrollRequest, optional=True)
    with count_request(services, None, "index", "rest", index=name):
        page = await indexes.scroll_documents(services, name, **dict(body))
        within = replace(page, documents=())
        return await write_list(page.documents, PIECE_TEXTS, within=within, field="documents")


async def query_index(request: Request, services: Services) -> Response:
    """Find passages by a text, by its words or its meaning, or by a vector; the best first."""
    name = request.path_params["name"]
    body = await read_body(request, services, QueryRequest)
    with count_request(services, None, "index", "rest", index=name):
        vector = None if body.vector is None else make_vectors([body.vector], ["vector"])[0]
        options = {**dict(body), "vector": vector}
        hits = await retrieval.query_index(services, name, options.pop("query"), **options)
        return write_json(Hits(name, hits))


async def update_aliases(request: Request, services: Services) -> Response:
    """Create, move, rename and delete aliases: all that is asked, at one moment, or nothing."""
    body = await read_body(request, services, AliasesRequest)
    with count_request(services, None, "index-write", "rest"):
        actions = [_read_action(item, f"actions[{i}]") for i, item in enumerate(body.actions)]
        aliases = await maintenance.update_index_aliases(services, actions)
        return write_json(Aliases(aliases))


def make_vectors(rows: list[list[float]], names: list[str]) -> Floats:
    """Return rows of equal length as float32, (rows, dims).

    Raises:
        InputError: Their lengths differ; the row is named.
    """
    for name, row in zip(names, rows, strict=True):
        if len(row) != len(rows[0]):
            raise InputError.at(
                name, f"{len(row)} numbers, but {names[0]} has {len(rows[0])}.", len(row)
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
        raise InputError.at(
            f"documents[{place}].vector",
            "missing, while other documents have one; give all of them vectors, or none.",
        )
    return make_vectors(rows, [f"documents[{place}].vector" for place in range(len(rows))])


def _read_files_form(form: Form) -> tuple[FilesForm, list[UploadedFile]]:
    """Return how files are read, and the files; a browser's empty choice of files is none."""
    for file in form.files:
        if file.field not in FILE_FIELDS:
            raise InputError.at(file.field, f"a file; the field of files is {FILE_FIELDS[0]}.")
    fields: dict[str, Any] = {}
    for name, text in form.texts:
        if name in FILE_FIELDS:
            raise InputError.at(
                name, f"{shorten(text)} is a text and no file: its part has no filename.", text
            )
        if name == "text_column":
            fields.setdefault(name, []).append(text)
        elif name in fields:
            raise InputError.at(name, "comes twice.", text)
        else:
            fields[name] = text
    how = validate_body(fields, FilesForm)
    files = [
        UploadedFile(form.spool, name_upload(file.name, how.prefix), file.start, file.size)
        for file in form.files
        if file.name or file.size
    ]
    if not files:
        raise EmptyInput.at("files", "the form holds no file.")
    return how, files


def _check_document(document: Document, *, max_depth: int) -> Document:
    """Return a document as the body of a request could hold it.

    Raises:
        InputError: None could.
    """
    try:
        body = orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        raise InputError(f"can't be written as JSON: {error}.") from error
    item = validate_body(parse_json(body, max_depth), NewDocument)
    return Document(item.id, item.text, item.metadata)


def _read_action(change: AliasChange, field: str) -> AliasAction:
    verbs = [name for name in AliasChange.model_fields if getattr(change, name) is not None]
    if len(verbs) != 1:
        got = " and ".join(verbs) or "none"
        raise InputError.at(field, f"give one of {', '.join(AliasChange.model_fields)}; got {got}.")
    if change.create_alias is not None:
        return AliasAction("create", change.create_alias.alias, change.create_alias.index)
    if change.rename_alias is not None:
        return AliasAction("rename", change.rename_alias.alias, change.rename_alias.to)
    assert change.delete_alias is not None  # counted above
    return AliasAction("delete", change.delete_alias.alias)
