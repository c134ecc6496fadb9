"""Training state on disk: written aside, synced and renamed, so that a kill leaves the last whole.

``OUT/checkpoints/step-00000500`` holds ``weights.safetensors``, ``optimizer.safetensors`` and
``state.json``. A folder of that name is whole: it got the name once all of it was on the disk.
Nothing is unpickled.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from condensery.atomic_files import sync_path
from condensery.errors import CondenseryError

FOLDER, WEIGHTS, OPTIMIZER, STATE = (
    "checkpoints",
    "weights.safetensors",
    "optimizer.safetensors",
    "state.json",
)
NAME = re.compile(r"step-(\d{8,})")


class TrainingStopped(CondenseryError):
    """A run can't go on; its last checkpoint is whole."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    step: int

    def state(self) -> dict[str, Any]:
        """Return what ``state.json`` says."""
        state: dict[str, Any] = self._read(STATE, lambda path: json.loads(path.read_text()))
        return state

    def weights(self) -> dict[str, Tensor]:
        """Return the network's tensors, on the CPU."""
        tensors: dict[str, Tensor] = self._read(WEIGHTS, load_file)
        return tensors

    def optimizer(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors, on the CPU."""
        tensors: dict[str, Tensor] = self._read(OPTIMIZER, load_file)
        return tensors

    def _read(self, name: str, load: Any) -> Any:
        """Read a file of it.

        Raises:
            TrainingStopped: It is missing, or was damaged after it was written.
        """
        try:
            return load(self.path / name)
        except (OSError, ValueError, SafetensorError) as error:
            raise TrainingStopped(
                f"{self.path / name}: can't be read ({error}); without the folder {self.path.name}"
                " the run goes on from the checkpoint before it, or begins again"
            ) from error


def checkpoints(out: Path) -> list[Checkpoint]:
    """Return a run's whole checkpoints, oldest first."""
    folder = out / FOLDER
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    whole = [(int(match[1]), name) for name in names if (match := NAME.fullmatch(name))]
    return [Checkpoint(folder / name, step) for step, name in sorted(whole)]


def latest(out: Path) -> Checkpoint | None:
    """Return a run's last whole checkpoint, None if it has none."""
    return next(reversed(checkpoints(out)), None)


def save_checkpoint(
    out: Path,
    step: int,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int = 1,
) -> Checkpoint:
    """Write the state after ``step`` steps, then remove all but the last ``keep`` checkpoints.

    Raises:
        TrainingStopped: The disk refused, for being full or otherwise; what was there is whole.
    """
    folder = out / FOLDER
    done = Checkpoint(folder / f"step-{step:08}", step)
    aside = folder / f"{done.path.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        aside.mkdir()
        save_file({k: v.detach().contiguous() for k, v in weights.items()}, aside / WEIGHTS)
        save_file({k: v.detach().contiguous() for k, v in optimizer.items()}, aside / OPTIMIZER)
        (aside / STATE).write_text(json.dumps({"step": step, **state}, indent=1) + "\n")
        for path in (*aside.iterdir(), aside):
            sync_path(path)
        aside.rename(done.path)
        sync_path(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)  # make room again: it is of no use
        last = latest(out)
        kept = f"the last whole one is {last.path}" if last else "there is none before it"
        raise TrainingStopped(
            f"step {step}: the checkpoint {done.path} could not be written ({error}); {kept}"
        ) from error
    # From here on the new one is durable. Others lose their name before they lose their files.
    for old in checkpoints(out)[:-keep]:
        old.path.rename(old.path.with_name(f"{old.path.name}.removed"))
    _clear(folder)
    return done


def _clear(folder: Path) -> None:
    """Remove what a kill left half written or half removed."""
    for path in folder.iterdir():
        if path.suffix in (".partial", ".removed"):
            shutil.rmtree(path)
