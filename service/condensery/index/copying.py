"""An index copied to another place for its vectors: into a database, out of one, or to another one.

``<data-dir>/copies/<new>/`` holds what is made until it is whole: SQLite's file, and which
collection. A run that was cut short leaves it there, and the next one sends what that lacks; so
most can be sent ahead, while a server goes on writing, and the rest once it is stopped.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from condensery.errors import CondenseryError, IndexNotFound, InputError, VectorDatabaseUnavailable
from condensery.index import changes, checks, database, generations, passages
from condensery.index.database import storage_errors
from condensery.index.index import DATABASE, Index
from condensery.index.remote_vectors import RemoteVectors
from condensery.index.store import INDEXES, IndexStore
from condensery.index.vector_database import Backend, VectorDatabases, read_binding
from condensery.values import Floats, IndexSpec

COPIES = "copies"
TOP_K = 10
LEAST_RECALL = 0.99
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 30.0  # with a database that is down and gets nothing done
_NOISE = 0.1  # of a query, as a share of the vector that it is made of

Progress = Callable[[int, int], None]


class CopyDiffers(CondenseryError):
    """A copy is not what it was made of; it is not put in place."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied, and how it was compared.

    Attributes:
        name: Of the copy.
        backend: Where its vectors are.
        collection: Their name there; None in FAISS.
        documents: How many there are.
        passages: How many there are, in SQLite and among the vectors.
        sent: Passages that this run sent.
        queries: How many were tried.
        recall: Share of the true nearest ten that they found.
        placed: Whether it is among the indexes now.
    """

    name: str
    backend: Backend
    collection: str | None
    documents: int
    passages: int
    sent: int
    queries: int
    recall: float
    placed: bool


def copy_index(
    data_dir: Path,
    name: str,
    new: str,
    databases: VectorDatabases,
    *,
    ahead: bool = False,
    queries: int = 200,
    progress: Progress = lambda _done, _total: None,
) -> Copied:
    """Make an index of another one's documents, its vectors where ``databases`` has new ones.

    Args:
        data_dir: Of both.
        name: The index, or an alias of it.
        new: The copy's name.
        databases: Where the copy's vectors go, by its ``default``.
        ahead: Send what there is now, beside a server that goes on; put nothing in place.
        queries: How many to compare by, of vectors drawn from the index.
        progress: Called with passages sent, and how many there are to send.

    Raises:
        DataDirTaken: A server holds the directory, and it is not ``ahead``.
        IndexNotFound, NameTaken, IndexExists, LimitReached: As the message says.
        InputError: A malformed name; or what the database can't do of such an index.
        VectorDatabaseUnavailable, VectorDatabaseFault, StorageFull: The database failed; a later
            run goes on from there.
        CopyDiffers: Counts differ, or under 99 in 100 of the nearest were found.
    """
    checks.check_new_name(new, "new")
    if ahead:
        return _copy(_find_beside(data_dir, name, new), data_dir, new, databases, queries, progress)
    with IndexStore(data_dir, databases=databases) as store:
        store.names.check_free(new)
        end = store.names.resolve(name)
        if not store.names.holds(end):
            store.find(end)  # raises
        # the files are enough: an index in a database that is not set is broken to this store
        source = generations.current(store.folder(end))
        copied = _copy(source, data_dir, new, databases, queries, progress)
        store.adopt(new, data_dir / COPIES / new)
        return replace(copied, placed=True)


def _find_beside(data_dir: Path, name: str, new: str) -> Path:
    """Return the files of an index of a server that runs; of aliases it alone knows the truth."""
    checks.check_name(name)
    folder = data_dir / INDEXES / name
    if not folder.is_dir():
        raise IndexNotFound(f"There is no index {name!r} in {data_dir}.", field="name", value=name)
    if (data_dir / INDEXES / new).exists():
        raise InputError.at("new", f"there is an index {new!r} already.", new)
    with storage_errors(folder):
        return generations.current(folder)


def _copy(
    source: Path,
    data_dir: Path,
    new: str,
    databases: VectorDatabases,
    queries: int,
    progress: Progress,
) -> Copied:
    folder = data_dir / COPIES / new
    with storage_errors(folder):
        spec = _take_file(source, folder)
        databases.check_spec(spec)
        binding = read_binding(folder)
        if (binding.backend if binding else "faiss") != databases.default:
            databases.bind(folder, new)
            binding = read_binding(folder)
    with closing(Index(new, folder, databases=databases)) as index:
        sent = _wait(index, progress)
        documents, pieces = index.count()
        vectors = index._vector_index
        held = pieces
        if isinstance(vectors, RemoteVectors):
            held = vectors.database.count(vectors.collection)
        if held != pieces:
            raise CopyDiffers(f"{new}: {pieces} passages, but {held} vectors in the database.")
        tried, recall = _compare(index, folder / DATABASE, queries)
    if recall < LEAST_RECALL:
        raise CopyDiffers(
            f"{new}: {tried} queries found {recall:.4f} of the nearest {TOP_K}, under "
            f"{LEAST_RECALL}. It stays in {COPIES}/{new}."
        )
    return Copied(
        name=new,
        backend=databases.default,
        collection=binding.collection if binding else None,
        documents=documents,
        passages=pieces,
        sent=sent,
        queries=tried,
        recall=recall,
        placed=False,
    )


def _take_file(source: Path, folder: Path) -> IndexSpec:
    """Copy SQLite's file as it is now, in the place of the one of a run before."""
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)
    fresh = folder / "fresh.sqlite3"
    fresh.unlink(missing_ok=True)
    with closing(database.open_reader(source / DATABASE)) as reader:
        reader.execute("VACUUM INTO ?", (str(fresh),))
    with closing(database.open_writer(fresh)) as writer:
        with database.transaction(writer):
            changes.end(writer)  # a rebuild's notes are of the index itself
        spec = database.read_spec(writer)
    for leftover in folder.glob(f"{DATABASE}-*"):
        leftover.unlink()
    fresh.replace(folder / DATABASE)
    return spec


def _wait(index: Index, progress: Progress) -> int:
    """Wait until all is sent; returns how much that was."""
    vectors = index._vector_index
    if not isinstance(vectors, RemoteVectors):
        return index.count()[1]
    sent, progressed = vectors.sent, time.monotonic()
    while True:
        try:
            vectors.wait_until_agreed(POLL_SECONDS)
        except VectorDatabaseUnavailable:
            if vectors.sent > sent:
                sent, progressed = vectors.sent, time.monotonic()
            if time.monotonic() - progressed > PATIENCE_SECONDS:
                raise
            time.sleep(POLL_SECONDS)
        else:
            return vectors.sent
        finally:
            progress(*vectors.progress)


def _compare(index: Index, file: Path, queries: int) -> tuple[int, float]:
    """Ask an index for what is near to some of its vectors.

    Returns:
        How many queries; and the share that it found of the true nearest ten, by brute force over
        the vectors that SQLite holds. One as near as the tenth is as good.
    """
    spec = index.spec
    chance = np.random.default_rng(0)
    with closing(database.open_reader(file)) as reader:
        rows = passages.passage_rows(reader)
        if not len(rows) or not queries:
            return 0, 1.0
        drawn = np.sort(chance.choice(rows, min(queries, len(rows)), replace=False))
        asked = np.concatenate(
            [vectors for _, vectors in passages.vector_blocks(reader, spec.dims, drawn)]
        )
        scale = np.linalg.norm(asked, axis=1, keepdims=True) / np.sqrt(spec.dims)
        asked += (_NOISE * scale * chance.standard_normal(asked.shape)).astype(np.float32)
        k = min(TOP_K, len(rows))
        best = np.full((len(asked), k), -np.inf, dtype=np.float32)
        for _, vectors in passages.vector_blocks(reader, spec.dims):
            both = np.concatenate([best, _score(asked, vectors, spec.metric)], axis=1)
            best = -np.partition(-both, k - 1, axis=1)[:, :k]
    tenth = best.min(axis=1)
    found = 0
    for vector, least in zip(asked, tenth, strict=True):
        margin = 1e-4 * max(1.0, abs(float(least)))
        hits = index.query(vector, top_k=k)
        found += sum(hit.score >= least - margin for hit in hits)
    return len(asked), found / (k * len(asked))


def _score(asked: Floats, vectors: Floats, metric: str) -> Floats:
    """Return scores (queries, vectors), where more is nearer."""
    products: Floats = asked @ vectors.T
    if metric == "ip":
        return products
    squares = (asked**2).sum(axis=1)[:, None] + (vectors**2).sum(axis=1)[None, :]
    distances: Floats = squares - 2 * products
    return -distances
