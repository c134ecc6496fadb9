"""Which network a stored model becomes: that of the method that made it.

A method's networks are one ``NetworkBuilder``. Those of encoders and classifiers are built here,
of the files in the stored model's directory and of its manifest's ``shape``, which is the method's
own. A pair's are built by the family that its shape names (``oscar_families``); a method may add
families.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condensery.errors import CorruptModel
from condensery.networks.backbone import Backbone, load_backbone, load_classifier
from condensery.networks.classifier import Classifier, run_classifier
from condensery.networks.llm2comp import load_memory_backbone
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.networks.oscar_causal_shape import FAMILIES
from condensery.networks.oscar_families import COMPRESSORS, CompressorFamily
from condensery.networks.quantised import EncoderWeights
from condensery.networks.weight_files import ModelFolder
from condensery.values import METHODS


@dataclass(frozen=True, slots=True)
class NetworkFiles:
    """What a stored model's network is built from, and where it is to run.

    Attributes:
        name: The stored model's, for messages.
        path: Its directory, the files checked by the store.
        shape: The manifest's: the method's own dimensions.
        device: Where to run.
        dtype: What to compute in.
        read_state: Reads its weights, by name, on the CPU; int8 ones are float32 then. Raises
            CorruptModel.
        folder: The directory with what is its base's; None where it has all of its files itself.
        weights: What its layers' are held as.
    """

    name: str
    path: Path
    shape: Mapping[str, Any]
    device: torch.device
    dtype: torch.dtype
    read_state: Callable[[], Mapping[str, Tensor]]
    folder: ModelFolder | None = None
    weights: EncoderWeights = "float"


@dataclass(frozen=True, slots=True)
class NetworkBuilder:
    """How a method's stored models become networks that run; None for what it does not make.

    Both raise CorruptModel, or ValueError, where the files don't make such a network.

    Attributes:
        backbone: For encoders: packed tokens to hidden states, which are pooled to vectors.
        classifier: For classifiers and rerankers: packed tokens to logits.
        compressors: For pairs: families of compressors beside causal language models, by name.
    """

    backbone: Callable[[NetworkFiles], Backbone] | None = None
    classifier: Callable[[NetworkFiles], Classifier] | None = None
    compressors: Mapping[str, CompressorFamily] = field(default_factory=dict)


def build_backbone(method: str, files: NetworkFiles) -> Backbone:
    """Build an encoder's network.

    Raises:
        CorruptModel: The method makes none, or the files don't.
    """
    builder = BUILDERS.get(method, NetworkBuilder()).backbone
    if builder is None:
        raise CorruptModel(f"{files.name}: method {method!r} makes no encoders")
    with _corrupt(files):
        return builder(files)


def build_classifier(method: str, files: NetworkFiles) -> Classifier:
    """Build a classifier's network, a reranker's too.

    Raises:
        CorruptModel: The method makes none, or the files don't.
    """
    builder = BUILDERS.get(method, NetworkBuilder()).classifier
    if builder is None:
        raise CorruptModel(f"{files.name}: method {method!r} makes no classifiers")
    with _corrupt(files):
        return builder(files)


def register_method(name: str, builder: NetworkBuilder) -> None:
    """Let models that another method made be stored and run.

    Call it before a store is read: manifests of methods that are not known are broken.

    Raises:
        ValueError: The method, or a family of its compressors, is registered already.
    """
    taken = sorted({name} & set(BUILDERS)) + sorted(set(builder.compressors) & set(COMPRESSORS))
    if taken:
        raise ValueError(f"registered already: {', '.join(taken)}")
    METHODS.add(name)
    BUILDERS[name] = builder
    for family, compressor in builder.compressors.items():
        FAMILIES[family] = compressor.shape
        COMPRESSORS[family] = compressor


@contextmanager
def _corrupt(files: NetworkFiles) -> Iterator[None]:
    """Raise CorruptModel in the place of ValueError."""
    try:
        yield
    except ValueError as error:
        raise CorruptModel(f"{files.name}: {error}") from error


def _read_backbone(files: NetworkFiles) -> Backbone:
    """Read transformers' layout; what is left of its layers, its config.json says."""
    return load_backbone(
        files.folder or files.path, device=files.device, dtype=files.dtype, weights=files.weights
    )


def _read_classifier(files: NetworkFiles) -> Classifier:
    model = load_classifier(files.folder or files.path, device=files.device, dtype=files.dtype)
    return run_classifier(model, weights=files.weights)


def _read_memory_backbone(files: NetworkFiles) -> Backbone:
    """Read a language model with memory tokens: merged, or as adapters beside its base."""
    folder = files.folder or ModelFolder.of(files.path)
    shape = MemoryShape.from_shape(files.shape)
    return load_memory_backbone(
        folder, shape, device=files.device, dtype=files.dtype, weights=files.weights
    )


# How each method's models become networks. OSCAR's pairs are built by their families.
BUILDERS: dict[str, NetworkBuilder] = {
    "none": NetworkBuilder(_read_backbone, _read_classifier),
    "effir": NetworkBuilder(_read_backbone, _read_classifier),
    "shrp": NetworkBuilder(_read_backbone, _read_classifier),
    "llm2comp": NetworkBuilder(_read_memory_backbone),
    "oscar": NetworkBuilder(),
}
