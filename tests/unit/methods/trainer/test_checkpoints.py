import json
import os
from pathlib import Path

import pytest
import torch

from condensery.methods.trainer.checkpoints import (
    TrainingStopped,
    checkpoints,
    latest,
    save_checkpoint,
)


def save(out: Path, step: int, keep: int = 1) -> None:
    weights = {"a": torch.full((3,), float(step))}
    save_checkpoint(out, step, weights, {"0.master": torch.zeros(2)}, {"items": step * 4}, keep)


def names(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").iterdir())


def test_a_checkpoint_gives_back_what_was_saved(tmp_path: Path) -> None:
    save(tmp_path, 7)
    checkpoint = latest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 7
    assert checkpoint.state() == {"step": 7, "items": 28}
    assert checkpoint.weights()["a"].tolist() == [7, 7, 7]
    assert checkpoint.optimizer()["0.master"].tolist() == [0, 0]


def test_without_one_there_is_none(tmp_path: Path) -> None:
    assert latest(tmp_path) is None


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 6, 99_999_999, 100_000_000):
        save(tmp_path, step, keep=2)
    assert [checkpoint.step for checkpoint in checkpoints(tmp_path)] == [99_999_999, 100_000_000]
    assert len(names(tmp_path)) == 2


def test_what_a_kill_left_is_no_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    save(tmp_path, 2)
    for name in ("step-00000004.partial", "step-00000001.removed"):
        (tmp_path / "checkpoints" / name).mkdir()
        (tmp_path / "checkpoints" / name / "weights.safetensors").write_bytes(b"half")
    assert [checkpoint.step for checkpoint in checkpoints(tmp_path)] == [2]
    save(tmp_path, 4)
    assert names(tmp_path) == ["step-00000004"]


def test_an_old_one_goes_only_once_the_new_one_is_synced_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 2)
    seen: list[tuple[str, list[str]]] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        seen.append((path.name, names(tmp_path)))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    save(tmp_path, 4)
    *inside, (folder, at_the_end) = seen
    aside = "step-00000004.partial"
    files = {"weights.safetensors", "optimizer.safetensors", "state.json", aside}
    assert {name for name, _ in inside} == files
    assert all(names == ["step-00000002", aside] for _, names in inside)
    assert (folder, at_the_end) == ("checkpoints", ["step-00000002", "step-00000004"])
    assert names(tmp_path) == ["step-00000004"]


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_a_disk_that_refuses_leaves_the_last_one_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    save(tmp_path, 2)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, refuse)
        with pytest.raises(TrainingStopped, match=r"step 4: .*No space left.*step-00000002"):
            save(tmp_path, 4)
    assert names(tmp_path) == ["step-00000002"]
    save(tmp_path, 4)
    assert names(tmp_path) == ["step-00000004"]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_damaged_one_is_named_and_never_passed_over(
    tmp_path: Path, name: str, damage: str
) -> None:
    save(tmp_path, 2)
    file = tmp_path / "checkpoints" / "step-00000002" / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:10])
    checkpoint = latest(tmp_path)
    assert checkpoint is not None
    with pytest.raises(TrainingStopped, match=name):
        _ = (checkpoint.weights(), checkpoint.optimizer(), checkpoint.state())


def test_nothing_in_it_is_pickled(tmp_path: Path) -> None:
    save(tmp_path, 2)
    folder = tmp_path / "checkpoints" / "step-00000002"
    for path in folder.glob("*.safetensors"):
        header = path.read_bytes()
        size = int.from_bytes(header[:8], "little")
        json.loads(header[8 : 8 + size])
    json.loads((folder / "state.json").read_text())
    assert len(list(folder.iterdir())) == 3
