import gzip
import io
import sys
from pathlib import Path

import pytest

from condensery.documents import records
from condensery.documents.records import (
    Columns,
    FileFormat,
    Line,
    NoRecords,
    guess_format,
    open_lines,
    parse_documents,
    parse_json,
    parse_table,
    read_lines,
)
from condensery.errors import InputError
from condensery.values import Document


def read(path: Path, content: bytes, form: FileFormat) -> list[tuple[Document, int]]:
    path.write_bytes(content)
    with open_lines(str(path)) as lines:
        return list(parse_documents(lines, form, "notes"))


def test_json_lines_are_documents_and_other_fields_are_metadata(tmp_path: Path) -> None:
    content = (
        b'\xef\xbb\xbf{"id": "a", "text": "one", "metadata": {"year": 1898}}\n\n'
        b'{"id": "b", "text": "two\\nlines", "title": "T", "metadata": {"title": "wins"}}\r\n'
        b'{"id": "c", "text": "\xe2\x80\xa8", "title": "T"}'
    )
    documents = [document for document, _ in read(tmp_path / "x", content, "jsonl")]
    assert documents == [
        Document("a", "one", {"year": 1898}),
        Document("b", "two\nlines", {"title": "wins"}),
        Document("c", "\u2028", {"title": "T"}),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"id": "b"}', "text: is missing"),
        (b'{"text": "b"}', "id: is missing"),
        (b'{"id": 7, "text": "b"}', "id: must be a string, not 7"),
        (b'{"id": "b", "text": "t", "metadata": []}', "metadata: must be an object"),
        (b'["b"]', "a document is an object"),
        (b'{"id": "b",', "not JSON"),
        (b'{"id": "b", "text": "t", "metadata": {"x": NaN}}', "NaN is not a JSON number"),
        (b'{"id": "b", "text": "t", "x": [-Infinity]}', "-Infinity is not a JSON number"),
        (b'{"id": "b", "text": "t", "metadata": {"x": 1e999}}', "'1e999' is too large a number"),
        (b'{"id": "b", "text": "t", "x": -1' + b"0" * 400 + b".0}", "numbers must be finite"),
        (b'{"id": "b", "text": "\xff"}', "not UTF-8 at byte 22"),
    ],
)
def test_a_line_that_is_no_document_is_named_by_its_number(
    tmp_path: Path, line: bytes, problem: str
) -> None:
    with pytest.raises(InputError, match="line 3: ") as caught:
        read(tmp_path / "x", b'{"id": "a", "text": "one"}\n\n' + line + b"\n", "jsonl")
    assert problem in caught.value.message


def test_plain_text_is_a_document_a_paragraph(tmp_path: Path) -> None:
    content = b"\n\none\nstill one\n\n  \ntwo\n"
    assert read(tmp_path / "x", content, "text") == [
        (Document("notes-1", "one\nstill one"), 17),
        (Document("notes-2", "two"), len(content)),
    ]


def test_a_file_that_is_not_there_and_a_folder_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="can't be read"), open_lines(str(path)) as lines:
            list(lines)


def test_standard_input_is_read_and_its_format_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": "a", "text": "t"}\n')))
    with open_lines("-") as lines:
        first = next(lines)
    assert guess_format("-", first) == "jsonl"
    assert guess_format("-", Line("-", 1, "words", 5)) == "text"
    assert guess_format("a/B.JSONL", None) == "jsonl"
    assert guess_format("a/b.txt", None) == "text"


def rows(content: str, columns: Columns | None = None) -> list[Document]:
    lines = read_lines(io.BytesIO(content.encode()), "t.csv")
    return [document for document, _ in parse_table(lines, columns or Columns(), "notes/t.csv")]


def test_records_of_beir_have_their_title_before_the_text() -> None:
    (document,) = parse_json(
        '[{"_id": "7", "title": "Radium", "text": "It glows."}]', "x", Columns()
    )
    assert document == Document("7", "Radium\nIt glows.", {"title": "Radium"})


def test_fields_that_are_named_are_id_and_text() -> None:
    content = '[{"key": "k", "question": "Why?", "answer": "So.", "year": 1}]'
    columns = Columns("key", ("question", "answer"))
    assert list(parse_json(content, "x", columns)) == [Document("k", "Why?\nSo.", {"year": 1})]


def test_json_is_a_list_of_documents_or_one_a_line_and_nothing_else() -> None:
    lines = '{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n'
    assert [document.id for document in parse_json(lines, "x", Columns())] == ["a", "b"]
    for content in ('{"openapi": "3.1"}', "[1, 2]", '"text"'):
        with pytest.raises(NoRecords):
            list(parse_json(content, "x", Columns()))
    for content in ("[1,", "[" * 100_000, '[{"id": "a", "text": "x", "n": 1e999}]'):
        with pytest.raises(InputError, match="x: not JSON"):
            list(parse_json(content, "x", Columns()))
    with pytest.raises(InputError, match="x, record 2: text: is missing"):
        list(parse_json('[{"id": "a", "text": "x"}, {"id": "b"}]', "x", Columns()))


def test_a_table_has_a_document_a_row_and_its_other_columns_as_metadata() -> None:
    content = 'id;year;text\na;1898;"Radium; it\nglows"\nb;;Helium\n'
    assert rows(content) == [
        Document("a", "Radium; it\nglows", {"year": "1898"}),
        Document("b", "Helium", {}),
    ]


def test_rows_without_a_column_of_ids_are_named_by_their_number() -> None:
    assert rows("name,what\nRa,glows\nX,\nHe,rises\n", Columns(text=("what",))) == [
        Document("notes/t.csv#1", "glows", {"name": "Ra"}),
        Document("notes/t.csv#3", "rises", {"name": "He"}),
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,b\n1,2\n", "line 1: there is no column 'text' among 'a', 'b'"),
        ("id,text\na,x\nb,y,z\n", "line 3: it has not 2 cells"),
        ("id,text\na\n", "line 2: it has not 2 cells"),
        ('id,text\na,"x"y\n', "line 2: no row of a table"),
    ],
)
def test_a_row_that_does_not_fit_is_named_by_its_line(content: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        rows(content)
    assert problem in caught.value.message


def test_lines_are_read_from_gzip_and_one_cut_short_is_an_error() -> None:
    packed = gzip.compress(b"one\ntwo\n" * 1000)
    lines = list(read_lines(io.BytesIO(packed), "x", packed=True))
    assert [line.text for line in lines[:2]] == ["one", "two"]
    assert len(lines) == 2000
    for broken in (packed[:-20], b"no gzip at all"):
        with pytest.raises(InputError, match="x: is no gzip, or damaged"):
            list(read_lines(io.BytesIO(broken), "x", packed=True))


def test_what_unfolds_to_far_more_than_text_does_is_not_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "UNPACKED_BYTES", 10_000)
    packed = gzip.compress(b"\n" * 10**6)
    read: list[Line] = []
    with pytest.raises(InputError, match=r"x, line \d+: over 100 times as long"):
        read.extend(read_lines(io.BytesIO(packed), "x", packed=True))
    assert len(read) <= 10_000 + 100 * len(packed)
    text = b"".join(b"Line %d says what it says.\n" % number for number in range(10_000))
    assert len(list(read_lines(io.BytesIO(gzip.compress(text)), "x", packed=True))) == 10_000
    assert len(list(read_lines(io.BytesIO(b"\n" * 10**5), "x"))) == 10**5


def test_a_line_without_an_end_is_not_read_into_memory() -> None:
    class Endless(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            assert size is not None
            assert 0 < size < 2**27
            return b"x" * size

    with pytest.raises(InputError, match="line 1: longer than"):
        list(read_lines(Endless(), "x"))
