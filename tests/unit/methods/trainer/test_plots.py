import json
from pathlib import Path

import pytest
import tiny_run
from PIL import Image

from condensery.errors import InputError
from condensery.methods.trainer.progress import main, plot, series


def test_numbers_are_sorted_into_panels() -> None:
    rows = [
        {"step": 2, "steps": 4, "loss": 3.0, "answer": 2.0, "rate": 0.1, "items": 8},
        {"step": 4, "steps": 4, "loss": 2.0, "answer": 1.0, "rate": 0.0, "items": 16},
        {"step": 4, "steps": 4, "validation": {"gold": {"f1": 5}, "plain": {"f1": 6}}},
        {"step": 4, "steps": 4, "validation": {"perplexity": 7.5}},
    ]  # fmt: skip
    assert series(rows) == {
        "loss": {"loss": [(2, 3.0), (4, 2.0)], "answer": [(2, 2.0), (4, 1.0)]},
        "rate": {"rate": [(2, 0.1), (4, 0.0)]},
        "validation: f1": {"gold": [(4, 5.0)], "plain": [(4, 6.0)]},
        "validation: perplexity": {"perplexity": [(4, 7.5)]},
    }


def test_a_run_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_run.train(tmp_path, steps=4)
    main(["--run", str(tmp_path), "--to", str(tmp_path / "other.png")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "other.png")
    with Image.open(plot(tmp_path)) as picture:
        assert picture.format == "PNG"
        # Panels of loss, norm, rate, speed and one figure: more than two colours are in use.
        assert len(picture.convert("RGB").getcolors(2**20) or ()) > 10
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoints", "log.jsonl", "log.png", "other.png",
    }  # fmt: skip


def test_a_run_without_a_log_can_not_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"log\.jsonl: nothing to plot"):
        plot(tmp_path)
    (tmp_path / "log.jsonl").write_text(json.dumps({"step": 1, "steps": 1}) + "\n")
    with pytest.raises(InputError, match=r"log\.jsonl: nothing to plot"):
        plot(tmp_path)
