"""The calls that keep indexes: aliases, snapshots, rebuilds."""

from collections.abc import Iterable
from dataclasses import asdict

from condensery import upkeep
from condensery.api.grpc import messages
from condensery.errors import InputError
from condensery.jobs import aliases, rebuild, snapshots
from condensery.jobs.checks import check_count
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb


async def update_aliases(
    services: Services, given: pb.UpdateAliasesRequest, model: str | None
) -> bytes:
    """Change aliases."""
    del model
    check_count(given.actions, "actions", services.limits.max_items)
    actions = [_action(one, f"actions[{place}]") for place, one in enumerate(given.actions)]
    return _aliases(await aliases.update_aliases(services, actions))


async def list_aliases(
    services: Services, given: pb.ListAliasesRequest, model: str | None
) -> bytes:
    """List aliases."""
    del given, model
    return _aliases(await aliases.list_aliases(services))


async def create_snapshot(
    services: Services, given: pb.CreateSnapshotRequest, model: str | None
) -> bytes:
    """Make a snapshot."""
    del model
    return _snapshot(await snapshots.make_snapshot(services, given.index)).SerializeToString()


async def list_snapshots(
    services: Services, given: pb.ListSnapshotsRequest, model: str | None
) -> bytes:
    """List snapshots."""
    del model
    found = await snapshots.list_snapshots(services, given.index)
    reply = pb.ListSnapshotsResponse(
        snapshots=[_snapshot(one) for one in found.found], refused=found.refused
    )
    return reply.SerializeToString()


async def delete_snapshot(
    services: Services, given: pb.DeleteSnapshotRequest, model: str | None
) -> bytes:
    """Delete a snapshot."""
    del model
    await snapshots.delete_snapshot(services, given.index, given.snapshot)
    return pb.DeleteSnapshotResponse().SerializeToString()


async def restore_snapshot(
    services: Services, given: pb.RestoreSnapshotRequest, model: str | None
) -> bytes:
    """Make an index of a snapshot."""
    del model
    info = await snapshots.restore_snapshot(
        services, given.index, given.snapshot, into=given.into or None
    )
    return messages.index_info(info).SerializeToString()


async def rebuild_index(
    services: Services, given: pb.RebuildIndexRequest, model: str | None
) -> bytes:
    """Begin a rebuild."""
    found = await rebuild.rebuild_index(
        services,
        given.index,
        encoder=model,
        metric=given.metric or None,
        kind=given.kind or None,
        options=dict(given.options.values) if given.HasField("options") else None,
    )
    return _rebuild(found)


async def get_rebuild(services: Services, given: pb.GetRebuildRequest, model: str | None) -> bytes:
    """Tell how a rebuild goes."""
    del model
    return _rebuild(await rebuild.rebuild_status(services, given.index))


async def cancel_rebuild(
    services: Services, given: pb.CancelRebuildRequest, model: str | None
) -> bytes:
    """Give a rebuild up."""
    del model
    await rebuild.cancel_rebuild(services, given.index)
    return pb.CancelRebuildResponse().SerializeToString()


def _rebuild(found: upkeep.Rebuild) -> bytes:
    return pb.Rebuild(**asdict(found)).SerializeToString()


def _snapshot(found: upkeep.Snapshot) -> pb.Snapshot:
    return pb.Snapshot(**asdict(found))


def _action(given: pb.AliasAction, field: str) -> upkeep.AliasAction:
    kind = given.WhichOneof("action")
    if kind == "create_alias":
        return upkeep.AliasAction("create", given.create_alias.alias, given.create_alias.index)
    if kind == "delete_alias":
        return upkeep.AliasAction("delete", given.delete_alias.alias)
    if kind == "rename_alias":
        return upkeep.AliasAction("rename", given.rename_alias.alias, given.rename_alias.to)
    raise InputError(
        f"{field}: give one of create_alias, delete_alias, rename_alias; got none.", field=field
    )


def _aliases(found: Iterable[upkeep.Alias]) -> bytes:
    reply = pb.AliasesResponse(
        aliases=[pb.Alias(alias=a.alias, target=a.target, index=a.index or "") for a in found]
    )
    return reply.SerializeToString()
