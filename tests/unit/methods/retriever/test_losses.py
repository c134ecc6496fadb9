import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.unit.methods.retriever import gathering
from torch import Tensor
from torch.nn import functional as F

from condensery.methods.retriever.tuning import contrastive, distilled


def vectors(count: int, seed: int) -> Tensor:
    drawn = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn, dim=1).requires_grad_()


def test_infonce_is_the_papers_formula() -> None:
    queries, passages = vectors(3, 0), vectors(12, 1)
    wanted = 0.0
    for i in range(3):
        scores = (passages @ queries[i] / 0.02).tolist()
        top = max(scores)
        total = top + math.log(sum(math.exp(score - top) for score in scores))
        wanted += (total - scores[4 * i]) / 3
    value = contrastive(queries, passages)
    assert value.item() == pytest.approx(wanted, rel=1e-5)
    value.backward()
    assert passages.grad is not None
    assert (passages.grad.abs().sum(1) > 0).all()


def test_distillation_is_the_kl_divergence_and_the_teachers_entropy() -> None:
    queries, passages = vectors(3, 2), vectors(12, 3)
    teacher = torch.tensor([[3.0, -1.0, 0.5, 2.0], [float("nan")] * 4, [0.0, 4.0, 1.0, -3.0]])
    wanted = []
    for i in (0, 2):
        own = passages[4 * i : 4 * i + 4]
        student = (queries[i] @ own.T / 0.05).log_softmax(-1)
        target = teacher[i].softmax(-1)
        entropy = -(target * target.log()).sum()
        wanted.append(F.kl_div(student, target, reduction="sum") + entropy)
    value = distilled(queries, passages, teacher, temperature=0.05)
    assert value.item() == pytest.approx(torch.stack(wanted).mean().item(), rel=1e-5)


def test_without_a_teacher_there_is_nothing_to_distil() -> None:
    nan = torch.full((2, 3), float("nan"))
    assert distilled(vectors(2, 0), vectors(6, 1), nan).item() == 0


@pytest.mark.slow
def test_two_processes_learn_from_each_others_passages(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*launcher, gathering.__file__, str(tmp_path)],
        check=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    generator = torch.Generator().manual_seed(0)
    queries = F.normalize(torch.randn(4, 8, generator=generator), dim=1)
    passages = F.normalize(torch.randn(12, 8, generator=generator), dim=1).requires_grad_()
    loss = contrastive(queries, passages)
    loss.backward()
    assert passages.grad is not None
    assert torch.stack([part["loss"] for part in parts]).mean() == pytest.approx(loss.item())
    both = torch.cat([part["grad"] for part in parts]) / 2  # the mean of both losses
    assert torch.allclose(both, passages.grad, atol=1e-6)
