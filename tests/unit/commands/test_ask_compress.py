"""What ``condensery compress`` reads, asks and prints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from condensery.cli import main
from condensery.question import Compressed, CompressedDocument, Compression
from condensery.values import Document, TokenUsage

COMPRESSED = Compressed(
    id="cmp_1",
    model="pair",
    fingerprint="sha256:00",
    context="ctx_1",
    expires_at=1_700_000_000.0,
    results=(
        CompressedDocument(0, "a", 0.9123, 128, 8, 1),
        CompressedDocument(1, "b", None, 0, 0, 1, "failed", "it is empty"),
    ),
    compression=Compression("auto", "partial", 1, 128, 8, 10, 5, 12.3),
    usage=TokenUsage(128),
)
TABLE = [
    "PLACE  SCORE  TOKENS  VECTORS  WINDOWS  STATUS                ID",
    "0      0.912  128     8        1        applied               a",
    "1      -      0       0        1        failed (it is empty)  b",
    (
        "compression: partial, 1 passages, 128 tokens read, 8 vectors kept (16.0 tokens a vector)"
        ", 12 ms"
    ),
]


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["compress", "why?", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "notes.txt"
    path.write_text("one\n\ntwo\n")
    return str(path)


def test_documents_come_from_files_of_either_format(
    client: Any, capsys: pytest.CaptureFixture[str], file: str, tmp_path: Path
) -> None:
    client.reply = COMPRESSED
    other = tmp_path / "more.jsonl"
    other.write_text('{"id": "mine", "text": "three", "year": 1898}\n')
    lines_of(capsys, file, str(other), "--rate", "16", "--ttl", "2.5", "--model", "m")
    ((_, (question, documents), how),) = client.asked
    assert question == "why?"
    assert documents == [
        Document("notes-1", "one"),
        Document("notes-2", "two"),
        Document("mine", "three", {"year": 1898}),
    ]
    assert how == {"model": "m", "rate": 16, "ttl_seconds": 2.5, "keep": True}


def test_each_document_has_a_row_and_the_handle_comes_last(
    client: Any, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    client.reply = COMPRESSED
    *lines, last = lines_of(capsys, file)
    assert lines == TABLE
    assert last.startswith("context: ctx_1 (until ")


def test_without_keeping_there_is_no_handle(
    client: Any, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    client.reply = replace(COMPRESSED, context=None, expires_at=None)
    assert lines_of(capsys, file, "--no-keep") == TABLE
    assert client.asked[0][2]["keep"] is False


def test_json_has_all_that_came(client: Any, capsys: pytest.CaptureFixture[str], file: str) -> None:
    client.reply = COMPRESSED
    (line,) = lines_of(capsys, file, "--json")
    printed = json.loads(line)
    assert (printed["context"], printed["tokens"]) == ("ctx_1", 128)
    assert printed["documents"][1]["reason"] == "it is empty"


def test_an_empty_file_is_named(
    client: Any, capsys: pytest.CaptureFixture[str], file: str, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert main(["compress", "why?", file, str(empty)]) == 1
    assert capsys.readouterr().err == f"condensery: {empty}: is empty\n"
    assert client.asked == []
