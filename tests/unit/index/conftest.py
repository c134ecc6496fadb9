"""Helpers of the index's tests: made-up documents, brute force, and a watched disk.

``Disk`` puts itself between SQLite and the operating system by wrapping the default VFS's xOpen,
xWrite and xSync (https://www.sqlite.org/c3ref/io_methods.html). So a test sees each sync where it
happens, keeps what a power cut would leave, and can let any write or sync fail.
"""

import _sqlite3
import contextlib
import ctypes
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery.index import fields, generations
from condensery.index.remote_vectors import RemoteVectors
from condensery.index.store import IndexStore
from condensery.index.vector_database import DatabaseConfig, VectorDatabases
from condensery.values import Document, Floats, Hit, IndexSpec, Passage

DIMS = 8
FINGERPRINT = "sha256:one"
SETTINGS: dict[str, Any] = {
    "encoder": "test-encoder",
    "fingerprint": FINGERPRINT,
    "dims": DIMS,
    "metric": "ip",
    "kind": "flat",
}


def make_vectors(rows: int, seed: int = 0) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((rows, DIMS)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@dataclass
class Batch:
    """Documents of two passages each, with a vector for each passage."""

    documents: list[Document]
    passages: list[Passage]
    vectors: Floats

    def upsert(self, store: IndexStore, name: str = "kb") -> None:
        store.upsert(name, self.documents, self.passages, self.vectors, fingerprint=FINGERPRINT)


def make_batch(ids: Sequence[str], seed: int = 0, tag: str = "") -> Batch:
    documents, passages = [], []
    for identity in ids:
        first, second = f"First of {identity}{tag}.", f"Second of {identity}{tag}."
        text = f"{first} {second}"
        documents.append(Document(identity, text, {"tag": tag}))
        spans = ((0, len(first)), (len(first) + 1, len(text)))
        passages += [
            Passage(
                f"{identity}#{n}", identity, text[start:end], start, end, {"n": n}, text[: 3 * n]
            )
            for n, (start, end) in enumerate(spans)
        ]
    return Batch(documents, passages, make_vectors(len(passages), seed))


def database_of(data_dir: Path, name: str = "kb") -> Path:
    return generations.current(data_dir / "indexes" / name) / "index.sqlite3"


def to_format_4(file: Path) -> None:
    """Make a closed index's file one of a version that did not keep prompts."""
    connection = sqlite3.connect(file, isolation_level=None)
    for column in ("query_prompt", "passage_prompt"):
        connection.execute(f"ALTER TABLE settings DROP COLUMN {column}")
    connection.execute("ALTER TABLE passages DROP COLUMN heading_chars")
    connection.execute("PRAGMA user_version = 4")
    connection.close()


def read_truth(data_dir: Path, name: str = "kb") -> dict[str, Floats]:
    """Every passage's vector, by id, straight from SQLite."""
    connection = sqlite3.connect(database_of(data_dir, name))
    rows = connection.execute("SELECT id, vector FROM passages JOIN vectors ON passage = row")
    truth = {identity: np.frombuffer(vector, dtype=np.float32) for identity, vector in rows}
    connection.close()
    return truth


def score_truth(truth: dict[str, Floats], vector: Floats, metric: str = "ip") -> dict[str, float]:
    """Brute force in numpy over what SQLite holds: every passage's score."""
    if not truth:
        return {}
    matrix = np.stack(list(truth.values())).astype(np.float64)
    scores = matrix @ vector if metric == "ip" else -((matrix - vector) ** 2).sum(axis=1)
    return dict(zip(truth, scores.tolist(), strict=True))


def assert_agrees(store: IndexStore, data_dir: Path, name: str = "kb", queries: int = 5) -> None:
    """SQLite and what finds vectors hold the same: all is found, with brute force's scores."""
    truth = read_truth(data_dir, name)
    metric = store.info(name).metric
    assert store.count(name)[1] == count_vectors(store, name) == len(truth)
    for vector in make_vectors(queries, seed=99):
        # more than there are, so that a vector left behind in FAISS would show as well
        top_k = len(truth) + 10
        hits = store.query(name, vector, top_k=top_k)
        assert_best_hits(hits, score_truth(truth, vector, metric), top_k)
    assert_words_agree(data_dir, name)
    assert_fields_agree(data_dir, name)


def count_vectors(store: IndexStore, name: str = "kb") -> int:
    """How many vectors searches can meet; of a database, once it has deleted what it is to."""
    found = store.find(name)._vector_index
    if not isinstance(found, RemoteVectors):
        return found.cache.live
    found.wait_until_agreed(30)
    wait_until(lambda: found.status.tombstones == 0)
    return found.database.count(found.collection)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_fields_agree(data_dir: Path, name: str = "kb") -> None:
    """What filters ask is what the documents' metadata says, and of no other document."""
    connection = sqlite3.connect(database_of(data_dir, name))
    held = connection.execute("SELECT path, value, document FROM fields").fetchall()
    fresh = sqlite3.connect(":memory:")
    fresh.execute("CREATE TABLE documents (row INTEGER PRIMARY KEY, metadata TEXT)")
    fields.create(fresh)
    for row, metadata in connection.execute("SELECT row, metadata FROM documents"):
        fields.insert(fresh, row, metadata)
    connection.close()
    assert sorted(map(repr, held)) == sorted(map(repr, fresh.execute("SELECT * FROM fields")))
    fresh.close()


def assert_words_agree(data_dir: Path, name: str = "kb") -> None:
    """The words are those of the passages there are, each in its place, and of no other."""
    connection = sqlite3.connect(database_of(data_dir, name))
    texts = {
        row: f"{text[:heading]}\n\n{text[start:end]}"
        for row, text, start, end, heading in connection.execute(
            "SELECT p.row, text, start_char, end_char, heading_chars FROM passages AS p "
            "JOIN documents AS d ON d.row = document"
        )
    }
    fresh = sqlite3.connect(":memory:")
    fresh.execute(
        "CREATE VIRTUAL TABLE words USING fts5 "
        "(text, content = '', tokenize = 'unicode61 remove_diacritics 2')"
    )
    fresh.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", sorted(texts.items()))
    places, lengths = [], []
    for database in (connection, fresh):
        database.execute("CREATE VIRTUAL TABLE temp.places USING fts5vocab (main, words, instance)")
        places.append(sorted(database.execute("SELECT term, doc, offset FROM temp.places")))
        lengths.append(sorted(database.execute("SELECT id, sz FROM words_docsize")))
        database.close()
    assert places[0] == places[1]
    assert lengths[0] == lengths[1]


def assert_best_hits(hits: Sequence[Hit], scores: dict[str, float], top_k: int) -> None:
    """The hits are the best, each with its own score; those within rounding may swap places."""
    ids = [hit.passage.id for hit in hits]
    assert len(set(ids)) == len(ids) == min(top_k, len(scores))
    close = {"rtol": 1e-5, "atol": 1e-6}
    got = [hit.score for hit in hits]
    np.testing.assert_allclose(got, [scores[identity] for identity in ids], **close)
    np.testing.assert_allclose(got, sorted(scores.values(), reverse=True)[:top_k], **close)


def open_store(data_dir: Path, **options: Any) -> IndexStore:
    return IndexStore(data_dir, **options)


# FAISS; Qdrant's REST, before its client's local mode in memory; that mode in files, which syncs
# each point and so is for few; Milvus Lite.
BACKENDS = ("faiss", "qdrant", "milvus")
FILES = "qdrant-files"
# For modules whose tests are of every backend; for others what opens a store has FAISS.
every_backend = pytest.mark.parametrize("backend", BACKENDS, indirect=True)

OpenDatabases = Callable[..., VectorDatabases | None]


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "faiss")


@pytest.fixture(scope="module")
def open_databases(
    backend: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenDatabases]:
    """What a store is given to have its vectors in the backend; a new client each call.

    An embedded database takes one client at a time: stores that are open at once name their own.
    """
    with contextlib.ExitStack() as stack:
        if backend == "faiss":
            yield lambda _name="": None
            return
        name = "qdrant" if backend.startswith("qdrant") else "milvus"
        pytest.importorskip("qdrant_client" if name == "qdrant" else "milvus_lite")
        if backend == "qdrant":
            from qdrant_server import serving_qdrant

            url = stack.enter_context(serving_qdrant()).url
        else:
            url = tmp_path_factory.mktemp(name).as_uri() + "/vectors{}.db"

        def open_one(which: str = "") -> VectorDatabases:
            config = DatabaseConfig(name, url.format(which), timeout_seconds=30)
            return VectorDatabases(config, name)

        yield open_one


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    return [
        (record.getMessage(), getattr(record, "reason", None))
        for record in caplog.records
        if record.name.startswith("condensery.index")
    ]


class _Vfs(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("max_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
    ]


class _Methods(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("close", "read", "write", "truncate", "sync")),
        ("others", ctypes.c_void_p * 13),
    ]


_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_WRITE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)

Refusal = Callable[[str, Path], int]


@dataclass
class Disk:
    """What SQLite asks of the disk, for files opened while it watches.

    ``synced`` lists the files synced, in order. ``refuse(operation, path)`` is asked before each
    "write" and "sync" and returns the SQLite code to fail with, or 0.
    """

    root: Path
    mirror: Path
    synced: list[Path] = field(default_factory=list)
    refuse: Refusal = lambda operation, path: 0

    def keep_all(self) -> None:
        """Take everything under ``root`` for synced, from here on."""
        shutil.rmtree(self.mirror, ignore_errors=True)
        shutil.copytree(self.root, self.mirror, ignore=shutil.ignore_patterns("*-shm"))

    def after_power_cut(self, to: Path) -> Path:
        """What is left when nothing that was not synced has reached the disk."""
        shutil.rmtree(to, ignore_errors=True)
        return shutil.copytree(self.mirror, to)

    def on_sync(self, path: Path) -> None:
        self.synced.append(path)
        if self.mirror.exists() and path.is_relative_to(self.root):
            kept = self.mirror / path.relative_to(self.root)
            if kept.parent.exists():
                shutil.copyfile(path, kept)

    def watch(self) -> Iterator["Disk"]:
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        vfs = library.sqlite3_vfs_find(None).contents
        original = vfs.open
        call_original = _OPEN(original)
        keep: list[object] = []  # what C points at must not be collected

        def wrap(file: int, path: Path) -> None:
            methods = _Methods.from_address(ctypes.c_void_p.from_address(file).value or 0)
            real_write, real_sync = _WRITE(methods.write), _SYNC(methods.sync)

            def write(this: int, data: int, amount: int, offset: int) -> int:
                return self.refuse("write", path) or real_write(this, data, amount, offset)

            def sync(this: int, flags: int) -> int:
                code = self.refuse("sync", path) or real_sync(this, flags)
                if code == 0:
                    self.on_sync(path)
                return code

            ours = _Methods.from_buffer_copy(methods)
            callbacks = _WRITE(write), _SYNC(sync)
            ours.write, ours.sync = (
                ctypes.cast(callback, ctypes.c_void_p) for callback in callbacks
            )
            keep.extend((ours, *callbacks))
            ctypes.c_void_p.from_address(file).value = ctypes.addressof(ours)

        def open_file(this: int, name: int, file: int, flags: int, out: int) -> int:
            code: int = call_original(this, name, file, flags, out)
            if code == 0 and name:
                wrap(file, Path(ctypes.string_at(name).decode()))
            return code

        callback = _OPEN(open_file)
        vfs.open = ctypes.cast(callback, ctypes.c_void_p).value
        try:
            yield self
        finally:
            vfs.open = original
            # files still open go on calling ours: keep them for good
            _FOREVER.extend((*keep, callback))


_FOREVER: list[object] = []


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def disk(data_dir: Path, tmp_path: Path) -> Iterator[Disk]:
    yield from Disk(data_dir, tmp_path / "mirror").watch()


@pytest.fixture
def store(data_dir: Path, open_databases: OpenDatabases) -> Iterator[IndexStore]:
    """A store with one empty index, kb."""
    with IndexStore(data_dir, databases=open_databases()) as index_store:
        index_store.create("kb", IndexSpec(**SETTINGS))
        yield index_store
