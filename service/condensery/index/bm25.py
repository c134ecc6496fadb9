"""The words of an index's passages, ranked by BM25: an FTS5 table in the index's SQLite file.

It is written in the transaction that writes the passages, so that the two can't differ, and it
keeps no copy of their text, which is why a passage's text is needed to take its words out again.
A word is a run of letters and digits as Unicode has them, without case and, in Latin script,
without diacritics; there is no stemming, which would be right for one language only. Where a
script puts no blanks between words (Chinese, Japanese, Thai), a whole run is one word. Words are
kept as the text has them, and a query's are looked for in both forms that Unicode holds equal, so
that Hangul is found however it is composed: to compose what is kept would make words that older
versions wrote stay for ever, since each is taken out by the text it was taken from.

Source: Robertson & Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009), with
k1 = 1.2 and b = 0.75, as SQLite's ``bm25()`` has it (https://www.sqlite.org/fts5.html#the_bm25_function).
"""

import sqlite3
import unicodedata
from collections.abc import Iterable, Sequence

from condensery.index import fields
from condensery.index.filters import Filter
from condensery.values import put_above

# Words of a query that are looked for: the rarest, which decide; each costs a pass over all the
# passages that have it. They are picked among its first so many different words.
MAX_WORDS = 32
MAX_WORDS_READ = 1000

_TOKENIZER = "unicode61 remove_diacritics 2"

# content = '': postings and lengths only, about as many bytes as the text itself.
_SCHEMA = f"""
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', tokenize = '{_TOKENIZER}');
CREATE VIRTUAL TABLE vocabulary USING fts5vocab (words, row);
"""

# A query is split by the table's own tokenizer, in a table that holds nothing but the query.
_QUERY_TABLE = f"""
CREATE VIRTUAL TABLE IF NOT EXISTS temp.asked
    USING fts5 (text, content = '', tokenize = '{_TOKENIZER}');
CREATE VIRTUAL TABLE IF NOT EXISTS temp.asked_words USING fts5vocab (temp, asked, instance);
"""

# By the function: ORDER BY rank, which is the same figure, sorts every passage that matches and
# takes twice as long.
_SEARCH = """
SELECT rowid, -bm25(words) AS score FROM words WHERE words MATCH ? {condition}
ORDER BY score DESC, rowid LIMIT ?
"""
# The plus keeps SQLite from asking the words for each row that is chosen, one after the other.
_WITHIN = "AND +rowid IN (SELECT row FROM passages WHERE {})"


def create(connection: sqlite3.Connection) -> None:
    """Make the table and fill it with the passages that are there: from format 1 to format 2."""
    _run(connection, _SCHEMA)
    # document by document: one may be long, and have many passages
    for row, text in connection.execute("SELECT row, text FROM documents ORDER BY row"):
        insert(connection, _cut(connection, row, text, "0"))


def insert(connection: sqlite3.Connection, passages: Iterable[tuple[int, str]]) -> None:
    """Add the words of passages, each by its row and its text; fastest by ascending row."""
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", passages)


def remove(connection: sqlite3.Connection, documents: Sequence[int]) -> list[int]:
    """Remove the words of documents' passages; returns the passages' rows.

    Args:
        connection: Inside a transaction; the documents and passages are still there.
        documents: Their rows.
    """
    gone: list[int] = []
    for row in sorted(documents):
        (text,) = connection.execute("SELECT text FROM documents WHERE row = ?", (row,)).fetchone()
        passages = _cut(connection, row, text)
        connection.executemany(
            "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", passages
        )
        gone += [passage for passage, _ in passages]
    return gone


def split(connection: sqlite3.Connection, text: str) -> list[str]:
    """Return a text's different words, as the index has them, in order of appearance.

    Args:
        connection: Outside a transaction.
        text: Anything; it is never read as a query's syntax.
    """
    _run(connection, _QUERY_TABLE)
    connection.execute("BEGIN")
    try:
        connection.execute("INSERT INTO temp.asked (rowid, text) VALUES (1, ?)", (text,))
        rows = connection.execute(
            "SELECT term FROM temp.asked_words GROUP BY term ORDER BY min(offset) LIMIT ?",
            (MAX_WORDS_READ,),
        ).fetchall()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return [word for (word,) in rows]


def search(
    connection: sqlite3.Connection,
    words: Sequence[str],
    passages: int,
    top_k: int,
    filter: Filter | None = None,
) -> list[tuple[int, float]]:
    """Return the passages that have any of the words, best first; of equal ones the older first.

    A word that over half of the passages have would count against them (BM25's idf is negative;
    SQLite takes it for 0.000001), and costs most. It is left out, unless all words are such.

    Args:
        connection: What it sees is searched.
        words: From ``split``.
        passages: How many there are.
        top_k: Most passages to return.
        filter: Those of other documents are left out. How rare a word is, and so the scores, is as
            without it.

    Returns:
        Rows and scores, more is better.
    """
    forms = dict.fromkeys(form for word in words for form in _forms(word))
    known = [(count, word) for word in forms if (count := _count(connection, word))]
    telling = [entry for entry in known if 2 * entry[0] <= passages] or known
    rarest = sorted(telling, key=lambda entry: entry[0])[:MAX_WORDS]
    if not rarest:
        return []
    # letters and digits only, so that there is no quote in a word
    query = " OR ".join(f'"{word}"' for _, word in rarest)
    where, values = ("", []) if filter is None else fields.compile_filter(filter)
    statement = _SEARCH.format(condition=_WITHIN.format(where) if where else "")
    return connection.execute(statement, (query, *values, top_k)).fetchall()


def _forms(word: str) -> tuple[str, ...]:
    """Return a word as it is, composed and decomposed.

    A form that is no word of any text's, as of most scripts' accents, is found nowhere.
    """
    if word.isascii():
        return (word,)
    return (word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD")))


def _count(connection: sqlite3.Connection, word: str) -> int:
    """Return how many passages have a word."""
    row = connection.execute("SELECT doc FROM vocabulary WHERE term = ?", (word,)).fetchone()
    return int(row[0]) if row else 0


def _cut(
    connection: sqlite3.Connection, document: int, text: str, above: str = "heading_chars"
) -> list[tuple[int, str]]:
    """Return a document's passages by row, each as its words were taken: under its heading.

    Args:
        above: How many characters that has: a column from format 6 on.
    """
    spans = connection.execute(
        f"SELECT row, start_char, end_char, {above} FROM passages WHERE document = ? ORDER BY row",
        (document,),
    )
    return [(row, put_above(text[:chars]) + text[start:end]) for row, start, end, chars in spans]


def _run(connection: sqlite3.Connection, statements: str) -> None:
    # not executescript, which would commit what is under way
    for statement in statements.split(";"):
        connection.execute(statement)
