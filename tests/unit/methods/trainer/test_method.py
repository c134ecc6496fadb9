"""A new method on the shared trainer: a line is learnt, killed, resumed, evaluated, published."""

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.methods.trainer.checkpoints import latest
from condensery.methods.trainer.method import Draw, Loss, Method
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.progress import validation_curve
from condensery.methods.trainer.publishing import MODEL, model_folder, publication
from condensery.methods.trainer.recipe import TrainerRecipe
from condensery.methods.trainer.trainer import run_training
from condensery.store.manifest import Manifest
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore

RECIPE = TrainerRecipe(steps=60, warmup=3, every=20, log_every=10)
SLOPE, HELD_OUT = torch.tensor([[2.0, -1.0, 0.5]]), torch.eye(3)


class Line(Method[nn.Linear, Tensor]):
    """Learns a slope, through the origin from step 30 on."""

    def __init__(self, die_at: int | None = None) -> None:
        torch.manual_seed(0)
        self.module, self.recipe, self.identity = nn.Linear(3, 1), RECIPE, {"width": 3}
        self.die_at = die_at

    def batch(self, draw: Draw) -> Tensor:
        if draw.step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(8, 3, generator=torch.Generator().manual_seed(draw.step))

    def loss(self, batch: Tensor) -> Loss:
        error = (self.predict(batch) - batch @ SLOPE.T).square().mean()
        return Loss(error, weight=len(batch), items=len(batch))

    def groups(self) -> list[Group]:
        return split_groups(self.module, 0.2, weight_decay=0.0)

    def prepare_step(self, step: int) -> None:
        self.bias = self.module.bias if step < 30 else None

    def predict(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.module.weight, self.bias)

    def evaluate(self) -> dict[str, object]:
        return {"error": float((self.predict(HELD_OUT) - SLOPE.T).abs().max())}

    def write(self, out: Path) -> None:
        with model_folder(out, {"figures": validation_curve(out)}) as folder:
            save_file({"weight": self.module.weight.detach()}, folder / "model.safetensors")


@pytest.mark.tiny_run
def test_a_method_learns_is_killed_resumed_evaluated_and_published(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    trained = run_training(Line(), whole)
    child = os.fork()
    if not child:
        run_training(Line(die_at=45), cut)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    reached = latest(cut)
    assert reached
    assert reached.step == 40
    resumed = run_training(Line(), cut)
    assert torch.equal(resumed.weight, trained.weight)
    assert validation_curve(cut) == validation_curve(whole)
    error = validation_curve(cut)[-1]["error"]
    assert error < 0.1 < validation_curve(cut)[0]["error"]
    assert (cut / "log.png").exists()
    store = ModelStore(None, tmp_path / "store")
    manifest = Manifest(name="line", kind="encoder", pooling="mean", max_tokens=3)
    with publication({"model.safetensors": cut / MODEL / "model.safetensors"}) as files:
        files.add_json("report.json", {"error": error})
        stored = files.publish(store, manifest, "# line\n")
    assert torch.equal(load_file(stored.path / "model.safetensors")["weight"], resumed.weight)
    assert StoredReport(stored).report().report == {"error": error}
    assert StoredReport(stored).card() == "# line\n"
