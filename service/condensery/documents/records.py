"""Documents that a file holds one by one: JSON lines, a JSON list, a table, paragraphs of text.

Lines are read as they are needed, so that a file may be longer than the memory; a line may not.
"""

import codecs
import csv
import gzip
import itertools
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from condensery.errors import InputError, shorten
from condensery.values import Document

FileFormat = Literal["jsonl", "text"]
JSON_SUFFIXES = (".jsonl", ".ndjson")
STDIN = "-"

MAX_LINE_BYTES = 64 * 2**20  # a request to a server holds less
# What is packed may unfold to so many bytes, and over that to so many times its own: text does to
# three to ten times, a few hundred thousand bytes of nothing to a thousand.
UNPACKED_BYTES, UNPACKED_TIMES = 64 * 2**20, 100
DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, without its end."""

    source: str
    number: int
    text: str
    end: int  # bytes read so far

    def fail(self, problem: str) -> InputError:
        """Return the error that says what is wrong with this line."""
        return InputError(f"{self.source}, line {self.number}: {problem}")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which fields of a record, or columns of a table, are a document's id and its text.

    Attributes:
        id: None is ``id``, else ``_id``; a table may have neither.
        text: Several are joined, a line each; none is ``text``.
    """

    id: str | None = None
    text: tuple[str, ...] = ()


class NoRecords(InputError):
    """A JSON file that holds something else than a list of documents."""


@contextmanager
def open_lines(path: str) -> Iterator[Iterator[Line]]:
    """Read a UTF-8 file, or standard input, line by line.

    Raises:
        InputError: The file can't be read; on iteration, a line is not UTF-8.
    """
    if path == STDIN:
        yield read_lines(sys.stdin.buffer, "standard input")
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
        yield read_lines(file, path)


@contextmanager
def open_documents(
    path: str, form: FileFormat | None, *, stdin_prefix: str = "stdin"
) -> Iterator[Iterator[tuple[Document, int]]]:
    """Read a file's documents, each with the bytes read so far.

    Args:
        stdin_prefix: Of the ids of paragraphs from standard input; a file's is its name.

    Raises:
        InputError: The file is empty, or can't be read; on iteration, a line is no document.
    """
    with open_lines(path) as lines:
        first = next(lines, None)
        if first is None:
            raise InputError(f"{'standard input' if path == STDIN else path}: is empty")
        prefix = stdin_prefix if path == STDIN else Path(path).stem
        form = form or guess_format(path, first)
        yield parse_documents(itertools.chain([first], lines), form, prefix)


def read_text(argument: str) -> str:
    """Return a text of the command line; ``-`` stands for all of standard input.

    Raises:
        InputError: Standard input is empty, not UTF-8, or was read already.
    """
    if argument != STDIN:
        return argument
    with open_lines(STDIN) as lines:
        text = "\n".join(line.text for line in lines).strip()
    if not text:
        raise InputError("standard input: is empty, or was read already")
    return text


def read_texts(path: str, form: FileFormat | None) -> list[str]:
    """Return a file's texts: of JSON lines each one's, of plain text its lines.

    Raises:
        InputError: The file can't be read, or a line of JSON holds no text.
    """
    with open_lines(path) as lines:
        first = next(lines, None)
        if first is None:
            return []
        form = form or guess_format(path, first)
        whole = itertools.chain([first], lines)
        if form == "text":
            return [line.text for line in whole]
        return [_read_json_text(line) for line in whole if line.text.strip()]


def _read_json_text(line: Line) -> str:
    entry = _read_json(line)
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        raise line.fail(f"it is a string, or an object with text, not {shorten(entry)}")
    return _read_string(line.fail, entry, "text")


def parse_documents(
    lines: Iterable[Line], form: FileFormat, prefix: str
) -> Iterator[tuple[Document, int]]:
    """Yield each document and the bytes read so far.

    Args:
        form: ``jsonl``: one object a line, with ``id``, ``text`` and perhaps ``metadata``; what
            other fields it has become metadata. ``text``: one document a paragraph; paragraphs
            end at empty lines.
        prefix: Of the ids of paragraphs: ``prefix-1``, ``prefix-2``, ...

    Raises:
        InputError: A line is no document; the message names file, line and field.
    """
    return parse_json_lines(lines) if form == "jsonl" else _parse_text(lines, prefix)


def guess_format(path: str, first: Line | None) -> FileFormat:
    """Guess the format by the file's name, or for standard input by the first line."""
    if path == STDIN:
        return "jsonl" if first is not None and first.text.lstrip().startswith("{") else "text"
    return "jsonl" if Path(path).suffix.lower() in JSON_SUFFIXES else "text"


def read_lines(
    file: BinaryIO,
    source: str,
    *,
    encoding: str = "utf-8",
    packed: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Line]:
    """Yield a file's lines.

    Args:
        source: The file's name, for errors.
        encoding: Python's name of one in which the end of a line is its byte.
        packed: Whether it is gzip; the bytes read so far are then those of the file itself.
        check: Called for each line, as ``Reading.check``.

    Raises:
        InputError: It can't be read, a line is too long or in another encoding, or it unfolds to
            more than ``UNPACKED_BYTES`` and ``UNPACKED_TIMES`` its own.
    """
    if "\n".encode(encoding) != b"\n":
        raise InputError(f"{source}: can't be read line by line in {encoding}; make it UTF-8")
    first = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    opened = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
    end = number = unpacked = 0
    try:
        while raw := opened.readline(MAX_LINE_BYTES + 1):
            check()
            number += 1
            unpacked += len(raw)
            end = file.tell() if packed else unpacked
            if packed and unpacked > UNPACKED_BYTES + UNPACKED_TIMES * end:
                raise InputError(
                    f"{source}, line {number}: over {UNPACKED_TIMES} times as long as it is packed,"
                    " which is not read on; unpack it first"
                )
            if len(raw) > MAX_LINE_BYTES:
                raise InputError(
                    f"{source}, line {number}: longer than {MAX_LINE_BYTES // 2**20} MiB"
                )
            try:
                text = raw.decode(first if number == 1 else encoding)
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{source}, line {number}: not {encoding.upper()} at byte {error.start + 1} of"
                    " the line"
                ) from error
            yield Line(source, number, text.rstrip("\r\n"), end)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{source}: is no gzip, or damaged: {error}") from error
    except OSError as error:  # a directory opens, and fails when read
        raise InputError(f"{source}: can't be read: {error.strerror or error}") from error


def parse_json_lines(
    lines: Iterable[Line], columns: Columns | None = None
) -> Iterator[tuple[Document, int]]:
    """Yield the document of each line that is not empty, and the bytes read so far."""
    for line in lines:
        if not line.text.strip():
            continue
        yield _make_document(line.fail, _read_json(line), columns or Columns()), line.end


def parse_json(content: str, source: str, columns: Columns) -> Iterator[Document]:
    """Yield the documents of a JSON file: a list of objects, or one object a line.

    Raises:
        NoRecords: It is neither.
        InputError: It is no JSON, or a record is no document.
    """
    try:
        entries = _DECODER.decode(content)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise InputError(f"{source}: not JSON: {error}") from error
        lines = enumerate(content.splitlines(), 1)
        found = parse_json_lines((Line(source, number, text, 0) for number, text in lines), columns)
        yield from (document for document, _ in found)
        return
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not JSON: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise NoRecords(f"{source}: holds no list of documents, objects with id and text")
    for number, entry in enumerate(entries, 1):
        yield _make_document(_fail_at(source, number), entry, columns)


def parse_table(
    lines: Iterator[Line], columns: Columns, prefix: str, *, delimiter: str | None = None
) -> Iterator[tuple[Document, int]]:
    """Yield the document of each row of a table, whose first row names the columns.

    Args:
        columns: Without a column of ids, rows get ids of their number, and those whose text is
            empty are passed over.
        prefix: Of these ids: ``prefix#1``, ...
        delimiter: Between columns; None is seen by the first row, one of ``DELIMITERS``.

    Raises:
        InputError: A column is not there, or a row has more cells than there are columns.
    """
    first = next(lines, None)
    if first is None:
        return
    last = first  # that the table has come to: a cell may go over several lines

    def texts() -> Iterator[str]:
        nonlocal last
        for last in itertools.chain([first], lines):
            yield f"{last.text}\n"

    csv.field_size_limit(MAX_LINE_BYTES)
    delimiter = delimiter or max(DELIMITERS, key=first.text.count)
    table = csv.DictReader(texts(), delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in table.fieldnames or ()]
        table.fieldnames = names
        id, wanted = _choose_columns(first, columns, names)
        for number, row in enumerate(table, 1):
            if None in row or None in row.values():
                raise last.fail(f"it has not {len(names)} cells, as the first row has")
            text = "\n".join(filter(None, (row[name] for name in wanted)))
            if id is None and not text.strip():
                continue
            others = {name: row[name] for name in names if name not in (id, *wanted) and row[name]}
            identity = f"{prefix}#{number}" if id is None else row[id]
            yield Document(identity, text, others), last.end
    except csv.Error as error:
        raise last.fail(f"no row of a table: {error}") from error


def has_ids(header: Sequence[str], columns: Columns) -> bool:
    """Tell whether a table of these columns names its documents."""
    return columns.id is not None or bool({"id", "_id"} & {name.strip() for name in header})


def _choose_columns(
    line: Line, columns: Columns, names: list[str]
) -> tuple[str | None, tuple[str, ...]]:
    text = columns.text or ("text",)
    for name in (*text, *filter(None, [columns.id])):
        if name not in names:
            raise line.fail(
                f"there is no column {name!r} among {', '.join(map(repr, names[:20]))};"
                " `text_column` and `id_column` name them"
            )
    return columns.id or next((name for name in ("id", "_id") if name in names), None), text


def _make_document(fail: Callable[[str], InputError], entry: Any, columns: Columns) -> Document:
    """Make a document of a record; of one with `_id`, as BEIR has it, the title goes first."""
    if not isinstance(entry, dict):
        raise fail(f"a document is an object with id and text, not {shorten(entry)}")
    id = columns.id or ("_id" if "_id" in entry and "id" not in entry else "id")
    text = columns.text or ("text",)
    identity, *parts = (_read_string(fail, entry, name) for name in (id, *text))
    metadata = entry.get("metadata", {})
    if not isinstance(metadata, dict):
        raise fail(f"metadata: must be an object, not {shorten(metadata)}")
    others = {name: value for name, value in entry.items() if name not in (id, *text, "metadata")}
    title = entry.get("title")
    if id == "_id" and not columns.text and isinstance(title, str):
        parts.insert(0, title)
    return Document(identity, "\n".join(filter(None, parts)), {**others, **metadata})


def _read_json(line: Line) -> Any:
    try:
        return _DECODER.decode(line.text)
    except (ValueError, RecursionError) as error:
        raise line.fail(f"not JSON: {error}") from error


def _read_string(fail: Callable[[str], InputError], entry: dict[str, Any], name: str) -> str:
    if name not in entry:
        raise fail(f"{name}: is missing")
    if not isinstance(value := entry[name], str):
        raise fail(f"{name}: must be a string, not {shorten(value)}")
    return value


def _fail_at(source: str, number: int) -> Callable[[str], InputError]:
    return lambda problem: InputError(f"{source}, record {number}: {problem}")


def _parse_text(lines: Iterable[Line], prefix: str) -> Iterator[tuple[Document, int]]:
    paragraph: list[str] = []
    number, end = 0, 0
    for line in lines:
        end = line.end
        if line.text.strip():
            paragraph.append(line.text)
        elif paragraph:
            number += 1
            yield Document(f"{prefix}-{number}", "\n".join(paragraph)), end
            paragraph = []
    if paragraph:
        yield Document(f"{prefix}-{number + 1}", "\n".join(paragraph)), end


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _read_float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{shorten(text)} is too large a number; numbers must be finite")
    return number


# What is not finite would be stored as null.
_DECODER = json.JSONDecoder(parse_float=_read_float, parse_constant=_refuse_constant)
