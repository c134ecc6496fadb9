"""Uploaded files into an index, as ``condensery index add`` writes a folder's.

What is uploaded lies in one unnamed file on the disk (``Spool``) until it is read: nothing is left
of it where the client leaves or the process ends. Reading and writing block, and so go on in a
thread, which calls back into the event loop for each request of documents.
"""

import asyncio
import contextvars
import io
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from condensery.documents.files import FileName, Reading
from condensery.documents.writing import BATCH_DOCUMENTS, AddedFiles, FileWriter
from condensery.errors import Overloaded
from condensery.index.database import storage_errors
from condensery.jobs.indexes import (
    count_documents,
    delete_documents,
    get_documents,
    scroll_documents,
    upsert_documents,
)
from condensery.jobs.services import Services
from condensery.values import Document, Page, Upserted

T = TypeVar("T")


class Spool:
    """Bytes on the disk, without a name there: they are gone with the process, or with ``close``.

    Args:
        folder: On which disk; None is the system's for temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        with storage_errors(self._folder):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see close
        self.size = 0

    def write(self, data: bytes) -> None:
        """Add bytes at the end.

        Raises:
            StorageFull, StorageReadOnly, StorageError: The disk refused.
        """
        view = memoryview(data)
        with storage_errors(self._folder):
            while view:
                written = os.write(self._file.fileno(), view)
                self.size += written
                view = view[written:]

    def open(self, start: int, size: int) -> BinaryIO:
        """Open some of the bytes as a file."""
        return cast(BinaryIO, io.BufferedReader(_Slice(self._file, start, size)))

    def close(self) -> None:
        """Give the room back."""
        self._file.close()


class _Slice(io.RawIOBase):
    """A part of a file that others read at the same time."""

    def __init__(self, file: io.FileIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: max(0, self._size - self._at)]
        # By the file, which knows that it is closed: its number may be another's by then.
        count = os.preadv(self._file.fileno(), [view], self._start + self._at) if view else 0
        self._at += count
        return count


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file in a spool."""

    spool: Spool = field(repr=False)
    name: FileName
    start: int
    size: int
    named: bool = True

    @property
    def source(self) -> str:
        """Its name in messages."""
        return self.name.whole

    def open(self) -> BinaryIO:
        """Open it, from its first byte."""
        return self.spool.open(self.start, self.size)


async def add_files(
    services: Services,
    name: str,
    files: Sequence[UploadedFile],
    reading: Reading,
    *,
    again: bool = False,
    check: Callable[[Document], Document] = lambda document: document,
) -> AddedFiles:
    """Write files into an index: what is not there as it is; synced on return.

    A file replaces what is there of one of its name. One that can't be read is reported, and the
    others are written.

    Args:
        again: Whether to write also what is there already, as it is.
        check: Raises InputError for a document that can't be kept, or returns it as it is kept.

    Raises:
        IndexNotFound: No such index.
        EncoderMismatch: The index is another encoder's.
        StorageFull, StorageReadOnly: The disk refused; what was written before stays.
    """
    uploads, loop = services.uploads, asyncio.get_running_loop()
    index = _HeldIndex(services, name, loop, check)
    most = min(BATCH_DOCUMENTS, services.limits.max_items)

    def work() -> AddedFiles:
        writer = FileWriter(index, again=again, most=most)
        writer.look_up_files([file.name.whole for file in files])
        writer.write_files(files, replace(reading, check=index.check))
        writer.flush()
        return writer.results(name)

    async with uploads.reading, uploads.lock(services.indexes.info(name).name):
        context = contextvars.copy_context()
        running = loop.run_in_executor(uploads.threads, context.run, work)
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            index.stop()
            await asyncio.wait({running})  # until its next check or call: it reads the files
            running.exception()  # fetched, so that asyncio does not log it
            raise
        return running.result()


class _HeldIndex:
    """An index, as a thread of ours writes it: each call is a job in the event loop."""

    def __init__(
        self,
        services: Services,
        name: str,
        loop: asyncio.AbstractEventLoop,
        check: Callable[[Document], Document],
    ) -> None:
        self._services, self._name, self._loop, self._check = services, name, loop, check
        self._calls: set[Future[Any]] = set()
        self._stopped = False

    def stop(self) -> None:
        """End the call that is under way, refuse further ones, and let ``check`` end the rest."""
        self._stopped = True
        for call in tuple(self._calls):
            call.cancel()

    def check(self) -> None:
        """Raise CancelledError once stopped, in the thread that reads.

        No Exception: a broken file leads what reads it to any of them, and would be taken for one.
        """
        if self._stopped:
            raise asyncio.CancelledError

    def _wait_for(self, job: Coroutine[Any, Any, T]) -> T:
        call = asyncio.run_coroutine_threadsafe(job, self._loop)
        self._calls.add(call)
        if self._stopped:  # perhaps before `stop` could see it
            call.cancel()
        try:
            return call.result()
        finally:
            self._calls.discard(call)

    def holds_any(self) -> bool:
        return self._wait_for(count_documents(self._services, self._name))[0] > 0

    def scroll(self, filter: Mapping[str, Any], after: str | None) -> Page:
        page = scroll_documents(
            self._services, self._name, filter=dict(filter), after=after, with_text=False
        )
        return self._wait_for(page)

    def get(self, ids: Sequence[str]) -> list[Document]:
        return self._wait_for(get_documents(self._services, self._name, ids))

    def upsert(self, documents: Sequence[Document]) -> Upserted:
        return self._wait_for(self._upsert([self._check(document) for document in documents]))

    async def _upsert(self, documents: Sequence[Document]) -> Upserted:
        """Write documents, once the model takes them: the upload waits, and need not come again."""
        while True:
            try:
                return await upsert_documents(self._services, self._name, documents)
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_seconds)

    def delete(self, ids: Sequence[str]) -> int:
        return self._wait_for(delete_documents(self._services, self._name, ids))
