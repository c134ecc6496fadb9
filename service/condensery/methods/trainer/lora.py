"""LoRA adapters in training (arXiv:2106.09685), by PEFT, and merged at the end."""

from collections.abc import Iterator
from typing import cast

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

PARTS = (".lora_", ".base_layer.")  # what names of an adapted layer hold, and others don't


def adapt(module: nn.Module, *, rank: int, alpha: int, dropout: float = 0.0) -> None:
    """Put adapters that change nothing yet on every linear layer; they alone learn then.

    Args:
        module: Its plain ``nn.Linear`` layers are replaced, in place.
        rank: Of the adapters.
        alpha: Their products count ``alpha / rank`` times.
        dropout: Of what the adapters read.
    """
    linear = [name for name, part in module.named_modules() if type(part) is nn.Linear]
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=linear)
    inject_adapter_in_model(config, module)


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
