"""What a pruned retriever is worth: nDCG@10, size, work and speed, each beside its parent's."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from condensery.index.prompts import make_index_prompts
from condensery.methods.effir.speed import Texts, profile, times
from condensery.methods.ranking.retrieval import titled_text
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.retriever.measuring import MeasuringSetup
from condensery.methods.retriever.timing import CHILD, PARENT
from condensery.networks.backbone import load_backbone
from condensery.networks.effir_shape import Pruning
from condensery.runtime.tokenizing import TOKENIZER, TextTokenizer
from condensery.store.manifest import StoredModel
from condensery.store.weights import open_folder

TIMED = 256  # queries, and passages, that are timed


@dataclass(frozen=True, slots=True)
class Measured:
    """What parent and child were measured at.

    Attributes:
        costs: By model, its parameters and work.
        quality: By set, as ``quality`` gives it; empty without sets.
        speed: By kind of text, as ``speed`` gives it; empty where nothing was timed.
    """

    costs: Mapping[str, Mapping[str, int]]
    quality: Mapping[str, Any]
    speed: Mapping[str, Any]

    def manifest_fields(self) -> dict[str, Any]:
        """Return what the child's manifest says of it."""
        parameters = self.costs[PARENT]["parameters"]
        return {
            "quality": {name: figures[CHILD]["ndcg@10"] for name, figures in self.quality.items()},
            "cost": {**self.costs[CHILD], "parent_parameters": parameters},
        }


def speed(
    models: Mapping[str, StoredModel],
    pruning: Pruning,
    sets: Sequence[RankingSet],
    where: MeasuringSetup,
    *,
    neurons: int,
) -> dict[str, Any]:
    """Time parent and child in turns on real texts, beside what the parent's profile predicts.

    In process, one pass after the other on all threads; medians. ``of_predicted`` is the speed-up
    over the one that would be there if nothing but the removed parts had changed.

    Args:
        models: Parent and child.
        pruning: What the child has left.
        sets: Where queries and passages come from.
        where: It runs.
        neurons: Of each of the parent's MLPs.
    """
    timed = times_of(
        models[PARENT], {CHILD: (models[CHILD], pruning)}, sets, where, neurons=neurons
    )
    report = {}
    for kind, figures in timed.items():
        child = figures.pop("models")[CHILD]
        report[kind] = {
            **figures,
            "seconds": {PARENT: figures["seconds"], CHILD: child["seconds"]},
            "speed_up": child["speed_up"],
            "predicted": child["predicted"],
            "of_predicted": child["speed_up"] / child["predicted"],
        }
    return report


def times_of(
    parent: StoredModel,
    children: Mapping[str, tuple[StoredModel, Pruning]],
    sets: Sequence[RankingSet],
    where: MeasuringSetup,
    *,
    neurons: int,
) -> dict[str, Any]:
    """Time a parent and its children in turns, as ``speed`` does; by kind of text.

    Args:
        parent: Of which the rest was made.
        children: By what they are called, each with what it has left.
        sets: Where queries and passages come from.
        where: It runs.
        neurons: Of each of the parent's MLPs.
    """
    stored = {PARENT: parent, **{name: child for name, (child, _) in children.items()}}
    backbones = {
        name: load_backbone(open_folder(model), device=where.device, dtype=where.dtype)
        for name, model in stored.items()
    }
    by_kind: dict[str, Any] = {}
    for kind, texts in timed_texts(parent, sets).items():
        seconds = {
            name: median(all_) for name, all_ in times(backbones, texts, where.rounds).items()
        }
        parts = profile(backbones[PARENT], texts, where.rounds)
        by_kind[kind] = {
            "texts": len(texts),
            "tokens": sum(map(len, texts)),
            "seconds": seconds[PARENT],
            "profile": asdict(parts),
            "models": {
                name: {
                    "seconds": seconds[name],
                    "speed_up": seconds[PARENT] / seconds[name],
                    "predicted": parts.whole / parts.without(pruning, neurons),
                }
                for name, (_, pruning) in children.items()
            },
        }
    return by_kind


def timed_texts(parent: StoredModel, sets: Sequence[RankingSet]) -> dict[str, Texts]:
    """Return token ids of the sets' first queries and passages, with the model's prompts."""
    tokenizer = TextTokenizer.load(parent.file(TOKENIZER).parent, parent.manifest.max_tokens)
    share = max(1, TIMED // max(1, len(sets)))
    queries = [text for item in sets for text in list(item.queries.values())[:share]]
    passages = [titled_text(p) for item in sets for p in item.passages[:share]]
    prompts = make_index_prompts(parent.manifest)
    return {
        "queries": [item.ids for item in tokenizer.encode(queries, prompt=prompts.query)],
        "passages": [item.ids for item in tokenizer.encode(passages, prompt=prompts.passage)],
    }
