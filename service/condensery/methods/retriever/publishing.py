"""An encoder or a classifier that was made from a stored model, into a store."""

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from condensery.errors import InputError
from condensery.methods.trainer.publishing import check_finite, publication
from condensery.networks.weight_files import read_weights
from condensery.store.base_parts import KEY, BaseParts
from condensery.store.manifest import REPORT, WEIGHTS, Manifest, StoredModel, is_prose
from condensery.store.sharding import INDEX, write_weights
from condensery.store.store import ModelStore
from condensery.store.weights import open_folder, quantised
from condensery.store.writing import read_json

CONFIG = "config.json"
StoredDType = Literal["float32", "bfloat16", "int8"]
# A matrix with a shorter side is a small part of a model, and a gate or a head of few labels is
# read where a rounded number may choose another label: it stays as it is.
SHORTEST_INT8 = 24


@dataclass(frozen=True, slots=True)
class Storing:
    """How a model is stored.

    Attributes:
        stored: ``float32``, ``bfloat16``, or ``int8`` for matrices, with a scale a row.
        share_embeddings: Whether embeddings are kept as the parent's, and what is equal to the
            parent's is not stored: its files have it.
    """

    stored: StoredDType = "float32"
    share_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """Weights that are done: stored aside, where they are measured as served, then published.

    What is published at last has the fingerprint of what was measured.

    Attributes:
        parent: What it was made from.
        weights: As ``publish`` takes them.
        config: The same.
        storing: How they are stored.
    """

    parent: StoredModel
    weights: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    storing: Storing = field(default_factory=Storing)

    def set_aside(self, folder: Path, manifest: Manifest) -> StoredModel:
        """Store it in a store of its own in ``folder``; what an earlier attempt left goes."""
        return self.publish(store_aside(self.parent, folder), manifest)

    def publish(
        self,
        store: ModelStore,
        manifest: Manifest,
        *,
        report: Mapping[str, Any] | None = None,
        card: str | None = None,
        plots: Sequence[Path] = (),
    ) -> StoredModel:
        """Publish it; arguments and errors are those of the function ``publish``."""
        return publish(
            store,
            self.parent,
            manifest,
            self.weights,
            config=self.config,
            dtype=self.storing.stored,
            share=self.storing.share_embeddings,
            report=report,
            card=card,
            plots=plots,
        )


def store_aside(parent: StoredModel, folder: Path) -> ModelStore:
    """Return an empty store in which a model opens that was made from ``parent``.

    Beside the parent's own root, it has what the parent takes from models of other roots.

    Args:
        parent: A stored model.
        folder: Of the store; what it holds goes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    base = parent.base
    while base is not None:
        link = folder / base.name / base.version
        link.parent.mkdir(parents=True)
        link.symlink_to(base.path.resolve(), target_is_directory=True)
        base = base.base
    return ModelStore(parent.root, folder)


def add_storing(group: "argparse._ArgumentGroup") -> None:
    """Add the flags of ``Storing``."""
    group.add_argument(
        "--stored",
        default="float32",
        choices=get_args(StoredDType),
        help="what weights are stored in, and measured as (float32); int8: matrices",
    )
    group.add_argument(
        "--share-embeddings",
        action="store_true",
        help="embeddings don't learn, and stay with the parent, as all that is equal to its own; "
        "the model then needs the parent in its store",
    )


def publish(
    store: ModelStore,
    parent: StoredModel,
    manifest: Manifest,
    weights: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | None = None,
    dtype: StoredDType = "float32",
    share: bool = False,
    report: Mapping[str, Any] | None = None,
    card: str | None = None,
    plots: Sequence[Path] = (),
) -> StoredModel:
    """Publish weights with their parent's tokenizer and configuration, whole or not at all.

    Args:
        store: Its own root receives the model; it holds the parent too, in either root, if that
            is to be shared with.
        parent: What it was made from.
        manifest: What it is to say; files, version, dtype and what is shared are set here.
        weights: By the names of transformers' model: a base model's, or a classifier's with its
            head.
        config: Keys that its configuration has beside the parent's: what is left of its layers
            (``Pruning.to_config``, ``Experts.to_config``), a classifier's labels.
        dtype: What weights are stored in; of int8, biases, norms and small matrices stay float32.
        share: Leave out tensors and files that are equal to the parent's; loading takes them from
            there, in that very version.
        report: What it was measured at.
        card: The same for people, Markdown.
        plots: Pictures (PNG) for the card.

    Raises:
        InputError: A weight is not finite; named. Or it is to share, and nothing is equal.
        ModelNotFound: It is to share, and the store does not hold the parent.
        StoreError: The store refused.
    """
    check_finite(weights)
    inherited = {name: parent.file(name) for name in parent.files if _is_inherited(name)}
    shape = {key: value for key, value in manifest.shape.items() if key != KEY}
    base: dict[str, Any] = {"base": None, "base_fingerprint": None}
    if share:
        parts = BaseParts(_equal(parent, weights), tuple(sorted(inherited)))
        inherited = {}
        weights = {name: t for name, t in weights.items() if name not in parts.weights}
        shape |= parts.to_shape()
        base = {"base": parent.name, "base_fingerprint": parent.manifest.fingerprint}
    manifest = manifest.model_copy(update={"shape": shape, "dtype": dtype, **base})
    content = read_json(parent.path / CONFIG) | dict(config or {})
    with publication(inherited) as model_files:
        write_weights(_as_stored(weights, dtype), model_files.folder)
        model_files.add_written()
        model_files.add(CONFIG, json.dumps(content, indent=2, sort_keys=True) + "\n")
        if report is not None:
            model_files.add_json(REPORT, report)
        model_files.files.update({f"plots/{path.name}": path for path in plots})
        return model_files.publish(store, manifest, card)


def _is_inherited(name: str) -> bool:
    """Tell whether a parent's file is its child's too: tokenizer, prompts, pooling."""
    own = name.endswith(WEIGHTS) or name in (CONFIG, INDEX, REPORT)
    return not (own or is_prose(name) or name.startswith("plots/"))


def _equal(parent: StoredModel, weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return which weights are the parent's, each with its name there.

    A classifier's names begin with its base model's, an encoder's don't.

    Raises:
        InputError: None is.
    """
    own = {tail: name for name in weights for tail in (name.partition(".")[2], name)}
    name_in_parent: dict[str, str] = {}
    for name, tensor in read_weights(open_folder(parent)):
        for tail in (name, name.partition(".")[2]):
            mine = own.get(tail)
            if mine is not None and mine not in name_in_parent and _same(weights[mine], tensor):
                name_in_parent[mine] = name
                break
    if not name_in_parent:
        raise InputError(
            f"share: no weight is still as {parent.name!r} has it", field="share", value=parent.name
        )
    return name_in_parent


def _same(weight: Tensor, other: Tensor) -> bool:
    # What was trained in bf16 has the parent's rounded to it, and is to have the parent's own.
    return weight.shape == other.shape and torch.equal(weight.cpu(), other.to(weight.dtype))


def _as_stored(weights: Mapping[str, Tensor], dtype: StoredDType) -> Iterator[tuple[str, Tensor]]:
    """Yield weights as they are written, in the order of their names."""
    if dtype == "int8":
        matrices = [n for n, t in weights.items() if t.ndim == 2 and min(t.shape) >= SHORTEST_INT8]
        full = {name: _cast(tensor, torch.float32) for name, tensor in weights.items()}
        yield from quantised(full, matrices).items()
        return
    kind: torch.dtype = getattr(torch, dtype)
    for name in sorted(weights):
        yield name, _cast(weights[name], kind)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def weight_bytes(stored: StoredModel) -> int:
    """Return the size of a stored model's own files of weights, bytes."""
    names = [name for name in stored.manifest.files if name.endswith(WEIGHTS)]
    return sum((stored.path / name).stat().st_size for name in names)
