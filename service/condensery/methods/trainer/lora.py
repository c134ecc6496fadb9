"""LoRA adapters in training (arXiv:2106.09685), by PEFT, and merged at the end."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import cast

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from condensery.errors import InputError

PARTS = (".lora_", ".base_layer.")  # what names of an adapted layer hold, and others don't


def adapt(
    module: nn.Module,
    *,
    rank: int,
    alpha: int,
    dropout: float = 0.0,
    layers: Collection[str] | None = None,
) -> None:
    """Put adapters that change nothing yet on linear layers; they alone learn then.

    Args:
        module: Its plain ``nn.Linear`` layers are replaced, in place.
        rank: Of the adapters.
        alpha: Their products count ``alpha / rank`` times.
        dropout: Of what the adapters read.
        layers: Which, by the last parts of their names (``q_proj``); None: all.

    Raises:
        InputError: There is no linear layer of such a name.
    """
    linear = [name for name, part in module.named_modules() if type(part) is nn.Linear]
    if layers is not None:
        there = {name.rpartition(".")[2] for name in linear}
        if missing := sorted(set(layers) - there):
            raise InputError(
                f"lora_layers: {missing[0]!r} is no linear layer: {', '.join(sorted(there))} are",
                field="lora_layers",
                value=missing[0],
            )
        linear = [name for name in linear if name.rpartition(".")[2] in layers]
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=linear)
    inject_adapter_in_model(config, module)


@contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """Let a module compute what it did before it had adapters."""
    layers = [part for part in module.modules() if isinstance(part, LoraLinear)]
    before = [layer.disable_adapters for layer in layers]
    # PEFT's enable_adapters would let the factors need no gradient, in the middle of a graph.
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, off in zip(layers, before, strict=True):
            layer._disable_adapters = off


def merged_layers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the adapted layers' weights and biases with their adapters merged, by plain names."""
    for name, part in module.named_modules():
        if isinstance(part, LoraLinear):
            base = cast(nn.Linear, part.get_base_layer())
            yield f"{name}.weight", _merged(part, base.weight.detach())
            if base.bias is not None:
                yield f"{name}.bias", base.bias.detach()


def merged(module: nn.Module) -> dict[str, Tensor]:
    """Return all of a module's weights as they are without adapters, those merged."""
    plain = {
        name: tensor.detach()
        for name, tensor in module.state_dict(keep_vars=True).items()
        if not any(part in name for part in PARTS)
    }
    return {**plain, **dict(merged_layers(module))}


def _merged(layer: LoraLinear, base: Tensor) -> Tensor:
    """Return a layer's weight with its adapter in it, worked out in fp32."""
    (name,) = layer.active_adapters
    down, up = (
        cast(nn.Linear, part[name]).weight.detach().float() for part in (layer.lora_A, layer.lora_B)
    )
    scale: float = layer.scaling[name]
    return (base.float() + scale * (up @ down)).to(base.dtype)
