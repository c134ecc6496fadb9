"""Train any network: steps, checkpoints, log; what every method shares."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from condensery.errors import shorten
from condensery.methods.trainer.checkpoints import latest, save_checkpoint
from condensery.methods.trainer.draws import Draw, Loss
from condensery.methods.trainer.failures import TrainingStopped
from condensery.methods.trainer.optimizer import Group, MasterAdamW
from condensery.methods.trainer.processes import Processes
from condensery.methods.trainer.progress import record, rewind
from condensery.methods.trainer.recipe import TrainerRecipe

log = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)
B = TypeVar("B")
NAMED = 20  # items that a message names


class Trainer(Generic[M, B]):
    """Trains ``module`` on ``batches``; ``run`` resumes from what ``out`` holds.

    Args:
        module: Any network; bf16 weights get fp32 masters.
        loss: Forward pass and loss of a batch.
        batches: The batch of a draw; depends on the draw alone.
        recipe: How to train.
        out: Folder for ``checkpoints/`` and ``log.jsonl``.
        groups: Parameters with learning rates of their own; others stay as they are.
        names: What a batch's items are called, when the run stops for one.
        weights: What a checkpoint holds of the network; by default all of its state.
        about: What else a resumed run must share with this one (shapes, data); JSON.
        validate: Figures of the network as it is, after each checkpoint.
        processes: Those that train together; each is given the same arguments.
    """

    def __init__(
        self,
        module: M,
        loss: Callable[[M, B], Loss],
        batches: Callable[[Draw], B],
        recipe: TrainerRecipe,
        out: Path,
        *,
        groups: Iterable[Group],
        names: Callable[[B], Sequence[str]] = lambda batch: [shorten(batch)],
        weights: Callable[[M], Mapping[str, Tensor]] | None = None,
        about: Mapping[str, Any] | None = None,
        validate: Callable[[M], Mapping[str, object]] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._module, self._loss, self._batches, self._out = module, loss, batches, out
        self._recipe = recipe
        self._names = names
        self._weights = weights or whole_state
        self._about = dict(about or {})
        self._validate = validate
        self._processes = processes or Processes()
        self._optimizer = MasterAdamW(groups, recipe.betas)
        self._device = self._optimizer.masters()[0].device
        self._parts = recipe.accumulate * self._processes.count
        self._items = 0

    def run(self) -> M:
        """Train from the last checkpoint, or from the start, to the last step.

        Raises:
            TrainingStopped: A loss or gradient is not finite, the disk refuses, or the
                checkpoint is another run's. The last checkpoint stays as it is.
        """
        recipe, first = self._recipe, self._processes.rank == 0
        self._out.mkdir(parents=True, exist_ok=True)
        start = self._resume()
        state = [*self._module.parameters(), *self._module.buffers()]
        self._processes.follow_first([*(t.detach() for t in state), *self._optimizer.masters()])
        shown = rewind(self._out, start) if first else []
        if start and not any(row["step"] == start and "validation" in row for row in shown):
            self._tell_validation(start)  # a kill came between the checkpoint and its figures
        sums: defaultdict[str, float] = defaultdict(float)
        began, done, before = time.monotonic(), start, self._items
        for step in range(start, recipe.steps):
            self._module.train()
            figures, norm = self._step(step)
            for name, value in figures.items():
                sums[name] += value
            if (step + 1) % recipe.log_every == 0 or step + 1 == recipe.steps:
                if first:
                    span = time.monotonic() - began
                    row = {name: value / (step + 1 - done) for name, value in sums.items()}
                    self._tell(
                        step + 1,
                        **row,
                        norm=norm,
                        rate=max(self._optimizer.rates()) * recipe.scale(step),
                        items=self._items,
                        items_per_second=(self._items - before) / span,
                        seconds_left=span / (step + 1 - start) * (recipe.steps - step - 1),
                    )
                sums.clear()
                done = step + 1
            if (step + 1) % recipe.every == 0 or step + 1 == recipe.steps:
                self._save(step + 1)
                self._tell_validation(step + 1)
        return self._module

    def _step(self, step: int) -> tuple[dict[str, float], float]:
        """Do one step; returns the sums of its losses' parts, and the gradient's norm."""
        recipe, processes = self._recipe, self._processes
        first = processes.rank * recipe.accumulate
        names: list[str] = []
        values: list[Tensor] = []
        bad = self._parts  # the first part whose loss is not finite
        weight = items = 0.0
        for part in range(first, first + recipe.accumulate):
            draw = Draw(recipe.seed, step, part, self._parts)
            batch = self._batches(draw)
            draw.seed_torch()
            loss = self._loss(self._module, batch)
            if not math.isfinite(float(loss.total.detach())):
                bad = part
                break
            (loss.total * loss.weight).backward()
            self._optimizer.gather()
            terms = {"loss": loss.total, **loss.terms}
            names = list(terms)
            values.append(torch.stack([t.detach().double() * loss.weight for t in terms.values()]))
            weight += loss.weight
            items += loss.items
        wrong = torch.zeros(self._parts, device=self._device)
        if bad < self._parts:
            wrong[bad] = 1
        processes.add_up(wrong)
        if wrong.any():
            parts = wrong.nonzero().flatten().tolist()
            self._stop(step, "the loss is not finite", parts)
        sums = torch.stack(values).sum(0) if values else torch.zeros(len(names)).double()
        counted = torch.cat([sums.cpu(), torch.tensor([weight, items]).double()])
        counted = counted.to(self._device)
        processes.add_up(counted)
        processes.add_up_gradients(self._optimizer.masters())
        *totals, weight, items = counted.tolist()
        if weight != 1:
            for master in self._optimizer.masters():
                if master.grad is not None:
                    master.grad /= weight
        norm = self._optimizer.step(recipe.scale(step), recipe.clip)
        if not math.isfinite(norm):
            self._stop(step, f"the gradient's norm is {norm}", list(range(self._parts)))
        self._items += int(items)
        return dict(zip(names, (total / weight for total in totals), strict=True)), norm

    def _stop(self, step: int, why: str, parts: list[int]) -> None:
        """Stop for the batches of ``parts``, which every process can draw again and name."""
        recipe = self._recipe
        names = [
            name
            for part in parts
            for name in self._names(self._batches(Draw(recipe.seed, step, part, self._parts)))
        ]
        last = latest(self._out)
        kept = f"the last checkpoint is {last.path}" if last else "there is no checkpoint yet"
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise TrainingStopped(
            f"step {step}: {why}, in the batch of {'; '.join(names[:NAMED])}{more}; {kept}"
        )

    def _save(self, step: int) -> None:
        """Let the first process write a checkpoint; all stop if it can't."""
        failed: TrainingStopped | None = None
        if self._processes.rank == 0:
            try:
                save_checkpoint(
                    self._out,
                    step,
                    self._weights(self._module),
                    self._optimizer.state(),
                    {"items": self._items, **self._constant()},
                    self._recipe.keep,
                )
            except TrainingStopped as error:
                failed = error
        if not self._processes.agree(failed is None, self._device):
            raise failed or TrainingStopped(f"step {step}: the first process could not save")

    def _constant(self) -> dict[str, Any]:
        """Return what a run and the run that resumes it must share."""
        return {"trainer": {**self._recipe.fixed(), "batches": self._parts}, **self._about}

    def _resume(self) -> int:
        """Restore the last checkpoint; returns the steps done, 0 if there is none.

        Raises:
            TrainingStopped: It is a run's with other settings or of another network.
        """
        checkpoint = latest(self._out)
        if checkpoint is None:
            return 0
        state = checkpoint.state()
        differing = differences(self._constant(), state)
        if differing:
            raise TrainingStopped(
                f"{checkpoint.path} was trained with other settings: {'; '.join(differing)};"
                " resume with the same, or train into another folder"
            )
        weights = checkpoint.weights()
        own = self._weights(self._module)
        if weights.keys() != own.keys():
            odd = sorted(weights.keys() ^ own.keys())
            raise TrainingStopped(f"{checkpoint.path} is another network's: {odd[:5]}")
        try:
            self._module.load_state_dict(weights, strict=False)
            self._optimizer.load_state(checkpoint.optimizer())
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise TrainingStopped(f"{checkpoint.path} is another network's: {why}") from error
        self._items = int(state["items"])
        log.info("resumed from %s", checkpoint.path)
        return checkpoint.step

    def _tell_validation(self, step: int) -> None:
        if self._validate is not None and self._processes.rank == 0:
            self._module.eval()
            with torch.no_grad():
                found = dict(self._validate(self._module))
                self._tell(step, items=self._items, validation=found)

    def _tell(self, step: int, **row: object) -> None:
        record(self._out, {"step": step, "steps": self._recipe.steps, **row})


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Return all of a network's tensors; one that has several names, by the first."""
    seen: set[int] = set()
    state = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            state[name] = value.detach()
    return state


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any], at: str = "") -> list[str]:
    """Say where ``found`` differs from ``wanted``, each as ``name: found, not wanted``."""
    said: list[str] = []
    for name, value in wanted.items():
        other = found.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            said += differences(value, other, f"{at}{name}.")
        elif other != value:
            said.append(f"{at}{name}: {shorten(other)}, not {shorten(value)}")
    return said
