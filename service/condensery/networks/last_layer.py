"""A last layer that computes no more than is read of it.

Of a text's last hidden states most callers read one or a few: the last token's, the memory
tokens', the state that scores the next token. The last layer's keys and values are needed of all
tokens, for those few attend to them; what follows the attention is needed of the few alone.
"""

from typing import Any

from torch import Tensor, nn

from condensery.networks.bert import PackedLayer
from condensery.networks.effir import PrunedLayer
from condensery.networks.sublayers import FAMILIES, Family, family_named, layers_of


class LastLayer(PrunedLayer):
    """A layer with its norms first whose MLP runs on the rows that are wanted.

    Which they are, ``Packing.wanted`` or ``Step.wanted`` says. The other rows come out without
    the MLP's part, and mean nothing.

    Args:
        layer: transformers' layer, or what is left of one; it has an MLP.
        family: Its names.
    """

    def __init__(self, layer: nn.Module, family: Family) -> None:
        super().__init__(layer, family, attention=hasattr(layer, family.attention), mlp=True)

    def feed(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Add the MLP's part to (1, total, hidden) where it is wanted."""
        layout = options.get("packing") or options.get("step")
        rows: Tensor | None = None if layout is None else layout.wanted
        if rows is None:
            return super().feed(hidden_states)
        if not len(rows):
            return hidden_states
        part = super().feed(hidden_states.index_select(1, rows))
        return hidden_states.index_copy(1, rows, part)


def trims(kind: str | None) -> bool:
    """Tell whether ``trim_last`` knows the last layer of a ``model_type``."""
    return any(kind in family.kinds for family in FAMILIES)


def trim_last(model: nn.Module) -> None:
    """Make a base model's last layer compute what is wanted of it; for inference only.

    Weights and their names stay. A model of no known family stays as it is, and so does a last
    layer that has no MLP.

    Args:
        model: Its attention is ours: packed, or cached. BERT's layers are fused already.
    """
    config: Any = model.config
    if not trims(config.model_type):
        return
    family = family_named(config.model_type)
    layers = layers_of(model, family)
    last = layers[-1]
    if isinstance(last, PackedLayer):
        last.last = True
    elif family.norm_first and hasattr(last, family.mlp[0]):
        layers[-1] = LastLayer(last, family)
