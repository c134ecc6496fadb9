"""The sub-layers of transformers' models by one set of names: each family's own end here.

A layer is attention and MLP, each with a norm and a residual sum. Where the norm stands before
(Llama and its like, ModernBERT), a sub-layer computes ``x + F(norm(x))``; where it stands after
(BERT), ``norm(x + F(x))``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn
from transformers import PretrainedConfig

# Base models that come with a pooler, for sentence pairs, by default.
POOLED = frozenset({"bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert"})


@dataclass(frozen=True, slots=True)
class Family:
    """Where a family keeps what; dotted names below a layer.

    Attributes:
        kinds: Its ``model_type``s.
        layers: Its list of layers, below the base model.
        attention: Its attention; where the norm stands after, with projection, sum and norm.
        attention_norm: The norm that goes with it.
        attention_output: The attention's last projection.
        mlp: Its MLP, all modules of it; where the norm stands after, with sum and norm.
        mlp_norm: The norm that goes with it.
        inner: The MLP's first products, whose rows are neurons.
        halves: Into how many parts a first product's rows fall, with all neurons in each.
        down: Its last product, whose columns are neurons.
        norm_first: Whether norms stand before the sub-layers.
    """

    kinds: frozenset[str]
    layers: str
    attention: str
    attention_norm: str
    attention_output: str
    mlp: tuple[str, ...]
    mlp_norm: str
    inner: tuple[str, ...]
    down: str
    halves: int = 1
    norm_first: bool = True

    @property
    def between(self) -> str:
        """The module that reads what stands between attention and MLP."""
        return self.mlp_norm if self.norm_first else self.mlp[0]

    @property
    def attention_parts(self) -> tuple[str, ...]:
        """What goes when the attention is dropped: a norm that stands after it stays."""
        if self.norm_first:
            return (self.attention, self.attention_norm)
        return (f"{self.attention}.self", self.attention_output)

    @property
    def mlp_parts(self) -> tuple[str, ...]:
        """What goes when the MLP is dropped: a norm that stands after it stays."""
        return (*self.mlp, self.mlp_norm) if self.norm_first else (self.mlp[0], self.down)


FAMILIES = (
    Family(
        kinds=frozenset({"llama", "mistral", "qwen2", "qwen3"}),
        layers="layers",
        attention="self_attn",
        attention_norm="input_layernorm",
        attention_output="self_attn.o_proj",
        mlp=("mlp",),
        mlp_norm="post_attention_layernorm",
        inner=("mlp.gate_proj", "mlp.up_proj"),
        down="mlp.down_proj",
    ),
    Family(
        kinds=frozenset({"modernbert"}),
        layers="layers",
        attention="attn",
        attention_norm="attn_norm",
        attention_output="attn.Wo",
        mlp=("mlp",),
        mlp_norm="mlp_norm",
        inner=("mlp.Wi",),
        down="mlp.Wo",
        halves=2,
    ),
    Family(
        kinds=frozenset({"bert", "roberta", "xlm-roberta", "camembert"}),
        layers="encoder.layer",
        attention="attention",
        attention_norm="attention.output.LayerNorm",
        attention_output="attention.output.dense",
        mlp=("intermediate", "output"),
        mlp_norm="output.LayerNorm",
        inner=("intermediate.dense",),
        down="output.dense",
        norm_first=False,
    ),
)


def constructor_options(config: PretrainedConfig) -> dict[str, bool]:
    """Return the arguments by which transformers' constructor makes no pooler."""
    return {"add_pooling_layer": False} if config.model_type in POOLED else {}


def family_of(model: nn.Module) -> Family:
    """Return the family of a base model.

    Raises:
        ValueError: It is of none; the ``model_type`` is named.
    """
    config: Any = getattr(model, "config", None)
    return family_named(getattr(config, "model_type", None))


def family_named(kind: str | None) -> Family:
    """Return the family of a ``model_type``; raises as ``family_of``."""
    for family in FAMILIES:
        if kind in family.kinds:
            return family
    known = ", ".join(sorted(kind for family in FAMILIES for kind in family.kinds))
    raise ValueError(f"model_type: the layers of {kind!r} are not known here, but of {known}")


def layers_of(model: nn.Module, family: Family | None = None) -> nn.ModuleList:
    """Return a base model's layers."""
    family = family or family_of(model)
    return cast(nn.ModuleList, model.get_submodule(family.layers))


def linears(layer: nn.Module, names: Sequence[str]) -> list[nn.Linear]:
    """Return a layer's linear modules of these names."""
    return [cast(nn.Linear, layer.get_submodule(name)) for name in names]
