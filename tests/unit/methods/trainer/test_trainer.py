import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch
from torch import Tensor, nn

from condensery.methods.trainer.checkpoints import TrainingStopped, checkpoints, latest
from condensery.methods.trainer.method import Draw, Loss, Method, whole_state
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.processes import Processes
from condensery.methods.trainer.progress import read_log
from condensery.methods.trainer.recipe import TrainerRecipe
from condensery.methods.trainer.trainer import Trainer

RECIPE = TrainerRecipe(steps=6, warmup=1, every=2, log_every=1)
pytestmark = pytest.mark.usefixtures("one_thread")


def small() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def inputs(draw: Draw) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(draw.step * 10 + draw.part))


def squares(net: nn.Module, batch: Tensor) -> Loss:
    return Loss(net(batch).pow(2).mean(), items=len(batch))


class Squares(Method[nn.Module, Tensor]):
    """A method whose parts a test may replace."""

    def __init__(self, net: nn.Module, recipe: TrainerRecipe = RECIPE, **parts: Any) -> None:
        self.module, self.recipe, self.identity = net, recipe, parts.get("identity", {})
        self.parts = {"loss": squares, "batch": inputs, **parts}

    def batch(self, draw: Draw) -> Tensor:
        return self.parts["batch"](draw)  # type: ignore[no-any-return]

    def loss(self, batch: Tensor) -> Loss:
        return self.parts["loss"](self.module, batch)  # type: ignore[no-any-return]

    def groups(self) -> list[Group]:
        return [Group(list(self.module.parameters()), 0.1, 0.0)]

    def names(self, batch: Tensor) -> list[str]:
        return [f"row {row[0]:.3f}" for row in batch]

    def evaluate(self) -> dict[str, object] | None:
        return self.parts.get("evaluate")


def train(out: Path, net: Any, recipe: TrainerRecipe = RECIPE, **parts: Any) -> Any:
    Trainer(Squares(net, recipe, **parts), out, Processes()).run()
    return net


def test_a_run_is_torchs_adamw_with_the_schedule_and_clipping(tmp_path: Path) -> None:
    ours, theirs = small(), small()
    recipe = replace(RECIPE, accumulate=2, clip=0.05)
    train(tmp_path, ours, recipe)
    norms = [row["norm"] for row in read_log(tmp_path) if "norm" in row]
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.1, betas=(0.9, 0.98), weight_decay=0)
    for step in range(6):
        reference.zero_grad()
        batch = torch.cat([inputs(Draw(13, step, part, 2)) for part in range(2)])
        theirs(batch).pow(2).mean().backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        assert norms[step] == pytest.approx(float(norm), rel=1e-4)
        assert norm > 0.05
        reference.param_groups[0]["lr"] = 0.1 * recipe.scale(step)
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_batches_count_by_what_their_mean_is_over(tmp_path: Path) -> None:
    """Batches of 1 and 5 rows give the gradient of the six rows' mean."""
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
    pieces = (rows[:1], rows[1:])
    first, two = small(), small()

    def weighed(net: nn.Module, batch: Tensor) -> Loss:
        return Loss(net(batch).pow(2).mean(), weight=len(batch), items=len(batch))

    recipe = replace(RECIPE, steps=3)
    train(tmp_path / "1", first, recipe, loss=weighed, batch=lambda draw: rows)
    recipe = replace(recipe, accumulate=2)
    train(tmp_path / "2", two, recipe, loss=weighed, batch=lambda at: pieces[at.part])
    for a, b in zip(first.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    losses = [[row["loss"] for row in read_log(tmp_path / n) if "loss" in row] for n in "12"]
    assert losses[0] == pytest.approx(losses[1], abs=2e-6)
    assert [row["items"] for row in read_log(tmp_path / "2") if "loss" in row] == [6, 12, 18]


@pytest.mark.tiny_run
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_that_stops_and_is_resumed_gives_the_same_bits(tmp_path: Path, stop: int) -> None:
    options = {"steps": 6, "every": 2}
    whole = tiny_run.train(tmp_path / "whole", **options)

    class Interrupt(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if f"step {stop + 1}/6 " in record.getMessage():
                raise KeyboardInterrupt

    logger, handler = logging.getLogger("condensery.methods.trainer.progress"), Interrupt()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            tiny_run.train(tmp_path / "cut", **options)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    resumed = tiny_run.train(tmp_path / "cut", **options)
    assert tiny_run.digest(whole) == tiny_run.digest(resumed)
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        paths = [latest(tmp_path / which).path / name for which in ("whole", "cut")]  # type: ignore[union-attr]
        assert paths[0].read_bytes() == paths[1].read_bytes(), name


def test_the_log_of_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    net = small()
    train(tmp_path, net, evaluate={"f1": 1.0})
    wanted = [(row["step"], "validation" in row) for row in read_log(tmp_path)]
    assert wanted.count((6, True)) == 1
    # As a kill leaves it: rows past the checkpoint, its validation not yet told, half a line.
    for checkpoint in checkpoints(tmp_path):
        assert checkpoint.step == 6
    (tmp_path / "checkpoints" / "step-00000006").rename(tmp_path / "checkpoints" / "step-00000004")
    lines = [
        line
        for line in (tmp_path / "log.jsonl").read_text().splitlines()
        if not ('"step": 4' in line and "validation" in line)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + '\n{"step": 7, "lo')
    train(tmp_path, small(), evaluate={"f1": 1.0})
    assert [(row["step"], "validation" in row) for row in read_log(tmp_path)] == wanted


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    first = train(tmp_path, small())
    text = (tmp_path / "log.jsonl").read_text()
    again = train(tmp_path, small())
    assert (tmp_path / "log.jsonl").read_text() == text
    assert torch.equal(first.weight, again.weight)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_stops_and_names_the_step_and_the_items(
    tmp_path: Path, what: str
) -> None:
    net = small()

    def poisoned(net: nn.Module, batch: Tensor) -> Loss:
        total = net(batch).pow(2).mean()
        if torch.equal(batch, inputs(Draw(13, 3, 1, 2))):
            # sqrt at 0: finite itself, its gradient is not
            total = total * float("nan") if what == "loss" else (total * 0).sqrt()
        return Loss(total)

    recipe = replace(RECIPE, accumulate=2)
    names = Squares(net).names
    with pytest.raises(TrainingStopped) as caught:
        train(tmp_path, net, recipe, loss=poisoned)
    message = caught.value.message
    assert message.startswith("step 3: the loss" if what == "loss" else "step 3: the gradient")
    assert all(name in message for name in names(inputs(Draw(13, 3, 1, 2))))
    other = names(inputs(Draw(13, 3, 0, 2)))[0]
    assert (other in message) == (what == "gradient")  # which sums over the step's batches
    assert "step-00000002" in message
    checkpoint = latest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 2
    assert all(p.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 8}, "trainer.steps: 6, not 8"),
        ({"seed": 14}, "trainer.seed: 13, not 14"),
        ({"accumulate": 2}, "trainer.batches: 1, not 2"),
    ],
)
def test_another_recipe_does_not_resume_a_run(
    tmp_path: Path, change: dict[str, int], says: str
) -> None:
    train(tmp_path, small())
    with pytest.raises(TrainingStopped, match=says):
        train(tmp_path, small(), replace(RECIPE, **change))  # type: ignore[arg-type]
    with pytest.raises(TrainingStopped, match=r"shape: None, not \{'width': 4\}"):
        train(tmp_path, small(), identity={"shape": {"width": 4}})


def test_another_network_does_not_resume_a_run(tmp_path: Path) -> None:
    train(tmp_path, small())
    with pytest.raises(TrainingStopped, match=r"another network's.*size"):
        train(tmp_path, nn.Linear(4, 3))
    with pytest.raises(TrainingStopped, match=r"another network's.*bias"):
        train(tmp_path, nn.Linear(4, 2, bias=False))


def test_weights_with_two_names_are_saved_once_and_statistics_are_saved_too(
    tmp_path: Path,
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    train(tmp_path, net)
    checkpoint = latest(tmp_path)
    assert checkpoint is not None
    state = checkpoint.weights()
    assert "2.weight" not in state
    assert torch.equal(state["1.running_mean"], net[1].running_mean)  # type: ignore[arg-type]
    assert whole_state(net).keys() == state.keys()


def test_a_row_of_the_log_says_the_loss_its_terms_and_how_fast(tmp_path: Path) -> None:
    tiny_run.train(tmp_path, steps=4, every=4)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4, 4]
    assert rows[0].keys() == {
        "step", "steps", "loss", "worst", "norm", "rate", "items", "items_per_second",
        "seconds_left",
    }  # fmt: skip
    assert rows[0]["worst"] > rows[0]["loss"] > 0
    assert [row["items"] for row in rows[:2]] == [32, 64]
    assert rows[2]["validation"]["norm"] > 0
