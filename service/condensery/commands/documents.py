"""Documents from files: JSON lines, or plain text."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from condensery.errors import InputError, shorten
from condensery.values import Document

Format = Literal["jsonl", "text"]
JSON_SUFFIXES = (".jsonl", ".ndjson")
STDIN = "-"


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


@contextmanager
def open_lines(path: str) -> Iterator[Iterator[Line]]:
    """Read a UTF-8 file, or standard input, line by line.

    Raises:
        InputError: The file can't be read; on iteration, a line is not UTF-8.
    """
    if path == STDIN:
        yield _lines(sys.stdin.buffer, "standard input")
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
        yield _lines(file, path)


def parse(lines: Iterable[Line], form: Format, prefix: str) -> Iterator[tuple[Document, int]]:
    """Yield each document and the bytes read with it.

    Args:
        lines: Of the file.
        form: ``jsonl``: one object a line, with ``id``, ``text`` and perhaps ``metadata``; what
            other fields it has become metadata. ``text``: one document a paragraph; paragraphs
            end at empty lines.
        prefix: Of the ids of paragraphs: ``prefix-1``, ``prefix-2``, ...

    Raises:
        InputError: A line is no document; the message names file, line and field.
    """
    return _parse_json(lines) if form == "jsonl" else _parse_text(lines, prefix)


def guess_format(path: str, first: Line | None) -> Format:
    """Tell the format by the file's name, or for standard input by the first line."""
    if path == STDIN:
        return "jsonl" if first is not None and first.text.lstrip().startswith("{") else "text"
    return "jsonl" if Path(path).suffix.lower() in JSON_SUFFIXES else "text"


def _lines(file: BinaryIO, source: str) -> Iterator[Line]:
    end = 0
    try:
        for number, raw in enumerate(file, 1):
            end += len(raw)
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{source}, line {number}: not UTF-8 at byte {error.start + 1} of the line"
                ) from error
            yield Line(source, number, text.rstrip("\r\n"), end)
    except OSError as error:  # a directory opens, and fails when read
        raise InputError(f"{source}: can't be read: {error.strerror or error}") from error


def _parse_json(lines: Iterable[Line]) -> Iterator[tuple[Document, int]]:
    for line in lines:
        if not line.text.strip():
            continue
        try:
            entry = json.loads(line.text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise line.fail(f"not JSON: {error}") from error
        yield _read_entry(line, entry), line.end


def _read_entry(line: Line, entry: Any) -> Document:
    if not isinstance(entry, dict):
        raise line.fail(f"a document is an object with id and text, not {shorten(entry)}")
    for name in ("id", "text"):
        if name not in entry:
            raise line.fail(f"{name}: is missing")
        if not isinstance(entry[name], str):
            raise line.fail(f"{name}: must be a string, not {shorten(entry[name])}")
    metadata = entry.get("metadata", {})
    if not isinstance(metadata, dict):
        raise line.fail(f"metadata: must be an object, not {shorten(metadata)}")
    others = {k: v for k, v in entry.items() if k not in ("id", "text", "metadata")}
    return Document(entry["id"], entry["text"], {**others, **metadata})


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
