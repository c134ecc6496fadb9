"""Snapshots: copies of indexes, and indexes made of them again."""

import asyncio

from condensery.jobs.index_vectors import describe, report_prompts
from condensery.jobs.services import Services
from condensery.jobs.swapping import across_swaps
from condensery.upkeep import Snapshot, SnapshotList
from condensery.values import IndexInfo


@across_swaps
async def make_snapshot(services: Services, name: str) -> Snapshot:
    """Copy an index as it is now, while it goes on; synced on return.

    Raises:
        IndexNotFound: No such index.
        LimitReached: There are as many as there may be.
        StorageFull, StorageReadOnly: The disk refused; nothing is left behind.
    """
    return await asyncio.to_thread(services.indexes.keeping.snapshot, name)


async def list_snapshots(services: Services, name: str) -> SnapshotList:
    """List an index's snapshots, the newest first; also of one that is no more or is broken."""
    return await asyncio.to_thread(services.indexes.keeping.snapshots, name)


async def show_snapshot(services: Services, name: str, snapshot: str) -> Snapshot:
    """Return what a snapshot is.

    Raises:
        SnapshotNotFound, SnapshotDamaged, SnapshotTooNew: As the message says.
    """
    return await asyncio.to_thread(services.indexes.keeping.get_snapshot, name, snapshot)


async def delete_snapshot(services: Services, name: str, snapshot: str) -> None:
    """Delete a snapshot, whether it can be used or not; synced on return."""
    await asyncio.to_thread(services.indexes.keeping.delete_snapshot, name, snapshot)


async def restore_snapshot(
    services: Services, name: str, snapshot: str, *, into: str | None = None
) -> IndexInfo:
    """Make an index of a snapshot; synced on return.

    Args:
        services: The running parts.
        name: Whose snapshot.
        snapshot: Its id.
        into: The index to make; None is ``name``. One that is there serves until the new one is
            whole, and stays as it is if that fails.

    Raises:
        SnapshotNotFound, SnapshotDamaged, SnapshotTooNew: As the message says.
        InputError: A malformed name; NameTaken if it is an alias.
        LimitReached: It would be an index more than there may be.
        StorageFull, StorageReadOnly: The disk refused.
    """
    made = await asyncio.to_thread(services.indexes.keeping.restore, name, snapshot, into)
    report_prompts(services, index=made.name)
    return describe(services, made)
