"""The FAISS cache of an index that is opened, or made anew: from its file, or from SQLite."""

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from condensery.errors import StorageError
from condensery.index import kinds, passages
from condensery.index.cache_file import CacheUnusable
from condensery.index.passages import Rows
from condensery.index.vectors import VectorCache
from condensery.values import IndexSpec

# Called with an event's name and its fields.
Report = Callable[..., None]

# Of how many passages a graph is built before an index is opened: some seconds of work.
_BUILT_AT_ONCE = 5_000
# Bytes of a cache file over which its vectors are searched in it while they are read.
_READ_AT_ONCE = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Restored:
    """A cache that agrees with SQLite.

    ``saved`` is the number of the write that its file holds, 0 without a file; ``unsaved`` counts
    the passages in which it is ahead of the file.
    """

    cache: VectorCache
    saved: int
    unsaved: int


def restore(
    connection: sqlite3.Connection, spec: IndexSpec, path: Path, report: Report, count: int
) -> Restored:
    """Load the cache at ``path`` and bring it up to date, or build it anew if it can't serve.

    Args:
        count: Passages that SQLite has, which takes long to find out.

    Raises:
        StorageError: SQLite's own content contradicts itself.
        sqlite3.Error: SQLite can't be read.
    """
    now = passages.latest_write(connection)
    try:
        cache, stamp = VectorCache.load(path, spec.kind, spec.metric, spec.dims, spec.options)
        if not passages.knows_write(connection, stamp):
            raise CacheUnusable("of another history of this index")
        if cache.mapped and path.stat().st_size <= _READ_AT_ONCE:
            cache.take(cache.in_memory())
        if stamp == now and cache.live == count:
            return Restored(cache, saved=stamp.sequence, unsaved=0)
        added, removed = _catch_up(connection, spec, cache)
    except CacheUnusable as error:
        cache = build(connection, spec, count)
        if cache.live or path.exists():
            report("index_cache_rebuilt", reason=str(error), passages=cache.live)
        # a file refused once must not come back when row ids have moved on
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return Restored(cache, saved=0, unsaved=cache.live)
    if stamp != now:
        writes = now.sequence - stamp.sequence
        report("index_cache_caught_up", writes=writes, added=added, removed=removed)
    return Restored(cache, saved=stamp.sequence, unsaved=added + removed)


def build(connection: sqlite3.Connection, spec: IndexSpec, count: int) -> VectorCache:
    """Fill a new cache with every vector that SQLite holds: a flat one, if another takes long."""
    later = spec.kind == "hnsw" and count > _BUILT_AT_ONCE
    make = VectorCache.standing_in if later else VectorCache
    cache = make(spec.kind, spec.metric, spec.dims, spec.options)
    for rows, vectors in passages.vector_blocks(connection, spec.dims):
        cache.add(rows, vectors)
    check_count(cache, count)
    return cache


def check_count(cache: VectorCache, expected: int) -> None:
    """Raise StorageError where a cache has not as many vectors as SQLite passages."""
    if cache.live != expected:
        raise StorageError(
            f"The index is corrupt: it has {expected} passages, but {cache.live} vectors."
        )


def begin_cache(connection: sqlite3.Connection, spec: IndexSpec) -> VectorCache:
    """Return an empty cache of the index's kind, trained where that is due."""
    cache = VectorCache(spec.kind, spec.metric, spec.dims, spec.options)
    if cache.trains_at is not None:
        rows = passages.passage_rows(connection)
        if len(rows) >= cache.trains_at:
            return _train(connection, spec, rows)
    return cache


def _train(connection: sqlite3.Connection, spec: IndexSpec, rows: Rows) -> VectorCache:
    """Train an empty cache on a sample of the rows' vectors, the same each time.

    Rows may be deleted meanwhile: how many there are is counted once.
    """
    options, count = spec.options or {}, len(rows)
    size = kinds.sample_size(options, count)
    chosen = np.random.default_rng(0).choice(rows, size, replace=False)
    blocks = passages.vector_blocks(connection, spec.dims, np.sort(chosen))
    sample = np.concatenate([vectors for _, vectors in blocks])
    return VectorCache.trained(spec.kind, spec.metric, spec.dims, options, count, sample)


def _catch_up(
    connection: sqlite3.Connection, spec: IndexSpec, cache: VectorCache
) -> tuple[int, int]:
    """Add what SQLite has more, bury what it has no more; returns how many of each.

    By row ids, which never name a second passage.
    """
    cached, stored = cache.rows(), passages.passage_rows(connection)
    missing, extra = np.setdiff1d(stored, cached), np.setdiff1d(cache.living(), stored)
    if (np.diff(np.concatenate([cached, missing])) <= 0).any():
        raise CacheUnusable("holds a row twice, or out of order")
    if len(missing) and cache.mapped:
        cache.take(cache.in_memory())
    for rows, vectors in passages.vector_blocks(connection, spec.dims, missing):
        cache.add(rows, vectors)
    cache.discard(extra.tolist())
    return len(missing), len(extra)
