"""What ``condensery index add`` does: files, folders and standard input into an index."""

import argparse
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm

from condensery.commands.common import AnyClient, json_fields, print_entry, print_note, print_result
from condensery.documents.files import FileName, Problem, Reading, reason_of, suffix_of
from condensery.documents.folders import (
    Found,
    Root,
    check_roots,
    find_file,
    find_files,
    make_glob,
    name_root,
    show,
)
from condensery.documents.records import STDIN, Columns, open_documents
from condensery.documents.replacing import select_others
from condensery.documents.writing import LOOKED_UP_FILES, AddedFile, AddedFiles, FileWriter
from condensery.errors import CondenseryError, InputError
from condensery.values import Document, Page, Upserted

UNREAD_STATUS = 4  # some of what was asked for could not be read

LISTED_PROBLEMS = 100


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
    if not found.files:
        if args.json:
            print_entry(**json_fields(AddedFiles(name, 0, 0, 0, 0, tuple(list_problems(found)))))
        report_unread(found, name)
        return UNREAD_STATUS
    make_index(client, name)
    size = sum(file.size for file in found.files)
    with open_writer(client, name, size, again=args.again) as writer:
        look_up(client, name, writer, roots, found)
        writer.write_files(found.files, reading)
        if args.sync:
            whole = {root.folder for root, whole in roots.items() if whole}
            writer.delete_gone(whole, found.may_hold)
    added = writer.results(name)
    print_added(args, replace(added, files=(*list_problems(found), *added.files)))
    found.others += writer.others
    found.problems += writer.problems
    report_unread(found, name)
    return UNREAD_STATUS if found.problems else 0


def add_stdin(args: argparse.Namespace, client: AnyClient) -> int:
    """Write the documents of standard input: JSON lines, or a document a paragraph."""
    if len(args.paths) > 1 or args.sync or args.glob:
        raise InputError("-: standard input stands alone, without --sync and --glob")
    if args.format not in (None, "jsonl", "text"):
        raise InputError(f"--format: standard input is jsonl or text, not {args.format}")
    name = args.name or name_index(args.paths[0])
    with open_documents(STDIN, args.format, stdin_prefix=name) as documents:
        make_index(client, name)
        with open_writer(client, name, measure_stdin(), again=args.again) as writer:
            tally, at = writer.begin(STDIN, "standard input"), 0
            for document, end in documents:
                writer.write(document, end - at, tally, doubtful=True)
                at = end
    print_added(args, writer.results(name))
    report_problems(writer.problems)
    return UNREAD_STATUS if writer.problems else 0


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


class HeldIndex:
    """A server's index, written by a client; Ctrl-C waits until a write is done."""

    def __init__(self, client: AnyClient, name: str) -> None:
        self._client, self._name = client, name

    def holds_any(self) -> bool:
        """Tell whether it holds a document."""
        return self._client.count(self._name)[0] > 0

    def scroll(self, filter: Mapping[str, Any], after: str | None) -> Page:
        """Return a page of the documents that a filter chooses, without their texts."""
        return self._client.scroll(self._name, filter=filter, after=after, with_text=False)

    def get(self, ids: Sequence[str]) -> list[Document]:
        """Return documents by id."""
        return self._client.get(self._name, ids)

    def upsert(self, documents: Sequence[Document]) -> Upserted:
        """Write documents."""
        with finish_first():
            return self._client.upsert(self._name, documents)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents; returns how many there were."""
        with finish_first():
            return self._client.delete(self._name, ids)


def look_up(
    client: AnyClient, name: str, writer: FileWriter, roots: dict[Root, bool], found: Found
) -> None:
    """Look up what an index holds of these folders' files.

    Raises:
        InputError: A folder's name stands for another folder in the index.
    """
    for root, whole in roots.items():
        others = select_others(root.folder, root.source)
        if root.source and client.count(name, filter=others)[0]:
            raise InputError(
                f"{name} holds files of another folder named {root.folder!r}: give this"
                f" one another name, --prefix NAME; or --prefix {root.folder}, if it is the"
                " same one in a new place"
            )
        names = [file.name.whole for file in found.files if file.name.folder == root.folder]
        if whole or len(names) > LOOKED_UP_FILES:
            writer.look_up_folder(root.folder)
        else:
            writer.look_up_files(names)


@contextmanager
def open_writer(
    client: AnyClient, name: str, size: int | None, *, again: bool
) -> Iterator[FileWriter]:
    """Show how far it is, and where it stops, what was written.

    Args:
        size: Bytes of all that is to be read; None if it is not known.
    """
    writer = None
    try:
        with tqdm(total=size, unit="B", unit_scale=True, desc=name, disable=None) as bar:

            def show_progress(read: int, passages: int) -> None:
                bar.set_postfix_str(f"{passages} passages", refresh=False)
                bar.update(read)

            index = HeldIndex(client, name)
            writer = FileWriter(index, again=again, on_progress=show_progress)
            with ticking(bar, bar.refresh):
                yield writer
                writer.flush()
    except (CondenseryError, KeyboardInterrupt):
        if writer is not None:
            unknown = f"; {writer.in_flight} more may have been" if writer.in_flight else ""
            done = f"{writer.documents} documents were written before this stopped"
            print_note(f"{name}: {done}{unknown}")
        raise


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


def print_added(args: argparse.Namespace, added: AddedFiles) -> None:
    """Print what was done."""
    already = f"; {added.unchanged} were there already" if added.unchanged else ""
    deleted = f"; {added.deleted} of before deleted" if added.deleted else ""
    done = f"{added.documents} documents written, {added.passages} passages{already}{deleted}"
    print_result(args, f"{added.index}: {done}", added)


def list_problems(found: Found) -> Iterator[AddedFile]:
    """Yield what was found and could not be read."""
    for problem in found.problems:
        yield AddedFile(problem.source, 0, 0, problem.reason)


def report_unread(found: Found, name: str) -> None:
    """Print, on standard error, what was not read."""
    if not found.files and not found.problems:
        print_note(f"{name}: there is nothing to read")
    if found.others:
        kinds = ", ".join(f"{suffix} {count}" for suffix, count in found.others.most_common(8))
        print_note(f"{found.others.total()} files of other kinds were passed over: {kinds}")
    if found.links:
        print_note(f"{found.links} links to folders were not followed")
    report_problems(found.problems)


def report_problems(problems: Sequence[Problem]) -> None:
    """Print, on standard error, what was not read or not written, and why."""
    for problem in problems[:LISTED_PROBLEMS]:
        print_note(f"not read: {problem.source}: {problem.reason}")
    if (more := len(problems) - LISTED_PROBLEMS) > 0:
        print_note(f"not read: {more} more")


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
