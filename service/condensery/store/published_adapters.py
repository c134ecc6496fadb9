"""LoRA directories as PEFT writes them: which layers they adapt, and by how much."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from condensery.errors import CorruptModel, StoreError, shorten
from condensery.networks.adapters import Adapters
from condensery.store.pickles import read_tensors
from condensery.store.published_pairs import ADAPTER as TENSOR
from condensery.store.published_pairs import plain, positive
from condensery.store.refusals import UnknownTensors
from condensery.store.retriever_options import ADAPTER as CONFIG
from condensery.store.writing import name_of, read_json

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# What changes how an adapter is applied, with the values that leave it as it is here.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA", None),
    "use_dora": (False, None),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
    "layer_replication": (None,),
}


def read_adapters(path: Path, prefix: str) -> tuple[Adapters, float]:
    """Read a LoRA directory.

    Args:
        path: Holds ``adapter_config.json`` and its weights.
        prefix: What a base model's names may begin with in a model with a head (``model.``).

    Returns:
        The adapters by the base model's own names, and the scale of their products.

    Raises:
        StoreError: It asks for what we don't do, or there are no weights; named.
        UnknownTensors: A tensor is no adapter's.
        CorruptModel: The weights can't be read.
    """
    file = path / CONFIG
    config = read_json(file)
    for key, allowed in UNSUPPORTED.items():
        if config.get(key) not in allowed:
            raise StoreError(f"{name_of(file)}: {key} {shorten(config[key])} is not supported")
    rank = positive(file, config, "r")
    alpha = config.get("lora_alpha", rank)
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise StoreError(f"{name_of(file)}: lora_alpha {shorten(alpha)} is no number")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    adapters = Adapters()
    weights = find_weights(path)
    for name, tensor in _tensors(weights):
        match = TENSOR.match(plain(name))
        if match is None:
            raise UnknownTensors(f"{name_of(weights)}: {name}: is no adapter's tensor")
        layer = match[1].removeprefix(prefix)
        if not adapters.take(f"{layer}.lora_{match[2]}", tensor):
            raise UnknownTensors(f"{name_of(weights)}: {name}: is no adapter's tensor")
    if not adapters.layers:
        raise StoreError(f"{name_of(weights)}: its adapter adapts nothing")
    return adapters, scale


def find_weights(path: Path) -> Path:
    """Return the file that has a LoRA directory's weights; raises StoreError if none is there."""
    files = [path / name for name in WEIGHTS if (path / name).is_file()]
    if not files:
        raise StoreError(f"{path.name}: holds no {' or '.join(WEIGHTS)}")
    return files[0]


def _tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    if file.suffix == ".bin":
        yield from read_tensors(file).items()
        return
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # it can be iterated in no other way
                yield name, opened.get_tensor(name)
    except SafetensorError as error:
        raise CorruptModel(f"{name_of(file)}: {error}") from error
