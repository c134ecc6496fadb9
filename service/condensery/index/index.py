"""One index: SQLite holds the truth, FAISS finds the nearest, both under the same row ids.

In the place of FAISS there may be a database (``remote_vectors``); of FAISS itself holds:

How they agree without a query ever waiting for a disk to sync: a write (1) adds its vectors to
FAISS, where queries meet rows that SQLite does not show them yet, and skip them; (2) commits;
(3) makes tombstones of the rows it replaced. A query fixes its SQLite snapshot and then searches
FAISS, under one hold of the shared lock, which (3) waits for: whichever side of (2) its snapshot is
on, FAISS holds all that it shows.
What is found by its words is found in SQLite alone.
"""

import contextlib
import logging
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from condensery.errors import (
    EmptyInput,
    EncoderMismatch,
    IndexClosed,
    InputError,
    StorageError,
)
from condensery.index import bm25, checks, database, passages, selecting
from condensery.index.database import LogShortener, storage_errors, transaction
from condensery.index.filters import Filter
from condensery.index.passages import Stamp
from condensery.index.read_write_lock import ReadWriteLock
from condensery.index.remote_vectors import RemoteVectors
from condensery.index.selecting import PageQuery
from condensery.index.vector_database import VectorDatabases, read_binding
from condensery.index.vector_index import VectorIndex
from condensery.values import Document, Floats, Hit, IndexInfo, IndexSpec, Page, Passage, make_hit

DATABASE = "index.sqlite3"
CACHE = "vectors.faiss"

_log = logging.getLogger(__name__)


class Index:
    """An open index. Any number of threads may query; writes wait for each other.

    Args:
        name: What callers call it.
        directory: Holds its SQLite file, and its FAISS cache.
        cache_every: Changed passages after which the cache file is written; a quarter of the
            index if that is more.
        databases: Where its vectors are, if they are not in FAISS.

    Raises:
        StorageError: The SQLite file is missing, corrupt, of a newer format, or can't be used; or
            the vectors are in a database that ``databases`` does not have, or that can't hold them.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        cache_every: int = 10_000,
        databases: VectorDatabases | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.databases = databases or VectorDatabases()
        self._database = directory / DATABASE
        self._writer_mutex = threading.Lock()
        self._files_lock = ReadWriteLock()  # what needs no FAISS; held alone to close the files
        self._idle: list[sqlite3.Connection] = []
        self._log_shortener = LogShortener(self._database)
        self._closed = False
        with storage_errors(self._database):
            self._writer = database.open_writer(self._database)
            try:
                self.spec = database.read_spec(self._writer)
                self._counts = passages.count(self._writer)
                self._vector_index = self._open_vectors(cache_every)
                last_rows = passages.last_row(self._writer), self._vector_index.last_row()
                self._next_row = 1 + max(last_rows)
            except BaseException:
                if hasattr(self, "_vector_index"):
                    self._vector_index.close()
                self._writer.close()
                raise

    @property
    def info(self) -> IndexInfo:
        """What the index is and holds."""
        own = self.spec
        documents, pieces = self._counts
        status = self._vector_index.status
        return IndexInfo(
            name=self.name,
            encoder=own.encoder,
            fingerprint=own.fingerprint,
            dims=own.dims,
            kind=own.kind,
            metric=own.metric,
            documents=documents,
            passages=pieces,
            options=own.options or {},
            searched_as=status.searched_as,
            trains_at=status.trains_at,
            tombstones=status.tombstones,
            prompts=own.prompts,
        )

    @property
    def cache_behind(self) -> int:
        """How many passages changed since its FAISS file was written."""
        return self._vector_index.behind

    @property
    def closed(self) -> bool:
        """Whether its files were closed."""
        return self._closed

    def upsert(
        self,
        documents: Sequence[Document],
        pieces: Sequence[Passage],
        vectors: Floats,
        *,
        fingerprint: str,
        embedded_for: IndexInfo | None = None,
    ) -> None:
        """Write documents with their passages and vectors, in one transaction, synced on return.

        Args:
            documents: They replace those of the same ids, passages included.
            pieces: The documents' passages, at least one each.
            vectors: One for each passage, (passages, dims), float32.
            fingerprint: Of the encoder that made the vectors.
            embedded_for: The index as it was when the passages were embedded with its prompts;
                None where the vectors are a caller's own.

        Raises:
            InputError: Malformed documents, passages or vectors; nothing is written.
            EncoderMismatch: Another encoder's vectors, or embedded for an index of other prompts.
            StorageFull, StorageReadOnly, StorageError: The disk refused; nothing is written.
        """
        self._check_fingerprint(fingerprint)
        self._check_prompts(embedded_for)
        checks.check_documents(documents, pieces)
        checks.check_vectors(vectors, len(pieces), self.spec.dims)
        with_json = [
            (document, checks.encode_metadata(document.metadata, f"documents[{row}].metadata"))
            for row, document in enumerate(documents)
        ]
        pieces_with_json = [
            (piece, checks.encode_metadata(piece.metadata, f"passages[{row}].metadata"))
            for row, piece in enumerate(pieces)
        ]
        with self._write_lock():
            # not handed out again if the transaction fails: FAISS may keep tombstones of them
            rows = np.arange(self._next_row, self._next_row + len(pieces), dtype=np.int64)
            self._next_row += len(pieces)
            try:
                with transaction(self._writer):
                    replaced = passages.document_rows(self._writer, [d.id for d in documents])
                    removed = passages.remove(self._writer, replaced)
                    passages.insert(self._writer, with_json, pieces_with_json, vectors, rows)
                    stamp = passages.record_write(self._writer, self._vector_index.saved)
                    self._vector_index.add(rows, vectors)
            except BaseException:
                self._vector_index.undo_add(rows)
                raise
            self._after_commit(
                stamp, documents=len(documents) - len(replaced), added=len(pieces), removed=removed
            )

    def delete(self, documents: Sequence[str] | Filter) -> int:
        """Delete documents, by their ids or by a filter, in one transaction, synced on return.

        Returns:
            How many there were.

        Raises:
            InputError: A malformed id; EmptyInput if there is none.
            StorageFull, StorageReadOnly, StorageError: The disk refused; nothing is deleted.
        """
        if not isinstance(documents, Filter):
            if not documents:
                raise EmptyInput.at("ids", "the list is empty.")
            checks.check_ids(documents)
        with self._write_lock():
            with transaction(self._writer):
                if isinstance(documents, Filter):
                    rows = selecting.document_rows(self._writer, documents)
                else:
                    ids = list(dict.fromkeys(documents))
                    rows = passages.document_rows(self._writer, ids)
                if not rows:
                    return 0
                removed = passages.remove(self._writer, rows)
                stamp = passages.record_write(self._writer, self._vector_index.saved)
            self._after_commit(stamp, documents=-len(rows), added=0, removed=removed)
        return len(rows)

    def query(
        self,
        vector: Floats,
        *,
        top_k: int,
        fingerprint: str | None = None,
        embedded_for: IndexInfo | None = None,
        filter: Filter | None = None,
    ) -> list[Hit]:
        """Return the nearest passages, best first; of equal ones the older first.

        Args:
            vector: (dims,), float32.
            top_k: Most passages to return.
            fingerprint: Of the encoder that made the vector, if the caller knows.
            embedded_for: The index as it was when the vector was made with its prompt; None where
                it is a caller's own.
            filter: Only passages of the documents it chooses are looked at.

        Raises:
            InputError: A malformed vector or ``top_k``.
            EncoderMismatch: Another encoder's vector, or embedded for an index of other prompts.
        """
        if fingerprint is not None:
            self._check_fingerprint(fingerprint)
        self._check_prompts(embedded_for)
        checks.check_query(vector, self.spec.dims, top_k)
        with (
            storage_errors(self._database),
            self._vector_index.read_lock(),
            self._reader() as reader,
        ):
            reader.execute("BEGIN")  # one snapshot for all that follows
            search = self._vector_index.prepare(reader, filter)
            wanted = top_k
            while True:
                rows, scores, more = search(vector, wanted)
                hit_passages = passages.fetch(reader, rows)
                # short of hits because some are of a write in progress: look further
                if len(hit_passages) >= top_k or not more:
                    break
                wanted *= 4
        ranked = sorted(zip(scores, rows, strict=True), key=lambda pair: (-pair[0], pair[1]))
        hits = [make_hit(hit_passages[row], score) for score, row in ranked if row in hit_passages]
        return hits[:top_k]

    def match(self, text: str, *, top_k: int, filter: Filter | None = None) -> list[Hit]:
        """Return the passages that share most words with a text, best first.

        Ranked by BM25 (``words``), where a rare word counts more, and a passage need not have them
        all. It sees what a query sees: every write that was acknowledged, no half of one.

        Args:
            text: Of a user; one without a word finds nothing.
            top_k: Most passages to return.
            filter: Only passages of the documents it chooses are returned.

        Raises:
            InputError: A malformed text or ``top_k``.
        """
        checks.check_match(text, top_k)
        with storage_errors(self._database), self._files_lock.shared(), self._reader() as reader:
            words = bm25.split(reader, text)
            reader.execute("BEGIN")  # one snapshot for all that follows
            ranked = bm25.search(reader, words, self._counts[1], top_k, filter)
            hit_passages = passages.fetch(reader, [row for row, _ in ranked])
        return [make_hit(hit_passages[row], score) for row, score in ranked]

    def get(self, ids: Sequence[str]) -> list[Document]:
        """Return the documents found, in the order asked."""
        checks.check_ids(ids)
        with self.read_transaction() as reader:
            documents = passages.fetch_documents(reader, ids)
        return [documents[identity] for identity in ids if identity in documents]

    def count(self, filter: Filter | None = None) -> tuple[int, int]:
        """Return the (documents, passages) that there are, or that a filter chooses."""
        if filter is None:
            return self._counts
        with self.read_transaction() as reader:
            return selecting.count(reader, filter)

    def scroll(self, page: PageQuery) -> Page:
        """Return documents by id, as far as one page goes, as they are at one moment."""
        with self.read_transaction() as reader:  # a document and its passages one after the other
            return selecting.read_page(reader, page, self.spec.dims)

    def copy(self, path: Path) -> None:
        """Write the index's SQLite file, as it is at one moment, to ``path``; packed, not synced.

        Nobody waits for it: it reads by a connection of its own, also once the index is closed
        and its files are moved or removed.

        Raises:
            sqlite3.Error: The disk refused.
        """
        with contextlib.ExitStack() as stack:
            with self._files_lock.shared():
                self._check_open()
                reader = stack.enter_context(closing(database.open_reader(self._database)))
                # opens every file, of which another index may have the names a moment later
                database.read_spec(reader)
            reader.execute("VACUUM INTO ?", (str(path),))

    @contextmanager
    def read_transaction(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that sees one state of the index, as it was acknowledged."""
        with storage_errors(self._database), self._files_lock.shared(), self._reader() as reader:
            reader.execute("BEGIN")
            yield reader

    @contextmanager
    def write_transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the connection that writes, in a transaction that is committed, synced, at the end.

        For what is neither document nor passage, of which FAISS would have to hear.
        """
        with self._write_lock(), transaction(self._writer):
            yield self._writer

    def retire(self, hand_over: Callable[[sqlite3.Connection], None]) -> None:
        """Close the files once ``hand_over`` has let another take the index's place.

        Writes wait meanwhile, and then find it closed; queries go on until then.

        Args:
            hand_over: If it raises, the index goes on as it was.
        """
        with self._write_lock():
            hand_over(self._writer)
            self._close()

    def close(self, *, keep_cache: bool = True) -> None:
        """Save the cache and close the files; a second call does nothing."""
        with self._writer_mutex:
            if self._closed:
                return
            if keep_cache:
                self._vector_index.save()
            self._close()

    def wait_until_agreed(self, seconds: float | None = None) -> None:
        """Wait until the database of its vectors, if there is one, holds all that SQLite does.

        Raises:
            VectorDatabaseUnavailable: Not within so many seconds; or it is down.
            VectorDatabaseFault, StorageFull: It can't.
        """
        self._vector_index.wait_until_agreed(seconds)

    def bind_like(self, directory: Path, spec: IndexSpec) -> None:
        """Give the files of what is to take its place a place for vectors of the same kind.

        Raises:
            InputError: What a database can't do of such an index.
            StorageError, OSError: Its own is not known; the disk refused.
        """
        binding = read_binding(self.directory)
        if binding is not None:
            self.databases.open(binding).check_spec(spec)
        backend = "faiss" if binding is None else binding.backend
        self.databases.bind(directory, self.name, backend)

    def _open_vectors(self, cache_every: int) -> VectorIndex | RemoteVectors:
        binding = read_binding(self.directory)
        if binding is None:
            file = self.directory / CACHE
            return VectorIndex(
                *(self._writer, self.spec, file, cache_every, partial(_report, self.name)),
                open_reader=partial(database.open_reader, self._database),
                # no cycle: the memory of an index that is closed goes with the last who holds it,
                # and not once a collector comes by
                writing=partial(_write_lock_of, weakref.ref(self)),
                count=self._counts[1],
            )
        opened = self.databases.open(binding)
        try:
            opened.check_spec(self.spec)
        except InputError as error:
            raise StorageError(error.message) from error
        return RemoteVectors(
            self._writer,
            self.spec,
            self._database,
            opened,
            binding.collection,
            wait_seconds=self.databases.timeout_seconds,
            report=partial(_report, self.name),
            note_fault=partial(self.databases.note_fault, self.name),
        )

    def _close(self) -> None:
        self._vector_index.close()
        with self._vector_index.write_lock(), self._files_lock.exclusive():
            self._closed = True
            for reader in self._idle:
                reader.close()
            self._writer.close()

    def _check_fingerprint(self, fingerprint: str) -> None:
        own = self.spec
        if fingerprint != own.fingerprint:
            raise EncoderMismatch(
                f"Index {self.name!r} holds vectors of encoder {own.encoder!r} with fingerprint "
                f"{own.fingerprint}, not {fingerprint}.",
                field="fingerprint",
                value=fingerprint,
            )

    def _check_prompts(self, embedded_for: IndexInfo | None) -> None:
        if embedded_for is not None and embedded_for.prompts != self.spec.prompts:
            raise EncoderMismatch(
                f"Index {self.name!r} was replaced by one with other prompts while texts were "
                "embedded for it; ask again.",
                field="index",
                value=self.name,
            )

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        with storage_errors(self._database), self._writer_mutex:
            self._check_open()
            yield
            if not self._closed:
                self._shorten_log()

    def _shorten_log(self) -> None:
        """Bound SQLite's log. Must not fail: what it holds is acknowledged."""
        try:
            self._log_shortener.look(self._writer)
        except sqlite3.Error as error:  # the next write meets it too, and tells
            _log.warning(
                "index_log_not_shortened", extra={"index": self.name, "reason": str(error)}
            )

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        self._check_open()
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = database.open_reader(self._database)
        try:
            yield reader
            if reader.in_transaction:
                reader.execute("COMMIT")
        except BaseException:
            reader.close()
            raise
        self._idle.append(reader)

    def _check_open(self) -> None:
        if self._closed:
            raise IndexClosed(
                f"Index {self.name!r} was dropped or closed.", field="index", value=self.name
            )

    def _after_commit(
        self, stamp: Stamp, *, documents: int, added: int, removed: Sequence[int]
    ) -> None:
        """Bring memory in line with what was just committed. Must not fail: it is acknowledged."""
        self._counts = (self._counts[0] + documents, self._counts[1] + added - len(removed))
        self._vector_index.after_commit(stamp, added, removed)


def _write_lock_of(index: "weakref.ref[Index]") -> AbstractContextManager[None]:
    held = index()
    if held is None:
        raise IndexClosed("The index was closed.")
    return held._write_lock()


def _report(name: str, event: str, **fields: object) -> None:
    _log.warning(event, extra={"index": name, **fields})
