"""A file's documents: how each kind is read, their ids, and what they keep of the file.

A document's id is ``FOLDER/PATH#ANCHOR``: the folder's own name, the path in it, and where in the
file the text is. Its metadata has ``file``, by which a file that changed is replaced whole
(``replacing``). Records with ids of their own are theirs, and keep nothing of the file.
"""

import codecs
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from condensery.documents.formats import read_docx, read_html, read_pdf
from condensery.documents.records import (
    Columns,
    Line,
    has_ids,
    parse_json,
    parse_json_lines,
    parse_table,
    read_lines,
)
from condensery.documents.sections import Outline, Section, make_documents
from condensery.errors import InputError, shorten
from condensery.values import Document, set_derived

FileKind = Literal["markdown", "html", "text", "jsonl", "json", "csv", "tsv", "pdf", "docx"]
KINDS: tuple[FileKind, ...] = get_args(FileKind)
SUFFIXES: dict[str, FileKind] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".pdf": "pdf",
    ".docx": "docx",
}
BY_LINE: tuple[FileKind, ...] = ("jsonl", "csv", "tsv")  # of any length, and perhaps as .gz
PACKED = ".gz"

MAX_FILE_BYTES = 64 * 2**20  # of a file that is read as a whole
MAX_NAME_CHARS = 400  # an id has 500, with the anchor
READ_BYTES = 2**20
# Changed where the documents that a file makes change: files are then read again.
READING = 1

# What ids have no place for: line ends and their like, half of a UTF-16 pair (as Python passes
# bytes on that are not UTF-8), and the sign that escapes them.
_ESCAPED = re.compile(r"[%\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UnknownKind(InputError):
    """A file of a kind that is not read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What was not read, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read.

    Attributes:
        kind: Of all files, whatever their names say; None is by their suffix.
        encoding: Of files of text, where they do not say by their first bytes.
        columns: Of records.
        check: Called again and again while files are read, line by line and block by block; what it
            raises ends that. It is no part of how they are read.
    """

    kind: FileKind | None = None
    encoding: str = "utf-8"
    columns: Columns = field(default_factory=Columns)
    check: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            known = codecs.lookup(self.encoding).name
            "".encode(known)  # base64 and its like are no encodings of text
        except (LookupError, ValueError) as error:  # the second of what no name can hold
            raise InputError.at(
                "encoding", f"{shorten(self.encoding)} is no encoding of text", self.encoding
            ) from error
        set_derived(self, encoding="utf-8" if known == "utf-8-sig" else known)  # read either way


@dataclass(frozen=True, slots=True)
class FileName:
    """What a file is called in an index.

    Attributes:
        folder: The folder's name there.
        path: The file's in that folder, as it is on the disk.
        source: Which folder it is, of several of that name; "" where the caller named it.
    """

    folder: str
    path: str
    source: str = ""

    @property
    def whole(self) -> str:
        """The name that ids begin with, on one line and printable."""
        return escape_name(f"{self.folder}/{self.path}" if self.folder else self.path)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is read.

    Attributes:
        stream: Its bytes, from the first.
        source: Its name in messages.
    """

    name: FileName
    stream: BinaryIO
    source: str


def escape_name(name: str) -> str:
    """Return a path on one line: what ids have no place for stands as the %XX of its bytes."""
    return _ESCAPED.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in os.fsencode(match[0])), name
    )


def name_upload(path: str, prefix: str | None = None) -> FileName:
    """Return the name of a file that is uploaded under a path; "" of one that names no file.

    It leads nowhere: a path from the root of a disk is one from ``prefix``, and ``..`` goes up as
    far as there. Its first folder is the file's, as with ``condensery index add FOLDER``.
    """
    inside = posixpath.normpath("/" + path.replace("\\", "/")).lstrip("/")
    if prefix is None:
        folder, slash, rest = inside.partition("/")
        return FileName(folder, rest) if slash else FileName("", inside)
    above = posixpath.normpath("/" + prefix).strip("/")
    return FileName(above, inside)


def reason_of(error: Exception) -> str:
    """Return what is wrong with a file, without its name."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def kind_of(path: str, reading: Reading) -> FileKind:
    """Return how a file is read.

    Raises:
        UnknownKind: Its suffix is no known one.
    """
    if reading.kind is not None:
        return reading.kind
    kind = SUFFIXES.get(suffix_of(path).removesuffix(PACKED) or PACKED)
    if kind is None or (is_packed(path) and kind not in BY_LINE):
        what = escape_name(suffix_of(path)) or "files without a suffix"
        raise UnknownKind(f"{what} is no kind that is read ({', '.join(SUFFIXES)})")
    return kind


def suffix_of(path: str) -> str:
    """Return a file's suffix, in lower case; that of what is packed with it: ``.jsonl.gz``."""
    name = Path(path).name.lower()
    packed = PACKED if name.endswith(PACKED) else ""
    return Path(name.removesuffix(packed)).suffix + packed


def is_packed(path: str) -> bool:
    """Tell whether a file is packed by gzip, by its name."""
    return path.lower().endswith(PACKED)


def hash_file(file: BinaryIO, reading: Reading) -> str:
    """Return the hash of a file's bytes and of how they are read; the file is then at its start."""
    how = repr((READING, reading.kind, reading.encoding, asdict(reading.columns)))
    digest = hashlib.sha256(how.encode())
    file.seek(0)
    while piece := file.read(READ_BYTES):
        reading.check()
        digest.update(piece)
    file.seek(0)
    return digest.hexdigest()[:32]


def owns_ids(file: OpenFile, kind: FileKind, reading: Reading) -> bool:
    """Tell whether a file's documents bring ids of their own; the file is then at its start."""
    if kind in ("csv", "tsv"):
        first = next(_lines_of(file, reading), None)
        file.stream.seek(0)
        return first is not None and has_ids(
            [name.strip(' "') for name in re.split(r"[,;\t|]", first.text)], reading.columns
        )
    return kind in ("jsonl", "json")


def read_documents(
    file: OpenFile, kind: FileKind, reading: Reading
) -> Iterator[tuple[Document, int]]:
    """Yield a file's documents, each with the bytes read so far: its share, of a file read whole.

    Raises:
        InputError: The file can't be read as its kind; the message names it, and where it can, the
            line. Of files of records the documents before that line have come.
    """
    name = file.name.whole
    if len(name) > MAX_NAME_CHARS:
        raise InputError(f"{file.source}: its path is over the {MAX_NAME_CHARS} characters of ids")
    if kind in BY_LINE:
        lines = _lines_of(file, reading)
        if kind == "jsonl":
            yield from parse_json_lines(lines, reading.columns)
        else:
            delimiter = "\t" if kind == "tsv" else None
            yield from parse_table(lines, reading.columns, name, delimiter=delimiter)
        return
    content = read_whole(file)
    if kind == "json":
        text = decode(content, file.source, reading.encoding)
        found = parse_json(text, file.source, reading.columns)
    else:
        found = make_documents(name, _SECTIONS[kind](content, file.source, reading))
    documents = []
    for document in found:
        reading.check()
        documents.append(document)
    for number, document in enumerate(documents, 1):
        yield document, len(content) * number // len(documents)


def _lines_of(file: OpenFile, reading: Reading) -> Iterator[Line]:
    return read_lines(
        file.stream,
        file.source,
        encoding=reading.encoding,
        packed=is_packed(file.name.path),
        check=reading.check,
    )


def read_whole(file: OpenFile) -> bytes:
    """Return a file's bytes.

    Raises:
        InputError: They are over ``MAX_FILE_BYTES``.
    """
    content = file.stream.read(MAX_FILE_BYTES + 1)
    check_length(file.source, len(content))
    return content


def check_length(source: str, length: int) -> None:
    """Refuse a file that is too long to be read as a whole, by its bytes."""
    if length > MAX_FILE_BYTES:
        raise InputError(
            f"{source}: over {MAX_FILE_BYTES // 2**20} MiB, which is read as a whole;"
            " cut it into several files, or make it JSON lines"
        )


def decode(content: bytes, source: str, encoding: str) -> str:
    """Return a file's text, its lines ended as on Unix; a byte order mark wins over ``encoding``.

    Raises:
        InputError: It is in another encoding, or no text.
    """
    marked = next((name for mark, name in _MARKS if content.startswith(mark)), encoding)
    try:
        text = content.decode(marked)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{source}, line {line}: not {marked.upper()} at byte {error.start};"
            " `encoding` names another, such as latin-1"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{source}, line {line}: no text, it holds the character 0")
    return text.replace("\r\n", "\n").replace("\r", "\n")


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _read_markdown(content: bytes, source: str, reading: Reading) -> list[Section]:
    from condensery.documents.markdown import read_markdown  # late: `--help` does without it

    return read_markdown(decode(content, source, reading.encoding), reading.check)


def _read_text(content: bytes, source: str, reading: Reading) -> list[Section]:
    """Return one section of paragraphs, which end at empty lines."""
    outline, line = Outline(), 1
    for paragraph in re.split(r"(\n(?:[^\S\n]*\n)+)", decode(content, source, reading.encoding)):
        outline.add(paragraph, line)
        line += paragraph.count("\n")
    return [replace(section, anchor="part") for section in outline.sections]


def _read_html(content: bytes, source: str, reading: Reading) -> list[Section]:
    return read_html(content, source, reading.encoding, reading.check)


def _read_pdf(content: bytes, source: str, reading: Reading) -> list[Section]:
    return read_pdf(content, source, reading.check)


def _read_docx(content: bytes, source: str, reading: Reading) -> list[Section]:
    return read_docx(content, source, reading.check)


_SECTIONS: dict[str, Callable[[bytes, str, Reading], list[Section]]] = {
    "markdown": _read_markdown,
    "html": _read_html,
    "text": _read_text,
    "pdf": _read_pdf,
    "docx": _read_docx,
}
