"""A retriever that was made from a stored one, into a store."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from condensery.errors import InputError
from condensery.networks.effir_shape import Pruning
from condensery.store.manifest import CARD, REPORT, WEIGHTS, Manifest, StoredModel, is_prose
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
    report: str | None = None,
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
        report: What it was measured at, JSON.
        card: The same for people, Markdown.
        plots: Pictures (PNG) for the card.

    Raises:
        InputError: A weight is not finite; named.
        StoreError: The store refused.
    """
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name}: holds values that are not finite", field=name)
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: parent.path / name
            for name in parent.manifest.files
            if not (name.endswith(WEIGHTS) or is_prose(name) or name in (CONFIG, INDEX, REPORT))
            and not name.startswith("plots/")
        }
        aside = Path(folder)
        values = read_json(parent.path / CONFIG)
        if pruning is not None and not pruning.dense:
            values |= pruning.to_config()
        (aside / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
        write_weights(iter(sorted(weights.items())), aside)
        for name, text in ((REPORT, report), (CARD, card)):
            if text is not None:
                (aside / name).write_text(text, encoding="utf-8")
        files |= {path.name: path for path in aside.iterdir()}
        files |= {f"plots/{path.name}": path for path in plots}
        return store.publish(files, manifest)
