"""A training run of seconds, as a process of its own that tests can kill.

``python tiny_run.py OUT [NAME=VALUE ...]``; it prints the sha256 of the weights it ends with.
``python tiny_run.py OUT sweep`` kills a run before each call that changes the disk, in turn, and
prints how many there were and the weights that each, resumed, ended with.
"""

import hashlib
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from condensery.methods.trainer import checkpoints
from condensery.methods.trainer.method import Draw, Loss, Method
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.processes import Processes, joined
from condensery.methods.trainer.recipe import TrainerRecipe
from condensery.methods.trainer.trainer import Trainer

ROWS = 8
DEFAULTS: dict[str, Any] = {
    "steps": 12, "accumulate": 2, "every": 3, "keep": 2, "width": 16, "rows": ROWS,
    "slow": 0.0, "full_at": 0, "nan_at": 0, "dtype": "bfloat16", "dropout": 0.1,
}  # fmt: skip


def network(
    width: int = 16, dropout: float = 0.1, dtype: torch.dtype = torch.bfloat16
) -> nn.Module:
    torch.manual_seed(1)
    first, last = nn.Linear(8, width), nn.Linear(width, 4)
    return nn.Sequential(first, nn.BatchNorm1d(width), nn.Dropout(dropout), nn.GELU(), last).to(
        dtype
    )


def batches(rows: int) -> Any:
    """Rows of a step are the same however many batches they are split into."""

    def draw(at: Draw) -> Tensor:
        numbers = range(at.part * rows, (at.part + 1) * rows)
        return torch.stack(
            [
                torch.randn(8, generator=torch.Generator().manual_seed(at.step * 1000 + n))
                for n in numbers
            ]
        )

    return draw


def loss(net: nn.Module, batch: Tensor) -> Loss:
    predicted = net(batch.to(next(net.parameters()).dtype)).float()
    wanted = torch.stack([batch.sum(1), batch[:, 0], batch[:, 1] * batch[:, 2], batch[:, 3]], 1)
    error = (predicted - wanted).pow(2).sum(1)
    return Loss(error.mean(), weight=len(batch), items=len(batch), terms={"worst": error.max()})


class TinyRun(Method[nn.Module, Tensor]):
    def __init__(self, net: nn.Module, recipe: TrainerRecipe, options: dict[str, Any]) -> None:
        self.module, self.recipe, self.identity, self.options = net, recipe, {}, options

    def batch(self, draw: Draw) -> Tensor:
        options = self.options
        if options["full_at"] and draw.step >= options["full_at"]:  # as if the disk were full
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        rows: Tensor = batches(options["rows"])(draw)
        poisoned = options["nan_at"] and (draw.step, draw.part) == (options["nan_at"], 1)
        return rows * float("nan") if poisoned else rows

    def loss(self, batch: Tensor) -> Loss:
        time.sleep(self.options["slow"])
        return loss(self.module, batch)

    def groups(self) -> list[Group]:
        matrices = [p for p in self.module.parameters() if p.ndim > 1]
        vectors = [p for p in self.module.parameters() if p.ndim == 1]
        return [Group(matrices, 0.02, 0.1), Group(vectors, 0.01, 0.0)]

    def evaluate(self) -> dict[str, object]:
        return {"norm": float(next(self.module.parameters()).float().norm())}


def digest(net: nn.Module) -> str:
    return hashlib.sha256(
        save({k: v.contiguous() for k, v in net.state_dict().items()})
    ).hexdigest()


def train(out: Path, processes: Processes | None = None, **changes: Any) -> nn.Module:
    options = {**DEFAULTS, **changes}
    recipe = TrainerRecipe(
        steps=options["steps"], accumulate=options["accumulate"], warmup=2, log_every=2,
        every=options["every"], keep=options["keep"],
    )  # fmt: skip
    net = network(options["width"], options["dropout"], getattr(torch, options["dtype"]))
    if options["dtype"] == "float32":
        net[1] = nn.Identity()  # whose statistics would be those of each process's rows
    Trainer(TinyRun(net, recipe, options), out, processes or Processes()).run()
    return net


def die_before(call: int) -> None:
    """Kill this process before the ``call``-th of the calls that change the disk."""
    calls = [0]

    def counted(function: Any) -> Any:
        def made(*args: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **named)

        return made

    for name in ("fsync", "rename", "mkdir", "unlink", "rmdir", "replace"):
        setattr(os, name, counted(getattr(os, name)))
    checkpoints.save_file = counted(checkpoints.save_file)


def forked(out: Path, die_at: int = 0) -> int:
    """Train in a forked process; returns its exit status, negative for a signal."""
    child = os.fork()
    if not child:
        if die_at:
            die_before(die_at)
        out.mkdir(parents=True, exist_ok=True)
        hexdigest = digest(train(out))
        (out / "digest").write_text(hexdigest)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sweep(out: Path) -> None:
    """Kill at every call, resume, and print what came of it."""
    train(out / "0")  # so that what torch imports at its first step is there before the forks
    call, digests = 0, set()
    while True:
        call += 1
        if forked(out / str(call), call) == 0:
            break
        assert forked(out / str(call)) == 0
        digests.add((out / str(call) / "digest").read_text())
    print(call - 1, *digests)


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    if sys.argv[2:] == ["sweep"]:
        sweep(out)
        return
    changes = {}
    for argument in sys.argv[2:]:
        name, value = argument.split("=")
        changes[name] = type(DEFAULTS[name])(value)
    with joined(torch.device("cpu")) as processes:
        net = train(out, processes, **changes)
    threads = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in threads if "gloo" in name], f"the group was left with {threads}"
    if processes.rank == 0:
        print(digest(net))


if __name__ == "__main__":
    main()
