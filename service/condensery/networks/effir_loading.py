"""Models with fewer or narrower sub-layers, read from transformers' layout.

transformers would make the dense model, fill what the files lack with random numbers, and hold
all of it in memory. Here what is dropped is never there; a file may still hold it (LLM-Drop's
do), and it is passed over.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from condensery.errors import CorruptModel
from condensery.networks.decoders import fill_buffers, put
from condensery.networks.dtypes import thread_dtypes
from condensery.networks.effir import prune
from condensery.networks.effir_shape import Pruning
from condensery.networks.sublayers import constructor_options

SHOWN = 5


def open_pruned(
    path: Path,
    config: PretrainedConfig,
    pruning: Pruning,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """Build what is left of a base model, and fill it from the directory's safetensors.

    Args:
        path: The directory.
        config: Of the dense model.
        pruning: What is left.
        device: Where to.
        dtype: Of its weights.

    Raises:
        CorruptModel: A weight is missing, or of another shape than what is left needs; named.
        ValueError: The model is of no family that can be pruned.
        OSError: A file can't be read.
    """
    model = build_pruned(config, pruning)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong: list[str] = []
    for name, tensor in read_weights(path):
        own = own_name(name, model)
        shape = wanted.get(own)
        if shape is None:
            continue  # the head, the pooler, what is dropped
        if shape != tuple(tensor.shape):
            wrong.append(f"{name} is {tuple(tensor.shape)}, not {shape}")
        else:
            put(model, own, tensor.to(device, dtype))
        del wanted[own]
    wrong += [f"{name} is missing" for name in wanted]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise CorruptModel(f"{path.name}: {'; '.join(wrong[:SHOWN])}{more}")
    fill_buffers(model, device)
    model.requires_grad_(True)
    return model


def build_pruned(config: PretrainedConfig, pruning: Pruning) -> PreTrainedModel:
    """Build what is left of a base model, whose weights are still nowhere (on ``meta``).

    Raises:
        ValueError: The model is of no family that can be pruned, or has other layers.
    """
    options = constructor_options(config)
    with torch.device("meta"), thread_dtypes():
        model = cast(PreTrainedModel, AutoModel.from_config(deepcopy(config), **options))
    if not pruning.dense:
        prune(model, pruning)
    return model


def own_name(name: str, model: PreTrainedModel) -> str:
    """Return the base model's own name for a weight that a file may name as one of its head's."""
    prefix = f"{model.base_model_prefix}."
    return name.removeprefix(prefix) if prefix != "." else name


def read_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield a directory's tensors one at a time, by their names in the files.

    Raises:
        CorruptModel: There is no safetensors file, or one can't be read; named.
    """
    for file in weight_files(path):
        try:
            with safe_open(file, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118  # a shard can be iterated in no other way
                    yield name, shard.get_tensor(name)
        except SafetensorError as error:
            raise CorruptModel(f"{path.name}/{file.name}: {error}") from error


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of a directory: the whole one, or all shards.

    Raises:
        CorruptModel: There is none.
    """
    whole = path / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(path.glob("model-*.safetensors"))
    if not files:
        raise CorruptModel(f"{path.name}: holds no model.safetensors")
    return files


def check_finite(path: Path) -> None:
    """Read all weights of a directory once.

    Raises:
        CorruptModel: One holds NaN or infinity; the first is named.
    """
    for name, tensor in read_weights(path):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CorruptModel(f"{path.name}: {name}: holds values that are not finite")


def pruning_of(config: PretrainedConfig | Mapping[str, Any]) -> Pruning | None:
    """Return what a configuration says is left; None where it says nothing.

    Raises:
        ValueError: As ``Pruning.from_config``.
    """
    values = config.to_dict() if isinstance(config, PretrainedConfig) else config
    if not Pruning.named(values):
        return None
    pruning = Pruning.from_config(values)
    return None if pruning.dense else pruning
