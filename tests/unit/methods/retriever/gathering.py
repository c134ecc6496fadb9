"""Run by torchrun: the contrastive loss of two processes, each with half of the queries."""

import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn import functional as F

from condensery.methods.retriever.tuning import contrastive
from condensery.methods.trainer.processes import joined


def main(out: Path) -> None:
    with joined(torch.device("cpu")) as processes:
        generator = torch.Generator().manual_seed(0)
        queries = F.normalize(torch.randn(4, 8, generator=generator), dim=1)
        passages = F.normalize(torch.randn(12, 8, generator=generator), dim=1)
        mine = slice(2 * processes.rank, 2 * processes.rank + 2)
        its = slice(6 * processes.rank, 6 * processes.rank + 6)
        own = passages[its].clone().requires_grad_()
        loss = contrastive(queries[mine], own, processes=processes)
        loss.backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        torch.save({"loss": loss.detach(), "grad": own.grad}, out / f"{processes.rank}.pt")
        distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
