"""The values in documents' metadata, kept so that filters find documents without reading them all.

One row a value: its path, the value, the document. It is written in the transaction that writes the
document. ``compile_filter`` makes SQL of a filter; what a user wrote is in its parameters, never in
its text.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence

from condensery.index.filters import Condition, Filter, HasId, Match, Range, Scalar, entries

# Texts longer than this are kept as a hash: they are only ever compared for being equal.
MAX_TEXT_BYTES = 64

# No type, so that SQLite keeps numbers and texts apart. The key is the table: rows of one path lie
# together, ordered by value. No foreign key, whose cascade would need a second index.
_SCHEMA = """
CREATE TABLE fields (
    path TEXT NOT NULL,
    value NOT NULL,
    document INTEGER NOT NULL,
    PRIMARY KEY (path, value, document)
) WITHOUT ROWID
"""

_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

# As SQLite stores a value: numbers, then texts, then blobs; none equals one of another class.
Stored = int | float | str | bytes


def create(connection: sqlite3.Connection) -> None:
    """Make the table and fill it with the documents that are there: from format 2 to format 3."""
    connection.execute(_SCHEMA)
    for row, metadata in connection.execute("SELECT row, metadata FROM documents ORDER BY row"):
        insert(connection, row, metadata)


def insert(connection: sqlite3.Connection, document: int, metadata: str) -> None:
    """Add a document's values, by its row and its metadata as JSON."""
    connection.executemany(
        "INSERT OR IGNORE INTO fields VALUES (?, ?, ?)", _rows(document, metadata)
    )


def remove(connection: sqlite3.Connection, documents: Sequence[int]) -> None:
    """Remove documents' values, by their rows, before the documents themselves."""
    for row in documents:
        (metadata,) = connection.execute(
            "SELECT metadata FROM documents WHERE row = ?", (row,)
        ).fetchone()
        connection.executemany(
            "DELETE FROM fields WHERE path = ? AND value = ? AND document = ?",
            _rows(row, metadata),
        )


def compile_filter(condition: Condition, column: str = "document") -> tuple[str, list[Stored]]:
    """Return an SQL expression over a column of documents' rows, and its parameters in order."""
    if isinstance(condition, Filter):
        return _compile_group(condition, column)
    if isinstance(condition, HasId):
        marks = _marks(condition.ids)
        return f"{column} IN (SELECT row FROM documents WHERE id IN ({marks}))", [*condition.ids]
    tests, values = _compile_range(condition) if isinstance(condition, Range) else _in(condition)
    where = " AND ".join(["path = ?", *tests])
    return f"{column} IN (SELECT document FROM fields WHERE {where})", [condition.path, *values]


def _compile_group(group: Filter, column: str) -> tuple[str, list[Stored]]:
    terms: list[str] = []
    values: list[Stored] = []
    for conditions, joint, negated in (
        (group.must, " AND ", False),
        (group.should, " OR ", False),
        (group.must_not, " OR ", True),
    ):
        compiled = [compile_filter(condition, column) for condition in conditions]
        if compiled:
            text = f"({joint.join(part for part, _ in compiled)})"
            terms.append(f"NOT {text}" if negated else text)
            values += [value for _, some in compiled for value in some]
    return (f"({' AND '.join(terms)})" if terms else "1"), values


def _compile_range(condition: Range) -> tuple[list[str], list[Stored]]:
    tests = [f"value {_OPERATORS[name]} ?" for name, _ in condition.bounds]
    # Texts come after all numbers.
    return [*tests, "value < ''"], [store(bound) for _, bound in condition.bounds]


def _in(condition: Match) -> tuple[list[str], list[Stored]]:
    values = [store(value) for value in condition.values]
    among = "NOT IN" if condition.negated else "IN"
    return [f"value {among} ({_marks(values)})"], values


def store(value: Scalar) -> Stored:
    """Return a value as the table holds it.

    Truth values are blobs, so that they are no numbers. Whole numbers of over 64 bits are the
    nearest double, or infinite past it.
    """
    if isinstance(value, bool):
        return b"\1" if value else b"\0"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if isinstance(value, str):
        written = value.encode()
        return value if len(written) <= MAX_TEXT_BYTES else hashlib.sha256(written).digest()
    return value


def values_of(metadata: str) -> Iterator[tuple[str, Stored]]:
    """Yield each value of a document's metadata, JSON, with its path, as the table holds them."""
    for path, value in entries(json.loads(metadata)):
        yield path, store(value)


def _rows(document: int, metadata: str) -> Iterator[tuple[str, Stored, int]]:
    for path, value in values_of(metadata):
        yield path, value, document


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
