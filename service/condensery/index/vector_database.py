"""Vector databases that can hold an index's vectors in the place of FAISS, behind one interface.

SQLite stays the truth of texts, metadata, changes and vectors. A database holds, a collection an
index, each passage's vector under its row id, what filters ask of it, and one entry more (row 0)
that says what the collection is and which write it is settled at (``Settled``).

Which backend an index has is in a small file beside its SQLite file; an index without one has its
vectors in FAISS.
"""

import importlib
import json
import logging
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, get_args
from urllib.parse import urlsplit

from condensery.atomic_files import write_atomically
from condensery.errors import (
    CondenseryError,
    InputError,
    SettingError,
    StorageError,
    VectorDatabaseFault,
    VectorDatabaseUnavailable,
    shorten,
)
from condensery.index.filters import Filter
from condensery.index.passages import Rows, Stamp
from condensery.values import Floats, IndexSpec

Backend = Literal["faiss", "qdrant", "milvus"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
# Of each database: its client's module, and the extra that brings it.
_CLIENTS = {"qdrant": "qdrant_client", "milvus": "pymilvus"}

BINDING = "vectors.json"
FORMAT = 1
SETTLED_ROW = 0  # SQLite's first passage is row 1
MAX_REQUEST_BYTES = 4 * 2**20  # of vectors in one request; databases take 32 MiB and more

_log = logging.getLogger(__name__)


class CollectionMissing(Exception):
    """The database has no such collection (any more). Never leaves the index layer."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a collection is made for: features of a vector, and ``ip`` or ``l2``."""

    dims: int
    metric: str


@dataclass(frozen=True, slots=True)
class Settled:
    """What a collection is, and what it is known to hold.

    Attributes:
        encoder: Name of the model whose vectors it holds.
        fingerprint: Of that model.
        sequence: Number of the last write that was settled: applied, with all before it.
        stamp: That write's.
        clean: Nothing was sent since.
    """

    encoder: str
    fingerprint: str
    sequence: int
    stamp: int
    clean: bool
    format: int = FORMAT

    @property
    def write(self) -> Stamp:
        """The stamp of the last write that was settled."""
        return Stamp(self.sequence, self.stamp)

    def to_record(self) -> dict[str, Any]:
        """Return it as databases keep it; the stamp as text: not every number is 64 bits there."""
        return {**asdict(self), "stamp": str(self.stamp)}

    @classmethod
    def from_record(cls, record: object) -> Self | None:
        """Return what a record says; None where it is none of ours."""
        try:
            read = cls(**record)  # type: ignore[arg-type]  # what it is not is a TypeError
            return cls(**{**asdict(read), "stamp": int(read.stamp)})
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Point:
    """A passage as a database holds it: its row, its document's id, and its metadata's values."""

    row: int
    document: str
    values: Sequence[tuple[str, int | float | str | bytes]]  # as ``fields`` has them


class VectorDatabase(Protocol):
    """A client of one database. Any thread may call it; calls block, for a limited time each.

    ``upsert``, ``delete`` and ``settle`` are durable, and seen by later calls, on return. All but
    ``check_spec`` and ``can_filter`` ask the database, and raise VectorDatabaseUnavailable where it
    is down, slow or too busy, StorageFull where it has no space, VectorDatabaseFault where it
    refuses us, and CollectionMissing.

    Attributes:
        backend: Its name, as the setting has it.
        where: Its address, for people.
    """

    backend: Backend
    where: str

    def check_spec(self, spec: IndexSpec) -> None:
        """Refuse what this database can't do of an index.

        Raises:
            InputError: The field, its value, and the database are named.
        """

    def can_filter(self, filter: Filter) -> bool:
        """Return whether ``search`` means by this filter exactly what SQLite does."""

    def describe(self, collection: str) -> Shape | None:
        """Return what a collection is made for; None where there is none."""

    def create(self, collection: str, spec: IndexSpec) -> None:
        """Make a collection, empty."""

    def drop(self, collection: str) -> None:
        """Delete a collection, if there is one."""

    def upsert(
        self,
        collection: str,
        points: Sequence[Point],
        vectors: Floats,
        settled: Settled | None = None,
    ) -> None:
        """Write points with their vectors (points, dims), float32; and ``settled`` with them."""

    def delete(self, collection: str, rows: Sequence[int]) -> None:
        """Delete points, those that are there."""

    def search(
        self,
        collection: str,
        spec: IndexSpec,
        vector: Floats,
        k: int,
        chosen: Filter | Rows | None,
    ) -> tuple[list[int], list[float]]:
        """Return the ``k`` nearest rows, best first, and their scores: more is nearer.

        Args:
            collection: Its name.
            spec: Of the index.
            vector: The query, (dims,), float32.
            k: Most rows.
            chosen: Only these: a filter that it ``can_filter``, or rows, ascending.
        """

    def scroll(self, collection: str) -> Iterator[list[int]]:
        """Yield every row but row 0, in blocks, in no particular order."""

    def count(self, collection: str) -> int:
        """Return how many points there are, row 0 left out."""

    def settled(self, collection: str) -> Settled | None:
        """Return what row 0 says; None where it is not there or is none of ours."""

    def settle(self, collection: str, settled: Settled) -> None:
        """Write row 0."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class DatabaseConfig:
    """Where a database is.

    Attributes:
        backend: Which one.
        url: http or https; or ``file:///path``, where the client's library keeps a small database
            in files of its own (Qdrant's local mode, Milvus Lite).
        key: Its API key or token, if it wants one.
        timeout_seconds: Longest wait for a reply.
        prefix: What collections' names begin with.
    """

    backend: Backend
    url: str
    key: str | None = None
    timeout_seconds: float = 5.0
    prefix: str = "condensery"

    @property
    def path(self) -> Path | None:
        """Of an embedded database; None where it is a server."""
        parts = urlsplit(self.url)
        return Path(parts.path) if parts.scheme == "file" else None


def read_target(text: str, field: str = "--to") -> tuple[Backend, str]:
    """Read where an index's vectors are to be.

    Args:
        text: ``faiss``; ``qdrant://host:port`` or ``milvus://host:port``, ``+https`` after the
            name for TLS; ``qdrant+file:///path`` for an embedded one.
        field: Its name in messages.

    Returns:
        The backend, and the address as ``DatabaseConfig`` has it, empty for FAISS.

    Raises:
        InputError: It is none.
    """
    if text in ("faiss", "faiss:"):
        return "faiss", ""
    parts = urlsplit(text)
    name, _, scheme = parts.scheme.partition("+")
    file = scheme == "file"
    whole = parts.path not in ("", "/") and not parts.netloc if file else bool(parts.hostname)
    if name not in _CLIENTS or scheme not in ("", "http", "https", "file") or not whole:
        raise InputError.at(
            field,
            f"{shorten(text)} is not faiss, qdrant://host:6333 or milvus://host:19530 "
            "(+https after the name for TLS, qdrant+file:///path for an embedded one).",
            text,
        )
    if parts.username is not None or parts.password is not None:
        problem = "holds credentials; the key is CONDENSERY_INDEX_DATABASE_KEY."
        raise InputError.at(field, problem)
    backend: Backend = "qdrant" if name == "qdrant" else "milvus"
    return backend, f"{scheme or 'http'}://{parts.netloc}{parts.path.rstrip('/')}"


def connect(config: DatabaseConfig) -> VectorDatabase:
    """Return a client; of a server nothing is asked yet.

    Raises:
        SettingError: Its package is not installed; or an embedded database can't be opened.
    """
    module = _CLIENTS[config.backend]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise SettingError(
            f"index_backend: {config.backend} needs the package {error.name or module}; "
            f"pip install 'condensery[{config.backend}]'",
            field="index_backend",
            value=config.backend,
        ) from error
    try:
        if config.backend == "qdrant":
            from condensery.index.qdrant import Qdrant

            return Qdrant(config)
        from condensery.index.milvus import Milvus

        return Milvus(config)
    except (VectorDatabaseFault, VectorDatabaseUnavailable) as error:
        raise SettingError(
            f"index_database: {error.message}", field="index_database", value=config.url
        ) from error


# Which index has which


@dataclass(frozen=True, slots=True)
class Binding:
    """Where an index's vectors are: which backend, which collection."""

    backend: Backend
    collection: str


def read_binding(directory: Path) -> Binding | None:
    """Return where the vectors of an index's files are; None is FAISS.

    Raises:
        StorageError: The file is damaged.
        OSError: It can't be read.
    """
    try:
        content = json.loads((directory / BINDING).read_bytes())
        if content.pop("format") != FORMAT:
            raise ValueError
        binding = Binding(**content)
        if binding.backend not in _CLIENTS:
            raise ValueError
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{BINDING} of {directory.name} is damaged, or of a newer version."
        ) from (error)
    return binding


FaultWatcher = Callable[[str | None], None]


class VectorDatabases:
    """What a server's indexes have their vectors in beside FAISS: one database, or none.

    Args:
        config: Where it is; None where every index has FAISS.
        default: What new indexes have.

    Raises:
        SettingError: See ``connect``.
    """

    def __init__(self, config: DatabaseConfig | None = None, default: Backend = "faiss") -> None:
        self.config = config
        self.default: Backend = default
        self._database = None if config is None else connect(config)
        self._faults: dict[str, str] = {}
        self._watchers: list[FaultWatcher] = []
        self._lock = threading.Lock()

    @property
    def timeout_seconds(self) -> float:
        """Longest wait for a reply."""
        return 5.0 if self.config is None else self.config.timeout_seconds

    def check_spec(self, spec: IndexSpec) -> None:
        """Refuse a new index that the default backend can't hold."""
        if self.default != "faiss" and self._database is not None:
            self._database.check_spec(spec)

    def bind(self, directory: Path, name: str, backend: Backend | None = None) -> None:
        """Give a new index's files a collection of its own; of FAISS nothing is written.

        Args:
            directory: Where they are.
            name: The index's.
            backend: None is the default one.
        """
        backend = self.default if backend is None else backend
        if backend == "faiss":
            (directory / BINDING).unlink(missing_ok=True)
            return
        prefix = "condensery" if self.config is None else self.config.prefix
        # Milvus takes letters, digits and underscores
        plain = "".join(c if c.isalnum() else "_" for c in name)
        record = asdict(Binding(backend, f"{prefix}_{plain}_{secrets.token_hex(4)}"))
        write_atomically(directory / BINDING, json.dumps({"format": FORMAT, **record}))

    def open(self, binding: Binding) -> VectorDatabase:
        """Return the client of the database that an index's vectors are in.

        Raises:
            StorageError: None is set, or another.
        """
        if self._database is None or self._database.backend != binding.backend:
            raise StorageError(
                f"its vectors are in {binding.backend}, which is not set: give index_database, "
                f"and index_backend {binding.backend}"
            )
        return self._database

    def forget(self, file: Path) -> bool:
        """Delete the collection that a binding's file names, before the file is deleted.

        Returns:
            Whether it is gone, or is none of the database that is set; else it is logged, and to
            be tried again.
        """
        try:
            binding = read_binding(file.parent)
            if binding is not None:
                self.open(binding).drop(binding.collection)
        except CollectionMissing:
            return True
        except (CondenseryError, OSError) as error:
            reason = error.message if isinstance(error, CondenseryError) else str(error)
            _log.warning(
                "index_collection_left", extra={"folder": file.parent.name, "reason": reason}
            )
            return isinstance(error, StorageError)
        return True

    def remove(self, directory: Path) -> None:
        """Delete index files with their collections.

        Where the database can't be asked they stay, for the next start to try it again.
        """
        gone = [self.forget(file) for file in directory.glob(f"**/{BINDING}")]  # each is tried
        if all(gone):
            shutil.rmtree(directory, ignore_errors=True)

    def note_fault(self, index: str, reason: str | None) -> None:
        """Note why an index's vectors can't be had, or (None) that they can; tell who watches."""
        with self._lock:
            before = self.fault
            if reason is None:
                self._faults.pop(index, None)
            else:
                self._faults[index] = reason
            after = self.fault
            if before != after:
                # under the lock: or the last that a watcher hears is not the latest
                for watcher in self._watchers:
                    watcher(after)

    @property
    def fault(self) -> str | None:
        """Why some index's vectors can't be had; None if all can."""
        for index, reason in sorted(self._faults.items()):
            return f"index {index}: {reason}"
        return None

    def watch(self, watcher: FaultWatcher) -> None:
        """Call ``watcher(fault)`` now and at each change, in whatever thread it is noted."""
        with self._lock:
            self._watchers.append(watcher)
            watcher(self.fault)

    def close(self) -> None:
        """Close the connection."""
        if self._database is not None:
            self._database.close()
