"""How an index gets its FAISS cache back at start: as saved, brought up to date, or built anew."""

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from condensery.errors import StorageError
from condensery.index import kinds, passages
from condensery.index.database import IndexSettings
from condensery.index.vectors import CacheUnusable, VectorCache

# called with an event's name and its fields
Report = Callable[..., None]


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
    connection: sqlite3.Connection, settings: IndexSettings, path: Path, report: Report
) -> Restored:
    """Load the cache at ``path`` and bring it up to date, or build it anew if it can't serve.

    Raises:
        StorageError: SQLite's own content contradicts itself.
        sqlite3.Error: SQLite can't be read.
    """
    try:
        cache, stamp = VectorCache.load(
            path, settings.kind, settings.metric, settings.dims, settings.given
        )
        if not passages.knows_write(connection, stamp):
            raise CacheUnusable("of another history of this index")
        added, removed = _catch_up(connection, settings, cache)
        if cache.needs_training:
            raise CacheUnusable("large enough by now to be trained")
    except CacheUnusable as error:
        cache = build(connection, settings)
        if cache.live or path.exists():
            report("index_cache_rebuilt", reason=str(error), passages=cache.live)
        # a file refused once must not come back when row ids have moved on
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return Restored(cache, saved=0, unsaved=cache.live)
    now = passages.latest_write(connection)
    if stamp != now:
        writes = now.sequence - stamp.sequence
        report("index_cache_caught_up", writes=writes, added=added, removed=removed)
    return Restored(cache, saved=stamp.sequence, unsaved=added + removed)


def build(connection: sqlite3.Connection, settings: IndexSettings) -> VectorCache:
    """Fill a new cache with every vector that SQLite holds."""
    _, expected = passages.count(connection)
    cache = VectorCache(settings.kind, settings.metric, settings.dims, settings.given)
    if cache.trains_at is not None and expected >= cache.trains_at:
        cache = _train(connection, settings, expected)
    for rows, vectors in passages.vector_blocks(connection, settings.dims):
        cache.add(rows, vectors)
    if cache.live != expected:
        raise StorageError(
            f"The index is corrupt: it has {expected} passages, but {cache.live} vectors."
        )
    return cache


def _train(connection: sqlite3.Connection, settings: IndexSettings, count: int) -> VectorCache:
    """Train an empty cache on a sample of the vectors, the same each time."""
    chance = np.random.default_rng(0)
    size = kinds.sample_size(settings.given, count)
    rows = chance.choice(passages.passage_rows(connection), size, replace=False)
    blocks = passages.vector_blocks(connection, settings.dims, np.sort(rows))
    sample = np.concatenate([vectors for _, vectors in blocks])
    return VectorCache.trained(
        settings.kind, settings.metric, settings.dims, settings.given, count, sample
    )


def _catch_up(
    connection: sqlite3.Connection, settings: IndexSettings, cache: VectorCache
) -> tuple[int, int]:
    """Add what SQLite has more, bury what it has no more; returns how many of each.

    By row ids, which never name a second passage. An HNSW cache carries old tombstones, so that
    it may bury some although nothing was written since.
    """
    held, true = cache.rows(), passages.passage_rows(connection)
    missing, extra = np.setdiff1d(true, held), np.setdiff1d(held, true)
    if (np.diff(np.concatenate([held, missing])) <= 0).any():
        raise CacheUnusable("holds a row twice, or out of order")
    for rows, vectors in passages.vector_blocks(connection, settings.dims, missing):
        cache.add(rows, vectors)
    cache.discard(extra.tolist())
    return len(missing), len(extra)
