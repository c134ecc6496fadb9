"""Runs in processes of their own: killed, out of room, several at once."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch
from safetensors.torch import load_file

from condensery.methods.trainer.checkpoints import latest
from condensery.methods.trainer.progress import read_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(tiny_run.__file__)


def start(out: Path, *launcher: str, **options: Any) -> subprocess.Popen[str]:
    arguments = [f"{name}={value}" for name, value in options.items()]
    return subprocess.Popen(
        [sys.executable, *launcher, str(SCRIPT), str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    printed, failed = process.communicate(timeout=300)
    assert process.returncode == 0, failed
    return printed.strip()


def test_a_run_killed_at_random_times_and_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    options = {"steps": 60, "every": 3}
    wanted = finish(start(tmp_path / "whole", **options))
    rng = random.Random(5)
    steps = []
    for _ in range(5):
        before = read_log(tmp_path / "killed")
        process = start(
            tmp_path / "killed", slow=0.1, **options
        )  # 12 seconds, if it were left alone
        while process.poll() is None:  # let it come a little further than the last time
            rows = read_log(tmp_path / "killed")
            if rows and (not before or rows[-1]["step"] > before[-1]["step"]):
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
        checkpoint = latest(tmp_path / "killed")
        steps.append(checkpoint.step if checkpoint else 0)
    assert steps == sorted(steps)
    assert finish(start(tmp_path / "killed", **options)) == wanted
    files = [latest(tmp_path / which).path for which in ("whole", "killed")]  # type: ignore[union-attr]
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        assert (files[0] / name).read_bytes() == (files[1] / name).read_bytes(), name
    rows = [[(r["step"], "validation" in r) for r in read_log(f.parents[1])] for f in files]
    assert set(rows[0]) <= set(rows[1])


def test_a_run_killed_before_any_call_that_changes_the_disk_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    wanted = finish(start(tmp_path / "whole"))
    process = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "swept"), "sweep"],
        check=True, capture_output=True, text=True, timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    count, *differing = process.stdout.split()
    assert int(count) > 40  # four checkpoints: each synced five times, two of them removed
    assert differing == [wanted]


def test_a_full_disk_leaves_the_last_checkpoint_whole_and_the_run_goes_on_with_room(
    tmp_path: Path,
) -> None:
    """From step 5 on no file may grow past 40 kB: weights still fit, the optimizer's not."""
    options = {"steps": 6, "every": 2, "width": 512, "dtype": "float32"}
    wanted = finish(start(tmp_path / "whole", **options))
    first = start(tmp_path / "full", full_at=5, **options)
    _, failed = first.communicate(timeout=300)
    assert first.returncode == 1
    assert "TrainingStopped: step" in failed
    assert "could not be written" in failed
    checkpoint = latest(tmp_path / "full")
    assert checkpoint is not None
    assert checkpoint.step == 4
    assert checkpoint.path.as_posix() in failed
    assert checkpoint.weights()
    assert checkpoint.optimizer()
    names = sorted(path.name for path in checkpoint.path.parent.iterdir())
    assert names == ["step-00000002", "step-00000004"]  # nothing half written
    assert finish(start(tmp_path / "full", **options)) == wanted


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_two_processes_equal_one_with_twice_the_batches(tmp_path: Path, dropout: float) -> None:
    """Bit for bit where the batches are the same; to 1e-5 where they are one of twice the rows."""
    options = {"dtype": "float32", "dropout": dropout}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finish(start(tmp_path / "two", *torchrun, accumulate=1, **options))
    finish(start(tmp_path / "one", accumulate=2, **options))
    two, alone = (weights(tmp_path / which) for which in ("two", "one"))
    assert all(torch.equal(two[name], alone[name]) for name in alone)
    if not dropout:  # which is drawn batch by batch
        finish(start(tmp_path / "double", accumulate=1, rows=2 * tiny_run.ROWS, **options))
        double = weights(tmp_path / "double")
        assert not all(torch.equal(two[name], double[name]) for name in alone)
        for name, value in double.items():
            torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-5)
    rows = [
        [(r["step"], r.get("loss"), r.get("items")) for r in read_log(tmp_path / w)]
        for w in ("one", "two")
    ]
    assert rows[0] == rows[1]


def test_a_run_of_two_processes_goes_on_as_one(tmp_path: Path) -> None:
    options = {"dtype": "float32", "steps": 40}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = start(tmp_path / "cut", *torchrun, accumulate=1, slow=0.2, **options)
    while latest(tmp_path / "cut") is None and both.poll() is None:
        time.sleep(0.01)
    both.send_signal(signal.SIGTERM)  # torchrun ends its own
    both.communicate(timeout=300)
    assert both.returncode != 0
    finish(start(tmp_path / "cut", accumulate=2, **options))
    finish(start(tmp_path / "one", accumulate=2, **options))
    alone, cut = weights(tmp_path / "one"), weights(tmp_path / "cut")
    assert all(torch.equal(cut[name], alone[name]) for name in alone)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"nan_at": 4}, "step 4: the loss is not finite, in the batch of tensor"),
        ({"full_at": 5, "width": 512}, "step 6: the checkpoint"),
    ],
)
def test_what_stops_one_process_stops_all(tmp_path: Path, fault: dict[str, int], says: str) -> None:
    """One knows of the batch, the other of the disk; neither waits for ever."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = start(tmp_path, *torchrun, accumulate=1, dtype="float32", **fault)
    _, failed = both.communicate(timeout=300)
    assert both.returncode == 1
    assert says in failed
    assert failed.count("TrainingStopped: step") >= 1
    checkpoint = latest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 3


def weights(out: Path) -> dict[str, torch.Tensor]:
    checkpoint = latest(out)
    assert checkpoint is not None
    return load_file(checkpoint.path / "weights.safetensors")
