"""The routes of indexes: what is in them, and their keeping."""

from condensery import errors, schemas, schemas_upkeep
from condensery.api.rest import indexes, replies, replies_upkeep, upkeep
from condensery.api.rest.routing import FINDS, SEARCHES, WRITES, Errors, Route

ALIASES: Errors = (*WRITES, errors.EmptyInput, errors.AliasNotFound, errors.AliasCircle)
COPIES: Errors = (*WRITES, errors.SnapshotNotFound, errors.SnapshotDamaged)

SNAPSHOT = {
    "name": "snapshot",
    "in": "path",
    "required": True,
    "description": "The id of one of the index's snapshots.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9-]+$"},
}

ONE = "/v1/indexes/{name}"
DOCUMENTS = f"{ONE}/documents"
SNAPSHOTS = f"{ONE}/snapshots"

UPKEEP = (  # before what has an index's name in its path
    Route(
        *("GET", "/v1/indexes/aliases", upkeep.list_aliases, "index"),
        reply=replies_upkeep.Aliases,
    ),
    Route(
        *("POST", "/v1/indexes/aliases", upkeep.update_aliases, "index", "index-write"),
        body=schemas_upkeep.AliasesRequest,
        reply=replies_upkeep.Aliases,
        fails=ALIASES,
    ),
    Route(
        *("POST", SNAPSHOTS, upkeep.make_snapshot, "index", "index-write"),
        reply=replies_upkeep.Snapshot,
        fails=(*WRITES, errors.LimitReached),
    ),
    Route(
        *("GET", SNAPSHOTS, upkeep.list_snapshots, "index"),
        reply=replies_upkeep.Snapshots,
        fails=FINDS,
    ),
    Route(
        *("GET", f"{SNAPSHOTS}/{{snapshot}}", upkeep.show_snapshot, "index"),
        parameters=(SNAPSHOT,),
        reply=replies_upkeep.Snapshot,
        fails=COPIES,
    ),
    Route(
        *("DELETE", f"{SNAPSHOTS}/{{snapshot}}", upkeep.delete_snapshot, "index", "index-write"),
        parameters=(SNAPSHOT,),
        reply=replies_upkeep.SnapshotDeleted,
        fails=(*WRITES, errors.SnapshotNotFound),
    ),
    Route(
        *("POST", f"{SNAPSHOTS}/{{snapshot}}/restore", upkeep.restore_snapshot),
        *("index", "index-write"),
        parameters=(SNAPSHOT,),
        body=schemas_upkeep.RestoreRequest,
        optional=True,
        reply=replies.Index,
        fails=COPIES,
    ),
    Route(
        *("POST", f"{ONE}/rebuild", upkeep.rebuild_index, "index", "index-write"),
        body=schemas_upkeep.RebuildRequest,
        optional=True,
        reply=replies_upkeep.Rebuild,
        fails=(*WRITES, errors.ModelNotFound, errors.TextsMissing, errors.RebuildRunning),
    ),
    Route(
        *("GET", f"{ONE}/rebuild", upkeep.show_rebuild, "index"),
        reply=replies_upkeep.Rebuild,
        fails=(*FINDS, errors.RebuildNotFound),
    ),
    Route(
        *("DELETE", f"{ONE}/rebuild", upkeep.cancel_rebuild, "index", "index-write"),
        reply=replies_upkeep.RebuildCancelled,
        fails=(*WRITES, errors.RebuildNotFound),
    ),
)

INDEXES = (
    Route("GET", "/v1/indexes", indexes.list_all, "index", reply=replies.Indexes),
    Route(
        *("PUT", ONE, indexes.create, "index", "index-write"),
        body=schemas.CreateIndexRequest,
        optional=True,
        reply=replies.Index,
        fails=(errors.ModelNotFound, errors.IndexExists, errors.StorageError, errors.StorageFull),
    ),
    Route("GET", ONE, indexes.info, "index", reply=replies.Index, fails=FINDS),
    Route(
        *("DELETE", ONE, indexes.drop, "index", "index-write"),
        reply=replies.Dropped,
        fails=(*WRITES, errors.IndexAliased),
    ),
    Route(
        *("POST", DOCUMENTS, indexes.upsert, "index", "index-write"),
        body=schemas.UpsertRequest,
        reply=replies.Written,
        fails=(*WRITES, errors.EmptyInput, errors.EncoderMismatch, errors.ModelFault),
    ),
    Route(
        *("POST", f"{DOCUMENTS}/get", indexes.get, "index"),
        body=schemas.IdsRequest,
        reply=replies.Documents,
        fails=(*FINDS, errors.EmptyInput),
    ),
    Route(
        *("POST", f"{DOCUMENTS}/delete", indexes.delete, "index", "index-write"),
        body=schemas.DeleteRequest,
        reply=replies.Deleted,
        fails=(*WRITES, errors.EmptyInput),
    ),
    Route(
        *("POST", f"{DOCUMENTS}/count", indexes.count, "index"),
        body=schemas.CountRequest,
        optional=True,
        reply=replies.Counts,
        fails=FINDS,
    ),
    Route(
        *("POST", f"{DOCUMENTS}/scroll", indexes.scroll, "index"),
        body=schemas.ScrollRequest,
        optional=True,
        reply=replies.Page,
        fails=FINDS,
    ),
    Route(
        *("POST", f"{ONE}/query", indexes.query, "index"),
        body=schemas.QueryRequest,
        reply=replies.Hits,
        fails=SEARCHES,
    ),
)
