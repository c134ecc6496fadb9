"""From an encoder to a smaller one: analyse, drop, slim, tune, measure, publish."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.index.prompts import make_index_prompts
from condensery.methods.effir.analysis import NAME, PICTURE, SAMPLES, analyse
from condensery.methods.effir.importance import GROUPS, Depth, Importance, check, choose
from condensery.methods.effir.measuring import Measured, speed
from condensery.methods.effir.report import card, draw_order, draw_trade_off, figures
from condensery.methods.effir.slimming import Width, narrow
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.retriever.batches import Batches, read_examples
from condensery.methods.retriever.measuring import MeasuringSetup, cost, quality
from condensery.methods.retriever.network import Retriever, open_retriever
from condensery.methods.retriever.publishing import Candidate, Storing
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.retriever.timing import CHILD, PARENT
from condensery.methods.retriever.tuning import tune
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.publishing import recipe_identity, versions
from condensery.methods.trainer.reports import without_folders
from condensery.networks.dtypes import dtype_name
from condensery.networks.effir import prune
from condensery.networks.effir_shape import Pruning
from condensery.networks.loading import pruning_of
from condensery.networks.shrp import Experts
from condensery.networks.sublayers import family_named
from condensery.networks.weight_files import check_finite
from condensery.runtime.tokenizing import TOKENIZER, TextTokenizer
from condensery.store.checking import sha256_of
from condensery.store.manifest import Manifest, Provenance, StoredModel
from condensery.store.store import ModelStore, check_name
from condensery.store.weights import open_folder
from condensery.store.writing import read_json

log = logging.getLogger(__name__)
TRADE_OFF = "trade-off.png"


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What is made of a parent.

    Attributes:
        depth: Which sub-layers go.
        width: How many neurons go.
        recipe: How the rest is tuned; without rows it is not.
        samples: Blocks of calibration text.
        block: Tokens of one; None is the model's own choice.
        storing: How it is stored; it is measured so.
    """

    depth: Depth = field(default_factory=Depth)
    width: Width = field(default_factory=Width)
    recipe: RetrieverRecipe = field(default_factory=RetrieverRecipe)
    samples: int = SAMPLES
    block: int | None = None
    storing: Storing = field(default_factory=Storing)


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """What it is made with.

    Attributes:
        texts: Calibration text.
        rows: To tune on, see ``retriever.rows``.
        sets: To measure on.
        work: Folder for the parent's importance and models' figures on sets, which other runs
            then need not measure again; None is one of this run's own.
        licence: Of the weights; the parent's, if empty.
        command: For the card.
    """

    texts: Sequence[Path] = ()
    rows: Sequence[Path] = ()
    sets: Sequence[RankingSet] = ()
    work: Path | None = None
    licence: str = ""
    command: str = ""


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
    """Make a smaller retriever and publish it; goes on where a killed run was.

    Args:
        parent: A stored encoder of which nothing is gone yet.
        store: Its own root receives the model.
        name: What that is called.
        plan: What goes, and how the rest is tuned.
        inputs: Data.
        out: Folder for the analysis, checkpoints, logs.
        where: It is measured.
        setup: Where it is analysed and trained; the first process measures and publishes.

    Returns:
        The model as it is published; None in other processes than the first.

    Raises:
        InputError: Something given is of no use; named, before any work.
        CorruptModel: The parent can't be loaded, or holds weights that are not finite.
        TrainingStopped: As ``run_training`` says.
    """
    check_name(name)
    layers, neurons = _check(parent, plan, inputs)
    batches = _batches(parent, plan.recipe, inputs.rows)
    pruning = _choose_layers(parent, plan, inputs, layers, out, setup)
    retriever, pruning = _train(parent, pruning, plan, inputs, batches, out, setup)
    log.info("neurons left: %s", [pruning.size(layer, neurons) for layer in range(layers)])
    if not setup.is_first:
        return None
    return _publish(parent, store, name, retriever, plan, inputs, pruning, out, where, setup)


def _publish(
    parent: StoredModel,
    store: ModelStore,
    name: str,
    retriever: Retriever,
    plan: BuildPlan,
    inputs: BuildInputs,
    pruning: Pruning,
    out: Path,
    where: MeasuringSetup,
    setup: TrainingSetup,
) -> StoredModel:
    """Store what is left aside, measure it there beside its parent, and publish both."""
    neurons = int(read_json(parent.path / "config.json")["intermediate_size"])
    weights = {key: tensor.cpu() for key, tensor in retriever.weights().items()}
    manifest = _manifest(parent, name, plan, inputs, pruning)
    config = {} if pruning.dense else pruning.to_config()
    candidate = Candidate(parent, weights, config, plan.storing)
    child = candidate.set_aside(out / "store", manifest)
    measured = _measure({PARENT: parent, CHILD: child}, pruning, neurons, inputs, out, where)
    manifest = manifest.model_copy(update=measured.manifest_fields())
    making = _making(manifest, plan, inputs, measured, where, setup)
    report = figures(pruning, neurons, measured) | {"about": making}
    drawn = ((PICTURE, inputs.texts), (TRADE_OFF, measured.quality))
    return candidate.publish(
        store,
        manifest,
        report=report,
        card=card(name, parent.name, making, report),
        plots=[out / picture for picture, figures_of in drawn if figures_of],
    )


def _check(parent: StoredModel, plan: BuildPlan, inputs: BuildInputs) -> tuple[int, int]:
    """Return a parent's layers and the neurons of each, if the plan can be carried out on it.

    Raises:
        InputError: It is pruned already, or of a family that can't be; or data is missing.
    """
    config = read_json(parent.path / "config.json")
    if pruning_of(config) is not None or Experts.named(config):
        raise InputError(f"model: {parent.name} is pruned already", field="model")
    try:
        family_named(config.get("model_type"))
    except ValueError as error:
        raise InputError(f"model: {parent.name}: {error}", field="model") from error
    layers, neurons = int(config["num_hidden_layers"]), int(config["intermediate_size"])
    check(plan.depth, layers)
    if (plan.depth.attention or plan.depth.mlp or plan.depth.blocks) and not inputs.texts:
        raise InputError("text: importance is measured over text; none is given", field="text")
    if plan.width.width and not inputs.rows:
        raise InputError("data: gates learn from rows; none are given", field="data")
    check_finite(open_folder(parent))
    return layers, neurons


def _choose_layers(
    parent: StoredModel,
    plan: BuildPlan,
    inputs: BuildInputs,
    layers: int,
    out: Path,
    setup: TrainingSetup,
) -> Pruning:
    """Choose which sub-layers go, by their importance over the text if there is any."""
    nothing = (0.0,) * layers
    importance = Importance(nothing, nothing, nothing, 0)  # where the last layers go, or none
    if inputs.texts:
        path = (inputs.work or out) / NAME
        importance = _importance(parent, plan, inputs.texts, path, setup)
        if setup.is_first:
            out.mkdir(parents=True, exist_ok=True)
            draw_order(importance, out / PICTURE)
    pruning = choose(importance, plan.depth)
    log.info("dropped: attention %s, MLP %s", list(pruning.attention), list(pruning.mlp))
    return pruning


def _train(
    parent: StoredModel,
    pruning: Pruning,
    plan: BuildPlan,
    inputs: BuildInputs,
    batches: Batches | None,
    out: Path,
    setup: TrainingSetup,
) -> tuple[Retriever, Pruning]:
    """Drop the chosen sub-layers, slim what is left, and tune it; without rows only drop."""
    retriever = open_retriever(parent, device=setup.device, dtype=setup.dtype)
    prune(retriever.model, pruning)
    identity = {
        "parent": parent.manifest.fingerprint,
        "pruning": pruning.to_config(),
        "recipe": recipe_identity(plan.recipe),
        "data": _digest(inputs.rows),
        "dtype": dtype_name(setup.dtype),
    }
    if batches is None:
        return retriever, pruning
    if plan.width.width:
        identity["width"] = asdict(plan.width)
        folder = out / "slimming"
        pruning = narrow(
            retriever, pruning, plan.width, batches, plan.recipe, folder,
            identity=identity, setup=setup,
        )  # fmt: skip
    if plan.recipe.steps:
        identity["pruning"] = pruning.to_config()
        if plan.storing.share_embeddings:
            identity["frozen"] = "embeddings"
        tune(
            retriever, batches, plan.recipe, out / "tuning",
            freeze_embeddings=plan.storing.share_embeddings, identity=identity, setup=setup,
        )  # fmt: skip
    return retriever, pruning


def _measure(
    models: Mapping[str, StoredModel],
    pruning: Pruning,
    neurons: int,
    inputs: BuildInputs,
    out: Path,
    where: MeasuringSetup,
) -> Measured:
    """Measure parent and child, and draw quality against size and speed."""
    costs = {key: cost(stored) for key, stored in models.items()}
    if not inputs.sets:
        return Measured(costs, {}, {})
    ranked = quality(models, inputs.sets, where, inputs.work or out / "quality")
    timed = {}
    if where.rounds:
        timed = speed(models, pruning, inputs.sets, where, neurons=neurons)
    draw_trade_off(costs, ranked, timed, out / TRADE_OFF)
    return Measured(costs, ranked, timed)


def _making(
    manifest: Manifest,
    plan: BuildPlan,
    inputs: BuildInputs,
    measured: Measured,
    where: MeasuringSetup,
    setup: TrainingSetup,
) -> dict[str, Any]:
    """Return what the card and the report say of how a model was made."""
    trained_in, measured_in = dtype_name(setup.dtype), dtype_name(where.dtype)
    return {
        "licence": manifest.licence,
        "data": manifest.provenance.data,
        "command": manifest.provenance.command,
        "versions": versions(),
        "recipe": asdict(plan.recipe) if inputs.rows else {"tuning": "none"},
        "device": f"{where.device}; trained in {trained_in}, measured in {measured_in}",
        "drop_order": bool(inputs.texts),
        "trade_off": bool(measured.quality),
    }


def _batches(parent: StoredModel, recipe: RetrieverRecipe, rows: Sequence[Path]) -> Batches | None:
    if not rows:
        return None
    folder = parent.file(TOKENIZER).parent
    tokenizer = TextTokenizer.load(folder, min(recipe.length, parent.manifest.max_tokens))
    prompts = make_index_prompts(parent.manifest)
    return Batches(
        read_examples(rows),
        tokenizer,
        recipe,
        query_prompt=prompts.query,
        passage_prompt=prompts.passage,
    )


def _importance(
    parent: StoredModel,
    plan: BuildPlan,
    texts: Sequence[Path],
    path: Path,
    setup: TrainingSetup,
) -> Importance:
    """Measure, or read what was measured for the same."""
    about = {
        "parent": parent.manifest.fingerprint,
        "texts": _digest(texts),
        "samples": plan.samples,
        "block": plan.block,
        "dtype": dtype_name(setup.dtype),
    }
    if path.is_file():
        kept = json.loads(path.read_text())
        if kept.get("about") == about:
            parts = {group: tuple(kept[group]) for group in GROUPS}
            return Importance(**parts, tokens=kept["tokens"])
    importance = analyse(
        open_folder(parent),
        texts,
        tokenizer=parent.file(TOKENIZER).parent,
        samples=plan.samples,
        length=plan.block,
        device=setup.device,
        dtype=setup.dtype,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"format": 1, "about": about, **asdict(importance)}
    write_atomically(path, json.dumps(values, indent=1) + "\n")
    return importance


def _manifest(
    parent: StoredModel, name: str, plan: BuildPlan, inputs: BuildInputs, pruning: Pruning
) -> Manifest:
    own = parent.manifest
    data = tuple(f"{path.parent.name}/{path.name}" for path in (*inputs.texts, *inputs.rows))
    return own.model_copy(
        update={
            "name": name,
            "version": "1",
            "method": own.method if pruning.dense else "effir",
            "shape": own.shape | ({} if pruning.dense else pruning.to_config()),
            "licence": inputs.licence or own.licence,
            "provenance": Provenance(
                command=without_folders(inputs.command),
                data=data,
                seed=plan.recipe.seed,
                source=f"{own.name} version {own.version}, {own.fingerprint}",
            ),
            "quality": {},
            "cost": {},
        }
    )


def _digest(paths: Sequence[Path]) -> str:
    """Return the sha256 of files; of folders, of the files in them."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()
