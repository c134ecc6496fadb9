"""The indexes of a data directory: created, searched, written, replaced and dropped by name.

Where each has its files is in ``folders``, how one is found by its name or an alias in ``names``.
"""

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from condensery.errors import (
    IndexExists,
    InputError,
    StorageError,
    Unavailable,
)
from condensery.index import checks, generations
from condensery.index.database import storage_errors
from condensery.index.filters import Filter
from condensery.index.folders import Folders
from condensery.index.index import Index
from condensery.index.lock import DataDirLock
from condensery.index.maintenance import IndexMaintenance
from condensery.index.names import IndexNames
from condensery.index.selecting import PageQuery
from condensery.index.vector_database import VectorDatabases
from condensery.metrics import Metrics
from condensery.values import (
    Document,
    Floats,
    Hit,
    IndexCaps,
    IndexInfo,
    IndexSpec,
    Page,
    Passage,
    Snapshot,
)

# named here, since within the class `list` is the method
Hits = list[Hit]
Documents = list[Document]
Check = Callable[[sqlite3.Connection], None]

INDEXES = "indexes"
ALIASES = "aliases.json"

_log = logging.getLogger(__name__)


class IndexStore:
    """Every index of a data directory, open. Calls block on disk; any thread may make them.

    An index that can't be opened does not keep the others from serving: calls that name it raise
    a StorageError which says why, and ``broken`` lists it.

    Args:
        data_dir: Made if it is not there.
        metrics: Gets the passages of each index from the start, and how far its cache is behind.
        lock: The directory's lock, if the caller holds it already (and will release it);
            otherwise the store takes it, and releases it on ``close``.
        cache_every: Changed passages after which an index's FAISS cache file is written.
        caps: How many indexes, aliases and snapshots may be made.
        databases: Where vectors are that are not in FAISS; closed with the store.

    Raises:
        DataDirTaken: Another server holds the directory, or it can't be used.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        metrics: Metrics | None = None,
        lock: DataDirLock | None = None,
        cache_every: int = 10_000,
        caps: IndexCaps | None = None,
        databases: VectorDatabases | None = None,
    ) -> None:
        self.maintenance: IndexMaintenance  # aliases, snapshots and rebuilds
        self._own_lock = DataDirLock(data_dir) if lock is None else None
        self.databases = databases or VectorDatabases()
        self._folders = Folders(data_dir / INDEXES, cache_every, self.databases)
        self._metrics = metrics
        self.cache_every = cache_every
        # Over what begins or ends a rebuild; taken before the other one.
        self.rebuild_lock = threading.Lock()
        # Over what makes, replaces, drops or closes an index.
        self.catalogue_lock = threading.RLock()
        self._closed = False
        self.caps = caps or IndexCaps()
        root = self._folders.root
        try:
            with storage_errors(root):
                root.mkdir(exist_ok=True)
                self.names = IndexNames(root / ALIASES, self.caps)
                self._open_all()
                self.maintenance = IndexMaintenance(self, data_dir, metrics)
        except BaseException:
            self.close()
            raise

    def create(self, name: str, spec: IndexSpec) -> IndexInfo:
        """Create an index, synced on return; the same settings again return it as it is.

        Args:
            name: 1 to 64 of a-z, 0-9, '.', '_', '-', starting with a letter or digit.
            spec: What it is made with. An index that is there keeps its own prompts: as the
                fingerprint is the same, they differ only where it is from before they were kept.

        Raises:
            InputError: A malformed name or setting.
            IndexExists: The name is taken, with other settings.
            NameTaken: It is an alias.
            LimitReached: There are as many as there may be.
        """
        checks.check_new_name(name)
        spec = checks.check_spec(spec)
        with self.catalogue():
            if self.names.holds(name):
                return self._existing(name, spec)
            self.names.check_free(name)
            self.databases.check_spec(spec)
            index = self.names.open[name] = self._folders.make(name, spec)
        self._measure(index)
        return index.info

    def info(self, name: str) -> IndexInfo:
        """Return what the index is and holds."""
        return self.find(name).info

    def list(self) -> list[IndexInfo]:
        """Return every index that can be used, by name."""
        return [index.info for _, index in sorted(self.names.open.copy().items())]

    @property
    def broken(self) -> dict[str, str]:
        """Why each index that could not be opened can't be used, by name."""
        return dict(self.names.broken)

    def drop(self, name: str) -> None:
        """Delete the index and its files, also one that is broken. Synced on return.

        Raises:
            IndexAliased: An alias points at it.
        """
        checks.check_name(name)
        with self.exclusive(), storage_errors(self.folder(name)):
            name = self.names.aliases.resolve(name)
            self.names.check_no_aliases(name)
            dropped = None if name in self.names.broken else self.find(name)
            if dropped is not None:
                self.maintenance.forget(name)
                dropped.close(keep_cache=False)  # before its files move away under a query
            try:
                trash = self._folders.throw_away(name)
            except BaseException:
                if dropped is not None:
                    self._open_again(name)
                raise
            self.names.open.pop(name, None)
            self.names.broken.pop(name, None)
            self._forget(name, dropped)
            self.maintenance.measure(name)
            self.databases.remove(trash)  # leftovers go at the next start

    def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        passages: Sequence[Passage],
        vectors: Floats,
        *,
        fingerprint: str,
        embedded_for: IndexInfo | None = None,
    ) -> None:
        """Write documents with their passages and vectors; see ``Index.upsert``."""
        index = self.find(name)
        index.upsert(
            documents, passages, vectors, fingerprint=fingerprint, embedded_for=embedded_for
        )
        self._measure(index)

    def delete(self, name: str, documents: Sequence[str] | Filter) -> int:
        """Delete documents, by their ids or by a filter; returns how many. Synced on return."""
        index = self.find(name)
        deleted = index.delete(documents)
        self._measure(index)
        return deleted

    def query(
        self,
        name: str,
        query: Floats | str,
        *,
        top_k: int,
        filter: Filter | None = None,
        fingerprint: str | None = None,
        embedded_for: IndexInfo | None = None,
    ) -> Hits:
        """Return passages, best first: by a vector ``Index.query``, by words ``Index.match``."""
        index = self.find(name)
        if isinstance(query, str):
            return index.match(query, top_k=top_k, filter=filter)
        return index.query(
            query,
            top_k=top_k,
            filter=filter,
            fingerprint=fingerprint,
            embedded_for=embedded_for,
        )

    def get(self, name: str, ids: Sequence[str]) -> Documents:
        """Return the documents that are there, in the order of the ids."""
        return self.find(name).get(ids)

    def scroll(self, name: str, page: PageQuery) -> Page:
        """Return documents by id, as far as one page goes."""
        return self.find(name).scroll(page)

    def count(self, name: str, filter: Filter | None = None) -> tuple[int, int]:
        """Return the (documents, passages) that there are, or that a filter chooses."""
        return self.find(name).count(filter)

    def snapshot(self, name: str) -> Snapshot:
        """Copy an index as it is now; see ``IndexMaintenance.snapshot``."""
        return self.maintenance.snapshot(name)

    def find(self, name: str) -> Index:
        """Return an open index by its name or an alias; see ``IndexNames.find``."""
        return self.names.find(name)

    def usable(self, name: str) -> bool:
        """Tell whether there is an index of this very name, and it is open."""
        return name in self.names.open

    def serves(self, index: Index) -> bool:
        """Whether this very index has its name."""
        return self.names.open.get(index.name) is index

    def folder(self, name: str) -> Path:
        """Return where an index of that name has its files, or would have."""
        return self._folders.root / name

    @contextlib.contextmanager
    def catalogue(self) -> Iterator[None]:
        """Let no index come, go or be replaced meanwhile.

        Raises:
            Unavailable: The store was closed.
        """
        with self.catalogue_lock:
            if self._closed:  # of threads that go on where their callers are gone
                raise Unavailable("The server is shutting down.")
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Let no rebuild begin or end either; see ``catalogue``."""
        with self.rebuild_lock, self.catalogue():
            yield

    def adopt(self, name: str, folder: Path) -> Index:
        """Make an index of a folder beside the others, by renaming it; synced on return.

        Raises:
            IndexExists, NameTaken: The name is taken.
            LimitReached: There are as many as there may be.
            OSError, StorageError: The disk refused; the folder is where it was.
        """
        with self.catalogue_lock:
            self.names.check_free(name)
            self.names.open[name] = index = self._folders.place(folder, name)
        self._measure(index)
        return index

    def replace(self, name: str, fresh: Index, check: Check | None = None) -> None:
        """Let another index, in a generation of its own, take the place of one; synced on return.

        Args:
            name: Of both.
            fresh: The new one, open; every call from here on goes to it.
            check: Called with the old one's connection once nothing is written to it any more;
                if it raises, all stays as it was.

        Raises:
            IndexNotFound: It was dropped meanwhile.
            OSError: The disk refused; the old one goes on.
        """
        with self.catalogue():
            old = None if name in self.names.broken else self.find(name)

            def hand_over(connection: sqlite3.Connection) -> None:
                if check is not None:
                    check(connection)
                generations.point(self.folder(name), fresh.directory)
                self.names.open[name] = fresh

            if old is not None:
                old.retire(hand_over)
            else:
                generations.point(self.folder(name), fresh.directory)
                self.names.open[name] = fresh
                del self.names.broken[name]
            self._forget(name, old)
            with contextlib.suppress(OSError):  # leftovers go at the next start
                generations.tidy(self.folder(name), self.databases)
        self._measure(fresh)

    def close(self) -> None:
        """Save the caches, close the files and release the directory."""
        with self.rebuild_lock, self.catalogue_lock:
            self._closed = True
            if hasattr(self, "maintenance"):  # else opening failed
                self.maintenance.close()
            if hasattr(self, "names"):
                for index in self.names.open.values():
                    index.close()
                self.names.open.clear()
            self.databases.close()
        if self._own_lock is not None:
            self._own_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _forget(self, name: str, index: Index | None) -> None:
        """Take a dropped or replaced index out of the metrics."""
        if index is not None and self._metrics is not None:
            self._metrics.index_passages.remove(name, index.spec.encoder)
            self._metrics.index_cache_behind.remove(name)

    def _existing(self, name: str, spec: IndexSpec) -> IndexInfo:
        index = self.find(name)
        spec = replace(spec, prompts=index.spec.prompts)
        differ = [
            f"{field.name} is {getattr(index.spec, field.name)!r}, "
            f"not {getattr(spec, field.name)!r}"
            for field in fields(IndexSpec)
            if getattr(index.spec, field.name) != getattr(spec, field.name)
        ]
        if differ:
            raise IndexExists(
                f"Index {name!r} exists with other settings: {'; '.join(differ)}.",
                field="index",
                value=name,
            )
        return index.info

    def _open_again(self, name: str) -> None:
        """Open an index again whose drop failed."""
        try:
            self.names.open[name] = self._folders.open(name)
        except StorageError as error:
            self.names.broken[name] = error.message
            del self.names.open[name]

    def _open_all(self) -> None:
        for name in self._folders.names():
            try:
                checks.check_name(name)
                self.names.open[name] = self._folders.open(name)
            except (InputError, StorageError) as error:
                self.names.broken[name] = error.message
                _log.error("index_broken", extra={"index": name, "reason": error.message})
            else:
                self._measure(self.names.open[name])

    def _measure(self, index: Index) -> None:
        if self._metrics is not None and self.serves(index):
            info = index.info
            self._metrics.index_passages.labels(info.name, info.encoder).set(info.passages)
            behind = self._metrics.index_cache_behind.labels(info.name)
            # read when it is asked for, since saving ends after the write; by name, so that it
            # holds no index that was dropped
            behind.set_function(partial(self._behind, info.name))

    def _behind(self, name: str) -> int:
        index = self.names.open.get(name)
        return 0 if index is None else index.cache_behind
