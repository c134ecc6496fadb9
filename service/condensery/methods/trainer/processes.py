"""Several processes that train one network: what they must share, and no more.

torchrun, or anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, starts them.
"""

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes that train together.

    Attributes:
        rank: Which one this is; the first, 0, writes checkpoints and the log.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    def add_up(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over all processes."""
        if self.count > 1:
            distributed.all_reduce(tensor)

    def add_up_gradients(self, masters: Sequence[Tensor]) -> None:
        """Replace each gradient by its sum over all processes.

        A weight that no process has a gradient for keeps none, so that it is not decayed.
        """
        if self.count == 1:
            return
        device = masters[0].device
        used_here = torch.tensor([m.grad is not None for m in masters], device=device).float()
        self.add_up(used_here)
        used = [m for m, n in zip(masters, used_here.tolist(), strict=True) if n]
        if not used:
            return
        flat = torch.cat([(m if m.grad is None else m.grad).reshape(-1) for m in used])
        at = 0
        for master in used:  # zeros where this process had none
            if master.grad is None:
                flat[at : at + master.numel()] = 0
            at += master.numel()
        self.add_up(flat)
        pieces = flat.split([m.numel() for m in used])
        for master, piece in zip(used, pieces, strict=True):
            master.grad = piece.view_as(master)

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows (n, ...) of all processes, (count * n, ...), in the order of ranks.

        Gradients go back to whoever made a row: what all processes' losses ask of it, added up.
        All must have as many rows.
        """
        if self.count == 1:
            return rows
        rows_of_all: Tensor = _Gathered.apply(rows, self.rank, self.count)  # type: ignore[no-untyped-call]
        return rows_of_all

    def follow_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` by those of the first process."""
        if self.count > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def agree(self, well: bool, device: torch.device) -> bool:
        """Return whether all is well in every process."""
        failed = torch.tensor([0.0 if well else 1.0], device=device)
        self.add_up(failed)
        return not failed.item()


class _Gathered(torch.autograd.Function):
    """All processes' rows, and the way back of their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, rank: int, count: int) -> Tensor:
        ctx.rank, ctx.rows = rank, len(rows)
        gathered = [torch.empty_like(rows) for _ in range(count)]
        distributed.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)
        return gradient[ctx.rank * ctx.rows : (ctx.rank + 1) * ctx.rows], None, None


def own_device(device: torch.device) -> torch.device:
    """Return which CUDA device is this process's, one each; the CPU is everybody's."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


@contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """Join the processes that were started together, each with its device; alone if none were."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Its functions take the group of the time it is imported as their default. An optimizer's first
    # step imports it, and the group would outlive its end: a thread of gloo's that still lets go of
    # a tensor while the interpreter ends aborts the process.
    importlib.import_module("torch.distributed.nn")
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), count)
    finally:
        distributed.destroy_process_group()
