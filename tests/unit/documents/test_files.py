import gzip
import io

import pytest

from condensery.documents.files import (
    MAX_FILE_BYTES,
    SUFFIXES,
    FileKind,
    FileName,
    OpenFile,
    Reading,
    UnknownKind,
    hash_file,
    kind_of,
    owns_ids,
    read_documents,
)
from condensery.documents.records import Columns
from condensery.errors import InputError
from condensery.values import Document


def read(content: bytes, path: str, reading: Reading | None = None) -> list[Document]:
    reading = reading or Reading()
    file = OpenFile(FileName("notes", path), io.BytesIO(content), f"at/{path}")
    found = list(read_documents(file, kind_of(path, reading), reading))
    assert not found or found[-1][1] == len(content)
    return [document for document, _ in found]


def test_a_kind_is_known_by_its_suffix_and_others_are_refused() -> None:
    for suffix, kind in SUFFIXES.items():
        assert kind_of(f"a.b/C{suffix.upper()}", Reading()) == kind
    assert kind_of("a.csv.gz", Reading()) == "csv"
    for path in ("a.zip", "README", "a.md.gz", "a.gz", ".md", "a.rst"):
        with pytest.raises(UnknownKind):
            kind_of(path, Reading())
        assert kind_of(path, Reading(kind="text")) == "text"


def test_ids_begin_with_folder_and_path_on_one_printable_line() -> None:
    name = FileName("notes", "a\nb/100%\udcff.md").whole
    assert name == "notes/a%0Ab/100%25%FF.md"
    assert FileName("", "a.md").whole == "a.md"
    (document,) = read(b"# Q\nx\n", "a\nb.md")
    assert document.id == "notes/a%0Ab.md#q"
    with pytest.raises(InputError, match="its path is over"):
        read(b"x", "a/" * 300 + "b.md")


def test_text_has_no_headings_and_is_read_as_it_says_it_is_encoded() -> None:
    (document,) = read("one\r\n\r\ntwö\r\n".encode(), "a.txt")
    assert document == Document("notes/a.txt#part", "one\n\ntwö", {"line": 1})
    assert read("x ö".encode("utf-16"), "a.txt")[0].text == "x ö"
    assert read(b"\xef\xbb\xbfx", "a.txt")[0].text == "x"
    assert read("ö".encode("latin-1"), "a.txt", Reading(encoding="latin-1"))[0].text == "ö"
    assert read(b" \n\n", "a.txt") == []


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("a.txt", b"one\ntw\xf6\n", "at/a.txt, line 2: not UTF-8 at byte 6"),
        ("a.txt", b"one\n\0\n", "at/a.txt, line 2: no text, it holds the character 0"),
        ("a.jsonl", b'{"id": "\xf6"}', "at/a.jsonl, line 1: not UTF-8"),
        ("a.jsonl.gz", b"text", "at/a.jsonl.gz: is no gzip"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_name_and_line(
    path: str, content: bytes, problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(content, path)
    assert problem in caught.value.message


def test_a_file_that_is_too_long_to_be_read_whole_is_not() -> None:
    class Sparse(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size == MAX_FILE_BYTES + 1
            return bytes(size)

    with pytest.raises(InputError, match="over 64 MiB"):
        list(
            read_documents(OpenFile(FileName("n", "a.md"), Sparse(), "a.md"), "markdown", Reading())
        )


def test_encodings_that_are_none_of_text_are_refused() -> None:
    for name in ("base64", "utf-9", "rot13", "a\0", "\udcff"):
        with pytest.raises(InputError, match="no encoding of text"):
            Reading(encoding=name)
    with pytest.raises(InputError, match="line by line"):
        read(b"{}", "a.jsonl", Reading(encoding="utf-16"))
    assert Reading(encoding="UTF-8-sig") == Reading()


def test_a_hash_is_of_the_bytes_and_of_how_they_are_read() -> None:
    readings = [Reading(), Reading(encoding="latin-1"), Reading(kind="text"), Reading("text")]
    hashes = [hash_file(io.BytesIO(b"x"), reading) for reading in readings]
    assert len(set(hashes)) == 3
    assert hash_file(io.BytesIO(b"y"), Reading()) not in hashes


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("a.md", b"*line* " * 25 + b"\n" + b"line\n" * 50),
        ("a.md", b"> " + b"line\n" * 50),
        ("a.txt", b"Words. " * 200_000),
        ("a.jsonl", b"\n" * 50 + b'{"id": "a", "text": "x"}\n'),
        ("a.jsonl.gz", gzip.compress(b"\n" * 50 + b'{"id": "a", "text": "x"}\n')),
        ("a.json", b"[" + b",".join([b'{"id": "a", "text": "x"}'] * 50) + b"]"),
        ("a.csv", b'text\n"' + b"\n" * 50 + b'x"\n'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_asked_again_and_again_ends_the_reading_of_a_file(
    path: str, content: bytes
) -> None:
    class LeftError(BaseException):
        """As CancelledError is: no Exception, and so no fault of the file."""

    left = iter([False] * 40)

    def check() -> None:
        if next(left, True):
            raise LeftError

    with pytest.raises(LeftError):
        read(content, path, Reading(check=check))


@pytest.mark.parametrize(
    ("kind", "content", "columns", "owned"),
    [
        ("jsonl", b"", Columns(), True),
        ("markdown", b"", Columns(), False),
        ("csv", b'"id";text\n', Columns(), True),
        ("csv", b"name,_id\n", Columns(), True),
        ("csv", b"name,text\n", Columns(), False),
        ("csv", b"name,text\n", Columns(id="name"), True),
        ("csv", b"", Columns(), False),
    ],
)
def test_records_with_ids_of_their_own_are_told_from_those_without(
    kind: FileKind, content: bytes, columns: Columns, owned: bool
) -> None:
    file = OpenFile(FileName("n", f"a.{kind}"), io.BytesIO(content), "a")
    assert owns_ids(file, kind, Reading(columns=columns)) is owned
    assert file.stream.tell() == 0
