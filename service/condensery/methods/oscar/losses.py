"""What the pair is trained to do, in one forward pass."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from condensery.methods.oscar.batches import IGNORED, Batch
from condensery.networks.oscar import OscarPair


@dataclass(frozen=True, slots=True)
class Losses:
    """The terms of the loss, each a scalar tensor."""

    answer: Tensor
    relevance: Tensor
    pointer: Tensor

    def total(self, relevance_weight: float, pointer_weight: float) -> Tensor:
        """Return the weighted sum."""
        return self.answer + relevance_weight * self.relevance + pointer_weight * self.pointer


def prompt_embeds(pair: OscarPair, batch: Batch, memory: Tensor | None) -> Tensor:
    """Fill the prompts' slots with memory vectors and separators, (items, seq, hidden)."""
    generator = pair.generator
    flat = generator.words[batch.prompt.reshape(-1)]
    if memory is not None:
        at = batch.memory_at.reshape(-1)
        flat = flat.index_copy(0, at, memory.reshape(len(at), -1).to(flat.dtype))
    separators = generator.separator.to(flat.dtype).expand(len(batch.separator_at), -1)
    flat = flat.index_copy(0, batch.separator_at, separators)
    return flat.reshape(*batch.prompt.shape, -1)


def losses(pair: OscarPair, batch: Batch) -> Losses:
    """Compute the answer's cross-entropy, the rerank head's and the pointer's.

    The answer's loss is OSCAR's (arXiv:2504.07109, §3.1) with gold answers as labels. Relevance
    is binary cross-entropy, for there is no teacher's score to regress on. The pointer's loss
    teaches memory token i to point at the answer's token i.
    """
    zero = torch.zeros(())
    relevance = pointer = zero
    memory = None
    if batch.given is not None:
        compressed = pair.compressor(batch.given, pair.generator.words)
        memory = compressed.memory
        relevance = F.binary_cross_entropy_with_logits(compressed.relevance, batch.relevant)
        if compressed.pointer is not None:
            pointer = F.nll_loss(
                compressed.pointer.flatten(0, 1), batch.pointed.flatten(), ignore_index=IGNORED
            )
    hidden = pair.generator(prompt_embeds(pair, batch, memory)).last_hidden_state
    logits = pair.generator.logits(hidden.flatten(0, 1)[batch.labels_at])
    return Losses(F.cross_entropy(logits.float(), batch.labels), relevance, pointer)
