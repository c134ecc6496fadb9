"""Models that transformers can't load: of other parts than it knows, int8, or shared with a base.

transformers would make the whole dense model, fill what the files lack with random numbers, and
hold all of it in memory. Here what is not there never is, and each weight goes straight into its
place; a file may still hold what is dropped (LLM-Drop's do), and it is passed over.
"""

from copy import deepcopy
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from condensery.errors import CorruptModel
from condensery.networks.decoders import fill_buffers, put
from condensery.networks.dtypes import thread_dtypes
from condensery.networks.effir import prune
from condensery.networks.effir_shape import Pruning
from condensery.networks.shrp import HEADS, Experts, build_experts, check_convertible
from condensery.networks.sublayers import constructor_options
from condensery.networks.weight_files import ModelFolder, read_weights

SHOWN = 5


def has_other_parts(config: PretrainedConfig) -> bool:
    """Tell whether a configuration is of a network with parts that transformers does not know.

    Raises:
        ValueError: What it says of them is wrong; the key is named.
    """
    return Experts.named(config.to_dict()) or pruning_of(config) is not None


def pruning_of(config: PretrainedConfig | dict[str, Any]) -> Pruning | None:
    """Return what a configuration says is left; None where it says nothing.

    Raises:
        ValueError: As ``Pruning.from_config``.
    """
    values = config.to_dict() if isinstance(config, PretrainedConfig) else config
    if not Pruning.named(values):
        return None
    pruning = Pruning.from_config(values)
    return None if pruning.dense else pruning


def open_model(
    folder: ModelFolder,
    config: PretrainedConfig,
    *,
    classifies: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Build what a configuration describes, and fill it from stored weights.

    Args:
        folder: Where the weights are.
        config: Of the dense model; it may say what is dropped, or which heads are left.
        classifies: Whether it has a sequence classifier's head.
        device: Where to.
        dtype: Of its weights.

    Raises:
        CorruptModel: A weight is missing, or of another shape than the network needs; named.
        ValueError: The configuration is wrong, or of a family that can't be changed so.
        OSError: A file can't be read.
    """
    model = build_bare(config, classifies=classifies)
    fill(model, folder, device=torch.device(device), dtype=dtype)
    model.requires_grad_(requires_grad=True)
    model.eval()
    return model


def build_bare(config: PretrainedConfig, *, classifies: bool = False) -> PreTrainedModel:
    """Build what a configuration describes, whose weights are still nowhere (on ``meta``).

    Raises:
        ValueError: As ``open_model``.
    """
    values = config.to_dict()
    pruning = pruning_of(values)
    if not Experts.named(values):
        if pruning is not None and classifies:
            raise ValueError("config.json: drops parts of a classifier")
        return build_pruned(config, pruning, classifies=classifies)
    if pruning is not None:
        raise ValueError(f"{HEADS}: parts of other layers are dropped too")
    experts = Experts.from_config(values)
    check_convertible(config)
    model = build_pruned(config, classifies=classifies)
    with torch.device("meta"):
        build_experts(model.base_model, experts)
    return model


def build_pruned(
    config: PretrainedConfig, pruning: Pruning | None = None, *, classifies: bool = False
) -> PreTrainedModel:
    """Build what is left of a base model, or a whole classifier, on ``meta``.

    Raises:
        ValueError: The model is of no family that can be pruned, or has other layers.
    """
    with thread_dtypes(), torch.device("meta"):
        model: PreTrainedModel = (
            AutoModelForSequenceClassification.from_config(
                deepcopy(config), trust_remote_code=False
            )
            if classifies
            else AutoModel.from_config(
                deepcopy(config), trust_remote_code=False, **constructor_options(config)
            )
        )
    if pruning is not None and not pruning.dense:
        prune(model, pruning)
    return model


def fill(
    model: PreTrainedModel, folder: ModelFolder, *, device: torch.device, dtype: torch.dtype
) -> None:
    """Fill a model that is still nowhere from stored weights; what it has no place for is left.

    Raises:
        CorruptModel: A weight is missing, or of another shape; named.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong: list[str] = []
    for name, tensor in read_weights(folder):
        own = name if name in wanted else own_name(name, model)
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
        raise CorruptModel(f"{folder.name}: {'; '.join(wrong[:SHOWN])}{more}")
    fill_buffers(model, device)


def own_name(name: str, model: nn.Module) -> str:
    """Return the base model's own name for a weight that a file may name as one of its head's."""
    prefix = f"{cast(PreTrainedModel, model).base_model_prefix}."
    return name.removeprefix(prefix) if prefix != "." else name
