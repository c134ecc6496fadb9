"""Train an OSCAR pair whose compressor starts from a sentence encoder."""

import copy
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from condensery.errors import InputError, shorten
from condensery.methods.oscar.batches import Item, Layout, collate
from condensery.methods.oscar.evaluation import validate
from condensery.methods.oscar.losses import losses
from condensery.methods.oscar.packs import Start
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Sampler
from condensery.methods.oscar.starting import COMMAND
from condensery.methods.trainer.draws import Draw, Loss
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes
from condensery.methods.trainer.tokenizing import open_tokenizer
from condensery.methods.trainer.trainer import Trainer
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_packing import Specials

log = logging.getLogger(__name__)
TERMS = ("answer", "relevance", "score", "pointer", "repeats")
VALIDATED, FEWEST = 60, 20  # questions of a validation; fewer may lack five passages


def groups(pair: OscarPair, recipe: Recipe) -> list[Group]:
    """Split the trained parameters by learning rate, and into matrices (decayed) and others."""
    chosen: dict[tuple[float, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in pair.named_parameters():
        if parameter.requires_grad:
            rate = recipe.new_rate
            if name.startswith("compressor.backbone."):
                rate = recipe.backbone_rate
            elif name.startswith("generator.") and name != "generator.separator":
                rate = recipe.generator_rate
            chosen.setdefault((rate, parameter.ndim > 1), []).append(parameter)
    return [
        Group(parameters, rate, recipe.weight_decay if matrix else 0.0)
        for (rate, matrix), parameters in chosen.items()
    ]


def train(
    start: Start,
    out: Path,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.bfloat16,
    every: int = 500,
    limit: int = VALIDATED,
    command: str = "",
    processes: Processes | None = None,
) -> OscarPair:
    """Train, with a checkpoint and a validation every ``every`` steps; resumes from ``out``.

    Args:
        start: What the run begins with; its pair is the one that is trained.
        out: Folder for checkpoints, ``log.jsonl``, ``data.json`` and ``command.txt``.
        device: Where; default: the CPU.
        dtype: Of the weights in the forward pass.
        every: Steps between checkpoints.
        limit: Questions of a validation; 0 for none.
        command: The command line, to write down.
        processes: Those that train together.

    Raises:
        InputError: Too few questions are to be validated.
        TrainingStopped: As the trainer says.
    """
    if 0 < limit < FEWEST or limit < 0:
        raise InputError(
            f"limit={limit}: must be 0 or at least {FEWEST}", field="limit", value=limit
        )
    processes = processes or Processes()
    device = device or torch.device("cpu")
    recipe, sets = start.recipe, start.sets
    tokenizer = open_tokenizer(start.directory)
    pair = start.pair
    nn.Module.to(pair, device=device, dtype=dtype)
    layout = Layout(
        pair.shape, Specials.of(tokenizer), pair.compressor.slot_positions, dtype, device
    )
    log.info("data %s", json.dumps(sets.report))
    if processes.rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        (out / "data.json").write_text(json.dumps(sets.report, indent=1))
        commands = [*start.origin.get("commands", ()), command]
        (out / COMMAND).write_text("".join(f"{line}\n" for line in commands))

    def batches(draw: Draw) -> list[Item]:
        chosen = sets.sets[-1:] if draw.step < recipe.cloze_only else sets.sets
        return Sampler(chosen, pair.shape, start.mix, draw.rng()).batch(recipe.tokens)

    def loss(pair: OscarPair, items: list[Item]) -> Loss:
        found = losses(pair, collate(items, layout))
        terms = {name: getattr(found, name) for name in TERMS}
        return Loss(found.total(recipe.weights), items=len(items), terms=terms)

    def names(items: Sequence[Item]) -> list[str]:
        return [shorten(tokenizer.decode(item.question.tolist())) for item in items]

    def measure(pair: OscarPair) -> dict[str, object]:
        # On the CPU wherever it is trained: a device's kernels are another thing to go wrong.
        served = pair if device.type == "cpu" else copy.deepcopy(pair).to("cpu")
        try:
            return validate(served, start.directory, sets.validation, limit=limit)
        except Exception as error:  # the checkpoint is there, and figures are not worth a run
            log.warning("the validation failed", exc_info=True)
            return {"failed": str(error)}

    Trainer(
        pair,
        loss,
        batches,
        recipe.trainer(every),
        out,
        groups=groups(pair, recipe),
        names=names,
        weights=OscarPair.own_state,
        about={
            "shape": pair.shape.to_dict(),
            "recipe": asdict(recipe),
            "mix": asdict(start.mix),
            "data": sets.fingerprint,
            "origin": dict(start.origin),
            "dtype": dtype_name(dtype),
        },
        validate=measure if limit else None,
        processes=processes,
    ).run()
    if processes.rank == 0:
        plot(out)
    return pair
