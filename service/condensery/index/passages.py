"""The statements over an index's SQLite file: documents, passages, vectors and writes."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from condensery.errors import InputError, StorageError, shorten
from condensery.index import bm25, fields
from condensery.values import Document, Floats, Passage

Rows = NDArray[np.int64]
Item = TypeVar("Item")

# Names in one IN (...), under the 999 of old SQLite builds.
_CHUNK = 500
# Vectors read at once when FAISS is filled: 6 MB at 384 dimensions.
_BLOCK = 4096
# Writes remembered for a cache that is behind; one further behind is rebuilt.
_MAX_WRITES = 100_000
_LITTLE_ENDIAN = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Names the state after one write: its number, and a random value."""

    sequence: int
    value: int


def document_rows(connection: sqlite3.Connection, ids: Sequence[str]) -> list[int]:
    """Return the rows of the documents that exist."""
    return [row for chunk in _chunks(ids) for (row,) in _in(connection, _DOCUMENT_ROWS, chunk)]


def remove(connection: sqlite3.Connection, documents: Sequence[int]) -> list[int]:
    """Delete documents by row; returns the rows of their passages."""
    passages = bm25.remove(connection, documents)
    fields.remove(connection, documents)
    for chunk in _chunks(documents):
        _in(connection, "DELETE FROM documents WHERE row IN ({})", chunk)  # cascades
    return passages


def insert(
    connection: sqlite3.Connection,
    documents: Sequence[tuple[Document, str]],
    passages: Sequence[tuple[Passage, str]],
    vectors: Floats,
    rows: Rows,
) -> None:
    """Write documents and passages, each with its metadata as JSON; ``rows`` are the passages'.

    The passages' words and the documents' fields as well.

    Raises:
        InputError: A passage's id belongs to another document already.
    """
    row_of: dict[str, int] = {}
    json_of: dict[str, str] = {}
    for document, metadata in documents:
        cursor = connection.execute(
            "INSERT INTO documents (id, text, metadata) VALUES (?, ?, ?)",
            (document.id, document.text, metadata),
        )
        row_of[document.id] = cursor.lastrowid or 0
        json_of[document.id] = metadata
        fields.insert(connection, row_of[document.id], metadata)
    stored = np.ascontiguousarray(vectors, dtype=_LITTLE_ENDIAN)
    for row, (passage, metadata), vector in zip(rows.tolist(), passages, stored, strict=True):
        differing = None if metadata == json_of[passage.document_id] else metadata
        span, above = (passage.start, passage.end), len(passage.heading)
        try:
            connection.execute(
                "INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?)",
                (row, passage.id, row_of[passage.document_id], *span, differing, above),
            )
        except sqlite3.IntegrityError as error:
            raise InputError.at(
                "passages", f"the id {shorten(passage.id)} belongs to another document.", passage.id
            ) from error
        connection.execute("INSERT INTO vectors VALUES (?, ?)", (row, vector.tobytes()))
    texts = (passage.headed_text for passage, _ in passages)
    bm25.insert(connection, zip(rows.tolist(), texts, strict=True))


def record_write(connection: sqlite3.Connection, oldest: int) -> Stamp:
    """Number this transaction, and forget the writes before number ``oldest``."""
    cursor = connection.execute("INSERT INTO writes (stamp) VALUES (random())")
    sequence = cursor.lastrowid or 0
    oldest = max(oldest, sequence - _MAX_WRITES)
    connection.execute("DELETE FROM writes WHERE sequence < ?", (oldest,))
    return latest_write(connection)


def latest_write(connection: sqlite3.Connection) -> Stamp:
    """Return the stamp of the state that ``connection`` sees."""
    row = connection.execute("SELECT sequence, stamp FROM writes ORDER BY 1 DESC LIMIT 1")
    return Stamp(*row.fetchone())


def knows_write(connection: sqlite3.Connection, stamp: Stamp) -> bool:
    """Tell whether ``stamp`` is a past (or the present) state of this very file."""
    row = connection.execute("SELECT stamp FROM writes WHERE sequence = ?", (stamp.sequence,))
    return bool(row.fetchone() == (stamp.value,))


def fetch(connection: sqlite3.Connection, rows: Sequence[int]) -> dict[int, Passage]:
    """Return the passages that exist, by row."""
    records = [record for chunk in _chunks(rows) for record in _in(connection, _PASSAGES, chunk)]
    # one read a document, however many of its passages were found; cut here, not by SQL's
    # substr, which stops at a NUL character
    texts: dict[int, str] = {}
    for chunk in _chunks(list({record[5] for record in records})):
        texts.update(_in(connection, "SELECT row, text FROM documents WHERE row IN ({})", chunk))
    return {
        row: Passage(
            passage,
            document,
            texts[at][start:end],
            start,
            end,
            json.loads(metadata),
            texts[at][:above],
        )
        for row, passage, document, start, end, at, metadata, above in records
    }


def documents_of(connection: sqlite3.Connection, rows: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return the id, and the metadata as JSON, of the document of each passage there is, by row."""
    return {
        row: (identity, metadata)
        for chunk in _chunks(rows)
        for row, identity, metadata in _in(connection, _DOCUMENTS_OF, chunk)
    }


def fetch_documents(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Document]:
    """Return the documents that exist, by id."""
    return {
        identity: Document(identity, text, json.loads(metadata))
        for chunk in _chunks(ids)
        for identity, text, metadata in _in(connection, _DOCUMENTS, chunk)
    }


def count(connection: sqlite3.Connection) -> tuple[int, int]:
    """Count (documents, passages); reads a whole index of each table."""
    documents = connection.execute("SELECT count(*) FROM documents").fetchone()[0]
    return documents, connection.execute("SELECT count(*) FROM passages").fetchone()[0]


def last_row(connection: sqlite3.Connection) -> int:
    """Return the highest row that a passage ever had, deleted ones included."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'passages'").fetchone()
    return int(row[0]) if row else 0


def passage_rows(connection: sqlite3.Connection) -> Rows:
    """Return every passage's row, in no particular order."""
    cursor = connection.execute("SELECT row FROM passages")
    return np.fromiter((row for (row,) in cursor), dtype=np.int64)


def vector_blocks(
    connection: sqlite3.Connection, dims: int, rows: Rows | None = None
) -> Iterator[tuple[Rows, Floats]]:
    """Yield (rows, vectors) of the given rows, or of all, in blocks."""
    if rows is None:
        cursor = connection.execute("SELECT passage, vector FROM vectors ORDER BY passage")
        while block := cursor.fetchmany(_BLOCK):
            yield _unpack(block, dims)
    else:
        for chunk in _chunks(rows.tolist()):
            yield _unpack(_in(connection, _VECTORS, chunk).fetchall(), dims)


def vectors_after(
    connection: sqlite3.Connection, dims: int, row: int
) -> Iterator[tuple[Rows, Floats]]:
    """Yield (rows, vectors) of all rows over the given one, in blocks, until there are no more.

    A block is a read of its own: what is written meanwhile comes at the end, since row ids only
    grow, and SQLite's log is not kept from being put into the file.
    """
    while block := connection.execute(_AFTER, (row, _BLOCK)).fetchall():
        row = block[-1][0]
        yield _unpack(block, dims)


def score(
    connection: sqlite3.Connection, rows: Sequence[int], vector: Floats, metric: str
) -> tuple[Rows, Floats]:
    """Return those of the rows that exist, in no particular order, and their scores.

    Args:
        connection: What it sees is scored.
        rows: Of passages.
        vector: The query, (dims,).
        metric: ``ip`` or ``l2``; more is nearer.
    """
    stored = [np.empty(0, dtype=np.int64)]
    scores = [np.empty(0, dtype=np.float32)]
    for block, vectors in vector_blocks(connection, len(vector), np.array(rows, dtype=np.int64)):
        stored.append(block)
        scores.append(
            vectors @ vector if metric == "ip" else -((vectors - vector) ** 2).sum(axis=1)
        )
    return np.concatenate(stored), np.concatenate(scores)


_DOCUMENT_ROWS = "SELECT row FROM documents WHERE id IN ({})"
_DOCUMENTS = "SELECT id, text, metadata FROM documents WHERE id IN ({})"
_DOCUMENTS_OF = (
    "SELECT p.row, d.id, d.metadata FROM passages AS p JOIN documents AS d ON d.row = p.document "
    "WHERE p.row IN ({})"
)
_AFTER = "SELECT passage, vector FROM vectors WHERE passage > ? ORDER BY passage LIMIT ?"
_VECTORS = "SELECT passage, vector FROM vectors WHERE passage IN ({}) ORDER BY passage"
_PASSAGES = (
    "SELECT p.row, p.id, d.id, p.start_char, p.end_char, d.row, coalesce(p.metadata, d.metadata), "
    "p.heading_chars FROM passages AS p JOIN documents AS d ON d.row = p.document "
    "WHERE p.row IN ({})"
)


def _unpack(block: Sequence[tuple[int, bytes]], dims: int) -> tuple[Rows, Floats]:
    rows, vectors = zip(*block, strict=True) if block else ((), ())
    sizes = list(map(len, vectors))
    if sizes.count(dims * 4) != len(sizes):
        row, size = next(pair for pair in zip(rows, sizes, strict=True) if pair[1] != dims * 4)
        raise StorageError(
            f"Passage row {row} has a vector of {size} bytes, not {dims * 4}: the index is corrupt."
        )
    joined = np.frombuffer(b"".join(vectors), dtype=_LITTLE_ENDIAN).reshape(len(rows), dims)
    return np.array(rows, dtype=np.int64), joined.astype(np.float32, copy=False)


def _in(
    connection: sqlite3.Connection, statement: str, values: Sequence[int] | Sequence[str]
) -> sqlite3.Cursor:
    return connection.execute(statement.format(", ".join("?" * len(values))), values)


def _chunks(values: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]
