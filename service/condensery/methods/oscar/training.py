"""Train an OSCAR pair whose compressor starts from a sentence encoder."""

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from condensery.errors import InputError, shorten
from condensery.methods.oscar.batches import Item, Layout, collate
from condensery.methods.oscar.evaluation import validate
from condensery.methods.oscar.losses import losses
from condensery.methods.oscar.packs import Start
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Sampler
from condensery.methods.oscar.starting import COMMAND
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.tokenizing import open_tokenizer
from condensery.methods.trainer.trainer import run_training
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_packing import Specials

log = logging.getLogger(__name__)
TERMS = ("answer", "relevance", "score", "pointer", "repeats")
VALIDATED, FEWEST = 60, 20  # questions of a validation; fewer may lack five passages


def groups(pair: OscarPair, recipe: Recipe) -> list[Group]:
    """Split what learns: the compressor's pretrained parameters, the generator's, the new ones."""

    def rate(name: str) -> float:
        if name.startswith("compressor.backbone."):
            return recipe.backbone_rate
        if name.startswith("generator.") and name != "generator.separator":
            return recipe.generator_rate
        return recipe.new_rate

    return split_groups(pair, rate, recipe.weight_decay)


class PairTraining(Method[OscarPair, list[Item]]):
    """The training of a small pair; see ``train``."""

    def __init__(self, start: Start, setup: TrainingSetup, limit: int) -> None:
        self._start, self._limit = start, limit
        self._tokenizer = open_tokenizer(start.directory)
        self.module, self.recipe = start.pair, start.recipe.trainer(setup.every)
        setup.place(self.module)
        self._layout = Layout(
            self.module.shape,
            Specials.of(self._tokenizer),
            self.module.compressor.slot_positions,
            setup.dtype,
            setup.device,
        )
        self.identity = {
            "shape": self.module.shape.to_dict(),
            "recipe": asdict(start.recipe),
            "mix": asdict(start.mix),
            "data": start.sets.fingerprint,
            "origin": dict(start.origin),
            "dtype": dtype_name(setup.dtype),
        }

    def batch(self, draw: Draw) -> list[Item]:
        """Return questions of any set, of the cloze set alone in the recipe's first steps."""
        recipe, sets = self._start.recipe, self._start.sets.sets
        chosen = sets[-1:] if draw.step < recipe.cloze_only else sets
        sampler = Sampler(chosen, self.module.shape, self._start.mix, draw.rng())
        return sampler.batch(recipe.tokens)

    def loss(self, batch: list[Item]) -> Loss:
        """Return the weighted sum of the answer's, the rerank head's and the pointer's losses."""
        result = losses(self.module, collate(batch, self._layout))
        terms = {name: getattr(result, name) for name in TERMS}
        return Loss(result.total(self._start.recipe.weights), items=len(batch), terms=terms)

    def groups(self) -> list[Group]:
        """Return the compressor's pretrained parameters, the generator's, and the new ones."""
        return groups(self.module, self._start.recipe)

    def names(self, batch: list[Item]) -> list[str]:
        """Return the questions."""
        return [shorten(self._tokenizer.decode(item.question.tolist())) for item in batch]

    def weights(self) -> dict[str, Tensor]:
        """Return all weights but the word table, which is the encoder's."""
        return self.module.own_state()

    def evaluate(self) -> Mapping[str, object] | None:
        """Answer validation questions as the service would."""
        if not self._limit:
            return None
        # On the CPU wherever it is trained: a device's kernels are another thing to go wrong.
        on_cpu = next(self.module.parameters()).device.type == "cpu"
        pair = self.module if on_cpu else copy.deepcopy(self.module).to("cpu")
        rows = self._start.sets.validation
        try:
            return validate(pair, self._start.directory, rows, limit=self._limit)
        except Exception as error:  # the checkpoint is there, and figures are not worth a run
            log.warning("the validation failed", exc_info=True)
            return {"failed": str(error)}


def train(
    start: Start, out: Path, *, limit: int = VALIDATED, setup: TrainingSetup | None = None
) -> OscarPair:
    """Train, with a checkpoint and a validation every so many steps; resumes from ``out``.

    Args:
        start: What the run begins with; its pair is the one that is trained.
        out: Folder for checkpoints, ``log.jsonl``, ``data.json`` and ``command.txt``.
        limit: Questions of a validation; 0 for none.
        setup: Where, and how often it saves; default: the CPU, in bf16.

    Raises:
        InputError: Too few questions are to be validated.
        TrainingStopped: As ``run_training`` says.
    """
    if 0 < limit < FEWEST or limit < 0:
        raise InputError(
            f"limit={limit}: must be 0 or at least {FEWEST}", field="limit", value=limit
        )
    setup = setup or TrainingSetup(dtype=torch.bfloat16)
    report = start.sets.report
    log.info("data %s", json.dumps(report))
    if setup.is_first:
        out.mkdir(parents=True, exist_ok=True)
        (out / "data.json").write_text(json.dumps(report, indent=1))
        commands = [*start.origin.get("commands", ()), setup.command]
        (out / COMMAND).write_text("".join(f"{line}\n" for line in commands))
    return run_training(PairTraining(start, setup, limit), out, setup.processes)
