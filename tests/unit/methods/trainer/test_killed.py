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


def start(out: Path, *launcher: str, **given: Any) -> subprocess.Popen[str]:
    arguments = [f"{name}={value}" for name, value in given.items()]
    return subprocess.Popen(
        [sys.executable, *launcher, str(SCRIPT), str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    told, failed = process.communicate(timeout=300)
    assert process.returncode == 0, failed
    return told.strip()


def test_a_run_killed_at_random_times_and_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    given = {"steps": 60, "every": 3}
    wanted = finish(start(tmp_path / "whole", **given))
    rng = random.Random(5)
    steps = []
    for _ in range(5):
        before = read_log(tmp_path / "killed")
        process = start(tmp_path / "killed", slow=0.1, **given)  # 12 seconds, if it were left alone
        while process.poll() is None:  # let it come a little further than the last time
            rows = read_log(tmp_path / "killed")
            if rows and (not before or rows[-1]["step"] > before[-1]["step"]):
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
        found = latest(tmp_path / "killed")
        steps.append(found.step if found else 0)
    assert steps == sorted(steps)
    assert finish(start(tmp_path / "killed", **given)) == wanted
    files = [latest(tmp_path / which).path for which in ("whole", "killed")]  # type: ignore[union-attr]
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        assert (files[0] / name).read_bytes() == (files[1] / name).read_bytes(), name
    told = [[(r["step"], "validation" in r) for r in read_log(f.parents[1])] for f in files]
    assert set(told[0]) <= set(told[1])


def test_a_run_killed_before_any_call_that_changes_the_disk_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    wanted = finish(start(tmp_path / "whole"))
    process = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "swept"), "sweep"],
        check=True, capture_output=True, text=True, timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    count, *found = process.stdout.split()
    assert int(count) > 40  # four checkpoints: each synced five times, two of them removed
    assert found == [wanted]


def test_a_full_disk_leaves_the_last_checkpoint_whole_and_the_run_goes_on_with_room(
    tmp_path: Path,
) -> None:
    """From step 5 on no file may grow past 40 kB: weights still fit, the optimizer's not."""
    given = {"steps": 6, "every": 2, "width": 512, "dtype": "float32"}
    wanted = finish(start(tmp_path / "whole", **given))
    first = start(tmp_path / "full", full_at=5, **given)
    _, failed = first.communicate(timeout=300)
    assert first.returncode == 1
    assert "TrainingStopped: step" in failed
    assert "could not be written" in failed
    found = latest(tmp_path / "full")
    assert found is not None
    assert found.step == 4
    assert found.path.as_posix() in failed
    assert found.weights()
    assert found.optimizer()
    names = sorted(path.name for path in found.path.parent.iterdir())
    assert names == ["step-00000002", "step-00000004"]  # nothing half written
    assert finish(start(tmp_path / "full", **given)) == wanted


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_two_processes_equal_one_with_twice_the_batches(tmp_path: Path, dropout: float) -> None:
    """Bit for bit where the batches are the same; to 1e-5 where they are one of twice the rows."""
    given = {"dtype": "float32", "dropout": dropout}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finish(start(tmp_path / "two", *torchrun, accumulate=1, **given))
    finish(start(tmp_path / "one", accumulate=2, **given))
    two, one = (weights(tmp_path / which) for which in ("two", "one"))
    assert all(torch.equal(two[name], one[name]) for name in one)
    if not dropout:  # which is drawn batch by batch
        finish(start(tmp_path / "double", accumulate=1, rows=2 * tiny_run.ROWS, **given))
        double = weights(tmp_path / "double")
        assert not all(torch.equal(two[name], double[name]) for name in one)
        for name, value in double.items():
            torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-5)
    rows = [
        [(r["step"], r.get("loss"), r.get("items")) for r in read_log(tmp_path / w)]
        for w in ("one", "two")
    ]
    assert rows[0] == rows[1]


def test_a_run_of_two_processes_goes_on_as_one(tmp_path: Path) -> None:
    given = {"dtype": "float32", "steps": 40}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = start(tmp_path / "cut", *torchrun, accumulate=1, slow=0.2, **given)
    while latest(tmp_path / "cut") is None and both.poll() is None:
        time.sleep(0.01)
    both.send_signal(signal.SIGTERM)  # torchrun ends its own
    both.communicate(timeout=300)
    assert both.returncode != 0
    finish(start(tmp_path / "cut", accumulate=2, **given))
    finish(start(tmp_path / "one", accumulate=2, **given))
    one, cut = weights(tmp_path / "one"), weights(tmp_path / "cut")
    assert all(torch.equal(cut[name], one[name]) for name in one)


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
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 3


def weights(out: Path) -> dict[str, torch.Tensor]:
    found = latest(out)
    assert found is not None
    return load_file(found.path / "weights.safetensors")
