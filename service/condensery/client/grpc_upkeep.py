"""Keeping indexes, as gRPC calls; their arguments are described in ``rest_upkeep``."""

from collections.abc import Mapping, Sequence
from typing import cast

from condensery.client.grpc_calls import RpcCall, checked, make_call, read_nothing
from condensery.client.grpc_replies import read_index
from condensery.errors import InputError, shorten
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.upkeep import (
    ALIAS_VERBS,
    Alias,
    AliasAction,
    Rebuild,
    RebuildState,
    Snapshot,
    SnapshotList,
)
from condensery.values import IndexInfo


def aliases() -> RpcCall[list[Alias]]:
    """List every alias and where it leads, by name."""
    return make_call(
        "IndexUpkeep/ListAliases", pb.ListAliasesRequest(), pb.AliasesResponse, _read_aliases
    )


@checked
def update_aliases(actions: Sequence[AliasAction]) -> RpcCall[list[Alias]]:
    """Make all of these changes, at one moment, or none; returns the aliases then."""
    request = pb.UpdateAliasesRequest(actions=[_write_action(action) for action in actions])
    return make_call("IndexUpkeep/UpdateAliases", request, pb.AliasesResponse, _read_aliases)


@checked
def create_snapshot(name: str) -> RpcCall[Snapshot]:
    """Copy an index as it is now, while it goes on; the copy is on disk when this returns."""
    request = pb.CreateSnapshotRequest(index=name)
    return make_call("IndexUpkeep/CreateSnapshot", request, pb.Snapshot, _read_snapshot)


@checked
def list_snapshots(name: str) -> RpcCall[SnapshotList]:
    """List an index's snapshots, also of an index that is no more."""
    request = pb.ListSnapshotsRequest(index=name)
    return make_call(
        "IndexUpkeep/ListSnapshots", request, pb.ListSnapshotsResponse, _read_snapshots
    )


@checked
def delete_snapshot(name: str, snapshot: str) -> RpcCall[None]:
    """Delete a snapshot, whether it can be used or not."""
    request = pb.DeleteSnapshotRequest(index=name, snapshot=snapshot)
    return make_call("IndexUpkeep/DeleteSnapshot", request, pb.DeleteSnapshotResponse, read_nothing)


@checked
def restore_snapshot(name: str, snapshot: str, *, into: str | None = None) -> RpcCall[IndexInfo]:
    """Make an index of a snapshot; on disk when this returns."""
    request = pb.RestoreSnapshotRequest(index=name, snapshot=snapshot, into=into or "")
    return make_call("IndexUpkeep/RestoreSnapshot", request, pb.IndexInfo, read_index)


@checked
def rebuild_index(
    name: str,
    *,
    encoder: str | None = None,
    metric: str | None = None,
    kind: str | None = None,
    options: Mapping[str, int] | None = None,
) -> RpcCall[Rebuild]:
    """Begin to make an index anew for another encoder, while it serves and is written; or go on."""
    request = pb.RebuildIndexRequest(
        index=name, encoder=encoder or "", metric=metric or "", kind=kind or ""
    )
    if options is not None:
        request.options.values.update(options)
        request.options.SetInParent()
    return make_call("IndexUpkeep/RebuildIndex", request, pb.Rebuild, _read_rebuild)


@checked
def rebuild_status(name: str) -> RpcCall[Rebuild]:
    """Return how far an index's rebuild has come, or how the last one ended."""
    request = pb.GetRebuildRequest(index=name)
    return make_call("IndexUpkeep/GetRebuild", request, pb.Rebuild, _read_rebuild)


@checked
def cancel_rebuild(name: str) -> RpcCall[None]:
    """Give up an index's rebuild; the index goes on as it was."""
    request = pb.CancelRebuildRequest(index=name)
    return make_call("IndexUpkeep/CancelRebuild", request, pb.CancelRebuildResponse, read_nothing)


def _read_rebuild(reply: pb.Rebuild) -> Rebuild:
    return Rebuild(
        index=reply.index,
        encoder=reply.encoder,
        fingerprint=reply.fingerprint,
        kind=reply.kind,
        metric=reply.metric,
        documents=reply.documents,
        began=reply.began,
        state=cast(RebuildState, reply.state),
        pending=reply.pending,
        ended=reply.ended if reply.HasField("ended") else None,
        reason=reply.reason if reply.HasField("reason") else None,
        overlap=reply.overlap if reply.HasField("overlap") else None,
    )


def _read_snapshot(reply: pb.Snapshot) -> Snapshot:
    return Snapshot(
        id=reply.id,
        index=reply.index,
        created=reply.created,
        encoder=reply.encoder,
        fingerprint=reply.fingerprint,
        dims=reply.dims,
        kind=reply.kind,
        metric=reply.metric,
        documents=reply.documents,
        passages=reply.passages,
        bytes=reply.bytes,
    )


def _read_snapshots(reply: pb.ListSnapshotsResponse) -> SnapshotList:
    return SnapshotList(tuple(_read_snapshot(one) for one in reply.snapshots), dict(reply.refused))


def _write_action(action: AliasAction) -> pb.AliasAction:
    alias, target = action.alias, action.target or ""
    if action.verb == "create":
        return pb.AliasAction(create_alias=pb.CreateAlias(alias=alias, index=target))
    if action.verb == "rename":
        return pb.AliasAction(rename_alias=pb.RenameAlias(alias=alias, to=target))
    if action.verb == "delete":
        return pb.AliasAction(delete_alias=pb.DeleteAlias(alias=alias))
    raise InputError(
        f"actions: {shorten(action.verb)} is not one of {', '.join(ALIAS_VERBS)}", field="actions"
    )


def _read_aliases(reply: pb.AliasesResponse) -> list[Alias]:
    return [Alias(one.alias, one.target, one.index or None) for one in reply.aliases]
