"""Files into an index: in requests of many documents, without what is there already.

A file's old documents are deleted once its new ones are written (``replacing``). What can't be
read, or is refused, does not keep the rest back.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from condensery.documents.files import (
    BY_LINE,
    FileKind,
    FileName,
    OpenFile,
    Problem,
    Reading,
    check_length,
    hash_file,
    kind_of,
    owns_ids,
    read_documents,
    reason_of,
    suffix_of,
)
from condensery.documents.records import NoRecords
from condensery.documents.replacing import (
    StoredFile,
    collect_stored,
    mark_documents,
    select_files,
    select_folder,
)
from condensery.errors import InputError, shorten
from condensery.values import Document, Page, Upserted

# A request: under the server's limit of bytes, and as many texts as take about a second, so that
# progress is seen to move and Ctrl-C does not wait long.
BATCH_DOCUMENTS = 128
BATCH_CHARS = 500_000
LEAST_CHARS = 2_000  # of the first one too
BATCH_SECONDS = 1.0

LOOKED_UP_FILES = 256  # by one filter
MOST_PROBLEMS = 100  # where nothing was written, it is none of the documents' fault


class WritableIndex(Protocol):
    """An index; its calls block, and what they write is on the disk when they return."""

    def holds_any(self) -> bool:
        """Tell whether it holds a document."""

    def scroll(self, filter: Mapping[str, Any], after: str | None) -> Page:
        """Return a page of the documents that a filter chooses; their texts are not needed."""

    def get(self, ids: Sequence[str]) -> list[Document]:
        """Return documents by id, those found."""

    def upsert(self, documents: Sequence[Document]) -> Upserted:
        """Write documents."""

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents; returns how many there were."""


class ReadableFile(Protocol):
    """A file to read."""

    @property
    def name(self) -> FileName:
        """What it is called in the index."""

    @property
    def size(self) -> int:
        """Its bytes."""

    @property
    def named(self) -> bool:
        """Whether who asks named it; else it was found in a folder."""

    @property
    def source(self) -> str:
        """Its name in messages."""

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Open it, from its first byte."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """What became of a file."""

    name: str
    """What its documents' ids begin with, but those of records with ids of their own."""
    documents: int
    """Those written."""
    unchanged: int
    """Those that were there already, as they are."""
    reason: str | None
    """Why it, or something of it, could not be read; null if all of it was."""


@dataclass(frozen=True, slots=True)
class AddedFiles:
    """What was written into an index from files."""

    index: str
    documents: int
    """Those written."""
    passages: int
    """Of those."""
    unchanged: int
    """Documents that were there already, as they are."""
    deleted: int
    """Documents of the files' earlier versions."""
    files: tuple[AddedFile, ...]
    """Each file, in their order."""


@dataclass(slots=True)
class Tally:
    """What becomes of a file, while it is written; ``source`` is its name in messages."""

    name: str
    source: str
    documents: int = 0
    unchanged: int = 0
    reason: str | None = None


@dataclass(slots=True)
class _Waiting:
    """A document for the next request; ``doubtful``: it may be there already, as it is."""

    document: Document
    tally: Tally
    doubtful: bool


class FileWriter:
    """Writes documents into an index, request by request, and counts what was done.

    Args:
        again: Whether to write also what is there already, as it is.
        most: Documents of one request.
        on_progress: Called with the bytes that were read since, and the passages written so far.

    Attributes:
        problems: What could not be read or written.
        others: How many files of each suffix held no documents, of those that nobody named.
        in_flight: Documents of a request without a reply.
    """

    def __init__(
        self,
        index: WritableIndex,
        *,
        again: bool = False,
        most: int = BATCH_DOCUMENTS,
        on_progress: Callable[[int, int], None] = lambda _read, _passages: None,
    ) -> None:
        self._index, self._again, self._most = index, again, most
        self._on_progress = on_progress
        self._holds_any = index.holds_any()
        self._stored: dict[str, StoredFile] = {}
        self._batch: dict[str, _Waiting] = {}
        self._old: list[str] = []  # ids to delete once the batch is written
        self._chars, self._limit = 0, LEAST_CHARS
        self._bytes = 0  # read since the last request
        self._tallies: list[Tally] = []
        self.documents = self.passages = self.unchanged = self.deleted = 0
        self.in_flight = 0
        self.problems: list[Problem] = []
        self.others: Counter[str] = Counter()

    def look_up_files(self, names: Sequence[str]) -> None:
        """Look up what is there of these files."""
        for start in range(0, len(names), LOOKED_UP_FILES):
            self._collect(select_files(names[start : start + LOOKED_UP_FILES]))

    def look_up_folder(self, folder: str) -> None:
        """Look up what is there of a folder's files."""
        self._collect(select_folder(folder))

    def _collect(self, filter: Mapping[str, Any]) -> None:
        after = None
        while self._holds_any:
            page = self._index.scroll(filter, after)
            collect_stored(page.documents, self._stored)
            if page.next is None:
                return
            after = page.next

    def write_files(self, files: Iterable[ReadableFile], reading: Reading) -> None:
        """Write files that are not there as they are; one that can't be read is a problem."""
        seen: set[str] = set()
        for file in files:
            tally = self.begin(file.name.whole, file.source)
            if tally.name in seen or not file.name.path:
                twice = "a file of this name came before it"
                self._refuse(tally, twice if file.name.path else "it has no name")
                continue
            seen.add(tally.name)
            reading.check()
            try:
                kind = kind_of(file.name.path, reading)
                if kind not in BY_LINE:
                    check_length(file.source, file.size)
                with file.open() as stream:
                    opened = OpenFile(file.name, stream, file.source)
                    self._write_file(file, opened, kind, reading, tally)
            except (InputError, OSError) as error:
                self._refuse(tally, explain(error, file.source))

    def begin(self, name: str, source: str) -> Tally:
        """Begin to count what becomes of a file."""
        self._tallies.append(tally := Tally(name, source))
        return tally

    def _write_file(
        self, found: ReadableFile, file: OpenFile, kind: FileKind, reading: Reading, tally: Tally
    ) -> None:
        stored = self._stored.get(tally.name, StoredFile())
        owned = owns_ids(file, kind, reading)
        hash = "" if owned else hash_file(file.stream, reading)
        if not owned and not self._again and stored.is_current(hash):
            tally.unchanged += len(stored.ids)
            self.unchanged += len(stored.ids)
            self._on_progress(found.size, self.passages)
            return
        documents = read_documents(file, kind, reading)
        if not owned:
            documents = mark_documents(documents, file.name, hash)
        ids, at = set(), 0
        try:
            for document, end in documents:
                ids.add(document.id)
                doubtful = owned or document.id in stored.ids
                self.write(document, end - at, tally, doubtful=doubtful)
                at = end
        except NoRecords:
            if found.named:
                raise
            self.others[suffix_of(file.name.path)] += 1
            return
        finally:
            self._bytes += found.size - at
        # one that can't be read to its end keeps its old documents
        if not ids and found.named:
            self._refuse(tally, "there is no text in it")
        self._old += sorted(stored.ids - ids)

    def write(self, document: Document, read: int, tally: Tally, *, doubtful: bool) -> None:
        """Write a document, now or with others.

        Args:
            read: Bytes that were read for it.
            tally: Its file's.
            doubtful: Whether it may be there already, as it is.
        """
        full = len(self._batch) == self._most or (self._chars + len(document.text) > self._limit)
        # one that comes twice goes into a later request, so that it replaces the earlier
        if self._batch and (full or document.id in self._batch):
            self.flush()
        doubtful = doubtful and self._holds_any and not self._again
        self._batch[document.id] = _Waiting(document, tally, doubtful)
        self._chars += len(document.text)
        self._bytes += read

    def flush(self) -> None:
        """Write what waits, and delete what it replaces."""
        batch, self._batch, self._chars = list(self._batch.values()), {}, 0
        doubtful = sorted(waiting.document.id for waiting in batch if waiting.doubtful)
        if doubtful:
            there = {document.id: document for document in self._index.get(doubtful)}
            new = []
            for waiting in batch:
                if there.get(waiting.document.id) != waiting.document:
                    new.append(waiting)
                else:
                    waiting.tally.unchanged += 1
                    self.unchanged += 1
            batch = new
        self._send(batch)
        self._delete()
        self._on_progress(self._bytes, self.passages)
        self._bytes = 0

    def _send(self, batch: list[_Waiting]) -> None:
        """Write documents; of one that the index refuses the others are written."""
        if not batch:
            return
        self.in_flight, begun = len(batch), time.monotonic()
        try:
            written = self._index.upsert([waiting.document for waiting in batch])
        except InputError as error:
            self.in_flight = 0
            if len(batch) > 1:
                middle = len(batch) // 2
                self._send(batch[:middle])
                self._send(batch[middle:])
                return
            if not self.documents and len(self.problems) >= MOST_PROBLEMS:
                raise  # it is none of the documents' fault
            document, tally = batch[0].document, batch[0].tally
            self.problems.append(Problem(f"document {document.id}", error.message))
            tally.reason = tally.reason or f"document {shorten(document.id)}: {error.message}"
            return
        self.in_flight = 0
        self.documents += written.documents
        self.passages += written.passages
        for waiting in batch:
            waiting.tally.documents += 1
        seconds = max(time.monotonic() - begun, 1e-3)
        chars = sum(len(waiting.document.text) for waiting in batch)
        paced = chars * min(2.0, max(0.25, BATCH_SECONDS / seconds))
        self._limit = int(min(BATCH_CHARS, max(LEAST_CHARS, paced)))

    def _delete(self) -> None:
        while self._old:
            ids, self._old = self._old[: self._most], self._old[self._most :]
            self.deleted += self._index.delete(ids)

    def delete_gone(self, folders: Collection[str], may_hold: Callable[[str], bool]) -> None:
        """Delete the documents of files that are gone from these folders.

        Args:
            may_hold: Tells of a file that was not to be written whether it may still be there.
        """
        self.flush()
        there = {tally.name for tally in self._tallies}
        for name, stored in self._stored.items():
            if stored.folder in folders and name not in there and not may_hold(name):
                self._old += sorted(stored.ids)

    def results(self, index: str) -> AddedFiles:
        """Return what was done."""
        files = (
            AddedFile(tally.name, tally.documents, tally.unchanged, _make_utf8(tally.reason))
            for tally in self._tallies
        )
        return AddedFiles(
            index, self.documents, self.passages, self.unchanged, self.deleted, tuple(files)
        )

    def _refuse(self, tally: Tally, reason: str) -> None:
        self.problems.append(Problem(tally.source, reason))
        tally.reason = tally.reason or reason


def _make_utf8(reason: str | None) -> str | None:
    """Return a reason as JSON can hold it: it may quote what is no Unicode."""
    return reason and reason.encode("utf-8", "backslashreplace").decode()


def explain(error: Exception, source: str) -> str:
    """Return what is wrong with a file, its name left out where the message begins with it."""
    reason = reason_of(error)
    return reason.removeprefix(source).removeprefix(":").removeprefix(",").lstrip()
