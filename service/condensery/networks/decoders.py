"""transformers' causal language models, built empty and filled one tensor at a time.

Foreign names (``embed_tokens``, ``norm``, ``lm_head``) end here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from condensery.networks.dtypes import thread_dtypes

LAYER = re.compile(r"^((?:model\.)?layers\.)(\d+)(\..*)$")
# Set, these change scores after the head, which nothing here does.
AFTER_HEAD = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def read_config(values: Mapping[str, Any]) -> PretrainedConfig:
    """Make a causal language model's configuration; no code but transformers' own is looked at.

    Raises:
        ValueError: It is of no causal language model that transformers has, or of one that
            changes its scores after the head.
    """
    kind = str(values.get("model_type"))
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"model_type {kind!r} is no causal language model that transformers has")
    for name in AFTER_HEAD:
        if values.get(name) not in (None, 1, 1.0):
            raise ValueError(f"{name} {values[name]!r} is not supported")
    config: PretrainedConfig = CONFIG_MAPPING[kind].from_dict(dict(values))
    return config


def resized(config: PretrainedConfig, vocabulary: int) -> PretrainedConfig:
    """Return a copy with so many rows in its embedding table, grown or shrunk."""
    values = config.to_dict() | {"vocab_size": vocabulary}
    # The padding token's row would be zeroed in a new table; ours are all given.
    return read_config(values | {"pad_token_id": None})


def with_layers(config: PretrainedConfig, kept: Sequence[int]) -> PretrainedConfig:
    """Return a copy that has only these of its layers.

    Raises:
        ValueError: There is no such layer, or none is kept.
    """
    whole = int(config.num_hidden_layers)
    if not kept or min(kept) < 0 or max(kept) >= whole:
        raise ValueError(f"layers {list(kept)} of a model that has {whole}")
    values = config.to_dict() | {"num_hidden_layers": len(kept)}
    kinds = values.get("layer_types")
    if kinds is not None:
        values["layer_types"] = [kinds[layer] for layer in kept]
    return read_config(values)


def layer_name(name: str, kept: Sequence[int]) -> str | None:
    """Return a weight's name once only ``kept`` layers are left; None if it is gone."""
    match = LAYER.match(name)
    if match is None:
        return name
    layer = int(match[2])
    return f"{match[1]}{list(kept).index(layer)}{match[3]}" if layer in kept else None


def build(config: PretrainedConfig) -> PreTrainedModel:
    """Build a causal language model whose weights are still nowhere (on ``meta``)."""
    with thread_dtypes(), torch.device("meta"):
        # A copy: how attention is computed is written into it, and the halves may share one.
        model = AutoModelForCausalLM.from_config(deepcopy(config), trust_remote_code=False)
    return cast(PreTrainedModel, model.eval())


def headless(model: PreTrainedModel, *, final_norm: bool = True) -> PreTrainedModel:
    """Return the backbone of a causal language model, with or without its last norm.

    Raises:
        ValueError: It reads in both directions, or its last norm is to go and is not where
            Llama-like models have it.
    """
    backbone: Any = model.base_model
    if any(getattr(module, "is_causal", True) is False for module in backbone.modules()):
        raise ValueError(f"a {model.config.model_type!r} model reads in both directions")
    if not final_norm:
        if not isinstance(getattr(backbone, "norm", None), nn.Module):
            raise ValueError(f"a {model.config.model_type!r} model has no final norm to leave out")
        backbone.norm = nn.Identity()
    return cast(PreTrainedModel, backbone)


def fill_buffers(model: PreTrainedModel, device: torch.device, *, rounded: bool = False) -> None:
    """Make the buffers that no checkpoint holds, on ``device``: rotary frequencies, in fp32.

    Args:
        model: Built by ``build``.
        device: Where to.
        rounded: Round them to bf16 and back.

    Raises:
        ValueError: A buffer is of a module that can't be made again from the configuration.
    """
    for name, module in model.named_modules():
        unfilled = {key for key, value in module.named_buffers(recurse=False) if value.is_meta}
        if not unfilled:
            continue
        if unfilled == {"position_ids", "token_type_ids"}:  # BERT's defaults for what is not given
            places = torch.arange(module.get_buffer("position_ids").shape[1], device=device)[None]
            module.position_ids = nn.Buffer(places, persistent=False)
            module.token_type_ids = nn.Buffer(torch.zeros_like(places), persistent=False)
            continue
        if not _is_rotary(module):
            raise ValueError(f"{name}: don't know how to make its {', '.join(sorted(unfilled))}")
        # On the CPU, whatever device is the default: all machines then round alike.
        with torch.device("cpu"):
            fresh = type(module)(model.config)
        for key in unfilled:
            value: Tensor = fresh.get_buffer(key)
            value = value.bfloat16().to(value.dtype) if rounded else value
            setattr(module, key, nn.Buffer(value.to(device), persistent=False))


def rotary_buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield each rotary module under ``model`` with each of its buffers, by name."""
    for module in model.modules():
        if _is_rotary(module):
            for name, value in module.named_buffers(recurse=False):
                yield module, name, value


def _is_rotary(module: nn.Module) -> bool:
    return "RotaryEmbedding" in type(module).__name__


def put(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Make ``tensor`` the parameter of that name, without a copy."""
    owner, _, last = name.rpartition(".")
    setattr(module.get_submodule(owner), last, nn.Parameter(tensor, requires_grad=False))


def get_linear(module: nn.Module, name: str) -> nn.Linear | None:
    """Return the linear layer of that name, or None if there is none."""
    owner, _, last = name.rpartition(".")
    try:
        linear = getattr(module.get_submodule(owner), last, None)
    except AttributeError:
        return None
    return linear if isinstance(linear, nn.Linear) else None
