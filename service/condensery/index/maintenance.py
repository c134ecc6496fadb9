"""What is done to whole indexes while they serve: aliases, snapshots, restores and rebuilds."""

import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from condensery.atomic_files import sync_path
from condensery.errors import IndexNotFound, RebuildNotFound, RebuildRunning, StorageError
from condensery.index import checks, generations, rebuilding
from condensery.index.database import storage_errors
from condensery.index.index import Index
from condensery.index.rebuilding import Rebuilding
from condensery.index.snapshots import Snapshots
from condensery.metrics import Metrics
from condensery.threads import do_aside
from condensery.values import (
    Alias,
    AliasAction,
    IndexInfo,
    IndexSpec,
    RebuildPlan,
    Snapshot,
    SnapshotList,
)

if TYPE_CHECKING:
    from condensery.index.store import IndexStore

SNAPSHOTS = "snapshots"


class IndexMaintenance:
    """Aliases, snapshots and rebuilds of a store's indexes.

    Calls block on disk; any thread may make them. An alias does wherever an index's name is asked
    for, but as the name of a new index.

    Args:
        store: Whose indexes.
        data_dir: Holds the snapshots.
        metrics: Gets ``condensery_index_snapshot_age_seconds``, of each index that has one.
    """

    def __init__(self, store: "IndexStore", data_dir: Path, metrics: Metrics | None) -> None:
        self._store = store
        self._names = store.names
        self._snapshots = Snapshots(data_dir / SNAPSHOTS, store.caps.snapshots)
        self._metrics = metrics
        self._rebuilds: dict[str, Rebuilding] = {}
        for info in store.list():
            self.measure(info.name)
            with contextlib.suppress(StorageError, OSError):  # a disk that is full, say
                rebuilding.clear(store.folder(info.name), store.find(info.name))

    def aliases(self) -> list[Alias]:
        """Return every alias, by name; from memory."""
        return self._names.aliases.entries(self._names.all)

    def update_aliases(self, actions: Sequence[AliasAction]) -> list[Alias]:
        """Make all of these changes, synced on return, or none; returns the aliases then.

        Raises:
            AliasNotFound, AliasToNothing, AliasCircle, NameTaken, InputError: See ``IndexAliases``.
            LimitReached: There would be more than there may be.
            Unavailable: The store was closed.
            StorageFull, StorageReadOnly, StorageError: The disk refused; nothing is changed.
        """
        with self._store.catalogue(), storage_errors(self._names.aliases.path):
            self._names.aliases.update(actions, self._names.all())
            return self.aliases()

    def snapshot(self, name: str) -> Snapshot:
        """Copy an index as it is now, while it goes on; synced on return.

        Raises:
            LimitReached: There are as many as there may be.
            StorageFull, StorageReadOnly, StorageError: The disk refused; nothing is left behind.
        """
        index = self._store.find(name)
        snapshot = do_aside(lambda: self._snapshots.make(index))
        self.measure(snapshot.index)
        return snapshot

    def snapshots(self, name: str) -> SnapshotList:
        """List an index's snapshots, also of one that was dropped or is broken."""
        return self._snapshots.of(self._name(name))

    def get_snapshot(self, name: str, snapshot: str) -> Snapshot:
        """Return what a snapshot is."""
        return self._snapshots.get(self._name(name), snapshot)

    def delete_snapshot(self, name: str, snapshot: str) -> None:
        """Delete a snapshot, whether it can be used or not; synced on return."""
        name = self._name(name)
        self._snapshots.delete(name, snapshot)
        self.measure(name)

    def restore(self, name: str, snapshot: str, into: str | None = None) -> IndexInfo:
        """Make an index of a snapshot; synced on return.

        An index that is restored over serves until the new one is whole; what was written to it
        since the snapshot is then gone. Whatever ends the process, one of the two is there, whole.

        Args:
            name: Whose snapshot; the index may be broken or dropped.
            snapshot: Its id.
            into: The name of the index to make; None is ``name``, which is restored over.

        Raises:
            SnapshotNotFound, SnapshotDamaged, SnapshotTooNew: As the message says.
            NameTaken: ``into`` is an alias.
            LimitReached: It would be an index more than there may be.
            StorageFull, StorageReadOnly, StorageError: The disk refused. Whatever failed, what was
                there stays as it was.
        """
        name = self._name(name)
        target = name if into is None else into
        checks.check_new_name(target, "into")
        self._snapshots.get(name, snapshot)  # before anything is made
        folder, over = self._store.folder(target), self._names.holds(target)
        self._check_not_rebuilt(target)
        if not over:
            self._names.check_free(target)
        with storage_errors(folder):
            # beside the indexes, where nothing that is done to one of them touches it
            aside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
            try:
                self._snapshots.copy(name, snapshot, aside)
                if over and self._store.usable(target):
                    served = self._store.find(target)
                    served.bind_like(aside, served.spec)
                else:
                    self._store.databases.bind(aside, target)
                # it is of this version's format then, with a cache, or whole in its database
                fresh = Index(target, aside, databases=self._store.databases)
                try:
                    fresh.wait_until_agreed()
                finally:
                    fresh.close()
                sync_path(aside)
                with self._store.exclusive():
                    restored = (
                        self._take_over(target, aside) if over else self._store.adopt(target, aside)
                    )
            except BaseException:
                self._store.databases.remove(aside)
                raise
        self.measure(target)
        return restored.info

    def rebuild(self, name: str, spec: IndexSpec) -> Rebuilding:
        """Begin to make an index anew for another encoder, or go on where that was begun.

        Options of the old one's kind stay; another kind begins with none. What was begun keeps
        the prompts that it was begun with.

        Raises:
            RebuildRunning: It was begun with other settings.
            InputError: A setting, or an option that the new dimensions don't allow.
            TextsMissing: Of some documents only vectors are known.
            StorageFull, StorageReadOnly, StorageError: The disk refused.
        """
        with self._store.rebuild_lock:
            name = self._store.find(name).name
            self.forget(name)  # a rebuild that may be about to take its place
            old, folder = self._store.find(name), self._store.folder(name)
            if spec.options is None and spec.kind == old.spec.kind:
                spec = replace(spec, options=old.spec.options)
            spec = checks.check_spec(spec)
            rebuilding.clear(folder, old)

            def swap(fresh: Index, check: Callable[[sqlite3.Connection], None]) -> None:
                with self._store.catalogue_lock:
                    if self._rebuilds.get(name) is not rebuild:  # cancelled meanwhile
                        raise rebuilding.cancelled_error(name)
                    self._store.replace(name, fresh, check)
                    del self._rebuilds[name]
                    with contextlib.suppress(OSError):  # the next start sees that it is done
                        (folder / rebuilding.PLAN).unlink(missing_ok=True)

            rebuild = Rebuilding(folder, old, spec, swap, cache_every=self._store.cache_every)
            self._rebuilds[name] = rebuild
            return rebuild

    def unfinished_rebuilds(self) -> list[RebuildPlan]:
        """Return the rebuilds that were begun and are neither done nor cancelled."""
        plans = []
        for info in self._store.list():
            plan = rebuilding.read_plan(self._store.folder(info.name))
            if plan is not None:
                plans.append(plan.as_reply(info.name))
        return plans

    def cancel_rebuild(self, name: str) -> None:
        """Cancel an index's rebuild and delete what it made; synced on return.

        Raises:
            RebuildNotFound: It is not being rebuilt.
        """
        with self._store.exclusive():  # not while it takes the old one's place
            old = self._store.find(name)
            folder = self._store.folder(old.name)
            if rebuilding.read_plan(folder) is None and not rebuilding.noted(old):
                raise RebuildNotFound(
                    f"Index {old.name!r} is not being rebuilt.", field="index", value=name
                )
            self.forget(old.name, keep_cache=False)
            rebuilding.cancel(folder, old)

    def forget(self, name: str, *, keep_cache: bool = True) -> None:
        """Close the files of an index's rebuild, if there is one; it can go on another time."""
        with self._store.catalogue_lock:  # not while it takes the old one's place
            rebuild = self._rebuilds.pop(name, None)
            if rebuild is not None and not self._store.serves(rebuild.fresh):
                rebuild.fresh.close(keep_cache=keep_cache)

    def close(self) -> None:
        """Close the files of all rebuilds; they go on another time."""
        for name in list(self._rebuilds):
            self.forget(name)

    def measure(self, name: str) -> None:
        """Let the metric follow the age of an index's newest snapshot."""
        if self._metrics is None:
            return
        gauge = self._metrics.index_snapshot_age
        try:
            snapshots = self._snapshots.of(name).data
        except StorageError:  # unreadable: whoever asks for them hears why
            snapshots = ()
        if snapshots and self._names.holds(name):
            created = snapshots[0].created
            gauge.labels(name).set_function(lambda: time.time() - created)
        else:
            gauge.remove(name)

    def _name(self, name: str) -> str:
        """Return the name of an index that is there, or of one that left snapshots."""
        checks.check_name(name)
        end = self._names.resolve(name)
        if not self._names.holds(end) and not self._snapshots.exist(end):
            self._store.find(end)  # raises
        return end

    def _check_not_rebuilt(self, name: str) -> None:
        if self._store.usable(name) and rebuilding.read_plan(self._store.folder(name)) is not None:
            raise RebuildRunning(
                f"Index {name!r} is being rebuilt; cancel that first.", field="into", value=name
            )

    def _take_over(self, name: str, aside: Path) -> Index:
        """Let an index, closed and aside, take the place of one that is there."""
        folder = self._store.folder(name)
        if not self._names.holds(name):
            raise IndexNotFound(f"Index {name!r} was dropped meanwhile.", field="into", value=name)
        self._check_not_rebuilt(name)
        if not self._store.usable(name):  # nobody can cancel a broken index's rebuild
            rebuilding.forget_plan(folder)
        generation = generations.new_path(folder)
        aside.rename(generation)
        try:
            fresh = Index(
                name,
                generation,
                cache_every=self._store.cache_every,
                databases=self._store.databases,
            )
            try:
                self._store.replace(name, fresh)
            except BaseException:
                if not self._store.serves(fresh):  # what failed may have come after
                    fresh.close(keep_cache=False)
                raise
        except BaseException:
            if generations.current(folder) != generation:
                self._store.databases.remove(generation)
            raise
        return fresh
