"""Training state on disk, written aside and renamed: a kill leaves the last one whole."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from condensery.methods.oscar.optimizer import MasterAdamW
from condensery.networks.oscar import OscarPair

NAME = "checkpoint"


def save_checkpoint(
    out: Path, step: int, pair: OscarPair, optimizer: MasterAdamW, about: dict[str, Any]
) -> None:
    """Write the pair's weights and the optimizer's state after ``step`` steps."""
    aside = out / f"{NAME}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    save_file({k: v.contiguous() for k, v in pair.own_state().items()}, aside / "pair.safetensors")
    save_file(optimizer.state(), aside / "optimizer.safetensors")
    (aside / "state.json").write_text(json.dumps({"step": step, **about}, indent=1))
    for file in aside.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    old = out / f"{NAME}.old"
    if (out / NAME).exists():  # else a kill came between the renames, and .old is all there is
        shutil.rmtree(old, ignore_errors=True)
        (out / NAME).rename(old)
    aside.rename(out / NAME)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(out: Path, optimizer: MasterAdamW) -> int:
    """Restore the optimizer (and with it the weights); return the steps done, 0 if none."""
    folder = next((f for f in (out / NAME, out / f"{NAME}.old") if f.exists()), None)
    if folder is None:
        return 0
    optimizer.load_state(load_file(folder / "optimizer.safetensors"))
    step: int = json.loads((folder / "state.json").read_text())["step"]
    return step
