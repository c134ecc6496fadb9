import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from condensery.cli import main
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """Flags that name a store with a measured model and one that is not."""
    store = ModelStore(None, tmp_path / "store")
    for name in ("pair", "quiet"):
        files = tmp_path / name
        (files / "plots").mkdir(parents=True)
        save_file({"a": np.ones(3, np.float32)}, files / "model.safetensors")
        if name == "pair":
            (files / "report.json").write_text('{"format": 2}')
            (files / "card.md").write_text("# pair\n")
            (files / "plots" / "cost.png").write_bytes(b"a picture")
        store.publish(files, Manifest(name=name, kind="oscar-pair", max_tokens=9))
    return ["--store", str(store.own)]


def test_a_stored_report_is_printed_as_json_or_as_a_card(
    capsys: pytest.CaptureFixture[str], own: list[str], tmp_path: Path
) -> None:
    assert main(["models", "report", "pair", *own]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (shown["model"], shown["version"], shown["report"]) == ("pair", "1", {"format": 2})
    assert (shown["card"], shown["plots"]) == (True, ["cost"])
    folder = tmp_path / "new" / "plots"
    flags = ["--format", "markdown", "--plots", str(folder)]
    assert main(["models", "report", "pair", *flags, *own]) == 0
    out, err = capsys.readouterr()
    assert out == "# pair\n"
    assert err == f"1 plots in {folder}\n"
    assert (folder / "cost.png").read_bytes() == b"a picture"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["quiet"], "model 'quiet' was never measured"),
        (["nobody"], "no model 'nobody' in the store"),
        (["pair", "--url", "http://127.0.0.1:9"], "--store: it can't be combined with --url"),
    ],
)
def test_what_there_is_not_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], own: list[str], arguments: list[str], says: str
) -> None:
    assert main(["models", "report", *arguments, *own]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert "Traceback" not in err


def test_a_folder_that_can_not_be_written_is_named(
    capsys: pytest.CaptureFixture[str], own: list[str], tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("")
    arguments = ["models", "report", "pair", "--plots", str(tmp_path / "taken"), *own]
    assert main(arguments) != 0
    assert f"--plots: {tmp_path / 'taken'} can't be written" in capsys.readouterr().err
