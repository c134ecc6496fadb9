"""Parts of a decoder's layer that take a step's rows in one call each, where torch takes a dozen.

On a CPU a step of few rows is bound by its weights, and then by the number of its operations: of a
step of eight sequences of a Llama of MiniLM's size half the time goes in those beside products.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from condensery.networks import native
from condensery.networks.attention import refuse_options
from condensery.networks.bert import Norm
from condensery.networks.cached_attention import attend, see
from condensery.networks.caching import Step
from condensery.networks.linear import Dense
from condensery.networks.paging import Tokens
from condensery.networks.quantised import Int8, Int16

# Of transformers, by the names of their classes: the same formulas in each.
NORMS = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm"})
ATTENTIONS = frozenset({"LlamaAttention", "MistralAttention", "Qwen2Attention"})
ENCODER_LAYER = "BertLayer"


def fuse_steps(backbone: nn.Module, rows: Tensor) -> None:
    """Replace norms and attention under ``backbone`` where there are kernels for them.

    Of BERT whole layers are replaced. It then infers only, and only in steps.

    Args:
        backbone: A transformers model whose attention is cached (``cached_attention``).
        rows: Of the device and dtype that it runs in.
    """
    ours = native.takes(rows)
    layers: list[StepEncoderLayer] = []
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            kind = type(child).__name__
            if not type(child).__module__.startswith("transformers."):
                continue
            if kind == ENCODER_LAYER:
                layers.append(StepEncoderLayer(child))
                setattr(parent, name, layers[-1])
            elif not ours:
                continue
            elif kind in NORMS:
                setattr(parent, name, StepNorm(child))
            elif kind in ATTENTIONS:
                setattr(parent, name, StepAttention(child))
    if layers:
        layers[-1].last = True


def part_steps(backbone: nn.Module) -> None:
    """Put the attention, and layers, back that ``fuse_steps`` replaced: it runs at once again."""
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, StepAttention | StepEncoderLayer):
                setattr(parent, name, child.replaced[0])


class StepNorm(nn.Module):
    """``x / sqrt(mean(x²) + eps) · weight``, over the last axis (arXiv:1910.07467).

    Args:
        norm: transformers' norm of that formula.
    """

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = nn.Buffer(norm.weight.detach())
        self.eps: float = norm.variance_epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise (..., width)."""
        return native.rms_norm(hidden, self.weight, self.eps)


class StepAttention(nn.Module):
    """A layer's attention over cached keys, with rotary positions (arXiv:2104.09864).

    Args:
        attention: transformers', its linear layers prepacked or rounded already.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        if not getattr(attention, "is_causal", True):
            raise ValueError("cached attention is causal")
        self.replaced = (attention,)  # in a tuple: no child
        self.q_proj, self.k_proj = attention.q_proj, attention.k_proj
        self.v_proj, self.o_proj = attention.v_proj, attention.o_proj
        self.size: int = attention.head_dim
        self.scale: float = attention.scaling
        self.layer: int = attention.layer_idx
        config = attention.config
        window = getattr(config, "sliding_window", None)
        if type(attention).__name__ == "Qwen2Attention":
            window = attention.sliding_window  # some of its layers have none
        elif type(attention).__name__ == "LlamaAttention":
            window = None
        self.window: int | None = window

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        step: Step | Tokens | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Attend within each sequence of a step; transformers' layer calls this.

        Args:
            hidden_states: (1, padded, hidden).
            position_embeddings: Cosines and sines, (1, padded, head size) each.
            attention_mask: Must be None.
            step: The model's ``step`` keyword argument.
            options: What the model passes besides; refused where it would change the result.

        Returns:
            (1, padded, hidden), and None for the weights.
        """
        step = _visit(step, hidden_states, attention_mask, options)
        hidden = hidden_states[0]
        query, key, value = (
            project(hidden).contiguous().view(len(hidden), -1, self.size)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        cosine, sine = (part[0] for part in position_embeddings)
        keys, values = step.cache.layer(self.layer)
        native.rotate(query, key, value, cosine, sine, keys, values, step.places)
        seen = see(step, self.layer, query, key, value, scale=self.scale, window=self.window)
        output: Tensor = self.o_proj(seen.flatten(1))
        return output[None], None


class StepEncoderLayer(nn.Module):
    """A BERT layer over cached keys: ``h = norm(x + attention(x)); norm(h + mlp(h))``.

    A prompt's rows see all of it, those behind it what came (``cached_attention``).

    Args:
        layer: transformers' ``BertLayer``, its linear layers prepacked or rounded already.

    Attributes:
        last: Whether the rows that ``Step.wanted`` doesn't name are read by nobody.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        own, act = layer.attention.self, layer.intermediate.intermediate_act_fn
        self.replaced = (layer,)  # in a tuple: no child
        self.last = False
        self.query, self.key, self.value = own.query, own.key, own.value
        self.size: int = own.attention_head_size
        self.scale: float = own.scaling
        self.layer: int = own.layer_idx
        self.is_causal: bool = own.is_causal
        self.output = layer.attention.output.dense
        self.attention_norm = Norm(layer.attention.output.LayerNorm)
        self.up: nn.Module = layer.intermediate.dense
        self.activation: nn.Module = act
        if isinstance(self.up, Dense | Int8 | Int16) and getattr(act, "act", None) is F.gelu:
            # The same weights; the layer that is replaced keeps its own activation.
            self.up = copy.copy(self.up)
            self.up.activation, self.activation = "gelu", nn.Identity()
        self.down = layer.output.dense
        self.norm = Norm(layer.output.LayerNorm)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *unused: Any,
        step: Step | Tokens | None = None,
        **options: Any,
    ) -> Tensor:
        """Pass a step's rows (1, padded, hidden) through it; transformers' encoder calls this."""
        step = _visit(step, hidden_states, attention_mask, options)
        hidden = hidden_states[0]
        query, key, value = (
            project(hidden).view(len(hidden), -1, self.size)
            for project in (self.query, self.key, self.value)
        )
        seen = attend(
            step, self.layer, query, key, value, scale=self.scale, two_way=not self.is_causal
        ).flatten(1)
        rows = step.wanted if self.last else None
        whole = hidden
        if rows is not None:
            seen, hidden = seen.index_select(0, rows), hidden.index_select(0, rows)
        hidden = self.attention_norm(_add(self.output, seen, hidden))
        inner = self.activation(self.up(hidden))
        out: Tensor = self.norm(_add(self.down, inner, hidden))
        return (out if rows is None else whole.index_copy(0, rows, out))[None]


def _visit(
    step: Step | Tokens | None,
    hidden_states: Tensor,
    attention_mask: Tensor | None,
    options: Mapping[str, Any],
) -> Step | Tokens:
    """Return the step that a layer's rows are of, and note that it came by.

    Raises:
        ValueError: There is none, or the layer is asked for what is not done in steps.
    """
    if step is None or attention_mask is not None:
        raise ValueError("attention in steps takes step=Step(...) and no mask")
    if hidden_states.shape[:2] != (1, step.padded):
        raise ValueError(f"{hidden_states.shape[:2]} rows for a step of {step.padded}")
    refuse_options("cached", options)
    step.visits += 1
    return step


def _add(linear: nn.Module, inputs: Tensor, residual: Tensor) -> Tensor:
    """Return ``linear(inputs) + residual``."""
    both = isinstance(linear, Dense | Int8 | Int16)
    summed: Tensor = linear(inputs, residual) if both else linear(inputs) + residual
    return summed
