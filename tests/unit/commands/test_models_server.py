"""The models of a running server, by the command line: against a real REST door."""

from typing import Any

import pytest

from condensery.cli import main


def test_models_load_reload_and_unload(
    url: str, registry: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "load", "other", "--version", "3", "--url", url]) == 0
    assert "other version 3 (sha256:other) serves in place of version 1" in capsys.readouterr().out
    assert main(["models", "reload", "other", "--url", url]) == 0
    assert main(["models", "unload", "other", "--url", url]) == 1
    assert "it is the encoder of kb" in capsys.readouterr().err
    assert main(["models", "unload", "other", "--force", "--url", url]) == 0
    out, err = capsys.readouterr()
    assert "other version 2: unloaded" in out
    assert "refused until it serves again: kb" in err
    assert registry.lifecycle.asked[:2] == [("other", "3", False), ("other", None, True)]


def test_aliases_are_set_listed_and_removed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "alias", "best=other", "a=best", "--url", url]) == 0
    assert capsys.readouterr().out == "a -> best\nbest -> other\n"
    assert main(["models", "alias", "a=", "--url", url]) == 0
    assert main(["models", "alias", "--url", url]) == 0
    assert capsys.readouterr().out == "best -> other\n" * 2
    for wrong, says in (("best", "is not ALIAS=MODEL"), ("a=nobody", "neither a running model")):
        assert main(["models", "alias", wrong, "--url", url]) == 1
        assert says in capsys.readouterr().err
    assert main(["models", "alias", "a=other", "a=words", "--url", url]) == 1
    assert "the alias 'a' is set twice" in capsys.readouterr().err


def test_an_alias_carries_an_index(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["--index", "kb", "--top-k", "5", "--mode", "bm25"]
    assert main(["models", "alias", "docs=pair", *search, "--url", url]) == 0
    assert main(["models", "alias", "--url", url]) == 0
    assert capsys.readouterr().out == "docs -> pair@kb?top_k=5&mode=bm25\n" * 2
    assert main(["models", "alias", "docs=pair", "--index", "kb", "--url", url]) == 0
    assert capsys.readouterr().out == "docs -> pair@kb\n"
    for wrong, says in (
        (["docs=pair", "--index", "nothing"], "no index 'nothing'"),
        (["docs=other", "--index", "kb"], "answers no questions"),
        (["docs=pair", "--index", "kb", "--top-k", "0"], "top_k '0'"),
        (["docs=pair", "--index", "kb", "--top-k", "9999"], "top_k 9999 is over"),
        (["docs=pair", "a=pair", "--index", "kb"], "needs one ALIAS=MODEL"),
        (["docs=", "--index", "kb"], "needs one ALIAS=MODEL"),
        (["--index", "kb"], "needs one ALIAS=MODEL"),
        (["docs=pair", "--mode", "bm25"], "give --index"),
    ):
        assert main(["models", "alias", *wrong, "--url", url]) == 1, wrong
        assert says in capsys.readouterr().err
    assert main(["models", "alias", "docs=", "--url", url]) == 0
    assert capsys.readouterr().out == ""


def test_the_stored_models_are_listed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "status", "--url", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "VERSION", "STATE", "REASON"]
    assert any(line.split() == ["other", "2", "READY"] for line in lines)
    assert lines[-1].endswith("UNAVAILABLE  model.json is cut short")
