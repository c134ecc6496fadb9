"""The three stages from end to end on a tiny language model, by the command."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.unit.methods.conftest import TOPICS
from tiny_memory import write_language_model

from condensery.errors import InputError
from condensery.methods.llm2comp.train_command import main
from condensery.methods.llm2comp.training import PretextTraining

NETWORK = ("--memory-tokens", 2, "--lora-rank", 2, "--lora-alpha", 4)
SHORT = ("--batch", 4, "--steps", 4, "--every", 2, "--length", 60, "--held-out", 12,
         "--dtype", "float32", "--rate", "1e-3")  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_language_model(tmp_path / "lm", "llama")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rng = random.Random(3)
    words = [*TOPICS, "the", "is", "old", "how", "long"]
    lines = [" ".join(rng.choices(words, k=rng.randrange(25, 40))) for _ in range(60)]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*lines, "the river"]) + "\n")
    return path


def run(base: Path, stage: str, out: Path, *flags: object) -> dict[str, torch.Tensor]:
    main([str(base), "--stage", stage, "--out", str(out), *map(str, (*SHORT, *flags))])
    (weights,) = (out / "model").glob("*.safetensors")
    return load_file(weights)


def logged(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.mark.tiny_run
def test_three_stages_each_go_on_from_the_one_before(
    base: Path, texts: Path, tuning_rows: Path, tmp_path: Path
) -> None:
    first, second, third = (tmp_path / name for name in ("pretext", "plain", "ranked"))
    kept = ("--embeddings", "memory", "--text", texts)
    compressed = run(base, "pretext", first, *NETWORK, *kept)
    contrasted = run(base, "unsupervised", second, "--start", first, *kept)
    ranked = run(base, "supervised", third, "--start", second, "--rows", f"{tuning_rows}=find it")
    for folder in (first, second, third):
        assert (folder / "log.png").is_file()
        assert (folder / "spectrum.png").is_file()
    rows = "memory_tokens.weight"
    assert compressed[rows].shape == contrasted[rows].shape == ranked[rows].shape
    assert not torch.equal(compressed[rows], contrasted[rows])
    card = json.loads((first / "model" / "card.json").read_text())
    assert card["texts_too_short"] == 1
    assert any("validation" in json.dumps(line) for line in logged(first))


@pytest.mark.parametrize("objective", ["ctkd", "nll", "reconstruction"])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(
    objective: str, base: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*NETWORK, "--embeddings", "all", "--text", texts, "--objective", objective)
    whole = run(base, "pretext", tmp_path / "whole", *flags)
    batch = PretextTraining.batch

    def die(self: Any, draw: Any) -> Any:
        if draw.step == 3:
            raise KeyboardInterrupt
        return batch(self, draw)

    monkeypatch.setattr(PretextTraining, "batch", die)
    with pytest.raises(KeyboardInterrupt):
        run(base, "pretext", tmp_path / "killed", *flags)
    monkeypatch.undo()
    again = run(base, "pretext", tmp_path / "killed", *flags)
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize(
    ("stage", "flags", "field"),
    [
        ("pretext", ("--memory-tokens", 0), "memory_tokens"),
        ("pretext", ("--memory-tokens", 60), "memory_tokens"),
        ("pretext", (), "text"),
        ("supervised", (), "rows"),
        ("pretext", ("--pooling", "last"), "pooling"),
    ],
)
def test_what_can_not_be_trained_is_refused_before_any_work(
    stage: str, flags: tuple[object, ...], field: str, base: Path, texts: Path, tmp_path: Path
) -> None:
    given = () if field == "text" else ("--text", texts)
    with pytest.raises(InputError) as caught:
        run(base, stage, tmp_path / "out", *flags, *given)
    assert caught.value.field == field
    assert not (tmp_path / "out" / "log.jsonl").exists()


def test_texts_that_are_all_too_short_to_be_split_are_named(base: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("".join(f"the {topic} is old\n" for topic in TOPICS))
    with pytest.raises(InputError) as caught:
        run(base, "pretext", tmp_path / "out", *NETWORK, "--text", short, "--held-out", 0)
    assert caught.value.field == "text"
