"""A network that is done: stored aside, measured there beside its parent, published."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from condensery.errors import ModelNotFound
from condensery.methods.retriever.measuring import MeasuringSetup, quality
from condensery.methods.retriever.publishing import Candidate, weight_bytes
from condensery.methods.retriever.timing import CHILD, PARENT, Reader, compare_speed
from condensery.methods.shrp import measuring
from condensery.methods.shrp.classification import ClassificationTask
from condensery.methods.shrp.embedding import EmbeddingTask
from condensery.methods.shrp.networks import (
    check_parent,
    open_stored,
    stored_config,
    stored_weights,
)
from condensery.methods.shrp.recipe import BuildInputs, BuildPlan
from condensery.methods.shrp.report import FORMAT, make_card
from condensery.methods.shrp.reranking import RerankTask
from condensery.methods.shrp.training import Converted, Task
from condensery.methods.trainer.batching import Tokens
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.publishing import versions
from condensery.methods.trainer.reports import without_folders
from condensery.networks.dtypes import dtype_name
from condensery.networks.shrp import Experts
from condensery.store.manifest import Manifest, Provenance, StoredModel
from condensery.store.store import ModelStore

TUNED = "-parent"  # after a model's name: what a tuned encoder is published as


@dataclass(frozen=True, slots=True)
class Built:
    """What a build published.

    Attributes:
        model: The converted one.
        parent: What it is compared with: the stored parent, or the classifier tuned from it.
    """

    model: StoredModel
    parent: StoredModel


def stored_labels(parent: StoredModel) -> tuple[str, ...]:
    """Return a classifier's labels, in the order of its logits; of an encoder none."""
    labels = parent.manifest.shape.get("labels")
    return tuple(map(str, labels)) if isinstance(labels, list) else ()


def publish_tuned(
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
    candidate = Candidate(parent, stored_weights(network), stored_config(network), plan.storing)
    tuned = candidate.set_aside(out / "tuned", manifest)
    try:
        there = store.open(tuned.name)
    except ModelNotFound:
        return candidate.publish(store, manifest)
    same = there.manifest.fingerprint == tuned.manifest.fingerprint
    return there if same else candidate.publish(store, manifest)


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


@dataclass(frozen=True, slots=True)
class Publishing:
    """The way of a network that is done into the store: stored aside, measured, published."""

    parent: StoredModel
    store: ModelStore
    name: str
    plan: BuildPlan
    inputs: BuildInputs
    out: Path
    where: MeasuringSetup
    setup: TrainingSetup

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
        manifest = _manifest(self.parent, self.name, plan, self.inputs, experts, None)
        config = stored_config(network) | experts.to_config()
        candidate = Candidate(self.parent, stored_weights(network), config, plan.storing)
        child = candidate.set_aside(self.out / "store", manifest)
        report = self._measure(task, child, converted, stages)
        manifest = manifest.model_copy(
            update={"quality": _headline(report["quality"]), "cost": report["cost"][CHILD]}
        )
        names = [picture.stem for picture in pictures]
        card = make_card(self.name, self.parent.name, report, names)
        made = candidate.publish(self.store, manifest, report=report, card=card, plots=pictures)
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
            check_parent(self.parent), len(stored_labels(self.parent)) or None
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
                {name: weight_bytes(stored) for name, stored in models.items()},
                shape,
                experts,
            ),
            "speed": compare_speed(readers, timed, self.where.rounds) if self.where.rounds else {},
            "about": self._about(child),
        }

    def _quality(
        self,
        task: Task,
        models: Mapping[str, StoredModel],
        readers: Mapping[str, Reader],
    ) -> tuple[dict[str, Any], Sequence[Tokens]]:
        """Return figures by set, and texts to time."""
        inputs = self.inputs
        if isinstance(task, ClassificationTask):
            tested = inputs.test or inputs.validation
            labels = len(stored_labels(self.parent))
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
        if plan.storing.share_embeddings:
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


def _headline(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return a figure a set, for the manifest."""
    return {
        name: next(value for value in by_model[CHILD].values() if isinstance(value, float))
        for name, by_model in figures.items()
    }


def _parameters(stored: StoredModel) -> int:
    return sum(parameter.numel() for parameter in open_stored(stored).parameters())
