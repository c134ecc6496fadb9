"""Keeping indexes, as REST calls: aliases, snapshots, rebuilds."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from condensery.client.rest_calls import RestCall, index_path, make_body, read_nothing
from condensery.client.rest_replies import build, read_index
from condensery.errors import InputError, shorten
from condensery.upkeep import ALIAS_VERBS, Alias, AliasAction, Rebuild, Snapshot, SnapshotList
from condensery.values import IndexInfo

ALIASES = "/v1/indexes/aliases"
# What an action calls its target.
TARGETS = {"create": "index", "rename": "to"}


def aliases() -> RestCall[list[Alias]]:
    """List every alias and where it leads, by name."""
    return RestCall(_read_aliases, "GET", ALIASES)


def update_aliases(actions: Sequence[AliasAction]) -> RestCall[list[Alias]]:
    """Make all of these changes, at one moment, or none; returns the aliases then.

    Args:
        actions: Made in this order; they are on disk when this returns. To swap what two aliases
            point at, create both anew.
    """
    body = {"actions": [_write_action(action) for action in actions]}
    return RestCall(_read_aliases, "POST", ALIASES, body)


def create_snapshot(name: str) -> RestCall[Snapshot]:
    """Copy an index as it is now, while it goes on; the copy is on disk when this returns."""
    return RestCall(_read_snapshot, "POST", _snapshots(name))


def list_snapshots(name: str) -> RestCall[SnapshotList]:
    """List an index's snapshots, also of an index that is no more."""
    return RestCall(_read_snapshots, "GET", _snapshots(name))


def delete_snapshot(name: str, snapshot: str) -> RestCall[None]:
    """Delete a snapshot, whether it can be used or not."""
    return RestCall(read_nothing, "DELETE", _snapshots(name, snapshot))


def restore_snapshot(name: str, snapshot: str, *, into: str | None = None) -> RestCall[IndexInfo]:
    """Make an index of a snapshot; on disk when this returns.

    Args:
        name: Whose snapshot.
        snapshot: Its id.
        into: The index to make; None is ``name``. One that is there serves until the new one is
            whole, and stays as it is if that fails.
    """
    path = f"{_snapshots(name, snapshot)}/restore"
    return RestCall(read_index, "POST", path, make_body(into=into))


def rebuild_index(
    name: str,
    *,
    encoder: str | None = None,
    metric: str | None = None,
    kind: str | None = None,
    options: Mapping[str, int] | None = None,
) -> RestCall[Rebuild]:
    """Begin to make an index anew for another encoder, while it serves and is written; or go on.

    Args:
        name: The index.
        encoder: Name of the new encoder; None is the index's own, as it runs today.
        metric: As of a new index; None is as it is.
        kind: Likewise.
        options: The kind's, as of a new index; None is as they are, if the kind is.
    """
    told = None if options is None else dict(options)
    body = make_body(encoder=encoder, metric=metric, kind=kind, options=told)
    return RestCall(_read_rebuild, "POST", f"{index_path(name)}/rebuild", body)


def rebuild_status(name: str) -> RestCall[Rebuild]:
    """Return how far an index's rebuild has come, or how the last one ended."""
    return RestCall(_read_rebuild, "GET", f"{index_path(name)}/rebuild")


def cancel_rebuild(name: str) -> RestCall[None]:
    """Give up an index's rebuild; the index goes on as it was."""
    return RestCall(read_nothing, "DELETE", f"{index_path(name)}/rebuild")


def _read_rebuild(reply: Any) -> Rebuild:
    return build(Rebuild, reply)


def _snapshots(name: str, snapshot: str | None = None) -> str:
    path = f"{index_path(name)}/snapshots"
    return path if snapshot is None else f"{path}/{quote(snapshot, safe='')}"


def _read_snapshot(reply: Any) -> Snapshot:
    return build(Snapshot, reply)


def _read_snapshots(reply: Any) -> SnapshotList:
    return SnapshotList(tuple(build(Snapshot, item) for item in reply["data"]), reply["refused"])


def _write_action(action: AliasAction) -> dict[str, Any]:
    if action.verb not in ALIAS_VERBS:
        raise InputError(
            f"actions: {shorten(action.verb)} is not one of {', '.join(ALIAS_VERBS)}",
            field="actions",
        )
    fields = {"alias": action.alias}
    if action.verb in TARGETS:
        fields[TARGETS[action.verb]] = action.target or ""
    return {f"{action.verb}_alias": fields}


def _read_aliases(reply: Any) -> list[Alias]:
    return [build(Alias, item) for item in reply["data"]]
