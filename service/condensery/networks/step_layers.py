"""Parts of a decoder's layer that take a step's rows in one call each, where torch takes a dozen.

On a CPU a step of few rows is bound by its weights, and then by the number of its operations: of a
step of eight sequences of a Llama of MiniLM's size half the time goes in those beside products.
"""

from typing import Any

from torch import Tensor, nn

from condensery.networks import native
from condensery.networks.attention import refuse_options
from condensery.networks.cached_attention import see
from condensery.networks.caching import Step
from condensery.networks.paging import Tokens

# Of transformers, by the names of their classes: the same formulas in each.
NORMS = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm"})
ATTENTIONS = frozenset({"LlamaAttention", "MistralAttention", "Qwen2Attention"})


def fuse_steps(backbone: nn.Module, rows: Tensor) -> None:
    """Replace norms and attention under ``backbone`` where there are kernels for them.

    It then infers only, and only in steps.

    Args:
        backbone: A transformers model whose attention is cached (``cached_attention``).
        rows: Of the device and dtype that it runs in.
    """
    if not native.takes(rows):
        return
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            kind = type(child).__name__
            if not type(child).__module__.startswith("transformers."):
                continue
            if kind in NORMS:
                setattr(parent, name, StepNorm(child))
            elif kind in ATTENTIONS:
                setattr(parent, name, StepAttention(child))


def part_steps(backbone: nn.Module) -> None:
    """Put the attention back that ``fuse_steps`` replaced: it runs at once again."""
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, StepAttention):
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
        if step is None or attention_mask is not None:
            raise ValueError("attention in steps takes step=Step(...) and no mask")
        if hidden_states.shape[:2] != (1, step.padded):
            raise ValueError(f"{hidden_states.shape[:2]} rows for a step of {step.padded}")
        refuse_options("cached", options)
        step.visits += 1
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
