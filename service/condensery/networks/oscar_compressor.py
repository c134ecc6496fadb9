"""The compressor: a passage, read for a question, becomes a few vectors and a relevance score."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from condensery.networks.oscar_shape import BertShape
from condensery.networks.pointers import AnyPointer, BoundsPointer, Spans

TEXT = -1  # in ``slot_ids``: an ordinary token
# How much of a bounds pointer's log-odds of any answer is added to the relevance. Of 0, .1, .. 0.5,
# with another reader beside a pair, 250 questions: near misses answered where 95 % of F1 is kept
# fell from 24 to 18 % at 0.3, and not further.
ANSWERABLE = 0.3


@dataclass(frozen=True, slots=True)
class CompressorInput:
    """Sequences ``[CLS] question [SEP] passage [SEP] M0 .. M(l-1) RR``, packed or padded.

    The five tensors of ints are (batch, seq); packed input has batch 1 and ``attention`` holds
    what the packed attention needs (cu_seqlens), padded input an ``attention_mask``.

    Attributes:
        input_ids: Word-piece ids; any id at slots.
        token_type_ids: 0 for question and slots, 1 for the passage with its [SEP].
        position_ids: 0.. for text; slots have positions of their own (``slot_positions``).
        slot_ids: TEXT, or which slot: 0..l-1 memory, l rerank.
        passage_at: Flat positions of each passage's tokens and its [SEP], (passages, longest);
            -1 is padding. Flat means an index into (batch * seq).
        slots_at: Flat positions of each passage's slots, (passages, l + 1).
        attention: Keyword arguments for the backbone.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    slot_ids: Tensor
    passage_at: Tensor
    slots_at: Tensor
    attention: dict[str, object]


@dataclass(frozen=True, slots=True)
class Compressed:
    """What one forward pass gives.

    Attributes:
        memory: (passages, memory tokens, generator hidden size).
        relevance: (passages,), raw scores.
        pointer: Log-probabilities of each memory token over ``passage_at``,
            (passages, memory tokens, longest); None without a pointer.
        spans: How likely a pointer that scores bounds finds each; None without such a pointer.
    """

    memory: Tensor
    relevance: Tensor
    pointer: Tensor | None
    spans: Spans | None = None


class Compressor(nn.Module):
    """OSCAR's compressor on a BERT backbone, with its rerank head and mapping.

    Memory token ``i`` and the rerank token are learned embeddings after the text; their last
    hidden states, through the mapping MLP and through a linear head, are the memory vectors and
    the relevance score: one forward pass for both (OSCAR, arXiv:2504.07109, §3.2 and §3.3). A
    pointer that scores bounds adds its log-odds of any answer to the relevance (ours).

    Args:
        config: The backbone's configuration.
        shape: How it reads.
        generator_size: The generator's hidden size.
        pointer: How its memory tokens point, if they do.

    Raises:
        ValueError: The backbone has fewer positions than the shape needs.
    """

    def __init__(
        self,
        config: BertConfig,
        shape: BertShape,
        generator_size: int,
        *,
        pointer: type[AnyPointer] | None = None,
    ) -> None:
        super().__init__()
        hidden = config.hidden_size
        if shape.positions > config.max_position_embeddings:  # else text stands on the slots'
            raise ValueError(
                f"the shape needs {shape.positions} positions, the backbone has "
                f"{config.max_position_embeddings}"
            )
        self.shape = shape
        self.backbone = BertModel(config, add_pooling_layer=False)
        self.slots = nn.Embedding(shape.slots, hidden)
        self.mapping = nn.Sequential(
            nn.Linear(hidden, shape.mapping_size),
            nn.ReLU(),
            nn.Linear(shape.mapping_size, generator_size),
        )
        self.rerank = nn.Linear(hidden, 1)
        self.pointer = pointer(hidden) if pointer else None

    @property
    def slot_positions(self) -> range:
        """Position ids of the slots: the last ones, the same whatever the text's length."""
        last = self.backbone.config.max_position_embeddings
        return range(last - self.shape.slots, last)

    def forward(self, inputs: CompressorInput, words: Tensor | None = None) -> Compressed:
        """Compress and score every passage of ``inputs``.

        Args:
            inputs: The sequences.
            words: The generator's word embeddings, (vocabulary, generator hidden size), which
                the pointer copies from.
        """
        at_slot = inputs.slot_ids != TEXT
        embeds = self.backbone.embeddings.word_embeddings(inputs.input_ids)
        slots = self.slots(inputs.slot_ids.clamp(min=0))
        embeds = torch.where(at_slot[..., None], slots, embeds)
        hidden = self.backbone(
            inputs_embeds=embeds,
            token_type_ids=inputs.token_type_ids,
            position_ids=inputs.position_ids,
            **inputs.attention,
        ).last_hidden_state
        flat = hidden.reshape(-1, hidden.shape[-1])
        states = flat[inputs.slots_at]
        memory_states = states[:, :-1]
        memory = self.mapping(memory_states)
        log_pointer = spans = None
        if self.pointer is not None:
            assert words is not None
            real = inputs.passage_at >= 0
            at = inputs.passage_at.clamp(min=0)
            if isinstance(self.pointer, BoundsPointer):
                spans = self.pointer.spans(flat[at], real)
                log_pointer, gate = self.pointer.point(spans, memory_states)
            else:
                log_pointer, gate = self.pointer(memory_states, flat[at], real)
            copied = log_pointer.exp().to(words.dtype) @ words[inputs.input_ids.reshape(-1)[at]]
            memory = memory + gate * copied
        relevance = self.rerank(states[:, -1]).squeeze(-1).float()
        if spans is not None:
            relevance = relevance + ANSWERABLE * spans.odds()
        return Compressed(memory, relevance, log_pointer, spans)
