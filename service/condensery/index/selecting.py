"""What filters and pages choose: the statements that read an index's documents by what they are."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from condensery.index import fields, passages
from condensery.index.filters import Filter
from condensery.index.passages import Rows
from condensery.values import Page, StoredDocument, StoredPassage


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A page of documents, by id.

    Attributes:
        filter: Only these; None is all.
        after: Only those whose id comes after this one, by its UTF-8 bytes.
        limit: Most documents.
        max_bytes: Of text, metadata and vectors: a page ends with the document that passes it.
        text: Whether texts are read.
        metadata: Whether metadata is.
        vectors: Whether passages are, with their vectors.
    """

    filter: Filter | None = None
    after: str = ""
    limit: int = 100
    max_bytes: int = 8 * 2**20
    text: bool = True
    metadata: bool = True
    vectors: bool = False


def passage_rows(connection: sqlite3.Connection, filter: Filter) -> Rows:
    """Return the rows of the passages whose documents a filter chooses, ascending."""
    where, values = fields.compile_filter(filter)
    cursor = connection.execute(f"SELECT row FROM passages WHERE {where}", values)
    return np.sort(np.fromiter((row for (row,) in cursor), dtype=np.int64))


def document_rows(connection: sqlite3.Connection, filter: Filter) -> list[int]:
    """Return the rows of the documents that a filter chooses."""
    where, values = fields.compile_filter(filter)
    cursor = connection.execute(f"SELECT DISTINCT document FROM passages WHERE {where}", values)
    return [row for (row,) in cursor]


def count(connection: sqlite3.Connection, filter: Filter) -> tuple[int, int]:
    """Count the (documents, passages) that a filter chooses."""
    where, values = fields.compile_filter(filter)
    statement = f"SELECT count(DISTINCT document), count(*) FROM passages WHERE {where}"
    documents, passage_count = connection.execute(statement, values).fetchone()
    return documents, passage_count


def read_page(connection: sqlite3.Connection, page: PageQuery, dims: int) -> Page:
    """Read documents by id, as far as one page goes."""
    where, values = ("1", []) if page.filter is None else fields.compile_filter(page.filter, "+row")
    columns = ("id", "row", "text" if page.text else "NULL")
    # Within, ids and rows are read from their index alone, as far as the page goes; the plus keeps
    # SQLite from sorting all that is chosen instead.
    statement = (
        f"SELECT {', '.join(columns)}, {'metadata' if page.metadata else 'NULL'} FROM documents "
        f"WHERE row IN (SELECT row FROM documents WHERE id > ? AND {where} ORDER BY id LIMIT ?) "
        "ORDER BY id"
    )
    # one more, to know whether there is more
    cursor = connection.execute(statement, (page.after, *values, page.limit + 1))
    documents: list[StoredDocument] = []
    size = 0
    for identity, row, text, metadata in cursor:
        if len(documents) == page.limit or size > page.max_bytes:
            return Page(documents[-1].id, tuple(documents))
        pieces = tuple(_passages(connection, row, dims)) if page.vectors else None
        size += len(text or "") + len(metadata or "") + 4 * dims * len(pieces or ())
        parsed = None if metadata is None else json.loads(metadata)
        documents.append(StoredDocument(identity, text, parsed, pieces))
    return Page(None, tuple(documents))


def _passages(connection: sqlite3.Connection, document: int, dims: int) -> Iterator[StoredPassage]:
    spans: Sequence[tuple[int, str, int, int]] = connection.execute(
        "SELECT row, id, start_char, end_char FROM passages WHERE document = ? ORDER BY row",
        (document,),
    ).fetchall()
    rows = np.array([row for row, *_ in spans], dtype=np.int64)
    vectors = [
        vector for _, block in passages.vector_blocks(connection, dims, rows) for vector in block
    ]
    for (_, identity, start, end), vector in zip(spans, vectors, strict=True):
        yield StoredPassage(identity, start, end, vector)
