"""Train an OSCAR pair whose compressor starts from a sentence encoder."""

import asyncio
import copy
import json
import logging
import math
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from condensery.agreement import exact_match, f1_score
from condensery.errors import InputError, shorten
from condensery.methods.oscar.batches import Item, Layout, collate
from condensery.methods.oscar.evaluating.asking import ask
from condensery.methods.oscar.evaluating.placing import Row, place_among_others
from condensery.methods.oscar.losses import losses
from condensery.methods.oscar.packs import Start
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Sampler
from condensery.methods.oscar.starting import COMMAND, DATA
from condensery.methods.oscar.taught import Teacher
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.texts import open_tokenizer
from condensery.methods.trainer.trainer import run_training
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_compressor import Compressor
from condensery.networks.oscar_packing import Specials
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import prepare_for_inference
from condensery.runtime.queue import BatchLimits, default_limits
from condensery.runtime.workers import Workers

log = logging.getLogger(__name__)
TERMS = ("answer", "relevance", "score", "pointer", "repeats", "copies", "taught", "kept")
VALIDATED, FEWEST = 60, 20  # questions of a validation; fewer may lack five passages
AT_ONCE = 16  # questions asked side by side
# Of a two-way generator, what an encoder knows already; the rest of it is new.
TWO_WAY_PARTS = tuple(f"generator.{part}." for part in ("backbone", "positions", "kinds", "norm"))
SENTENCE_ENDS = (".", "!", "?")  # a token each, of BERT's


@dataclass(frozen=True, slots=True)
class Scores:
    """Per question: EM, F1, the answer, and which passage the rerank head put first (-1: none)."""

    em: list[float]
    f1: list[float]
    answers: list[str]
    first: list[int]

    def means(self) -> dict[str, float]:
        """Return EM and F1 in percent."""
        return {"em": 100 * fmean(self.em), "f1": 100 * fmean(self.f1)}


async def score(
    model: OscarModel,
    rows: Sequence[Row],
    passages: Sequence[Sequence[str]],
    *,
    keep: int | None = None,
    plain: bool = False,
) -> Scores:
    """Answer every row's question from its passages and score against its gold answers.

    Args:
        model: The running pair.
        rows: Questions {question, answers}.
        passages: For each question.
        keep: How many of the best passages the generator reads; None for all.
        plain: Let it read their tokens instead of memory vectors.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def one(row: Row, texts: Sequence[str]) -> tuple[str, int]:
        async with room:
            outcomes = await ask(model, row["question"], texts, keep=keep, plain=plain)
            return outcomes.answer, outcomes.first

    outcomes = await asyncio.gather(*map(one, rows, passages))
    return Scores(
        [exact_match(text, row["answers"]) for (text, _), row in zip(outcomes, rows, strict=True)],
        [f1_score(text, row["answers"]) for (text, _), row in zip(outcomes, rows, strict=True)],
        [text for text, _ in outcomes],
        [first for _, first in outcomes],
    )


def running(pair: OscarPair, directory: Path, workers: Workers) -> OscarModel:
    """Run a copy of networks in training; ``directory`` holds their tokenizer."""
    served = prepare_for_inference(copy.deepcopy(pair).eval())
    threads = ThreadPoolExecutor(1)
    return OscarModel.of(
        served, directory, workers, name="in-training", threads=threads, limits=unlimited_wait
    )


def unlimited_wait(device: torch.device) -> BatchLimits:
    """Return limits under which nobody is sent away: a run must not end for a busy machine."""
    return replace(default_limits(device), queue_seconds=math.inf)


def validate(
    pair: OscarPair, directory: Path, rows: Sequence[Row], *, limit: int
) -> dict[str, object]:
    """Answer ``limit`` validation questions: gold passage compressed and plain, and among five."""
    rng = random.Random(0)
    rows = rng.sample(list(rows), min(limit, len(rows)))
    workers = Workers(max(1, torch.get_num_threads()))
    model = running(pair, directory, workers)
    placed = place_among_others(rows, 5, rng)

    async def ask_all() -> dict[str, object]:
        alone = [[row["context"]] for row in rows]
        gold = await score(model, rows, alone)
        plain = await score(model, rows, alone, plain=True)
        five = await score(model, rows, [passages for passages, _ in placed])
        first = [float(a == b) for a, (_, b) in zip(five.first, placed, strict=True)]
        pairs = zip(rows[:4], gold.answers, strict=False)
        return {
            "gold": gold.means(),
            "plain": plain.means(),
            "among_five": five.means(),
            "gold_first": float(np.mean(first)),
            "samples": [f"{r['question']} -> {a} [{r['answers'][0]}]" for r, a in pairs],
        }

    try:
        return asyncio.run(ask_all())
    finally:
        model.close()
        workers.close()


def groups(pair: OscarPair, recipe: Recipe) -> list[Group]:
    """Split what learns: the compressor's pretrained parameters, the generator's, the new ones."""

    def rate(name: str) -> float:
        if name.startswith("compressor.backbone."):
            return recipe.backbone_rate
        pretrained = TWO_WAY_PARTS if pair.shape.two_way else ("generator.",)
        if name.startswith(pretrained) and name != "generator.separator":
            return recipe.generator_rate
        return recipe.new_rate

    return split_groups(pair, rate, recipe.weight_decay)


class PairTraining(Method[OscarPair, list[Item]]):
    """The training of a small pair; see ``train``."""

    def __init__(
        self, start: Start, setup: TrainingSetup, limit: int, teacher: Path | None
    ) -> None:
        self._start, self._limit = start, limit
        if start.recipe.cloze_only and not start.sets.sets[-1][0].examples:
            raise InputError(
                f"cloze_only={start.recipe.cloze_only}: there are no cloze questions (cloze=0)",
                field="cloze_only",
                value=start.recipe.cloze_only,
            )
        self._tokenizer = open_tokenizer(start.directory)
        self.module, self.recipe = start.pair, start.recipe.trainer(setup.every)
        setup.place(self.module)
        self._layout = Layout(
            self.module.shape,
            Specials.of(self._tokenizer),
            self.module.compressor.slot_positions,
            getattr(self.module.generator, "placing", None),
            setup.dtype,
            setup.device,
        )
        # As it is before a checkpoint is read: a run that goes on keeps what it began with.
        self._before: Compressor | None = None
        if start.recipe.keep_weight:
            if not self.module.shape.bounds or not {"start", "reader"} & start.origin.keys():
                raise InputError(
                    f"keep_weight={start.recipe.keep_weight}: what is kept is where a pair with "
                    "--bounds, which the run goes on from, finds answers",
                    field="keep_weight",
                    value=start.recipe.keep_weight,
                )
            self._before = copy.deepcopy(self.module.compressor).eval().requires_grad_(False)
        self._teacher: Teacher | None = None
        if teacher is not None:
            if not self.module.shape.bounds:
                raise InputError(
                    "teacher: what it says of spans is for a pair with --bounds", field="teacher"
                )
            self._teacher = Teacher.open(
                teacher, self._tokenizer, device=setup.device, dtype=setup.dtype
            )
        self.identity = {
            "shape": self.module.shape.to_dict(),
            "recipe": asdict(start.recipe),
            "mix": asdict(start.mix),
            "data": start.sets.fingerprint,
            "origin": dict(start.origin),
            "dtype": dtype_name(setup.dtype),
        }
        if self._teacher is not None:
            self.identity["teacher"] = self._teacher.sha256

    def batch(self, draw: Draw) -> list[Item]:
        """Return questions of any set, of the cloze set alone in the recipe's first steps."""
        recipe, sets = self._start.recipe, self._start.sets.sets
        chosen = sets[-1:] if draw.step < recipe.cloze_only else sets
        ends = filter(None, map(self._tokenizer.token_to_id, SENTENCE_ENDS))
        sampler = Sampler(chosen, self.module.shape, self._start.mix, draw.rng(), ends)
        return sampler.batch(recipe.tokens)

    def loss(self, batch: list[Item]) -> Loss:
        """Return the weighted sum of the answer's, the rerank head's and the pointer's losses."""
        laid = collate(batch, self._layout)
        taught = None
        if self._teacher is not None and laid.given is not None:
            rows = [row for item in batch if not item.plain for row in item.rows]
            taught = self._teacher(rows, laid.given.passage_at.shape[1])
        result = losses(self.module, laid, taught, self._before)
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
        rows = self._start.sets.validation
        if not (self._limit and rows):
            return None
        # On the CPU wherever it is trained: a device's kernels are another thing to go wrong.
        on_cpu = next(self.module.parameters()).device.type == "cpu"
        pair = self.module if on_cpu else copy.deepcopy(self.module).to("cpu")
        try:
            return validate(pair, self._start.directory, rows, limit=self._limit)
        except Exception as error:  # the checkpoint is there, and figures are not worth a run
            log.warning("the validation failed", exc_info=True)
            return {"failed": str(error)}


def train(
    start: Start,
    out: Path,
    *,
    limit: int = VALIDATED,
    setup: TrainingSetup | None = None,
    teacher: Path | None = None,
) -> OscarPair:
    """Train, with a checkpoint and a validation every so many steps; resumes from ``out``.

    Args:
        start: What the run begins with; its pair is the one that is trained.
        out: Folder for checkpoints, ``log.jsonl``, ``data.json`` and ``command.txt``.
        limit: Questions of a validation; 0 for none.
        setup: Where, and how often it saves; default: the CPU, in bf16.
        teacher: An extractive reader to learn from, beside what rows say; its weight is the
            recipe's.

    Raises:
        InputError: Too few questions are to be validated, or the teacher is of no use.
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
        (out / DATA).write_text(json.dumps(report, indent=1))
        commands = [*start.origin.get("commands", ()), setup.command]
        (out / COMMAND).write_text("".join(f"{line}\n" for line in commands))
    return run_training(PairTraining(start, setup, limit, teacher), out, setup.processes)
