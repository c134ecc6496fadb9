import argparse
import io
import sys
from pathlib import Path

import pytest

from condensery.commands.common import (
    FileFormat,
    Line,
    complete_url,
    connect,
    guess_format,
    open_lines,
    parse_documents,
)
from condensery.commands.index import BATCH_CHARS, BATCH_DOCUMENTS, batch_documents, name_index
from condensery.errors import AnswerServerUnavailable, InputError, Unavailable
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


def test_batches_hold_every_document_once_and_stay_within_limits() -> None:
    texts = ["x" * 10] * 200 + ["y" * (BATCH_CHARS // 2 + 1)] * 3 + ["z" * (2 * BATCH_CHARS)]
    read = [(Document(str(i), text), i + 1) for i, text in enumerate(texts)]
    batches = list(batch_documents(read))
    assert [document for batch, _ in batches for document in batch] == [item for item, _ in read]
    assert [end for _, end in batches][-1] == len(texts)
    for batch, _ in batches:
        assert len(batch) <= BATCH_DOCUMENTS
        assert len(batch) == 1 or sum(len(item.text) for item in batch) <= BATCH_CHARS


def test_an_id_that_comes_again_goes_into_a_later_batch() -> None:
    read = [(Document("a", "old"), 1), (Document("b", ""), 2), (Document("a", "new"), 3)]
    assert [[item.text for item in batch] for batch, _ in batch_documents(read)] == [
        ["old", ""],
        ["new"],
    ]


def test_an_index_is_named_after_its_file() -> None:
    assert name_index("some/My Notes (1).jsonl") == "my-notes-1"
    for file in ("-", "日本.txt"):
        with pytest.raises(InputError, match="give NAME"):
            name_index(file)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("localhost:9200", "http://localhost:9200"),
        ("localhost", "http://localhost:8080"),
        ("rag.example.com:80/prefix", "http://rag.example.com:80/prefix"),
        ("[::1]:9200", "http://[::1]:9200"),
        ("[::1]", "http://[::1]:8080"),
        ("http://localhost", "http://localhost"),
        ("https://localhost:9200/", "https://localhost:9200/"),
    ],
)
def test_an_address_gets_the_scheme_that_it_lacks_and_keeps_its_port(
    address: str, url: str
) -> None:
    assert complete_url(address, "http") == url


def test_an_address_without_a_scheme_is_https_where_certificates_are_given() -> None:
    assert complete_url("localhost:9200", "https") == "https://localhost:9200"


def test_only_a_refused_connection_says_how_to_start_a_server() -> None:
    args = argparse.Namespace(url="localhost", grpc=None, timeout=1.0, api_key=None, ca=None)
    for error, helps in (
        (Unavailable("localhost: [Errno 111] Connection refused"), True),
        (Unavailable("the server is starting"), False),
        (AnswerServerUnavailable("the answers' server: Connection refused"), False),
    ):
        with pytest.raises(Unavailable) as caught, connect(args):
            raise error
        assert ("`condensery serve`" in caught.value.message) is helps
