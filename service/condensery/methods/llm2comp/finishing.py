"""A build that is trained: stored aside, measured there stage by stage, published."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from condensery.errors import InputError
from condensery.methods.llm2comp.analysis import analyse, draw_similarity, draw_spectra
from condensery.methods.llm2comp.measuring import (
    UNTRAINED,
    Embedder,
    Read,
    Trial,
    network_embedder,
    stored_embedder,
    trained,
    untrained,
)
from condensery.methods.llm2comp.plan import BuildInputs, BuildPlan
from condensery.methods.llm2comp.publishing import publish_memory_encoder
from condensery.methods.llm2comp.recipe import (
    Stage,
    SupervisedRecipe,
)
from condensery.methods.llm2comp.report import (
    FORMAT,
    LOSSES,
    PUBLISHED,
    SPECTRA,
    TOKENS,
    draw_losses,
    make_card,
)
from condensery.methods.llm2comp.sources import Base
from condensery.methods.llm2comp.training import (
    PreparedStage,
    digest_of,
)
from condensery.methods.llm2comp.weights import StageResult
from condensery.methods.retriever.measuring import MeasuringSetup
from condensery.methods.retriever.publishing import store_aside, weight_bytes
from condensery.methods.retriever.timing import CHILD, PARENT, Vectors, compare_speed
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.publishing import versions
from condensery.methods.trainer.reports import without_folders
from condensery.networks.backbone import load_backbone
from condensery.networks.dtypes import dtype_name
from condensery.networks.llm2comp import effective_tokens
from condensery.networks.llm2comp_cost import LENGTHS, MemoryCost
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.store.manifest import Manifest, Provenance, StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import open_folder
from condensery.store.writing import read_json

CARD_DPI = 65  # of the plots that travel with a model of a few MB


@dataclass(frozen=True, slots=True)
class Finishing:
    """The way of what was trained into the store: stored aside, measured, published."""

    parent: StoredModel
    base: Base
    store: ModelStore
    name: str
    plan: BuildPlan
    inputs: BuildInputs
    out: Path
    where: MeasuringSetup
    setup: TrainingSetup

    def publish(
        self, stages: Mapping[Stage, PreparedStage], results: Mapping[Stage, StageResult]
    ) -> StoredModel:
        """Measure each stage, and the last as it is stored and served; publish it."""
        embeddings = self._look_at_embeddings(stages, results)
        last = [*results][-1]
        result, prepared = results[last], stages[last]
        manifest = self._manifest(prepared.recipe.seed)
        put = partial(
            publish_memory_encoder,
            base=self.parent,
            shape=self._shape(result, embeddings.get(last)),
            weights=result.weights,
            merge=self.plan.whole,
            dtype=self.plan.stored,
        )
        child = put(store_aside(self.parent, self.out / "store"), manifest=manifest)
        trial = self._measure(results, child)
        quality = trial.report(PUBLISHED, [*UNTRAINED.values()]) if self._measured else {}
        report = {
            "format": FORMAT,
            "task": "encoder",
            "shape": child.manifest.shape,
            "stages": list(stages),
            "quality": quality,
            "cost": self._cost(child),
            "embeddings": embeddings,
            "speed": self._speed(child, prepared),
            "about": self._about(child),
        }
        plots = self._draw(results, embeddings)
        card = make_card(self.name, self.base.name, report, [path.stem for path in plots])
        headline = {name: figures["models"][PUBLISHED] for name, figures in quality.items()}
        manifest = manifest.model_copy(update={"quality": headline})
        return put(self.store, manifest=manifest, report=report, card=card, plots=plots)

    @property
    def _measured(self) -> bool:
        return bool(self.inputs.similarities or self.inputs.sets)

    def _look_at_embeddings(
        self, stages: Mapping[Stage, PreparedStage], results: Mapping[Stage, StageResult]
    ) -> dict[str, Any]:
        """Return what held-out texts' embeddings are like, before training and after each stage."""
        first = next(iter(stages.values()))
        if first.monitor.rows is None:
            return {}
        rows = first.monitor.rows.ids(range(len(first.monitor.rows)))
        shape, setup = self.plan.shape, self.setup
        looked = {}
        for pooling, label in UNTRAINED.items():
            looked[label] = analyse(untrained(self.base, shape, pooling, setup), rows).to_json()
        for stage, result in results.items():
            looked[stage] = analyse(trained(self.base, shape, result, setup), rows).to_json()
        return looked

    def _shape(self, result: StageResult, looked: Mapping[str, Any] | None) -> MemoryShape:
        """Return how the encoder reads, memory tokens that are alike merged where they are to be.

        Raises:
            InputError: They are to be, and there are no texts to compare them on.
        """
        effective: tuple[int, ...] = ()
        if self.plan.merge_above:
            if looked is None:
                raise InputError(
                    "merge_above: memory tokens are compared on held-out texts; there are none",
                    field="merge_above",
                )
            effective = effective_tokens(torch.tensor(looked["similarity"]), self.plan.merge_above)
        start = self.base.words(self.plan.shape).start
        return MemoryShape(self.plan.shape.k, start, result.scale, effective)

    def _manifest(self, seed: int) -> Manifest:
        own, inputs = self.parent.manifest, self.inputs
        return Manifest(
            name=self.name,
            kind="encoder",
            method="llm2comp",
            prompts=self._prompts(),
            normalize=self.plan.normalize,
            max_tokens=self.plan.max_tokens or self.base.positions,
            licence=inputs.licence or own.licence,
            provenance=Provenance(
                command=without_folders(inputs.command),
                data=inputs.data,
                notes=inputs.notes,
                seed=seed,
                source=f"{own.name} version {own.version}, {own.fingerprint}",
            ),
        )

    def _prompts(self) -> dict[str, str]:
        """Return the prompts that the supervised stage's queries were read with."""
        recipe = self.plan.recipes.get("supervised")
        if not isinstance(recipe, SupervisedRecipe):
            return {}
        form = recipe.query_format.replace("\\n", "\n").replace("{query}", "{text}")
        prompts = {"document": ""}
        if "{instruction}" in form:
            prompts["instruction"] = form
        if self.inputs.instruction:
            prompts["query"] = form.replace("{instruction}", self.inputs.instruction)
        return prompts

    def _measure(self, results: Mapping[Stage, StageResult], child: StoredModel) -> Trial:
        """Measure the untrained language model, each stage, and what is stored."""
        inputs, setup, base = self.inputs, self.setup, self.base
        most = child.manifest.max_tokens
        trial = Trial(inputs.similarities, inputs.sets, self.out / "quality")
        query = self._prompts().get("query", "")
        in_training = f"{base.fingerprint} {self.plan.shape} {most} {dtype_name(setup.dtype)}"
        for pooling, label in UNTRAINED.items():

            def open_untrained(pooling: str = pooling) -> Embedder:
                network = untrained(base, self.plan.shape, pooling, setup)
                return network_embedder(network, base, most)

            trial.measure(label, open_untrained, f"{in_training} {pooling}", "")
        for stage, result in results.items():

            def open_stage(result: StageResult = result) -> Embedder:
                return network_embedder(trained(base, self.plan.shape, result, setup), base, most)

            asked = query if stage == "supervised" else ""
            trial.measure(stage, open_stage, f"{in_training} {digest_of(result)}", asked)
        about = f"{child.manifest.fingerprint} {self.where.dtype}"
        trial.measure(PUBLISHED, lambda: stored_embedder(child, self.where), about, query)
        return trial

    def _cost(self, child: StoredModel) -> dict[str, Any]:
        cost = {**child.manifest.cost, "bytes": weight_bytes(child), "by_length": []}
        shape = MemoryShape.from_shape(child.manifest.shape)
        try:
            counted = MemoryCost.of(read_json(child.path / "config.json"), shape)
        except ValueError:  # parts of the language model are gone
            return cost
        cost["by_length"] = [
            {
                "tokens": tokens,
                "flops": counted.read(tokens),
                "flops_without_memory": counted.read_alone(tokens),
            }
            for tokens in LENGTHS
        ]
        return cost

    def _speed(self, child: StoredModel, prepared: PreparedStage) -> dict[str, Any]:
        """Time the encoder and its language model in turns on the held-out texts."""
        rows = prepared.monitor.rows
        if not self.where.rounds or rows is None:
            return {}
        served = stored_embedder(child, self.where)
        plain = load_backbone(
            open_folder(self.parent), device=self.where.device, dtype=self.where.dtype
        )
        readers: dict[str, Read] = {PARENT: Vectors(plain, "last"), CHILD: served.read}
        return compare_speed(readers, served.tokens(rows.texts), self.where.rounds)

    def _about(self, child: StoredModel) -> dict[str, Any]:
        trained_in, measured_in = dtype_name(self.setup.dtype), dtype_name(self.where.dtype)
        recipes = {
            f"{stage} {name}": value.replace("\n", "\\n") if isinstance(value, str) else value
            for stage, recipe in self.plan.recipes.items()
            for name, value in asdict(recipe).items()
        }
        notes = [f"Trained weights are stored in {child.manifest.dtype}."]
        if not self.plan.whole:
            notes.append(f"All else is `{self.base.name}`'s, which has to be in the store.")
        notes += self.inputs.notes
        provenance = child.manifest.provenance
        return {
            "licence": child.manifest.licence,
            "data": list(provenance.data),
            "notes": notes,
            "command": provenance.command,
            "versions": versions(),
            "recipe": {**asdict(self.plan.shape), **recipes},
            "device": f"{self.where.device}; trained in {trained_in}, measured in {measured_in}",
        }

    def _draw(
        self, results: Mapping[Stage, StageResult], embeddings: Mapping[str, Any]
    ) -> list[Path]:
        out = self.out
        runs: dict[str, Path] = {stage: out / stage for stage in results}
        plots = [draw_losses(runs, out / LOSSES, dpi=CARD_DPI)]
        if embeddings:
            spectra = {name: looked["singular_values"] for name, looked in embeddings.items()}
            plots.append(draw_spectra(spectra, out / SPECTRA, dpi=CARD_DPI))
            alike: dict[str, Any] = {stage: embeddings[stage]["similarity"] for stage in results}
            plots.append(draw_similarity(alike, out / TOKENS, dpi=CARD_DPI))
        return plots
