"""From an encoder, a classifier or a reranker to a static small one: tune, convert, prune, measure.

Each stage is a run in a folder of its own, which a second start goes on from; a stage that is
finished is read back.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from condensery.errors import InputError, ModelNotFound
from condensery.methods.effir.measuring import (
    CHILD,
    PARENT,
    MeasuringSetup,
    quality,
)
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.retriever.batches import Example as Row
from condensery.methods.retriever.publishing import StoredDType, publish
from condensery.methods.shrp import measuring
from condensery.methods.shrp.batching import Tokens
from condensery.methods.shrp.classification import ClassificationTask, Example, label_names
from condensery.methods.shrp.conversion import Order, choose_layers
from condensery.methods.shrp.embedding import EmbeddingTask, Similarities
from condensery.methods.shrp.networks import (
    base_of,
    check_parent,
    freeze_embeddings,
    open_network,
    open_stored,
    stored_config,
    stored_weights,
)
from condensery.methods.shrp.recipe import ShrpRecipe
from condensery.methods.shrp.report import FORMAT, draw_usage, make_card
from condensery.methods.shrp.reranking import RerankTask
from condensery.methods.shrp.training import Converted, Task, convert_network, tune_network
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.publishing import versions, without_folders
from condensery.networks.dtypes import dtype_name
from condensery.networks.shrp import Experts
from condensery.store.manifest import WEIGHTS, Manifest, Provenance, StoredModel
from condensery.store.store import ModelStore, check_name

log = logging.getLogger(__name__)
TUNED = "-parent"  # after a model's name: what a tuned encoder is published as


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What is made of a parent.

    Attributes:
        convert: How many layers.
        order: Which, and in which order; see ``conversion.choose_layers``.
        layers: Their numbers instead, in the order in which they are converted.
        keep: Experts that stay of each.
        recipe: How it is trained.
        dtype: What weights are stored in.
        share: Keep the parent's embeddings, and take them and its tokenizer from there.
    """

    convert: int = 1
    order: Order = "last"
    layers: Sequence[int] = ()
    keep: int = 1
    recipe: ShrpRecipe = field(default_factory=ShrpRecipe)
    dtype: StoredDType = "float32"
    share: bool = False


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """What it is made with; which of it counts, the parent's kind says.

    Attributes:
        train: Labelled rows to learn from.
        validation: Labelled rows on which experts are counted.
        test: Labelled rows that the report is of; none: the validation rows.
        texts: For embeddings.
        rows: Queries with passages, for reranking and the contrastive loss.
        similarities: Scored pairs that embeddings are measured on.
        sets: Retrieval sets that they are measured on.
        licence: Of the weights; the parent's, if empty.
        data: What the card calls the data.
        command: For the card.
    """

    train: Sequence[Example] = ()
    validation: Sequence[Example] = ()
    test: Sequence[Example] = ()
    texts: Sequence[str] = ()
    rows: Sequence[Row] = ()
    similarities: Sequence[Similarities] = ()
    sets: Sequence[RankingSet] = ()
    licence: str = ""
    data: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    """What a build published.

    Attributes:
        model: The converted one.
        parent: What it is compared with: the stored parent, or the classifier tuned from it.
    """

    model: StoredModel
    parent: StoredModel


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
    recipe = plan.recipe
    network = open_network(parent, labels=labels, seed=recipe.seed)
    if plan.share:
        freeze_embeddings(network)
    padding = int(config.get("pad_token_id") or 0)
    task = _task(parent, labels or _stored_labels(parent), inputs, recipe, out, padding, setup)
    identity = {"parent": parent.manifest.fingerprint, "share": plan.share}
    plots: list[Path] = []
    origin = parent
    if labels is not None:
        tune_network(
            network, task, recipe, recipe.tune_epochs, out / "tuning",
            identity=identity, setup=setup,
        )  # fmt: skip
        plots.append(out / "tuning")
        if setup.is_first:
            origin = _publish_tuned(parent, store, name, network, plan, inputs, out, labels)
    converted = convert_network(
        network, base_of(network), task, recipe, order, plan.keep, out / "conversion",
        identity=identity, setup=setup,
    )  # fmt: skip
    plots.append(out / "conversion")
    stages = {"all experts, routed": converted.routed, "pruned, static": converted.pruned}
    if recipe.settle_epochs:
        heads = {"heads": converted.experts.to_config()}
        tune_network(
            network, task, recipe, recipe.settle_epochs, out / "settling",
            identity=identity | heads, setup=setup,
        )  # fmt: skip
        plots.append(out / "settling")
        stages["settled"] = task.evaluate(network)
    if not setup.is_first:
        return None
    pictures = _pictures(plots, converted, order, out)
    finish = _Finish(origin, store, name, plan, inputs, out, where, setup, labels)
    return finish.publish(network, task, converted, stages, pictures)


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


def _stored_labels(parent: StoredModel) -> tuple[str, ...]:
    labels = parent.manifest.shape.get("labels")
    return tuple(map(str, labels)) if isinstance(labels, list) else ()


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


def _publish_tuned(
    parent: StoredModel,
    store: ModelStore,
    name: str,
    network: nn.Module,
    plan: BuildPlan,
    inputs: BuildInputs,
    out: Path,
    labels: Sequence[str],
) -> StoredModel:
    """Publish the classifier that an encoder was tuned to, unless it is there already."""
    manifest = _manifest(parent, f"{name}{TUNED}", plan, inputs, None, labels)
    put = _publisher(parent, stored_weights(network), stored_config(network), plan)
    aside = out / "tuned"
    shutil.rmtree(aside, ignore_errors=True)
    tuned = put(ModelStore(parent.root, aside), manifest)
    try:
        there = store.open(tuned.name)
    except ModelNotFound:
        return put(store, manifest)
    same = there.manifest.fingerprint == tuned.manifest.fingerprint
    return there if same else put(store, manifest)


def _manifest(
    parent: StoredModel,
    name: str,
    plan: BuildPlan,
    inputs: BuildInputs,
    experts: Experts | None,
    labels: Sequence[str] | None,
) -> Manifest:
    own = parent.manifest
    fields: dict[str, Any] = {
        "name": name,
        "version": "1",
        "method": "none" if experts is None else "shrp",
        "shape": own.shape | ({} if experts is None else experts.to_config()),
        "licence": inputs.licence or own.licence,
        "base": None,
        "base_fingerprint": None,
        "provenance": Provenance(
            command=without_folders(inputs.command),
            data=inputs.data,
            seed=plan.recipe.seed,
            source=f"{own.name} version {own.version}, {own.fingerprint}",
        ),
        "quality": {},
        "cost": {},
    }
    if labels is not None and own.kind == "encoder":
        classifier = {"labels": list(labels), "independent": False}
        fields |= {
            "kind": "classifier",
            "pooling": None,
            "normalize": False,
            "prompts": {},
            "default_prompt": None,
            "max_tokens": min(own.max_tokens, plan.recipe.length),
            "shape": fields["shape"] | classifier,
        }
    return own.model_copy(update=fields)


def _pictures(
    runs: Sequence[Path], converted: Converted, order: Sequence[int], out: Path
) -> list[Path]:
    """Return the plots of the runs and of experts' use, each by what it shows."""
    pictures = []
    for run in runs:
        picture = out / f"{run.name}.png"
        shutil.copyfile(run / "log.png", picture)
        pictures.append(picture)
    usage = {str(number): counts.tolist() for number, counts in converted.usage.items()}
    return [*pictures, draw_usage(usage, converted.experts.heads, out / "usage.png")]


@dataclass(frozen=True, slots=True)
class _Finish:
    """The way of a network that is done into the store: stored aside, measured, published."""

    parent: StoredModel
    store: ModelStore
    name: str
    plan: BuildPlan
    inputs: BuildInputs
    out: Path
    where: MeasuringSetup
    setup: TrainingSetup
    labels: Sequence[str] | None

    def publish(
        self,
        network: nn.Module,
        task: Task,
        converted: Converted,
        stages: Mapping[str, Mapping[str, float]],
        pictures: Sequence[Path],
    ) -> Built:
        """Measure the model as it is stored and served, and publish it with its report."""
        plan, experts = self.plan, converted.experts
        weights = stored_weights(network)
        manifest = _manifest(self.parent, self.name, plan, self.inputs, experts, self.labels)
        put: Callable[..., StoredModel] = _publisher(
            self.parent, weights, stored_config(network) | experts.to_config(), plan
        )
        # Measured as it is stored; what is published at last has the same fingerprint.
        aside = self.out / "store"
        shutil.rmtree(aside, ignore_errors=True)  # an earlier attempt's
        child = put(ModelStore(self.parent.root, aside), manifest)
        report = self._measure(task, child, converted, stages)
        manifest = manifest.model_copy(
            update={"quality": _headline(report["quality"]), "cost": report["cost"][CHILD]}
        )
        names = [picture.stem for picture in pictures]
        card = make_card(self.name, self.parent.name, report, names)
        made = put(self.store, manifest, report=report, card=card, plots=pictures)
        return Built(made, self.parent)

    def _measure(
        self,
        task: Task,
        child: StoredModel,
        converted: Converted,
        stages: Mapping[str, Mapping[str, float]],
    ) -> dict[str, Any]:
        models = {PARENT: self.parent, CHILD: child}
        readers = {
            name: measuring.open_served(stored, self.where) for name, stored in models.items()
        }
        figures, timed = self._quality(task, models, readers)
        shape = measuring.bert_shape(
            check_parent(self.parent), len(_stored_labels(self.parent)) or None
        )
        experts = converted.experts
        return {
            "format": FORMAT,
            "task": task.kind,
            "experts": {
                "heads": experts.to_config()["shrp_heads"],
                "usage": {str(n): counts.tolist() for n, counts in converted.usage.items()},
            },
            "stages": {name: dict(values) for name, values in stages.items()},
            "quality": figures,
            "cost": measuring.count_costs(
                {name: _parameters(stored) for name, stored in models.items()},
                {name: _weight_bytes(stored) for name, stored in models.items()},
                shape,
                experts,
            ),
            "speed": measuring.compare_speed(readers, timed, self.where.rounds)
            if self.where.rounds
            else {},
            "about": self._about(child),
        }

    def _quality(
        self,
        task: Task,
        models: Mapping[str, StoredModel],
        readers: Mapping[str, measuring.Reader],
    ) -> tuple[dict[str, Any], Sequence[Tokens]]:
        """Return figures by set, and texts to time."""
        inputs = self.inputs
        if isinstance(task, ClassificationTask):
            tested = inputs.test or inputs.validation
            labels = len(_stored_labels(self.parent))
            name = "test" if inputs.test else "validation"
            figures = {name: measuring.compare_labels(readers, task, tested, labels)}
            return figures, task.tokenise(tested)
        if isinstance(task, RerankTask):
            held = {"held-out queries": measuring.compare_rankings(readers, task)}
            return held, task.validation_tokens()
        assert isinstance(task, EmbeddingTask)
        ranked = quality(models, inputs.sets, self.where, self.out / "quality")
        alike = {
            item.name: measuring.compare_similarities(readers, self.parent, item)
            for item in inputs.similarities
        }
        return {**ranked, **alike}, task.validation_tokens()

    def _about(self, child: StoredModel) -> dict[str, Any]:
        plan, manifest = self.plan, child.manifest
        trained_in, measured_in = dtype_name(self.setup.dtype), dtype_name(self.where.dtype)
        notes = [f"Stored in {manifest.dtype}."]
        if plan.share:
            notes.append(f"Embeddings and tokenizer are those of `{self.parent.name}`.")
        if not self.inputs.test and self.inputs.train:
            notes.append(
                "Measured on the rows on which experts were counted: there were no others."
            )
        return {
            "licence": manifest.licence,
            "data": list(manifest.provenance.data),
            "notes": notes,
            "command": manifest.provenance.command,
            "versions": versions(),
            "recipe": {"order": plan.order, "keep": plan.keep, **asdict(plan.recipe)},
            "device": f"{self.where.device}; trained in {trained_in}, measured in {measured_in}",
        }


def _publisher(
    parent: StoredModel, weights: Mapping[str, Any], config: Mapping[str, Any], plan: BuildPlan
) -> Callable[..., StoredModel]:
    """Return what publishes a model's weights, given a store, a manifest and its report."""

    def put(store: ModelStore, manifest: Manifest, **report: Any) -> StoredModel:
        return publish(
            store, parent, manifest, weights,
            config=config, dtype=plan.dtype, share=plan.share, **report,
        )  # fmt: skip

    return put


def _headline(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return a figure a set, for the manifest."""
    return {
        name: next(value for value in by_model[CHILD].values() if isinstance(value, float))
        for name, by_model in figures.items()
    }


def _parameters(stored: StoredModel) -> int:
    return sum(parameter.numel() for parameter in open_stored(stored).parameters())


def _weight_bytes(stored: StoredModel) -> int:
    return sum(
        (stored.path / name).stat().st_size
        for name in stored.manifest.files
        if name.endswith(WEIGHTS)
    )
