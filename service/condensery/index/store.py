"""The indexes of a data directory: made, asked, replaced and dropped.

Where each has its files is in ``folders``, how one is found by name in ``names``.
"""

import contextlib
import logging
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self

from condensery.errors import (
    EmptyInput,
    IndexExists,
    InputError,
    StorageError,
    Unavailable,
)
from condensery.index import checks, generations
from condensery.index.database import IndexSettings, storage_errors
from condensery.index.filters import Filter
from condensery.index.folders import Folders
from condensery.index.index import Index
from condensery.index.kinds import Options, write_options
from condensery.index.lock import DataDirLock
from condensery.index.maintenance import IndexMaintenance
from condensery.index.names import IndexNames
from condensery.index.selecting import PageQuery
from condensery.metrics import Metrics
from condensery.values import (
    Alias,
    AliasAction,
    Document,
    Floats,
    Hit,
    IndexCaps,
    IndexInfo,
    IndexPrompts,
    Page,
    Passage,
)

# named here, since within the class `list` is the method
Hits = list[Hit]
Documents = list[Document]
AliasList = list[Alias]
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
        metrics: Gets ``condensery_index_passages``, for each index from the start.
        lock: The directory's lock, if the caller holds it already (and will release it);
            otherwise the store takes it, and releases it on ``close``.
        cache_every: Changed passages after which an index's FAISS cache file is written.
        caps: How many indexes, aliases and snapshots may be made.

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
    ) -> None:
        self.keeping: IndexMaintenance  # snapshots, restores and rebuilds
        self._own_lock = DataDirLock(data_dir) if lock is None else None
        self._folders = Folders(data_dir / INDEXES, cache_every)
        self._metrics = metrics
        self.cache_every = cache_every
        self.beginning = threading.Lock()  # over what begins or ends a rebuild; before `changing`
        self.changing = threading.RLock()  # over what makes, replaces, drops or closes an index
        self._closed = False
        self.caps = caps or IndexCaps()
        root = self._folders.root
        try:
            with storage_errors(root):
                root.mkdir(exist_ok=True)
                self._names = IndexNames(root / ALIASES, self.caps)
                self._open_all()
                self.keeping = IndexMaintenance(self, data_dir, metrics)
        except BaseException:
            self.close()
            raise

    def create(
        self,
        name: str,
        *,
        encoder: str,
        fingerprint: str,
        dims: int,
        metric: str,
        kind: str,
        options: Options | None = None,
        prompts: IndexPrompts | None = None,
    ) -> IndexInfo:
        """Create an index, synced on return; the same settings again return it as it is.

        Args:
            name: 1 to 64 of a-z, 0-9, '.', '_', '-', starting with a letter or digit.
            encoder: Name of the model whose vectors it takes.
            fingerprint: Of that model.
            dims: Features of a vector.
            metric: ``ip`` (inner product) or ``l2`` (minus squared distance).
            kind: ``flat`` (exact), ``hnsw`` or ``ivf_pq`` (approximate).
            options: The kind's (``kinds.OPTIONS``); what is left out follows from the size.
            prompts: Put before its texts, for life. An index that is there keeps its own: as the
                fingerprint is the same, they differ only where it is from before they were kept.

        Raises:
            InputError: A malformed name or setting.
            IndexExists: The name is taken, with other settings.
            NameTaken: It is an alias.
            LimitReached: There are as many as there may be.
        """
        checks.check_new_name(name)
        checks.check_settings(encoder, fingerprint, dims, metric, kind)
        settings = IndexSettings(
            *(encoder, fingerprint, dims, metric, kind, write_options(kind, options, dims)),
            *((None, None) if prompts is None else (prompts.query, prompts.passage)),
        )
        with self.changing:
            self._check_open()
            if self.holds(name):
                return self._existing(name, settings)
            self._names.check_free(name)
            made = self._names.open[name] = self._folders.make(name, settings)
        self._measure(made)
        return made.info

    def info(self, name: str) -> IndexInfo:
        """Return what the index is and holds."""
        return self.find(name).info

    def list(self) -> list[IndexInfo]:
        """Return every index that can be used, by name."""
        return [index.info for _, index in sorted(self._names.open.copy().items())]

    @property
    def broken(self) -> dict[str, str]:
        """Why each index that could not be opened can't be used, by name."""
        return dict(self._names.broken)

    def aliases(self) -> AliasList:
        """Return every alias, by name."""
        return self._names.aliases.entries(self._names.all)

    def update_aliases(self, actions: Sequence[AliasAction]) -> AliasList:
        """Make all of these changes, synced on return, or none; returns the aliases then.

        Raises:
            AliasNotFound, AliasToNothing, AliasCircle, NameTaken, InputError: See ``Aliases``.
            LimitReached: There would be more than there may be.
            StorageFull, StorageReadOnly, StorageError: The disk refused; nothing is changed.
        """
        with self.changing, storage_errors(self.folder(ALIASES)):
            self._check_open()
            self._names.aliases.update(actions, self._names.all())
            return self.aliases()

    def drop(self, name: str) -> None:
        """Delete the index and its files, also one that is broken. Synced on return.

        Raises:
            IndexAliased: An alias points at it.
        """
        checks.check_name(name)
        with self.alone(), storage_errors(self.folder(name)):
            name = self._names.aliases.resolve(name)
            self._names.check_bare(name)
            dropped = None if name in self._names.broken else self.find(name)
            if dropped is not None:
                self.keeping.forget(name)
                dropped.close(keep_cache=False)  # before its files move away under a query
            try:
                trash = self._folders.throw_away(name)
            except BaseException:
                if dropped is not None:
                    self._open_again(name)
                raise
            self._names.open.pop(name, None)
            self._names.broken.pop(name, None)
            self._forget(name, dropped)
            self.keeping.measure(name)
            shutil.rmtree(trash, ignore_errors=True)  # leftovers go at the next start

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

    def delete(self, name: str, ids: Sequence[str]) -> int:
        """Delete documents by id; returns how many were there. Synced on return."""
        index = self.find(name)
        if not ids:
            raise EmptyInput("ids: the list is empty.", field="ids")
        gone = index.delete(ids)
        self._measure(index)
        return gone

    def delete_chosen(self, name: str, chosen: Filter) -> int:
        """Delete the documents that a filter chooses; returns how many. Synced on return."""
        index = self.find(name)
        gone = index.delete_chosen(chosen)
        self._measure(index)
        return gone

    def query(
        self,
        name: str,
        vector: Floats,
        *,
        top_k: int,
        fingerprint: str | None = None,
        embedded_for: IndexInfo | None = None,
        chosen: Filter | None = None,
    ) -> Hits:
        """Return the nearest passages, best first; see ``Index.query``."""
        return self.find(name).query(
            vector,
            top_k=top_k,
            fingerprint=fingerprint,
            embedded_for=embedded_for,
            chosen=chosen,
        )

    def match(self, name: str, words: str, *, top_k: int, chosen: Filter | None = None) -> Hits:
        """Return the passages that share most words with a text; see ``Index.match``."""
        return self.find(name).match(words, top_k=top_k, chosen=chosen)

    def count(self, name: str, chosen: Filter | None = None) -> tuple[int, int]:
        """Return the (documents, passages) that there are, or that a filter chooses."""
        return self.find(name).count(chosen)

    def read_page(self, name: str, wanted: PageQuery) -> Page:
        """Return documents by id, as far as one page goes."""
        return self.find(name).read_page(wanted)

    def get(self, name: str, ids: Sequence[str]) -> Documents:
        """Return the documents found, in the order asked."""
        return self.find(name).get(ids)

    def find(self, name: str) -> Index:
        """Return an open index by its name or an alias; see ``Names.find``."""
        return self._names.find(name)

    def holds(self, name: str) -> bool:
        """Tell whether there is an index of this very name, usable or broken."""
        return self._names.holds(name)

    def usable(self, name: str) -> bool:
        """Tell whether there is an index of this very name, and it is open."""
        return name in self._names.open

    def resolve(self, name: str) -> str:
        """Return the name that an alias leads to; of what is no alias its own."""
        return self._names.resolve(name)

    def check_free(self, name: str) -> None:
        """Refuse a new index a name that is taken, or any; see ``Names.check_free``."""
        self._names.check_free(name)

    def serves(self, index: Index) -> bool:
        """Whether this very index has its name."""
        return self._names.open.get(index.name) is index

    def folder(self, name: str) -> Path:
        """Return where an index of that name has its files, or would have."""
        return self._folders.root / name

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let no rebuild begin or end, and no index come, go or be replaced.

        Raises:
            Unavailable: The store was closed.
        """
        with self.beginning, self.changing:
            self._check_open()
            yield

    def adopt(self, name: str, folder: Path) -> Index:
        """Make an index of a folder beside the others, by renaming it; synced on return.

        Raises:
            IndexExists, NameTaken: The name is taken.
            LimitReached: There are as many as there may be.
            OSError, StorageError: The disk refused; the folder is where it was.
        """
        with self.changing:
            self._names.check_free(name)
            self._names.open[name] = made = self._folders.place(folder, name)
        self._measure(made)
        return made

    def replace(self, name: str, fresh: Index, check: Check | None = None) -> None:
        """Let another index, in a generation of its own, take the place of one; synced on return.

        Args:
            name: Of both.
            fresh: Open already; of what is asked from here on, all is asked of it.
            check: Sees the old one's connection once nothing is written any more; what it raises
                leaves all as it was.

        Raises:
            IndexNotFound: It was dropped meanwhile.
            OSError: The disk refused; the old one goes on.
        """
        with self.changing:
            self._check_open()
            old = None if name in self._names.broken else self.find(name)

            def hand_over(connection: sqlite3.Connection) -> None:
                if check is not None:
                    check(connection)
                generations.point(self.folder(name), fresh.directory)
                self._names.open[name] = fresh

            if old is not None:
                old.retire(hand_over)
            else:
                generations.point(self.folder(name), fresh.directory)
                self._names.open[name] = fresh
                del self._names.broken[name]
            self._forget(name, old)
            with contextlib.suppress(OSError):  # leftovers go at the next start
                generations.tidy(self.folder(name))
        self._measure(fresh)

    def close(self) -> None:
        """Save the caches, close the files and let the directory go."""
        with self.beginning, self.changing:
            self._closed = True
            if hasattr(self, "keeping"):  # else opening failed
                self.keeping.close()
            if hasattr(self, "_names"):
                for index in self._names.open.values():
                    index.close()
                self._names.open.clear()
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

    def _check_open(self) -> None:
        if self._closed:  # of threads that go on where their callers are gone
            raise Unavailable("The server is shutting down.")

    def _forget(self, name: str, index: Index | None) -> None:
        """Take an index that is no more out of the metrics."""
        if index is not None and self._metrics is not None:
            self._metrics.index_passages.remove(name, index.settings.encoder)

    def _existing(self, name: str, settings: IndexSettings) -> IndexInfo:
        index = self.find(name)
        settings = settings.with_prompts_of(index.settings)
        differ = [
            f"{field.name} is {getattr(index.settings, field.name)!r}, "
            f"not {getattr(settings, field.name)!r}"
            for field in fields(IndexSettings)
            if getattr(index.settings, field.name) != getattr(settings, field.name)
        ]
        if differ:
            raise IndexExists(
                f"Index {name!r} exists with other settings: {'; '.join(differ)}.",
                field="index",
                value=name,
            )
        return index.info

    def _open_again(self, name: str) -> None:
        """Open an index that was not dropped after all; nobody must wait for a closed one."""
        try:
            self._names.open[name] = self._folders.open(name)
        except StorageError as error:
            self._names.broken[name] = error.message
            del self._names.open[name]

    def _open_all(self) -> None:
        for name in self._folders.names():
            try:
                checks.check_name(name)
                self._names.open[name] = self._folders.open(name)
            except (InputError, StorageError) as error:
                self._names.broken[name] = error.message
                _log.error("index_broken", extra={"index": name, "reason": error.message})
            else:
                self._measure(self._names.open[name])

    def _measure(self, index: Index) -> None:
        if self._metrics is not None and self.serves(index):
            info = index.info
            self._metrics.index_passages.labels(info.name, info.encoder).set(info.passages)
