import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_pair import tiny_pair

from condensery.methods.oscar.checkpoint import load_checkpoint, save_checkpoint
from condensery.methods.oscar.optimizer import Group, MasterAdamW
from condensery.networks.oscar import OscarPair


def made(seed: int) -> tuple[OscarPair, MasterAdamW]:
    pair = tiny_pair(seed).bfloat16()
    trained = [p for p in pair.parameters() if p.requires_grad]
    return pair, MasterAdamW([Group(trained, 0.01, 0.0)])


def step(pair: OscarPair, optimizer: MasterAdamW) -> None:
    for parameter in pair.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step(1.0, clip=1.0)


def same(a: OscarPair, b: OscarPair) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.own_state().values(), b.own_state().values(), strict=True)
    )


def test_a_checkpoint_restores_weights_moments_and_the_step(tmp_path: Path) -> None:
    pair, optimizer = made(0)
    step(pair, optimizer)
    save_checkpoint(tmp_path, 41, pair, optimizer, {"recipe": {"seed": 3}})
    other, restored = made(1)
    assert not same(pair, other)
    assert load_checkpoint(tmp_path, restored) == 41
    assert same(pair, other)
    for name, value in optimizer.state().items():
        assert torch.equal(value, restored.state()[name])
    state = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
    assert state == {"step": 41, "recipe": {"seed": 3}}


def test_without_a_checkpoint_a_run_starts_at_nothing(tmp_path: Path) -> None:
    pair, optimizer = made(0)
    assert load_checkpoint(tmp_path, optimizer) == 0
    assert same(pair, tiny_pair(0).bfloat16())


def test_a_new_checkpoint_takes_the_old_ones_place(tmp_path: Path) -> None:
    pair, optimizer = made(0)
    for number in (1, 2, 3):
        step(pair, optimizer)
        save_checkpoint(tmp_path, number, pair, optimizer, {})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    other, restored = made(1)
    assert load_checkpoint(tmp_path, restored) == 3
    assert same(pair, other)


@pytest.mark.parametrize("files", [(), ("pair.safetensors",)])
def test_a_kill_while_writing_leaves_the_last_one(tmp_path: Path, files: tuple[str, ...]) -> None:
    pair, optimizer = made(0)
    save_checkpoint(tmp_path, 7, pair, optimizer, {})
    partial = tmp_path / "checkpoint.partial"
    partial.mkdir()
    for name in files:
        (partial / name).write_bytes(b"half")
    assert load_checkpoint(tmp_path, optimizer) == 7
    save_checkpoint(tmp_path, 8, pair, optimizer, {})  # what was left does not disturb
    assert load_checkpoint(tmp_path, optimizer) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_kill_between_the_renames_leaves_the_old_one(tmp_path: Path) -> None:
    pair, optimizer = made(0)
    save_checkpoint(tmp_path, 7, pair, optimizer, {})
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")
    assert load_checkpoint(tmp_path, optimizer) == 7


def test_the_old_one_stays_until_a_new_one_stands_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, optimizer = made(0)
    save_checkpoint(tmp_path, 7, pair, optimizer, {})
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")  # the first kill

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)  # the second: before the new one is in place
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 8, pair, optimizer, {})
    assert load_checkpoint(tmp_path, optimizer) == 7
    save_checkpoint(tmp_path, 9, pair, optimizer, {})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path: Path) -> None:
    pair, optimizer = made(0)
    save_checkpoint(tmp_path, 7, pair, optimizer, {})
    larger = tiny_pair(mapping_size=41)
    trained = [p for p in larger.parameters() if p.requires_grad]
    with pytest.raises(RuntimeError, match="size"):
        load_checkpoint(tmp_path, MasterAdamW([Group(trained, 0.01, 0.0)]))
    shutil.rmtree(tmp_path / "checkpoint")
    assert load_checkpoint(tmp_path, optimizer) == 0
