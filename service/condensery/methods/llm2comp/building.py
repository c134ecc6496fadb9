"""From a language model to a published encoder: compress, contrast twice, measure, publish.

Each stage is a run in a folder of its own, which a second start goes on from.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.llm2comp.data import hold_out
from condensery.methods.llm2comp.finishing import Finishing
from condensery.methods.llm2comp.plan import BuildInputs, BuildPlan
from condensery.methods.llm2comp.recipe import (
    STAGES,
    Stage,
)
from condensery.methods.llm2comp.sources import Base, stored_base
from condensery.methods.llm2comp.training import (
    PreparedStage,
    StageData,
    prepare_stage,
)
from condensery.methods.llm2comp.weights import StageResult, load_stage
from condensery.methods.retriever.measuring import MeasuringSetup
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.progress import StagesProgress
from condensery.methods.trainer.publishing import recipe_identity
from condensery.methods.trainer.trainer import differences
from condensery.networks.dtypes import dtype_name
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.networks.weight_files import check_finite
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore, check_name
from condensery.store.weights import open_folder

log = logging.getLogger(__name__)
PLAN = "plan.json"


def build(
    parent: StoredModel,
    store: ModelStore,
    name: str,
    plan: BuildPlan,
    inputs: BuildInputs,
    out: Path,
    where: MeasuringSetup,
    *,
    setup: TrainingSetup,
) -> StoredModel | None:
    """Make an encoder of a language model and publish it; goes on where a killed run was.

    Args:
        parent: A stored causal language model, or an encoder made of one.
        store: Its own root receives the model.
        name: What that is called.
        plan: How it reads, and how it is trained.
        inputs: Data.
        out: Folder for checkpoints, logs, figures.
        where: It is measured.
        setup: Where it is trained; the first process measures and publishes.

    Returns:
        What was published; None in other processes than the first.

    Raises:
        InputError: Something given is of no use, or ``out`` holds a build with other settings;
            named, before any work.
        CorruptModel: The language model can't be loaded, or holds weights that are not finite.
        TrainingStopped: As ``run_training`` says.
    """
    check_name(name)
    base = _check(parent, plan)
    seed = next(iter(plan.recipes.values())).seed
    texts, held = hold_out(inputs.texts or inputs.views, inputs.held, seed)
    data = StageData(
        examples=inputs.examples, instruction=inputs.instruction, held_out=held, held=inputs.held
    )
    views = inputs.views or texts
    stages = {
        stage: prepare_stage(base, plan.shape, recipe, _with_texts(data, stage, texts, views))
        for stage, recipe in plan.recipes.items()
    }
    check_finite(open_folder(parent))
    _claim(out, base, plan, stages, setup)
    results = _train(stages, out, setup)
    if not setup.is_first:
        return None
    finishing = Finishing(parent, base, store, name, plan, inputs, out, where, setup)
    return finishing.publish(stages, results)


def _with_texts(
    data: StageData, stage: Stage, texts: Sequence[str], views: Sequence[str]
) -> StageData:
    """Return a stage's data."""
    own = {"pretext": texts, "unsupervised": views}.get(stage, ())
    return StageData(
        own, data.examples, data.instruction, data.held_out, data.held, data.similarities
    )


def _check(parent: StoredModel, plan: BuildPlan) -> Base:
    """Check what needs no data; returns the language model.

    Raises:
        InputError: The plan can't be carried out on it; the field is named.
    """
    if parent.manifest.method == "llm2comp":
        raise InputError(
            f"model: {parent.name!r} has memory tokens already; name its language model",
            field="model",
            value=parent.name,
        )
    base = stored_base(parent)
    if not plan.recipes:
        raise InputError(f"stages: none is named; there are {', '.join(STAGES)}", field="stages")
    if not plan.shape.k:
        raise InputError(
            f"pooling={plan.shape.pooling!r}: what is published has memory tokens",
            field="pooling",
            value=plan.shape.pooling,
        )
    if plan.shape.causal:
        raise InputError("attention='causal': what is published reads both ways", field="attention")
    if not 0 <= plan.max_tokens <= base.positions:
        raise InputError(
            f"max_tokens={plan.max_tokens}: {base.name} reads {base.positions} at most",
            field="max_tokens",
            value=plan.max_tokens,
        )
    if not 0 <= plan.merge_above < 1:
        raise InputError(
            f"merge_above={plan.merge_above}: must be from 0 to below 1",
            field="merge_above",
            value=plan.merge_above,
        )
    words = base.words(plan.shape)
    try:
        MemoryShape(plan.shape.k, words.start).check_length(plan.max_tokens or base.positions)
    except ValueError as error:
        raise InputError(str(error), field="memory_tokens", value=plan.shape.k) from error
    return base


def _claim(
    out: Path,
    base: Base,
    plan: BuildPlan,
    stages: Mapping[Stage, PreparedStage],
    setup: TrainingSetup,
) -> None:
    """Note what a folder is for, or check that it is for this.

    Raises:
        InputError: It holds a build with other settings; each is named.
    """
    about = {
        "model": base.fingerprint,
        "network": asdict(plan.shape),
        "dtype": dtype_name(setup.dtype),
        "stages": list(stages),
    }
    for stage, prepared in stages.items():
        recipe = recipe_identity(prepared.recipe, "recompute")
        about[stage] = {**recipe, "data": prepared.fingerprint}
    path = out / PLAN
    if path.is_file():
        if differing := differences(about, json.loads(path.read_text())):
            raise InputError(
                f"out: {out} holds a build with other settings: {'; '.join(differing)}; go on with "
                "the same, or build into another folder",
                field="out",
                value=str(out),
            )
        return
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(about, indent=1) + "\n")


def _train(
    stages: Mapping[Stage, PreparedStage], out: Path, setup: TrainingSetup
) -> dict[Stage, StageResult]:
    """Train the stages one after the other, or go on; returns what each made."""
    progress = StagesProgress({s: p.work * p.recipe.steps for s, p in stages.items()})
    results: dict[Stage, StageResult] = {}
    earlier: StageResult | None = None
    for stage, prepared in stages.items():
        begin_step = partial(progress.begin_step, stage, steps=prepared.recipe.steps)
        prepared.train(out / stage, earlier, setup, begin_step)
        setup.processes.agree(True, setup.device)  # the first has written what all read
        earlier = results[stage] = load_stage(out / stage)
    return results
