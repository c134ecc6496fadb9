"""A converted model beside its parent, both as they are stored and served: quality, work, speed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.methods.ranking.similarities import Similarities, spearman
from condensery.methods.retriever.measuring import MeasuringSetup
from condensery.methods.retriever.timing import CHILD, PARENT, Reader, Vectors
from condensery.methods.shrp.classification import ClassificationTask, classification_figures
from condensery.methods.shrp.reranking import RerankTask
from condensery.methods.trainer.batching import EVALUATED_TOKENS, Tokens, in_batches
from condensery.methods.trainer.reports import paired_bootstrap
from condensery.networks.building import build_backbone, build_classifier
from condensery.networks.shrp import Experts
from condensery.networks.shrp_paper import BertShape, Row
from condensery.runtime.encoder import network_files
from condensery.runtime.tokenizing import TOKENIZER, TextTokenizer
from condensery.store.manifest import StoredModel

SEED = 17
TIMED_TOKENS = 128
RESAMPLED = 1000  # of the interval of a correlation


def open_served(stored: StoredModel, where: MeasuringSetup) -> Reader:
    """Open a stored model as the service runs it, to vectors or logits (rows, dims)."""
    files = network_files(stored, where.device, where.dtype)
    manifest = stored.manifest
    if manifest.kind == "encoder":
        return Vectors(build_backbone(manifest.method, files), manifest.pooling or "mean")
    classifier = build_classifier(manifest.method, files)

    def read(rows: Sequence[Tokens]) -> NDArray[np.float32]:
        logits = in_batches(
            rows,
            EVALUATED_TOKENS,
            lambda part: classifier.read([row.ids for row in part], [row.types for row in part]),
        )
        array: NDArray[np.float32] = logits.float().cpu().numpy()
        return array

    return read


def compare_labels(
    readers: Mapping[str, Reader],
    task: ClassificationTask,
    examples: Sequence[Any],
    labels: int,
) -> dict[str, Any]:
    """Return each model's figures on labelled rows, and the difference in accuracy."""
    rows, right = task.tokenise(examples), task.numbers(examples)
    chosen = {name: read(rows).argmax(1) for name, read in readers.items()}
    figures: dict[str, Any] = {
        name: classification_figures(own, right, labels) for name, own in chosen.items()
    }
    hits = {name: (own == right).astype(float).tolist() for name, own in chosen.items()}
    figures[CHILD] |= _difference(paired_bootstrap(hits[CHILD], hits[PARENT], seed=SEED))
    return figures | {"rows": len(examples)}


def compare_rankings(readers: Mapping[str, Reader], task: RerankTask) -> dict[str, Any]:
    """Return each model's nDCG@10 on held-out queries' own passages, and the difference."""
    rows = task.validation_tokens()
    gains = {name: task.gains(read(rows)[:, 0].tolist()) for name, read in readers.items()}
    figures: dict[str, Any] = {
        name: {"ndcg@10": float(np.mean(own))} for name, own in gains.items()
    }
    figures[CHILD] |= _difference(paired_bootstrap(gains[CHILD], gains[PARENT], seed=SEED))
    return figures | {"queries": len(task.validation)}


def compare_similarities(
    readers: Mapping[str, Reader], parent: StoredModel, item: Similarities
) -> dict[str, Any]:
    """Return each model's Spearman correlation with people's scores, and the difference.

    Its interval is by resampling pairs, the same for both.
    """
    tokenizer = TextTokenizer.load(parent.file(TOKENIZER).parent, parent.manifest.max_tokens)
    sides = [
        [Tokens(row.ids) for row in tokenizer.encode([pair[side] for pair in item.pairs])]
        for side in (0, 1)
    ]
    vectors = {name: [read(rows) for rows in sides] for name, read in readers.items()}
    figures: dict[str, Any] = {
        name: {"spearman": spearman(left, right, item.scores)}
        for name, (left, right) in vectors.items()
    }
    rng = np.random.default_rng(SEED)
    differences = []
    for _ in range(RESAMPLED):
        picks = rng.integers(len(item.pairs), size=len(item.pairs))
        own, other = (
            spearman(left[picks], right[picks], item.scores[picks])
            for left, right in (vectors[CHILD], vectors[PARENT])
        )
        differences.append(own - other)
    low, high = np.percentile(differences, [2.5, 97.5])
    mean = figures[CHILD]["spearman"] - figures[PARENT]["spearman"]
    figures[CHILD] |= _difference((mean, float(low), float(high)))
    return figures | {"pairs": len(item.pairs)}


def _difference(values: tuple[float, float, float]) -> dict[str, Any]:
    mean, low, high = values
    return {"minus_parent": mean, "interval": [low, high]}


def bert_shape(config: Mapping[str, Any], labels: int | None) -> BertShape:
    """Return the dimensions that parameters and work are counted from."""
    return BertShape(
        hidden_size=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=int(config["num_attention_heads"]),
        mlp_size=int(config["intermediate_size"]),
        labels=labels,
    )


def count_costs(
    parameters: Mapping[str, int], stored_bytes: Mapping[str, int], shape: BertShape, left: Experts
) -> dict[str, Any]:
    """Return parameters, bytes and work of parent and model, counted truly and as the paper does.

    Args:
        parameters: Of each, embeddings included.
        stored_bytes: Of each, its own files of weights.
        shape: The parent's.
        left: What is left of its layers.
    """
    converted = len(left.converted)
    plain, expert = shape.layer_flops(TIMED_TOKENS), shape.expert_flops(TIMED_TOKENS)
    # All experts that are left project; one of them attends.
    more = 6 * TIMED_TOKENS * shape.hidden_size * shape.head_size
    experts = [len(heads) for heads in left.heads if heads is not None]
    work = {
        PARENT: shape.layers * plain,
        CHILD: (shape.layers - converted) * plain
        + sum(expert + (count - 1) * more for count in experts),
    }
    costs: dict[str, Any] = {
        name: {
            "parameters": parameters[name],
            "bytes": stored_bytes[name],
            f"flops_{TIMED_TOKENS}_tokens": work[name],
        }
        for name in (PARENT, CHILD)
    }
    costs["flops_left_percent"] = 100 * work[CHILD] / work[PARENT]
    if all(heads is None or len(heads) == 1 for heads in left.heads):
        row = Row(converted, 0.0, 0.0, 0.0, shape=shape)
        costs["as_the_paper_counts"] = {
            "parameters_gone_percent": row.parameters_gone,
            "flops_left_percent": row.flops_as_counted,
        }
    return costs
