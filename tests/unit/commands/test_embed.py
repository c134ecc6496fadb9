"""Which texts are sent to be embedded or reranked, and where their vectors are written."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery.cli import main
from condensery.errors import Unavailable


def give(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))


def texts_of(client: Any) -> list[str]:
    return [text for _, (texts, *_), _ in client.asked for text in texts]


@pytest.mark.parametrize(
    ("name", "content", "flags", "texts"),
    [
        ("x.jsonl", '{"id": "a", "text": "one"}\n\n"two"\n', [], ["one", "two"]),
        ("x.ndjson", '{"text": "one"}\n', [], ["one"]),
        ("x.txt", '"one"\n\ntwo\n', [], ['"one"', "", "two"]),
        ("x.txt", '"one"\n', ["--format", "jsonl"], ["one"]),
        ("x.jsonl", '"one"\n', ["--format", "text"], ['"one"']),
    ],
)
def test_a_file_holds_a_text_a_line_or_json_lines_of_them(
    client: Any, tmp_path: Path, name: str, content: str, flags: list[str], texts: list[str]
) -> None:
    (tmp_path / name).write_text(content)
    client.reply = np.zeros((len(texts), 2), np.float32)
    assert main(["embed", "--file", str(tmp_path / name), *flags]) == 0
    assert texts_of(client) == texts


@pytest.mark.parametrize("line", ["[1]", "7", '{"id": "a"}', '{"text": 7}', "{"])
def test_a_line_that_holds_no_text_is_named_by_its_number(
    client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    (tmp_path / "x.jsonl").write_text(f'"one"\n{line}\n')
    assert main(["embed", "--file", str(tmp_path / "x.jsonl")]) == 1
    assert "x.jsonl, line 2: " in capsys.readouterr().err
    assert client.asked == []


@pytest.mark.parametrize(
    ("line", "stdin", "asked"),
    [
        ("embed a - b", "one\ntwo\n", (["a", "one", "two", "b"],)),
        ("embed -", '{"text": "one"}\n', (["one"],)),
        ("embed --file -", "one\n", (["one"],)),
        ("rerank - a b", "a query\nof lines\n", ("a query\nof lines", ["a", "b"])),
        ("rerank query a -", "one\ntwo\n", ("query", ["a", "one", "two"])),
        ("index query notes -", "a text\n", ("notes", "a text")),
    ],
)
def test_a_dash_is_what_standard_input_holds(
    client: Any, monkeypatch: pytest.MonkeyPatch, line: str, stdin: str, asked: tuple[Any, ...]
) -> None:
    give(monkeypatch, stdin)
    client.reply = ()
    if line.startswith("embed"):
        client.reply = np.zeros((len(asked[0]), 2), np.float32)
    assert main(line.split()) == 0
    assert [args for _, args, _ in client.asked] == [asked]


@pytest.mark.parametrize("line", ["ask -", "compress - -", "embed -", "rerank - -"])
def test_standard_input_that_holds_nothing_is_an_error(
    client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    give(monkeypatch, "")
    assert main(line.split()) == 1
    assert capsys.readouterr().err.startswith("condensery: ")
    assert client.asked == []


def test_where_vectors_can_t_be_written_nothing_is_embedded(
    client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for out in (tmp_path, tmp_path / "none" / "x.npy", file / "x.npy"):
        assert main(["embed", "a", "--out", str(out)]) == 1
        assert str(out) in capsys.readouterr().err
    assert client.asked == []


def test_a_disk_that_is_full_is_an_error_of_one_line(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    client.reply = np.zeros((1, 2), np.float32)
    assert main(["embed", "a", "--out", "/dev/full"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_vectors_that_were_there_stay_if_the_server_fails(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Unavailable("it is down")

    monkeypatch.setattr(client, "embed", fail)
    (tmp_path / "old").write_bytes(b"vectors")
    for name in ("old", "new"):
        assert main(["embed", "a", "--out", str(tmp_path / name)]) == 1
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("old", b"vectors")]
