"""What ``condensery index add`` does: files, folders and standard input into an index."""

import argparse
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm

from condensery.commands.common import AnyClient, print_note
from condensery.documents.files import (
    BY_LINE,
    FileName,
    OpenFile,
    Reading,
    check_length,
    hash_file,
    kind_of,
    owns_ids,
    read_documents,
    suffix_of,
)
from condensery.documents.folders import (
    Found,
    FoundFile,
    Problem,
    Root,
    check_roots,
    find_file,
    find_files,
    make_glob,
    name_root,
    reason_of,
    show,
)
from condensery.documents.records import STDIN, Columns, NoRecords, open_documents
from condensery.documents.replacing import (
    StoredFile,
    collect_stored,
    mark_documents,
    select_file,
    select_folder,
    select_others,
)
from condensery.errors import CondenseryError, InputError
from condensery.values import Document

UNREAD_STATUS = 4  # some of what was asked for could not be read

# A request: under the server's limit of bytes, and as many texts as take about a second, so that
# progress is seen to move and Ctrl-C does not wait long.
BATCH_DOCUMENTS = 128
BATCH_CHARS = 500_000
LEAST_CHARS = 2_000  # of the first one too
BATCH_SECONDS = 1.0

LISTED_PROBLEMS = 100
LOOKED_UP_FILES = 16  # more files of one folder are looked up by their folder


def add_paths(args: argparse.Namespace, client: AnyClient) -> int:
    """Write what the paths lead to; returns the exit status."""
    columns = Columns(args.id_column, tuple(args.text_column or ()))
    reading = Reading(args.format, args.encoding, columns)
    if STDIN in args.paths:
        return add_stdin(args, client)
    if args.name and ("/" in args.name or (suffix_of(args.name) and Path(args.name).is_file())):
        raise InputError(f"{args.name} is a path: before several of them goes the index's name")
    found = Found()
    with (
        tqdm(unit=" files", desc="looking", disable=None, delay=1, leave=False) as bar,
        ticking(bar, lambda: bar.update(len(found.files) - bar.n)),
    ):
        roots = find_paths(args, reading, found)
    name = args.name or name_index(args.paths[0])
    if found.files:
        make_index(client, name)
        size = sum(file.size for file in found.files)
        with open_adding(client, name, found, size, again=args.again) as adding:
            adding.look_up(roots)
            adding.write_files(reading)
            if args.sync:
                adding.delete_gone({root.folder for root, whole in roots.items() if whole})
    report_unread(found, name)
    return UNREAD_STATUS if found.problems or not found.files else 0


def add_stdin(args: argparse.Namespace, client: AnyClient) -> int:
    """Write the documents of standard input: JSON lines, or a document a paragraph."""
    if len(args.paths) > 1 or args.sync or args.glob:
        raise InputError("-: standard input stands alone, without --sync and --glob")
    if args.format not in (None, "jsonl", "text"):
        raise InputError(f"--format: standard input is jsonl or text, not {args.format}")
    name = args.name or name_index(args.paths[0])
    with open_documents(STDIN, args.format, stdin_prefix=name) as documents:
        make_index(client, name)
        with open_adding(client, name, Found(), measure_stdin(), again=args.again) as adding:
            at = 0
            for document, end in documents:
                adding.write(document, end - at, doubtful=True)
                at = end
    return 0


def find_paths(args: argparse.Namespace, reading: Reading, found: Found) -> dict[Root, bool]:
    """Find the files of all paths, each once; returns the roots, and if all of a root is meant.

    Raises:
        InputError: A path is not there; two folders have one name; nothing to sync.
    """
    glob = make_glob(args.glob or [])
    roots: dict[Root, bool] = {}
    paths = [Path(path) for path in args.paths]
    for path in paths:
        try:
            path.lstat()
        except OSError as error:
            raise InputError(f"{show(path)}: can't be read: {reason_of(error)}") from error
    for path in paths:
        root = name_root(path if path.is_dir() else path.parent, args.prefix)
        roots[root] = roots.get(root, False) or path.is_dir()
    check_roots(roots)
    if args.sync and not any(roots.values()):
        raise InputError("--sync: removes what is gone from a folder, and no folder is named")
    walked: set[Root] = set()
    for path in paths:
        if path.is_dir() and (root := name_root(path, args.prefix)) not in walked:
            walked.add(root)
            find_files(found, path, root, reading, glob)
    seen = {file.name for file in found.files}
    for path in paths:
        if not path.is_dir():
            root = name_root(path.parent, args.prefix)
            if (name := FileName(root.folder, path.name, root.source)) not in seen:
                seen.add(name)
                find_file(found, path, name, reading)
    return roots


class Adding:
    """Writes documents into an index, batch by batch, and counts what was done.

    A file's old documents are deleted once its new ones are written.

    Args:
        found: What is read; problems are added.
        again: Whether to write also what is there already, as it is.
    """

    def __init__(
        self, client: AnyClient, name: str, found: Found, bar: Any, *, again: bool
    ) -> None:
        self._client, self._name, self._found, self._bar = client, name, found, bar
        self._again = again
        self._holds_any = client.count(name)[0] > 0
        self._stored: dict[str, StoredFile] = {}
        self._batch: dict[str, Document] = {}
        self._doubtful: set[str] = set()  # ids of the batch that may be there already
        self._old: list[str] = []  # ids to delete once the batch is written
        self._chars, self._limit = 0, LEAST_CHARS
        self._bytes = 0  # read since the last request
        self._documents = self._passages = self._skipped = self._deleted = 0
        self._in_flight = 0  # documents of a request without a reply

    def look_up(self, roots: dict[Root, bool]) -> None:
        """Look up what is there of these folders' files.

        Raises:
            InputError: A folder's name stands for another folder in the index.
        """
        if not self._holds_any:
            return
        for root, whole in roots.items():
            others = select_others(root.folder, root.source)
            if root.source and self._client.count(self._name, filter=others)[0]:
                raise InputError(
                    f"{self._name} holds files of another folder named {root.folder!r}: give this"
                    f" one another name, --prefix NAME; or --prefix {root.folder}, if it is the"
                    " same one in a new place"
                )
            names = [
                file.name.whole for file in self._found.files if file.name.folder == root.folder
            ]
            if whole or len(names) > LOOKED_UP_FILES:
                self._collect(select_folder(root.folder))
            else:
                for name in names:
                    self._collect(select_file(name))

    def _collect(self, filter: dict[str, Any]) -> None:
        after = None
        while True:
            page = self._client.scroll(self._name, filter=filter, after=after, with_text=False)
            collect_stored(page.documents, self._stored)
            if page.next is None:
                return
            after = page.next

    def write_files(self, reading: Reading) -> None:
        """Write files that are not there as they are; one that can't be read is a problem."""
        for file in self._found.files:
            source = show(file.path)
            self._bar.set_postfix_str(f"{self._passages} passages", refresh=False)
            try:
                with file.path.open("rb") as stream:
                    self._write_file(file, OpenFile(file.name, stream, source), reading)
            except OSError as error:
                self._found.problems.append(Problem(source, reason_of(error)))

    def _write_file(self, found: FoundFile, file: OpenFile, reading: Reading) -> None:
        name, kind = file.name.whole, kind_of(file.name.path, reading)
        stored = self._stored.get(name, StoredFile())
        try:
            if kind not in BY_LINE:
                check_length(file.source, found.size)
            owned = owns_ids(file, kind, reading)
            hash = "" if owned else hash_file(file.stream, reading)
        except InputError as error:
            self._found.problems.append(Problem(file.source, explain(error, file)))
            return
        if not owned and not self._again and stored.is_current(hash):
            self._skipped += len(stored.ids)
            self._bar.update(found.size)
            return
        documents = read_documents(file, kind, reading)
        if not owned:
            documents = mark_documents(documents, file.name, hash)
        ids, at = set(), 0
        while True:
            try:
                document, end = next(documents, (None, found.size))
            except NoRecords as error:
                if found.named:
                    self._found.problems.append(Problem(file.source, explain(error, file)))
                else:
                    self._found.others[suffix_of(file.name.path)] += 1
                self._bytes += found.size
                return
            except InputError as error:
                self._found.problems.append(Problem(file.source, explain(error, file)))
                self._bytes += found.size - at
                return  # its old documents stay
            if document is None:
                break
            ids.add(document.id)
            self.write(document, end - at, doubtful=owned or document.id in stored.ids)
            at = end
        if not ids and found.named:
            self._found.problems.append(Problem(file.source, "there is no text in it"))
        self._bytes += found.size - at
        self._old += sorted(stored.ids - ids)

    def write(self, document: Document, read: int, *, doubtful: bool) -> None:
        """Write a document, now or with others.

        Args:
            read: Bytes that were read for it.
            doubtful: Whether it may be there already, as it is.
        """
        full = len(self._batch) == BATCH_DOCUMENTS or (
            self._chars + len(document.text) > self._limit
        )
        # one that comes twice goes into a later request, so that it replaces the earlier
        if self._batch and (full or document.id in self._batch):
            self.flush()
        self._batch[document.id] = document
        if doubtful and self._holds_any and not self._again:
            self._doubtful.add(document.id)
        self._chars += len(document.text)
        self._bytes += read

    def flush(self) -> None:
        """Write what waits, and delete what it replaces."""
        batch, doubtful = list(self._batch.values()), sorted(self._doubtful)
        self._batch, self._doubtful, self._chars = {}, set(), 0
        if doubtful:
            there = {item.id: item for item in self._client.get(self._name, doubtful)}
            new = [document for document in batch if there.get(document.id) != document]
            self._skipped += len(batch) - len(new)
            batch = new
        self._send(batch)
        self._delete()
        self._bar.set_postfix_str(f"{self._passages} passages", refresh=False)
        self._bar.update(self._bytes)
        self._bytes = 0

    def _send(self, documents: list[Document]) -> None:
        """Write documents; of one that the server refuses the others are written."""
        if not documents:
            return
        self._in_flight, begun = len(documents), time.monotonic()
        try:
            with finish_first():
                written = self._client.upsert(self._name, documents)
                self._documents += written.documents
                self._passages += written.passages
                self._in_flight = 0
        except InputError as error:
            self._in_flight = 0
            if len(documents) > 1:
                middle = len(documents) // 2
                self._send(documents[:middle])
                self._send(documents[middle:])
                return
            if not self._documents and len(self._found.problems) >= LISTED_PROBLEMS:
                raise  # it is none of the documents' fault
            self._found.problems.append(Problem(f"document {documents[0].id}", error.message))
            return
        seconds = max(time.monotonic() - begun, 1e-3)
        chars = sum(len(document.text) for document in documents)
        paced = chars * min(2.0, max(0.25, BATCH_SECONDS / seconds))
        self._limit = int(min(BATCH_CHARS, max(LEAST_CHARS, paced)))

    def _delete(self) -> None:
        while self._old:
            ids, self._old = self._old[:BATCH_DOCUMENTS], self._old[BATCH_DOCUMENTS:]
            with finish_first():
                self._deleted += self._client.delete(self._name, ids)

    def delete_gone(self, folders: set[str]) -> None:
        """Delete the documents of files that are gone from these folders.

        A file that is there and could not be read keeps them, as do those that may be below a
        folder that could not be read.
        """
        self.flush()
        there = {file.name.whole for file in self._found.files}
        for name, stored in self._stored.items():
            if stored.folder in folders and name not in there and not self._found.may_hold(name):
                self._old += sorted(stored.ids)

    def report(self) -> None:
        """Print what was done."""
        already = f"; {self._skipped} were there already" if self._skipped else ""
        deleted = f"; {self._deleted} of before deleted" if self._deleted else ""
        print(
            f"{self._name}: {self._documents} documents written, {self._passages} passages"
            f"{already}{deleted}"
        )

    def report_stop(self) -> None:
        """Print what was done before an error or Ctrl-C."""
        unknown = f"; {self._in_flight} more may have been" if self._in_flight else ""
        print_note(
            f"{self._name}: {self._documents} documents were written before this stopped{unknown}"
        )


@contextmanager
def open_adding(
    client: AnyClient, name: str, found: Found, size: int | None, *, again: bool
) -> Iterator[Adding]:
    """Show how far it is, and at the end, or where it stops, what was written.

    Args:
        size: Bytes of all that is to be read; None if it is not known.
    """
    adding = None
    try:
        with tqdm(total=size, unit="B", unit_scale=True, desc=name, disable=None) as bar:
            adding = Adding(client, name, found, bar, again=again)
            with ticking(bar, bar.refresh):
                yield adding
                adding.flush()
    except (CondenseryError, KeyboardInterrupt):
        if adding is not None:
            adding.report_stop()
        raise
    adding.report()


@contextmanager
def ticking(bar: Any, move: Callable[[], object]) -> Iterator[None]:
    """Move a bar each second, or let its time go on while nothing else moves it."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1):
            move()

    if not bar.disable:
        threading.Thread(target=tick, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def finish_first() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done, so that it is known what was; not a second one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = 0

    def hold(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def report_unread(found: Found, name: str) -> None:
    """Print, on standard error, what was not read."""
    if not found.files and not found.problems:
        print_note(f"{name}: there is nothing to read")
    if found.others:
        kinds = ", ".join(f"{suffix} {count}" for suffix, count in found.others.most_common(8))
        print_note(f"{found.others.total()} files of other kinds were passed over: {kinds}")
    if found.links:
        print_note(f"{found.links} links to folders were not followed")
    for problem in found.problems[:LISTED_PROBLEMS]:
        print_note(f"not read: {problem.source}: {problem.reason}")
    if (more := len(found.problems) - LISTED_PROBLEMS) > 0:
        print_note(f"not read: {more} more")


def explain(error: InputError, file: OpenFile) -> str:
    """Return what is wrong with a file, its name left out where the message begins with it."""
    return error.message.removeprefix(file.source).removeprefix(":").removeprefix(",").lstrip()


def make_index(client: AnyClient, name: str) -> None:
    """Make the index unless it (or an alias of the name) is there, whatever its settings."""
    names = [info.name for info in client.list_indexes()]
    if name not in [*names, *(alias.alias for alias in client.aliases())]:
        client.create_index(name)
        print_note(f"{name}: index created")


def name_index(path: str) -> str:
    """Make an index's name of a path's: lower case, without characters that names can't hold."""
    if path == STDIN:
        raise InputError("standard input makes no index name; give NAME before it")
    own = Path(path) if Path(path).name else Path(path).resolve()
    name = re.sub(r"[^a-z0-9._-]+", "-", own.name.lower().removesuffix(suffix_of(own.name)))
    name = name.strip("-._")
    if not name:
        raise InputError(f"{path}: makes no index name; give NAME before it")
    return name[:64]


def measure_stdin() -> int | None:
    """Return the bytes of standard input; None of a pipe."""
    path = Path("/dev/stdin")
    return path.stat().st_size if path.is_file() else None
