"""BERT's layers as one small attention head and an expander (SHRP, arXiv:2512.20635, section 3).

A layer's heads become experts. A gate reads the sequence's first token, as it enters the layer,
and one expert attends for the whole sequence; what it gives is widened by an expander that all
experts share, and added to the layer's input:

    H = softmax(Q_i K_iᵀ / sqrt(size)) V_i        i = argmax gate(x_cls)
    y = norm(x + norm(gelu(expander(H))))

The heads' common output projection, the MLP and both of the layer's residual sums are gone. After
training, all but the most used experts go too; where one is left the gate goes with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.networks import native
from condensery.networks.attention import attend, attend_padded
from condensery.networks.bert import FAMILY, Norm, PackedLayer
from condensery.networks.linear import Dense, Products
from condensery.networks.packing import Packing

HEADS = "shrp_heads"


@dataclass(frozen=True, slots=True)
class Experts:
    """Which layers are converted, and which heads are left of them.

    Attributes:
        heads: For each layer the parent's heads that it keeps, ascending; None: a plain layer.
    """

    heads: tuple[tuple[int, ...] | None, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Experts":
        """Read ``shrp_heads`` of a ``config.json``: null or a list of heads for each layer.

        Raises:
            ValueError: It is no such list, or names a head that the parent does not have.
        """
        layers, count = config.get("num_hidden_layers"), config.get("num_attention_heads")
        listed = config.get(HEADS)
        if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) != layers:
            raise ValueError(f"{HEADS}: {listed!r} is no list of {layers} layers")
        for layer, heads in enumerate(listed):
            if heads is None:
                continue
            if not isinstance(heads, Sequence) or isinstance(heads, str) or not heads:
                raise ValueError(f"{HEADS}: layer {layer} has {heads!r}, no list of heads")
            for head in heads:
                if type(head) is not int or not 0 <= head < cast(int, count):
                    raise ValueError(f"{HEADS}: layer {layer} names {head!r}, no head of {count}")
            if list(heads) != sorted(set(heads)):
                raise ValueError(f"{HEADS}: layer {layer} does not ascend: {list(heads)}")
        return cls(tuple(None if heads is None else tuple(heads) for heads in listed))

    @staticmethod
    def named(config: Mapping[str, Any]) -> bool:
        """Tell whether a ``config.json`` is of such a network."""
        return config.get(HEADS) is not None

    def to_config(self) -> dict[str, Any]:
        """Return the key to write."""
        return {HEADS: [None if heads is None else list(heads) for heads in self.heads]}

    @property
    def converted(self) -> tuple[int, ...]:
        """The converted layers, ascending."""
        return tuple(layer for layer, heads in enumerate(self.heads) if heads is not None)


class ExpertAttention(nn.Module):
    """Queries, keys and values of the experts: slices of the parent's projections.

    Args:
        hidden_size: Of the layer's input.
        head_size: Of one expert.
        experts: How many there are.
    """

    def __init__(self, hidden_size: int, head_size: int, experts: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, experts * head_size)
        self.key = nn.Linear(hidden_size, experts * head_size)
        self.value = nn.Linear(hidden_size, experts * head_size)


class Expander(nn.Module):
    """``norm(gelu(W h + b))``, from the size of a head to the layer's."""

    def __init__(self, head_size: int, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(head_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Widen (..., head size) to (..., hidden size)."""
        out: Tensor = self.norm(F.gelu(self.dense(hidden)))
        return out


class ExpertLayer(nn.Module):
    """A converted layer; with one expert a static one, which knows no gate.

    Args:
        config: The parent's.
        experts: How many experts it has.

    Attributes:
        gate: (hidden size to experts), of the first token; None with one expert.
        straight_through: Whether the gate learns from the task: what the chosen expert gives is
            scaled by ``1 + p - stopgrad(p)``, which is 1. Without it (the paper's formula taken
            literally) only the balance loss reaches the gate.
        top_k: Experts that attend for a sequence, the mean of which is widened (the paper's
            ablation; its method has one).
        logits: The gate's of the last call, (sequences, experts), for the balance loss and for
            counting which experts are used.
        forced: An expert that all sequences take instead of the gate's choice.
    """

    def __init__(self, config: Any, experts: int) -> None:
        super().__init__()
        hidden_size = int(config.hidden_size)
        self.head_size = hidden_size // int(config.num_attention_heads)
        self.experts = experts
        self.straight_through = True
        self.top_k = 1
        self.logits: Tensor | None = None
        self.forced: int | None = None
        eps = float(config.layer_norm_eps)
        self.attention = ExpertAttention(hidden_size, self.head_size, experts)
        self.gate = nn.Linear(hidden_size, experts) if experts > 1 else None
        self.expander = Expander(self.head_size, hidden_size, eps)
        self.norm = nn.LayerNorm(hidden_size, eps=eps)
        self.attention_dropout = float(config.attention_probs_dropout_prob)
        self.dropout = nn.Dropout(float(config.hidden_dropout_prob))

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *unused: Any,
        **options: Any,
    ) -> Tensor:
        """Pass (sequences, length, hidden) through it; the signature is ``BertLayer``'s.

        The first token of each sequence must be its own, so padding comes last.
        """
        chosen = self._route(hidden_states[:, 0])
        query, key, value = (
            self._project(linear, hidden_states, chosen)
            for linear in (self.attention.query, self.attention.key, self.attention.value)
        )
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        widened = self.expander(attended.squeeze(1) if self.top_k == 1 else attended.mean(1))
        if self.straight_through and self.training and self.logits is not None:
            share = self.logits.softmax(-1).gather(1, chosen).sum(1)[:, None, None]
            widened = widened * (1 + share - share.detach())
        out: Tensor = self.norm(hidden_states + self.dropout(widened))
        return out

    def _route(self, first: Tensor) -> Tensor:
        """Return each sequence's experts (sequences, top k), of its first token."""
        logits: Tensor | None = None if self.gate is None else self.gate(first)
        self.logits = logits
        if self.forced is not None:
            return torch.full((len(first), 1), self.forced, device=first.device)
        if logits is None:
            return torch.zeros(len(first), 1, dtype=torch.long, device=first.device)
        # Of equal logits the lowest number, as argmax has it.
        ranked: Tensor = logits.sort(dim=-1, descending=True, stable=True).indices
        return ranked[:, : self.top_k]

    def _project(self, linear: nn.Linear, hidden: Tensor, chosen: Tensor) -> Tensor:
        """Project by the chosen experts' rows alone: (sequences, chosen, length, head size)."""
        if self.experts == 1:
            return cast(Tensor, linear(hidden)).unsqueeze(1)
        sequences, count = chosen.shape
        rows = chosen.flatten()
        weight = linear.weight.view(self.experts, self.head_size, -1)[rows]
        bias = linear.bias.view(self.experts, 1, self.head_size)[rows]
        if count > 1:
            hidden = hidden.repeat_interleave(count, 0)
        projected = torch.baddbmm(bias, hidden, weight.transpose(1, 2))
        return projected.view(sequences, count, -1, self.head_size)

    def fused(self, products: Products) -> "FusedExpertLayer":
        """Return it as it infers on packed tokens."""
        return FusedExpertLayer(self, products)

    @torch.no_grad()
    def keep(self, experts: Sequence[int]) -> None:
        """Keep only these experts, in place; with one, the gate goes.

        Raises:
            ValueError: None is named, or one that is not there.
        """
        if not experts or not all(0 <= expert < self.experts for expert in experts):
            raise ValueError(f"experts: {list(experts)} are none of {self.experts}")
        places = torch.tensor(sorted(experts))
        rows = (places[:, None] * self.head_size + torch.arange(self.head_size)).flatten()
        for name in ("query", "key", "value"):
            setattr(self.attention, name, _sliced(getattr(self.attention, name), rows))
        if self.gate is not None:
            self.gate = _sliced(self.gate, places) if len(places) > 1 else None
        self.experts = len(places)
        self.top_k = min(self.top_k, self.experts)


def _sliced(linear: nn.Linear, rows: Tensor) -> nn.Linear:
    """Return a linear layer of some of the outputs of another."""
    rows = rows.to(linear.weight.device)
    sliced = nn.Linear(linear.in_features, len(rows)).to(linear.weight)
    sliced.weight.copy_(linear.weight[rows])
    sliced.bias.copy_(linear.bias[rows])
    return sliced


@torch.no_grad()
def convert_layer(model: nn.Module, layer: int) -> ExpertLayer:
    """Put an expert layer in the place of a plain one, all heads its experts.

    Queries, keys and values are the parent's, and so is the outer norm (its MLP's); the expander
    and the gate begin anew, as the parent's own layers did: weights of deviation
    ``initializer_range``, biases 0.

    Args:
        model: A base model of the BERT family, or a classifier's ``base_model``.
        layer: Which one.

    Raises:
        ValueError: The family is another, the hidden size is no multiple of the heads, or the
            layer is not there, or converted already.
    """
    config: Any = model.config
    layers = expert_family(model)
    if not 0 <= layer < len(layers):
        raise ValueError(f"layer: {layer} is none of {len(layers)}")
    parent: Any = layers[layer]
    if isinstance(parent, ExpertLayer):
        raise ValueError(f"layer: {layer} is converted already")
    made = ExpertLayer(config, int(config.num_attention_heads))
    made.to(parent.output.dense.weight)
    for name in ("query", "key", "value"):
        own: nn.Linear = getattr(made.attention, name)
        own.load_state_dict(getattr(parent.attention.self, name).state_dict())
    made.norm.load_state_dict(parent.output.LayerNorm.state_dict())
    for fresh in (made.expander.dense, made.gate):
        assert fresh is not None
        fresh.weight.normal_(0.0, float(config.initializer_range))
        fresh.bias.zero_()
    layers[layer] = made.train(parent.training)
    return made


def build_experts(model: nn.Module, experts: Experts) -> None:
    """Put expert layers without values in the place of plain ones, for weights loaded afterwards.

    Raises:
        ValueError: As ``convert_layer``.
    """
    layers = expert_family(model)
    for number, heads in enumerate(experts.heads):
        if heads is not None:
            layers[number] = ExpertLayer(model.config, len(heads))


def expert_family(model: nn.Module) -> nn.ModuleList:
    """Return the layers of a model whose layers can be converted; raises ValueError if none can."""
    check_convertible(model.config)
    return cast(nn.ModuleList, model.get_submodule("encoder.layer"))


def check_convertible(config: Any) -> None:
    """Check that a configuration is of a model whose layers can be converted.

    Raises:
        ValueError: It is not; the key is named.
    """
    if config.model_type not in FAMILY:
        known = ", ".join(sorted(FAMILY))
        raise ValueError(f"model_type: {config.model_type!r} can't be converted, but {known}")
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"num_attention_heads: {config.num_attention_heads} heads don't divide"
            f" hidden_size {config.hidden_size}"
        )


class FusedExpertLayer(PackedLayer):
    """An expert layer on packed tokens, for inference: two products and one small attention.

    With several experts all of them project, and each sequence takes its own.

    Args:
        layer: As it was trained.
        products: Makes its products, but for the gate's, which are exact.
    """

    def __init__(self, layer: ExpertLayer, products: Products = Dense) -> None:
        super().__init__()
        self.experts, self.head_size = layer.experts, layer.head_size
        attention = layer.attention
        # In fp32 too: the products are 2.3 times as fast so, and the weights are small.
        own = [attention.query, attention.key, attention.value]
        self.projections = products.of(*own, fp32=True)
        self.gate = None if layer.gate is None else Dense.of(layer.gate)
        self.expander = products.of(layer.expander.dense, activation="gelu", fp32=True)
        self.inner_norm = Norm(layer.expander.norm)
        self.norm = Norm(layer.norm)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *unused: Any,
        packing: Packing,
        **options: Any,
    ) -> Tensor:
        """Pass (1, total, hidden) through it; the signature is ``BertLayer``'s."""
        assert attention_mask is None  # none is built for packed attention
        hidden = hidden_states[0]
        rows = packing.wanted if self.last else None
        attended = self._attend(hidden, packing)
        kept = hidden
        if rows is not None:
            attended, kept = attended.index_select(0, rows), hidden.index_select(0, rows)
        out: Tensor = self.norm(self.inner_norm(self.expander(attended)).add_(kept))
        return (out if rows is None else hidden.index_copy(0, rows, out))[None]

    def _attend(self, hidden: Tensor, packing: Packing) -> Tensor:
        """Return the chosen experts' outputs, (total, head size)."""
        projected = self.projections(hidden).view(-1, 3, self.experts, self.head_size)
        if self.gate is not None:
            chosen = self.gate(hidden.index_select(0, packing.starts)).argmax(-1)
            places = chosen.new_zeros(packing.total)  # filler takes any
            places[: len(packing.sequence_ids)] = chosen[packing.sequence_ids]
            index = places[:, None, None, None].expand(-1, 3, 1, self.head_size)
            projected = projected.gather(2, index)
        scale = self.head_size**-0.5
        parts = projected.unbind(1)
        if hidden.is_cuda or native.can_attend_packed(*parts):
            return attend(packing, *parts, scale=scale, causal=False).flatten(1)
        padded = packing.pad(projected).unbind(1)
        return attend_padded(packing, *padded, scale=scale, causal=False).flatten(1)
