"""A retriever that was made from a stored one, into a store."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from condensery.methods.trainer.publishing import check_finite, publication
from condensery.networks.effir_shape import Pruning
from condensery.store.manifest import REPORT, WEIGHTS, Manifest, StoredModel, is_prose
from condensery.store.sharding import INDEX, write_weights
from condensery.store.store import ModelStore
from condensery.store.writing import read_json

CONFIG = "config.json"


def publish(
    store: ModelStore,
    parent: StoredModel,
    manifest: Manifest,
    weights: Mapping[str, Tensor],
    *,
    pruning: Pruning | None = None,
    report: Mapping[str, Any] | None = None,
    card: str | None = None,
    plots: Sequence[Path] = (),
) -> StoredModel:
    """Publish weights with their parent's tokenizer and configuration, whole or not at all.

    Args:
        store: Its own root receives the model.
        parent: What it was made from.
        manifest: What it is to say; files and version are set here.
        weights: The transformer's, by its own names.
        pruning: What it has left of its parent, for the configuration.
        report: What it was measured at.
        card: The same for people, Markdown.
        plots: Pictures (PNG) for the card.

    Raises:
        InputError: A weight is not finite; named.
        StoreError: The store refused.
    """
    check_finite(weights)
    inherited = {
        name: parent.path / name
        for name in parent.manifest.files
        if not (name.endswith(WEIGHTS) or is_prose(name) or name in (CONFIG, INDEX, REPORT))
        and not name.startswith("plots/")
    }
    config = read_json(parent.path / CONFIG)
    if pruning is not None and not pruning.dense:
        config |= pruning.to_config()
    with publication(inherited) as model_files:
        write_weights(iter(sorted(weights.items())), model_files.folder)
        model_files.add_written()
        model_files.add(CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")
        if report is not None:
            model_files.add_json(REPORT, report)
        model_files.files.update({f"plots/{path.name}": path for path in plots})
        return model_files.publish(store, manifest, card)
