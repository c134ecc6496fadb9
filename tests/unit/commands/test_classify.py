"""``condensery classify`` and ``tokenize``, against a real REST door."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from condensery.cli import main

pytestmark = pytest.mark.usefixtures("classifiers")


def test_the_likeliest_label_of_each_text_is_printed_or_all_as_rest_has_them(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "it\\nrains"}\n')
    line = ["classify", "a b", "--file", str(tmp_path / "x.jsonl"), "--url", url]
    for pair in ([], ["it is wet"]):
        flags = ["--pair", *pair] if pair else []
        body = {"inputs": [["a b", *pair], ["it\nrains", *pair]]}
        replied = httpx.post(f"{url}/predict", json=body).json()
        assert main([*line, *flags]) == 0
        printed = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
        assert [text for *_, text in printed] == ["a b", "it rains"]
        assert [(label, float(score)) for score, label, _ in printed] == [
            (best["label"], pytest.approx(best["score"], abs=1e-4)) for best, *_ in replied
        ]
        assert main([*line, *flags, "--json"]) == 0
        entries: list[Any] = list(map(json.loads, capsys.readouterr().out.splitlines()))
        assert [entry["predictions"] for entry in entries] == replied
    assert main([*line, "--raw-scores", "--json"]) == 0
    raw = [json.loads(row)["predictions"] for row in capsys.readouterr().out.splitlines()]
    assert (
        raw
        == httpx.post(
            f"{url}/predict", json={"inputs": [["a b"], ["it\nrains"]], "raw_scores": True}
        ).json()
    )


def test_the_tokens_of_each_text_are_counted_and_printed_or_as_rest_has_them(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["tokenize", "alpha beta", "gamma", "--url", url]
    for flags, special in (([], True), (["--no-special-tokens"], False)):
        body = {"inputs": ["alpha beta", "gamma"], "add_special_tokens": special}
        replied = httpx.post(f"{url}/tokenize", json=body).json()
        assert main([*line, *flags]) == 0
        printed = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
        assert [int(count) for count, _ in printed] == [len(tokens) for tokens in replied]
        assert [text.split() for _, text in printed] == [
            [token["text"] for token in tokens] for tokens in replied
        ]
        assert main([*line, *flags, "--json"]) == 0
        entries = list(map(json.loads, capsys.readouterr().out.splitlines()))
        assert [entry["tokens"] for entry in entries] == replied
        assert [entry["text"] for entry in entries] == ["alpha beta", "gamma"]


def test_a_model_that_is_not_there_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("classify", "tokenize"):
        assert main([command, "a", "--model", "nobody", "--url", url]) == 1
        assert "nobody" in capsys.readouterr().err
