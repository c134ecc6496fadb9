"""Train any method's network: steps, checkpoints, log, curve."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic

import torch

from condensery.errors import shorten
from condensery.methods.trainer.checkpoints import (
    Checkpoint,
    TrainingStopped,
    latest,
    save_checkpoint,
)
from condensery.methods.trainer.method import B, Draw, Loss, M, Method
from condensery.methods.trainer.optimizer import MasterAdamW
from condensery.methods.trainer.processes import Processes
from condensery.methods.trainer.progress import plot, record, rewind

log = logging.getLogger(__name__)
NAMED = 20  # items that a message names


def run_training(method: Method[M, B], out: Path, processes: Processes | None = None) -> M:
    """Train a method's network to the last step, or go on from what ``out`` holds.

    The first process then draws the log (``log.png``) and has the method write its model.

    Args:
        method: What is trained, and on what.
        out: Folder for ``checkpoints/``, ``log.jsonl``, ``log.png``, and what the method writes.
        processes: Those that train together; each is given the same method.

    Returns:
        The network, in evaluation mode.

    Raises:
        TrainingStopped: A loss or gradient is not finite, the disk refuses, or the checkpoint is
            another run's. The last checkpoint stays as it is.
    """
    processes = processes or Processes()
    Trainer(method, out, processes).run()
    method.module.eval()
    if processes.rank == 0:
        plot(out)
        method.write(out)
    return method.module


class Trainer(Generic[M, B]):
    """Trains the network of ``method``; ``run`` resumes from what ``out`` holds."""

    def __init__(self, method: Method[M, B], out: Path, processes: Processes) -> None:
        self._method, self._out, self._processes = method, out, processes
        self._recipe = method.recipe
        self._optimizer = MasterAdamW(method.groups(), self._recipe.betas)
        self._device = self._optimizer.masters()[0].device
        self._parts = self._recipe.accumulate * processes.count  # batches of a step
        self._items = 0

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, to the last step."""
        recipe, module = self._recipe, self._method.module
        self._out.mkdir(parents=True, exist_ok=True)
        start = self._resume()
        state = [*module.parameters(), *module.buffers()]
        self._processes.follow_first([*(t.detach() for t in state), *self._optimizer.masters()])
        if self._processes.rank == 0:
            rows = rewind(self._out, start)
            if start and not any(row["step"] == start and "validation" in row for row in rows):
                self._method.prepare_step(start - 1)
                self._evaluate(start)  # a kill came between the checkpoint and its figures
        sums: defaultdict[str, float] = defaultdict(float)
        began, logged, items = time.monotonic(), start, self._items
        for step in range(start, recipe.steps):
            self._method.prepare_step(step)
            module.train()
            terms, norm = self._step(step)
            for name, value in terms.items():
                sums[name] += value
            done = step + 1
            if done % recipe.log_every == 0 or done == recipe.steps:
                seconds = time.monotonic() - began
                self._record(
                    done,
                    **{name: value / (done - logged) for name, value in sums.items()},
                    norm=norm,
                    rate=max(self._optimizer.rates()) * recipe.scale(step),
                    items=self._items,
                    items_per_second=(self._items - items) / seconds,
                    seconds_left=seconds / (done - start) * (recipe.steps - done),
                )
                sums.clear()
                logged = done
            if done % recipe.every == 0 or done == recipe.steps:
                self._save(done)
                self._evaluate(done)

    def _step(self, step: int) -> tuple[dict[str, float], float]:
        """Do one step; returns the means of its losses' terms, and the gradient's norm."""
        recipe, processes = self._recipe, self._processes
        losses, failed = self._backward(step)
        self._check_finite(step, failed)
        names = ["loss", *losses[0].terms]
        values = [
            torch.stack(
                [t.detach().double() * loss.weight for t in (loss.total, *loss.terms.values())]
            )
            for loss in losses
        ]
        counts = [sum(loss.weight for loss in losses), float(sum(loss.items for loss in losses))]
        sums = torch.cat([torch.stack(values).sum(0).cpu(), torch.tensor(counts).double()])
        sums = sums.to(self._device)
        processes.add_up(sums)
        processes.add_up_gradients(self._optimizer.masters())
        *totals, weight, items = sums.tolist()
        if weight != 1:
            for master in self._optimizer.masters():
                if master.grad is not None:
                    master.grad /= weight
        norm = self._optimizer.step(recipe.scale(step), recipe.clip)
        if not math.isfinite(norm):
            self._stop(step, f"the gradient's norm is {norm}", list(range(self._parts)))
        self._items += int(items)
        return dict(zip(names, (total / weight for total in totals), strict=True)), norm

    def _backward(self, step: int) -> tuple[list[Loss], int | None]:
        """Run this process's batches of a step forward and backward.

        Returns:
            Their losses, and the first part whose loss is not finite, None if all are.
        """
        recipe = self._recipe
        first = self._processes.rank * recipe.accumulate
        losses: list[Loss] = []
        for part in range(first, first + recipe.accumulate):
            draw = Draw(recipe.seed, step, part, self._parts)
            batch = self._method.batch(draw)
            draw.seed_torch()
            loss = self._method.loss(batch)
            if not math.isfinite(float(loss.total.detach())):
                return losses, part
            (loss.total * loss.weight).backward()
            self._optimizer.gather()
            losses.append(loss.detached())
        return losses, None

    def _check_finite(self, step: int, failed: int | None) -> None:
        """Stop every process if the loss of a part was not finite in one."""
        wrong = torch.zeros(self._parts, device=self._device)
        if failed is not None:
            wrong[failed] = 1
        self._processes.add_up(wrong)
        if wrong.any():
            self._stop(step, "the loss is not finite", wrong.nonzero().flatten().tolist())

    def _stop(self, step: int, why: str, parts: list[int]) -> None:
        """Stop for the batches of ``parts``, which every process can draw again and name."""
        recipe = self._recipe
        names = [
            name
            for part in parts
            for name in self._method.names(
                self._method.batch(Draw(recipe.seed, step, part, self._parts))
            )
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
                    self._method.weights(),
                    self._optimizer.state(),
                    {"items": self._items, **self._identity()},
                    self._recipe.keep,
                )
            except TrainingStopped as error:
                failed = error
        if not self._processes.agree(failed is None, self._device):
            raise failed or TrainingStopped(f"step {step}: the first process could not save")

    def _identity(self) -> dict[str, Any]:
        """Return what a run and the run that resumes it must share."""
        own = {"trainer": {**self._recipe.fixed(), "batches": self._parts}}
        return {**own, **self._method.identity}

    def _resume(self) -> int:
        """Restore the last checkpoint; returns the steps done, 0 if there is none.

        Raises:
            TrainingStopped: It is a run's with other settings or of another network.
        """
        checkpoint = latest(self._out)
        if checkpoint is None:
            return 0
        state = checkpoint.state()
        differing = differences(self._identity(), state)
        if differing:
            raise TrainingStopped(
                f"{checkpoint.path} was trained with other settings: {'; '.join(differing)};"
                " resume with the same, or train into another folder"
            )
        self._restore(checkpoint)
        self._items = int(state["items"])
        log.info("resumed from %s", checkpoint.path)
        return checkpoint.step

    def _restore(self, checkpoint: Checkpoint) -> None:
        weights = checkpoint.weights()
        own = self._method.weights()
        if weights.keys() != own.keys():
            odd = sorted(weights.keys() ^ own.keys())
            raise TrainingStopped(f"{checkpoint.path} is another network's: {odd[:5]}")
        try:
            self._method.module.load_state_dict(weights, strict=False)
            self._optimizer.load_state(checkpoint.optimizer())
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise TrainingStopped(f"{checkpoint.path} is another network's: {why}") from error

    def _evaluate(self, step: int) -> None:
        if self._processes.rank == 0:
            self._method.module.eval()
            with torch.no_grad():
                figures = self._method.evaluate()
            if figures is not None:
                self._record(step, items=self._items, validation=dict(figures))

    def _record(self, step: int, **row: object) -> None:
        if self._processes.rank == 0:
            record(self._out, {"step": step, "steps": self._recipe.steps, **row})


def differences(wanted: Mapping[str, Any], actual: Mapping[str, Any], at: str = "") -> list[str]:
    """List where ``actual`` differs from ``wanted``, each as ``name: actual, not wanted``."""
    lines: list[str] = []
    for name, value in wanted.items():
        other = actual.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            lines += differences(value, other, f"{at}{name}.")
        elif other != value:
            lines.append(f"{at}{name}: {shorten(other)}, not {shorten(value)}")
    return lines
