"""Which documents of an index were written since a rebuild began, noted by SQLite itself.

Triggers note the id of each document that is written or deleted, in the transaction that does it,
so that no write can be forgotten, whichever path of the code (or version of it) makes it. All
documents that are there at the beginning are noted too: a rebuild is to work off the notes. A
document has one note, which gets a new number each time that it is written.
"""

import sqlite3

_BEGIN = """
CREATE TABLE rebuild_notes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, document TEXT NOT NULL UNIQUE ON CONFLICT REPLACE
);
CREATE TRIGGER rebuild_written AFTER INSERT ON documents
    BEGIN INSERT INTO rebuild_notes (document) VALUES (NEW.id); END;
CREATE TRIGGER rebuild_altered AFTER UPDATE ON documents
    BEGIN INSERT INTO rebuild_notes (document) VALUES (NEW.id); END;
CREATE TRIGGER rebuild_deleted AFTER DELETE ON documents
    BEGIN INSERT INTO rebuild_notes (document) VALUES (OLD.id); END;
INSERT INTO rebuild_notes (document) SELECT id FROM documents ORDER BY row;
"""
_TRIGGERS = ("rebuild_written", "rebuild_altered", "rebuild_deleted")


def begin(connection: sqlite3.Connection) -> None:
    """Note every document, and from now on each that changes. Inside a transaction."""
    statement = ""
    for line in _BEGIN.splitlines():
        statement += f"{line}\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def begun(connection: sqlite3.Connection) -> bool:
    """Tell whether changes are being noted."""
    tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'rebuild_notes'")
    return tables.fetchone() is not None


def pending(connection: sqlite3.Connection) -> int:
    """Count the notes that are left."""
    return int(connection.execute("SELECT count(*) FROM rebuild_notes").fetchone()[0])


def oldest(connection: sqlite3.Connection, limit: int) -> tuple[int, list[str]]:
    """Return the number of the last of the ``limit`` oldest notes, and their documents' ids."""
    notes = connection.execute(
        "SELECT number, document FROM rebuild_notes ORDER BY number LIMIT ?", (limit,)
    ).fetchall()
    return (notes[-1][0] if notes else 0), [document for _, document in notes]


def forget(connection: sqlite3.Connection, number: int) -> None:
    """Forget the notes up to a number, whose documents are done. Inside a transaction."""
    connection.execute("DELETE FROM rebuild_notes WHERE number <= ?", (number,))


def end(connection: sqlite3.Connection) -> None:
    """Note no more, and forget all; does nothing where nothing was begun."""
    for trigger in _TRIGGERS:
        connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
    connection.execute("DROP TABLE IF EXISTS rebuild_notes")
