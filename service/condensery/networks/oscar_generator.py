"""The generator: a small Llama whose prompt holds memory vectors among its word embeddings."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from condensery.networks.linear import Dense, form_of
from condensery.networks.oscar_interface import PromptPart
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.quantised import Product


def standardised(words: Tensor) -> Tensor:
    """Centre word embeddings and scale each to unit RMS, float32, (vocabulary, hidden).

    A generator trained from scratch shares the encoder's table; this gives its rows one scale.
    """
    centred = words.float() - words.float().mean(dim=0, keepdim=True)
    return centred / centred.pow(2).mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-6)


def llama_config(shape: OscarShape, hidden_size: int) -> LlamaConfig:
    """Return the backbone's configuration; the vocabulary lives outside of it."""
    return LlamaConfig(
        vocab_size=1,
        hidden_size=hidden_size,
        intermediate_size=shape.generator_mlp_size,
        num_hidden_layers=shape.generator_layers,
        num_attention_heads=shape.generator_heads,
        num_key_value_heads=shape.generator_heads,
        max_position_embeddings=shape.generator_positions,
        attention_bias=False,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


class Generator(nn.Module):
    """A causal language model over embeddings, its word table shared and frozen.

    Prompt: each passage's memory vectors and one separator, then ``[CLS] question [SEP]``; the
    answer's word pieces follow, [SEP] ends it (OSCAR, arXiv:2504.07109, §3.1).
    """

    words: Tensor

    def __init__(self, words: Tensor, shape: OscarShape) -> None:
        super().__init__()
        vocabulary, hidden = words.shape
        self.shape = shape
        self.backbone = LlamaModel(llama_config(shape, hidden))
        del self.backbone.embed_tokens  # inputs are embeddings already
        self.register_buffer("words", words, persistent=False)
        self.separator = nn.Parameter(torch.randn(hidden))
        self.output = nn.Linear(hidden, hidden, bias=False)
        nn.init.eye_(self.output.weight)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary))
        self.output_scale = nn.Parameter(torch.tensor(hidden**-0.5))
        self._head: nn.Module | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the word embeddings."""
        return self.words.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.words.device

    def embed(self, parts: Sequence[PromptPart]) -> Tensor:
        """Return a prompt's embeddings, a separator after every part but the last.

        Args:
            parts: Memory vectors (vectors, hidden), or word-piece ids.

        Returns:
            (1, positions, hidden).
        """
        rows: list[Tensor] = []
        for part in parts:
            if isinstance(part, Tensor):
                rows.append(part.to(self.words))
            else:
                rows.append(self.words[torch.tensor(part, dtype=torch.long, device=self.device)])
            rows.append(self.separator.to(self.words.dtype)[None])
        return torch.cat(rows[:-1])[None]

    def forward(self, embeds: Tensor, **backbone: Any) -> Any:
        """Run the backbone over (batch, seq, hidden) embeddings; extras go to transformers."""
        return self.backbone(inputs_embeds=embeds, **backbone)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every word piece after the given states, (..., hidden) to (..., vocabulary)."""
        states: Tensor = self.output(hidden) * self.output_scale
        if self._head is not None:
            scores: Tensor = self._head(states)
            return scores
        return states @ self.words.T + self.output_bias

    def prepack(self, *, fp32: bool = False) -> None:
        """Hold the word table once more, in the layout that scoring reads: half of a step's time.

        It can only infer afterwards.
        """
        form = form_of(self.words.device, self.words.dtype, fp32=fp32)
        if self._head is None and form != "torch":
            self._head = Dense(self.words, self.output_bias, fp32=fp32)

    def quantise(self, product: Product) -> None:
        """Hold the word table once more, in fewer bits, to score by; it can only infer then."""
        if product.takes(self.words):
            self._head = product(self.words, self.output_bias)
