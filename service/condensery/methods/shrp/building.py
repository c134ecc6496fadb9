"""From an encoder, a classifier or a reranker to a static small one: tune, convert, prune, measure.

Each stage is a run in a folder of its own, which a second start goes on from; a stage that is
finished is read back.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from condensery.errors import InputError
from condensery.methods.retriever.measuring import MeasuringSetup
from condensery.methods.shrp.classification import ClassificationTask, label_names
from condensery.methods.shrp.conversion import choose_layers
from condensery.methods.shrp.embedding import EmbeddingTask
from condensery.methods.shrp.networks import (
    base_of,
    check_parent,
    freeze_embeddings,
    open_network,
)
from condensery.methods.shrp.publishing import Built, Publishing, publish_tuned, stored_labels
from condensery.methods.shrp.recipe import BuildInputs, BuildPlan, ShrpRecipe
from condensery.methods.shrp.report import draw_usage
from condensery.methods.shrp.reranking import RerankTask
from condensery.methods.shrp.training import Converted, Task, convert_network, tune_network
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.progress import plot
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore, check_name

CARD_DPI = 65  # of the plots that travel with a model of a few MB


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
) -> Built | None:
    """Convert a stored model and publish what comes of it; goes on where a killed run was.

    With labelled rows an encoder is tuned to a classifier first, and that is published too, as
    ``NAME-parent``: it is what the converted one is compared with.

    Args:
        parent: A stored encoder, classifier or reranker of the BERT family.
        store: Its own root receives the model.
        name: What that is called.
        plan: Which layers, and how.
        inputs: Data.
        out: Folder for vectors, checkpoints, logs.
        where: It is measured.
        setup: Where it is trained; the first process measures and publishes.

    Returns:
        What was published; None in other processes than the first.

    Raises:
        InputError: Something given is of no use; named, before any work.
        CorruptModel: The parent can't be loaded, or holds weights that are not finite.
        TrainingStopped: As ``run_training`` says.
    """
    check_name(name)
    config = check_parent(parent)
    order = plan.layers or choose_layers(plan.convert, int(config["num_hidden_layers"]), plan.order)
    labels = _check(parent, plan, inputs, order, config)
    network = open_network(parent, labels=labels, seed=plan.recipe.seed)
    if plan.storing.share_embeddings:
        freeze_embeddings(network)
    padding = int(config.get("pad_token_id") or 0)
    names = labels or stored_labels(parent)
    task = _task(parent, names, inputs, plan.recipe, out, padding, setup)
    identity = {"parent": parent.manifest.fingerprint, "share": plan.storing.share_embeddings}
    runs = _Runs(network, task, plan.recipe, out, identity, setup)
    origin = parent
    if labels is not None:
        runs.tune("tuning", plan.recipe.tune_epochs)
        if setup.is_first:
            origin = publish_tuned(parent, store, name, network, plan, inputs, out, labels)
    converted = runs.convert(order, plan.keep)
    stages = {"all experts, routed": converted.routed, "pruned, static": converted.pruned}
    if plan.recipe.settle_epochs:
        runs.tune("settling", plan.recipe.settle_epochs, heads=converted.experts.to_config())
        stages["settled"] = task.evaluate(network)
    if not setup.is_first:
        return None
    finish = Publishing(origin, store, name, plan, inputs, out, where, setup)
    return finish.publish(network, task, converted, stages, runs.pictures(converted))


class _Runs:
    """The stages that train a network, each in a folder of its own under ``out``."""

    def __init__(
        self,
        network: nn.Module,
        task: Task,
        recipe: ShrpRecipe,
        out: Path,
        identity: Mapping[str, Any],
        setup: TrainingSetup,
    ) -> None:
        self._network, self._task, self._recipe = network, task, recipe
        self._out, self._identity, self._setup = out, identity, setup
        self._done: list[str] = []

    def tune(self, stage: str, epochs: int, **identity: Any) -> None:
        """Tune the network as it is, or go on from where a killed run was."""
        tune_network(
            self._network, self._task, self._recipe, epochs, self._out / stage,
            identity={**self._identity, **identity}, setup=self._setup,
        )  # fmt: skip
        self._done.append(stage)

    def convert(self, order: Sequence[int], keep: int) -> Converted:
        """Convert layers, and prune their experts."""
        self._done.append("conversion")
        return convert_network(
            self._network, base_of(self._network), self._task, self._recipe, order, keep,
            self._out / "conversion", identity=self._identity, setup=self._setup,
        )  # fmt: skip

    def pictures(self, converted: Converted) -> list[Path]:
        """Return the plots of the stages and of experts' use, each by what it shows."""
        pictures = []
        for stage in self._done:
            picture = self._out / f"{stage}.png"
            plot(self._out / stage, picture, dpi=CARD_DPI)
            pictures.append(picture)
        usage = {str(number): counts.tolist() for number, counts in converted.usage.items()}
        drawn = draw_usage(usage, converted.experts.heads, self._out / "usage.png")
        return [*pictures, drawn]


def _check(
    parent: StoredModel,
    plan: BuildPlan,
    inputs: BuildInputs,
    order: Sequence[int],
    config: Mapping[str, Any],
) -> tuple[str, ...] | None:
    """Check that the plan can be carried out; returns the labels of a new classifier, if any.

    Raises:
        InputError: It can't, or data is missing; the field is named.
    """
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    for number in order:
        if not 0 <= number < layers:
            raise InputError(f"layers: {number} is no layer of {layers}", field="layers")
    if len(set(order)) < len(order):
        raise InputError(f"layers: names one twice: {list(order)}", field="layers")
    for name, value in (("keep", plan.keep), ("top_k", plan.recipe.top_k)):
        if not 1 <= value <= heads:
            raise InputError(
                f"{name}: {value}: must be from 1 to the model's {heads} heads",
                field=name,
                value=value,
            )
    if plan.recipe.top_k > 1 and plan.keep > 1:
        raise InputError(
            f"keep: {plan.keep} with top_k {plan.recipe.top_k}: several experts for one text are "
            "not served; keep 1",
            field="keep",
            value=plan.keep,
        )
    kind = parent.manifest.kind
    if kind == "classifier" or inputs.train:
        for name in ("train", "validation"):
            if not getattr(inputs, name):
                raise InputError(f"{name}: no labelled rows are given", field=name)
    elif kind == "encoder" and not inputs.texts:
        raise InputError(
            "text: an encoder learns its own vectors from texts, or a task from --train and "
            "--validation; neither is given",
            field="text",
        )
    elif kind == "reranker" and not inputs.rows:
        raise InputError("rows: a reranker learns from rows; none are given", field="rows")
    if kind == "encoder" and inputs.train:
        return label_names(inputs.train)
    return None


def _task(
    parent: StoredModel,
    labels: Sequence[str],
    inputs: BuildInputs,
    recipe: ShrpRecipe,
    out: Path,
    padding: int,
    setup: TrainingSetup,
) -> Task:
    """Return what the network is to do, as the parent's kind and the data say."""
    if inputs.train:
        return ClassificationTask(
            parent,
            inputs.train,
            inputs.validation,
            labels,
            length=recipe.length,
            batch=recipe.batch,
            epoch_steps=recipe.epoch_steps,
            padding=padding,
        )
    if parent.manifest.kind == "reranker":
        return RerankTask(
            parent, inputs.rows, recipe, device=setup.device, dtype=setup.dtype, padding=padding
        )
    return EmbeddingTask(
        parent,
        inputs.texts,
        recipe,
        rows=inputs.rows,
        similarities=inputs.similarities,
        work=out,
        device=setup.device,
        dtype=setup.dtype,
        padding=padding,
    )
