"""From an encoder to a smaller one: analyse, drop, slim, tune, measure, publish."""

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.effir.analysis import NAME, PICTURE, SAMPLES, analyse
from condensery.methods.effir.choosing import Depth, check, choose
from condensery.methods.effir.importance import GROUPS, Importance
from condensery.methods.effir.measuring import CHILD, PARENT, MeasuringSetup, cost, quality, speed
from condensery.methods.effir.narrowing import Width, narrow
from condensery.methods.effir.plots import draw_order, draw_trade_off
from condensery.methods.effir.report import card, figures
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.retriever.batches import Batches
from condensery.methods.retriever.network import open_retriever
from condensery.methods.retriever.publishing import publish
from condensery.methods.retriever.recipe import RetrieverRecipe
from condensery.methods.retriever.rows import read_examples
from condensery.methods.retriever.tuning import tune
from condensery.methods.trainer.commands import without_folders
from condensery.methods.trainer.processes import Processes
from condensery.networks.dtypes import dtype_name
from condensery.networks.effir import prune
from condensery.networks.effir_loading import check_finite, pruning_of
from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import family_named
from condensery.runtime.tokenizing import TextTokenizer
from condensery.store.checking import sha256_of
from condensery.store.manifest import Manifest, Provenance, StoredModel
from condensery.store.store import ModelStore, check_name
from condensery.store.writing import read_json
from condensery.values import make_index_prompts

log = logging.getLogger(__name__)
TRADE_OFF = "trade-off.png"
VERSIONS = ("condensery", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What is made of a parent.

    Attributes:
        depth: Which sub-layers go.
        width: How many neurons go.
        recipe: How the rest is tuned; without rows it is not.
        samples: Blocks of calibration text.
        block: Tokens of one; None is the model's own choice.
    """

    depth: Depth = field(default_factory=Depth)
    width: Width = field(default_factory=Width)
    recipe: RetrieverRecipe = field(default_factory=RetrieverRecipe)
    samples: int = SAMPLES
    block: int | None = None


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
    given: BuildInputs,
    out: Path,
    where: MeasuringSetup,
    *,
    dtype: torch.dtype = torch.float32,
    every: int = 500,
    processes: Processes | None = None,
) -> StoredModel | None:
    """Make a smaller retriever and publish it; goes on where a killed run was.

    Args:
        parent: A stored encoder of which nothing is gone yet.
        store: Its own root receives the model.
        name: What that is called.
        plan: What goes, and how the rest is tuned.
        given: Data.
        out: Folder for the analysis, checkpoints, logs.
        where: It is measured.
        dtype: What the analysis and the training compute in.
        every: Steps between checkpoints.
        processes: Those that train together; the first measures and publishes.

    Returns:
        The model as it is published; None in other processes than the first.

    Raises:
        InputError: Something given is of no use; named, before any work.
        CorruptModel: The parent can't be loaded, or holds weights that are not finite.
        TrainingStopped: As the trainer says.
    """
    processes = processes or Processes()
    check_name(name)
    config = read_json(parent.path / "config.json")
    if pruning_of(config) is not None:
        raise InputError(f"model: {parent.name} is pruned already", field="model")
    try:
        family_named(config.get("model_type"))
    except ValueError as error:
        raise InputError(f"model: {parent.name}: {error}", field="model") from error
    layers, neurons = int(config["num_hidden_layers"]), int(config["intermediate_size"])
    check(plan.depth, layers)
    needs_order = bool(plan.depth.attention or plan.depth.mlp or plan.depth.blocks)
    if needs_order and not given.texts:
        raise InputError("text: importance is measured over text; none is given", field="text")
    if plan.width.width and not given.rows:
        raise InputError("data: gates learn from rows; none are given", field="data")
    check_finite(parent.path)
    batches = _batches(parent, plan.recipe, given.rows)
    nothing = (0.0,) * layers
    importance = Importance(nothing, nothing, nothing, 0)  # where the last layers go, or none
    if given.texts:
        kept = (given.work or out) / NAME
        importance = _importance(parent, plan, given.texts, kept, where.device, dtype)
        if not processes.rank:
            out.mkdir(parents=True, exist_ok=True)
            draw_order(importance, out / PICTURE)
    pruning = choose(importance, plan.depth)
    log.info("dropped: attention %s, MLP %s", list(pruning.attention), list(pruning.mlp))
    retriever = open_retriever(parent, device=where.device, dtype=dtype)
    prune(retriever.model, pruning)
    about = {
        "parent": parent.manifest.fingerprint,
        "pruning": pruning.to_config(),
        "recipe": {k: v for k, v in asdict(plan.recipe).items() if k != "accumulate"},
        "data": _digest(given.rows),
        "dtype": dtype_name(dtype),
    }
    if plan.width.width and batches is not None:
        about["width"] = asdict(plan.width)
        pruning = narrow(
            retriever,
            pruning,
            plan.width,
            batches,
            plan.recipe,
            out / "slimming",
            about=about,
            every=every,
            processes=processes,
        )
        log.info("neurons left: %s", [pruning.size(layer, neurons) for layer in range(layers)])
    if batches is not None and plan.recipe.steps:
        tune(
            retriever,
            batches,
            plan.recipe,
            out / "tuning",
            about=about | {"pruning": pruning.to_config()},
            every=every,
            processes=processes,
        )
    if processes.rank:
        return None
    weights = {
        key: tensor.float().cpu() if tensor.is_floating_point() else tensor.cpu()
        for key, tensor in retriever.weights().items()
    }
    manifest = _manifest(parent, name, plan, given, pruning)
    # Measured as it is stored and served; what is published at last has the same fingerprint.
    aside = out / "store"
    shutil.rmtree(aside, ignore_errors=True)  # an earlier attempt's
    first = publish(ModelStore(None, aside), parent, manifest, weights, pruning=pruning)
    models = {PARENT: parent, CHILD: first}
    costs = {key: cost(one) for key, one in models.items()}
    found = quality(models, given.sets, where, given.work or out / "quality") if given.sets else {}
    timed = {}
    if given.sets and where.rounds:
        timed = speed(models, pruning, given.sets, where, neurons=neurons)
    report = figures(pruning, neurons, costs, found, timed)
    told = {
        "licence": manifest.licence,
        "data": manifest.provenance.data,
        "command": manifest.provenance.command,
        "versions": {key: version(key) for key in VERSIONS},
        "recipe": asdict(plan.recipe) if batches is not None else {"tuning": "none"},
        "device": (
            f"{where.device}; trained in {dtype_name(dtype)}, measured in {dtype_name(where.dtype)}"
        ),
        "drop_order": bool(given.texts),
        "trade_off": bool(found),
    }
    manifest = manifest.model_copy(
        update={
            "quality": {key: one[CHILD]["ndcg@10"] for key, one in found.items()},
            "cost": {**costs[CHILD], "parent_parameters": costs[PARENT]["parameters"]},
        }
    )
    plots = [out / PICTURE] if given.texts else []
    if found:
        plots.append(out / TRADE_OFF)
        draw_trade_off(costs, found, timed, out / TRADE_OFF)
    text = json.dumps(report | {"about": told}, indent=1, ensure_ascii=False) + "\n"
    return publish(
        store,
        parent,
        manifest,
        weights,
        pruning=pruning,
        report=text,
        card=card(name, parent.name, told, report),
        plots=plots,
    )


def _batches(parent: StoredModel, recipe: RetrieverRecipe, rows: Sequence[Path]) -> Batches | None:
    if not rows:
        return None
    tokenizer = TextTokenizer.load(parent.path, min(recipe.length, parent.manifest.max_tokens))
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
    device: torch.device,
    dtype: torch.dtype,
) -> Importance:
    """Measure, or read what was measured for the same."""
    about = {
        "parent": parent.manifest.fingerprint,
        "texts": _digest(texts),
        "samples": plan.samples,
        "block": plan.block,
        "dtype": dtype_name(dtype),
    }
    if path.is_file():
        found = json.loads(path.read_text())
        if found.get("about") == about:
            parts = {group: tuple(found[group]) for group in GROUPS}
            return Importance(**parts, tokens=found["tokens"])
    importance = analyse(
        parent.path,
        texts,
        samples=plan.samples,
        length=plan.block,
        device=device,
        dtype=dtype,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"format": 1, "about": about, **asdict(importance)}
    write_atomically(path, json.dumps(values, indent=1) + "\n")
    return importance


def _manifest(
    parent: StoredModel, name: str, plan: BuildPlan, given: BuildInputs, pruning: Pruning
) -> Manifest:
    own = parent.manifest
    data = tuple(f"{path.parent.name}/{path.name}" for path in (*given.texts, *given.rows))
    return own.model_copy(
        update={
            "name": name,
            "version": "1",
            "method": own.method if pruning.dense else "effir",
            "shape": own.shape | ({} if pruning.dense else pruning.to_config()),
            "dtype": "float32",
            "licence": given.licence or own.licence,
            "base": None,
            "base_fingerprint": None,
            "provenance": Provenance(
                command=without_folders(given.command),
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
