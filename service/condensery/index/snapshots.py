"""Copies of indexes, each as it was at one moment, checked by hash before it is used.

``<data-dir>/snapshots/<index>/<id>/`` holds the index's SQLite file, packed, and ``snapshot.json``,
which says what it is: text and numbers, no pickle. The FAISS cache is left out, since it follows
from the vectors. A snapshot outlives its index.
"""

import contextlib
import hashlib
import json
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from condensery.atomic_files import atomic_folder, sync_path
from condensery.errors import (
    InputError,
    LimitReached,
    SnapshotDamaged,
    SnapshotNotFound,
    SnapshotTooNew,
    shorten,
)
from condensery.index import changes, checks, database, passages
from condensery.index.database import storage_errors
from condensery.index.index import DATABASE, Index
from condensery.values import Snapshot, SnapshotList

FORMAT = 1
NEWEST = 1 + len(database.MIGRATIONS)  # the format of indexes that this version reads
MANIFEST = "snapshot.json"
_ASIDE = (".partial", ".removed")
_BLOCK = 2**20


class Manifest(BaseModel):
    """What a snapshot is.

    Attributes:
        index_format: Of the SQLite file.
        settings: The index's.
        bytes: Length of the SQLite file.
        sha256: Its hash, in hexadecimal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: int
    id: str
    index: str
    created: float
    index_format: int
    settings: dict[str, JsonValue]
    documents: int
    passages: int
    bytes: int
    sha256: str


class Snapshots:
    """The snapshots of a data directory. Calls block on disk; any thread may make them.

    Args:
        root: Their folder; made with the first.
        max_snapshots: How many there may be, of all indexes together.
    """

    def __init__(self, root: Path, max_snapshots: int) -> None:
        self._root = root
        self._max_snapshots = max_snapshots
        self._counting = threading.Lock()  # over what is made
        self._made: set[Path] = set()  # the folders of those that are being made
        for leftover in (*root.glob("*/*.partial"), *root.glob("*/*.removed")):  # a crash left it
            shutil.rmtree(leftover, ignore_errors=True)

    def make(self, index: Index) -> Snapshot:
        """Copy an index as it is now, while it goes on serving and being written; synced on return.

        Raises:
            LimitReached: There are as many as there may be.
            StorageFull, StorageReadOnly, StorageError: The disk refused; nothing is left behind.
        """
        created = time.time()
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(created))
        target = self._root / index.name / f"{moment}-{secrets.token_hex(4)}"
        with storage_errors(target), self._counted(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with atomic_folder(target) as aside:
                    index.copy(aside / DATABASE)
                    manifest = _describe(aside / DATABASE, target.name, index.name, created)
                    (aside / MANIFEST).write_text(_write(manifest), encoding="utf-8")
                sync_path(self._root)
                sync_path(self._root.parent)
            except BaseException:
                partial, removed = (target.with_name(f"{target.name}{end}") for end in _ASIDE)
                with contextlib.suppress(OSError):  # what is listed is there whole
                    target.rename(removed)
                for made in (partial, removed):
                    shutil.rmtree(made, ignore_errors=True)
                raise
        return _read_text(manifest)

    def of(self, index: str) -> SnapshotList:
        """Return an index's snapshots, the newest first, and why others can't be used.

        Only what is quick to see is looked at: the bytes are hashed when they are restored.
        """
        snapshots: list[Snapshot] = []
        refused: dict[str, str] = {}
        folder = self._root / index
        with storage_errors(folder):
            ids = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        for identity in sorted(ids):
            if identity.endswith(_ASIDE):  # being made, or removed
                continue
            try:
                snapshots.append(self.get(index, identity))
            except (SnapshotDamaged, SnapshotTooNew) as error:
                refused[identity] = error.message
            except SnapshotNotFound:  # deleted meanwhile
                continue
        snapshots.sort(key=lambda snapshot: snapshot.created, reverse=True)
        return SnapshotList(tuple(snapshots), refused)

    def get(self, index: str, snapshot: str) -> Snapshot:
        """Return what a snapshot is.

        Raises:
            SnapshotNotFound: There is none of that name.
            SnapshotDamaged: It is cut short, or was altered.
            SnapshotTooNew: It is of a format of a newer version.
        """
        folder = self._find(index, snapshot)
        with storage_errors(folder):
            return _read_text(_read(folder, index))

    def exist(self, index: str) -> bool:
        """Tell whether an index has, or had, snapshots."""
        return (self._root / index).is_dir()

    def delete(self, index: str, snapshot: str) -> None:
        """Delete a snapshot, whether it can be used or not; synced on return."""
        folder = self._find(index, snapshot)
        with storage_errors(folder):
            removed = folder.with_name(f"{folder.name}.removed")
            try:
                folder.rename(removed)  # at one moment, and on a full disk too
            except FileNotFoundError as error:  # another call was quicker
                raise _not_found(index, snapshot) from error
            try:
                sync_path(folder.parent)
            finally:
                shutil.rmtree(removed, ignore_errors=True)

    def copy(self, index: str, snapshot: str, into: Path) -> None:
        """Copy a snapshot's index into a folder, checking every byte; synced on return.

        Raises:
            SnapshotNotFound, SnapshotDamaged, SnapshotTooNew: As for ``get``.
            OSError: The disk refused.
        """
        folder = self._find(index, snapshot)
        manifest = _read(folder, index)
        digest = hashlib.sha256()
        try:
            source = (folder / DATABASE).open("rb")
        except FileNotFoundError as error:
            raise _damaged(folder, index, f"it has no {DATABASE}") from error
        with source, (into / DATABASE).open("wb") as target:
            while block := source.read(_BLOCK):
                digest.update(block)
                target.write(block)
        if digest.hexdigest() != manifest.sha256:
            raise _damaged(folder, index, f"{DATABASE} has another hash than it was made with")
        sync_path(into / DATABASE)

    @contextlib.contextmanager
    def _counted(self, target: Path) -> Iterator[None]:
        """Count a snapshot while it is made, so that many at once are not too many."""
        with self._counting:
            there = {path for path in self._root.glob("*/*") if not path.name.endswith(_ASIDE)}
            there |= self._made
            if len(there) >= self._max_snapshots:
                raise LimitReached.at(
                    "snapshot",
                    f"none can be made of index {target.parent.name!r}: there are "
                    f"{len(there)}, of all indexes, and there may be {self._max_snapshots} "
                    "(max_snapshots); delete one first.",
                )
            self._made.add(target)
        try:
            yield
        finally:
            with self._counting:
                self._made.discard(target)

    def _find(self, index: str, snapshot: str) -> Path:
        checks.check_name(index)
        if not snapshot or not snapshot.isascii() or not snapshot.replace("-", "").isalnum():
            raise InputError.at(
                "snapshot", f"{shorten(snapshot)} is not the id of a snapshot.", snapshot
            )
        folder = self._root / index / snapshot
        if not folder.is_dir():
            raise _not_found(index, snapshot)
        return folder


def _describe(file: Path, snapshot: str, index: str, created: float) -> Manifest:
    with closing(sqlite3.connect(file, isolation_level=None)) as copy:
        changes.end(copy)  # a rebuild's notes are of the index itself
        spec = database.read_spec(copy)
        index_format = copy.execute("PRAGMA user_version").fetchone()[0]
        documents, pieces = passages.count(copy)
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(_BLOCK):
            digest.update(block)
    return Manifest(
        format=FORMAT,
        id=snapshot,
        index=index,
        created=round(created, 3),
        index_format=index_format,
        settings=database.to_record(spec),
        documents=documents,
        passages=pieces,
        bytes=file.stat().st_size,
        sha256=digest.hexdigest(),
    )


def _write(manifest: Manifest) -> str:
    content = manifest.model_dump()
    return json.dumps({"snapshot": content, "sha256": _hash(content)}, indent=1)


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(folder: Path, index: str) -> Manifest:
    """Read what a snapshot is, and see whether its file is as long as it was."""
    try:
        whole = json.loads((folder / MANIFEST).read_bytes())
        content = whole["snapshot"]
        newer = {"its": content["format"] - FORMAT, "its index's": content["index_format"] - NEWEST}
    except FileNotFoundError as error:
        raise _damaged(folder, index, f"it has no {MANIFEST}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(folder, index, f"{MANIFEST} can't be read") from error
    for whose, ahead in newer.items():
        if ahead > 0:
            raise SnapshotTooNew(
                f"Snapshot {folder.name} of index {index!r} can't be used: {whose} format is "
                f"{ahead} ahead of what this version reads.",
                field="snapshot",
                value=folder.name,
            )
    if whole.get("sha256") != _hash(content):
        raise _damaged(folder, index, f"{MANIFEST} has another hash than it was made with")
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        raise _damaged(folder, index, f"{MANIFEST} is not what it should be") from error
    try:
        size = (folder / DATABASE).stat().st_size
    except FileNotFoundError as error:
        raise _damaged(folder, index, f"it has no {DATABASE}") from error
    if size != manifest.bytes:
        raise _damaged(folder, index, f"{DATABASE} has {size} bytes of {manifest.bytes}")
    return manifest


def _not_found(index: str, snapshot: str) -> SnapshotNotFound:
    return SnapshotNotFound(
        f"Index {index!r} has no snapshot {shorten(snapshot)}.", field="snapshot", value=snapshot
    )


def _damaged(folder: Path, index: str, reason: str) -> SnapshotDamaged | SnapshotNotFound:
    if not folder.is_dir():  # deleted while it was read
        return _not_found(index, folder.name)
    return SnapshotDamaged(
        f"Snapshot {folder.name} of index {index!r} can't be used: {reason}.",
        field="snapshot",
        value=folder.name,
    )


def _read_text(manifest: Manifest) -> Snapshot:
    own = manifest.settings
    return Snapshot(
        id=manifest.id,
        index=manifest.index,
        created=manifest.created,
        encoder=str(own["encoder"]),
        fingerprint=str(own["fingerprint"]),
        dims=int(str(own["dims"])),
        kind=str(own["kind"]),
        metric=str(own["metric"]),
        documents=manifest.documents,
        passages=manifest.passages,
        bytes=manifest.bytes,
    )
