"""The command as processes of their own: killed, and several at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from condensery.methods.trainer.checkpoints import checkpoints, latest

STEPS = 8
RECIPE = (
    "--batch 4 --rows 2 --passages 3 --label-tokens 12 --lora-rank 2 --generator-rate 1e-2 "
    f"--compressor-rate 1e-3 --plain 0.3 --steps {STEPS} --every 1 --answers 0 --threads 1 "
    "--device cpu --share 0 --layers 2 --memory-tokens 4 --passage-tokens 24 --query-tokens 12"
)
MODULE = "condensery.methods.oscar.causal.training"


def flags(base: Path, rows: Path, out: Path, dtype: str) -> list[str]:
    places = ["--generator", str(base), "--data", str(rows), "--out", str(out)]
    return [*RECIPE.split(), *places, "--dtype", dtype]


def weights(out: Path) -> dict[str, torch.Tensor]:
    checkpoint = latest(out)
    assert checkpoint is not None
    assert checkpoint.step == STEPS
    return {**checkpoint.weights(), **checkpoint.optimizer()}


@pytest.mark.slow
def test_a_run_killed_and_resumed_ends_with_the_same_bits(
    bases: dict[str, Path], rows_file: Path, tmp_path: Path
) -> None:
    def start(out: Path) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-m",
            MODULE,
            *flags(bases["mistral"], rows_file, out, "bfloat16"),
        ]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    cut, whole = tmp_path / "cut", tmp_path / "whole"
    killed = start(cut)
    while not checkpoints(cut) and killed.poll() is None:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    reached = latest(cut)
    assert reached is not None
    assert 1 <= reached.step < STEPS
    assert start(cut).wait() == 0
    assert start(whole).wait() == 0
    resumed, wanted = weights(cut), weights(whole)
    assert resumed.keys() == wanted.keys()
    assert all(torch.equal(resumed[name], wanted[name]) for name in wanted)


@pytest.mark.slow
def test_two_processes_train_as_one(
    bases: dict[str, Path], rows_file: Path, tmp_path: Path
) -> None:
    single, two = tmp_path / "one", tmp_path / "two"
    alone = [sys.executable, "-m", MODULE, *flags(bases["mistral"], rows_file, single, "float32")]
    both = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", MODULE, *flags(bases["mistral"], rows_file, two, "float32")),
    ]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in (alone, both):
        subprocess.run(command, check=True, env=quiet, stderr=subprocess.DEVNULL)
    together, wanted = weights(two), weights(single)
    assert together.keys() == wanted.keys()
    for name, weight in wanted.items():
        if not name.endswith("exp_avg_sq"):
            torch.testing.assert_close(together[name], weight, rtol=0, atol=1e-5)
