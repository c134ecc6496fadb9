"""What the pair is trained to do, in one forward pass."""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from condensery.methods.oscar.batches import IGNORED, Batch
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_compressor import Compressed, Compressor
from condensery.networks.oscar_generator import LlamaGenerator, TwoWayGenerator
from condensery.networks.pointers import Spans

SOFT_WORD_NOISE = 0.2  # of words of unit RMS


@dataclass(frozen=True, slots=True)
class Weights:
    """What each term of the loss counts, beside the answer's 1."""

    relevance: float
    score: float
    pointer: float
    repeats: float = 0.0
    copies: float = 0.0
    taught: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True, slots=True)
class Losses:
    """The terms of the loss, each a scalar tensor."""

    answer: Tensor
    relevance: Tensor
    score: Tensor
    pointer: Tensor
    repeats: Tensor
    copies: Tensor
    taught: Tensor
    kept: Tensor

    def total(self, weights: Weights) -> Tensor:
        """Return the weighted sum."""
        return (
            self.answer
            + weights.relevance * self.relevance
            + weights.score * self.score
            + weights.pointer * self.pointer
            + weights.repeats * self.repeats
            + weights.copies * self.copies
            + weights.taught * self.taught
            + weights.kept * self.kept
        )


def prompt_embeds(pair: OscarPair, batch: Batch, memory: Tensor | None) -> Tensor:
    """Fill the prompts' slots with memory vectors and separators, (total, hidden)."""
    generator = pair.generator
    flat = generator.words[batch.prompt]
    if len(batch.spelled):
        flat = flat.index_copy(
            0, batch.spelled_at, soft_word_vectors(batch.spelled, generator.words)
        )
    if memory is not None:
        at = batch.memory_at.reshape(-1)
        flat = flat.index_copy(0, at, memory.reshape(len(at), -1).to(flat.dtype))
    separators = generator.separator.to(flat.dtype).expand(len(batch.separator_at), -1)
    flat = flat.index_copy(0, batch.separator_at, separators)
    if isinstance(generator, TwoWayGenerator):
        assert batch.places is not None
        *where, answered = batch.places
        flat = generator.place(flat, *where, answered=answered)
    return flat


def soft_word_vectors(ids: Tensor, words: Tensor) -> Tensor:
    """Return vectors as a pointer makes them that is right but not certain, (vectors, hidden).

    More than half of each is its word, the rest another's; and noise as large as what the mapping
    of a trained pair adds.

    Args:
        ids: The words to spell, (vectors,).
        words: The generator's word embeddings.
    """
    share = 0.5 + 0.5 * torch.rand(len(ids), 1, device=ids.device)
    others = ids[torch.randperm(len(ids), device=ids.device)]
    mixed = share * words[ids].float() + (1 - share) * words[others].float()
    return (mixed + SOFT_WORD_NOISE * torch.randn_like(mixed)).to(words.dtype)


def losses(
    pair: OscarPair, batch: Batch, taught: Spans | None = None, before: Compressor | None = None
) -> Losses:
    """Compute the answer's cross-entropy, the rerank head's and the pointer's.

    The pair's attention is the packed one (``networks.attention``), that of a two-way generator
    ``methods.oscar.prefixes``. The answer's loss is OSCAR's
    (arXiv:2504.07109, §3.1). So is the rerank head's where a teacher's logit is given, the squared
    error (§3.3); elsewhere it is binary cross-entropy on whether the passage has the answer. Both
    ask for a logit, since what is served is its sigmoid. The pointer's loss teaches memory token i
    to point at the answer's token i, and a pointer that scores bounds those of the answer. That of
    repeats is the unlikelihood of saying what would be wrong (Welleck et al., arXiv:1908.04319,
    §5.1), what was said or an end too soon, a mean over the labels.

    Args:
        pair: In training.
        batch: What it reads.
        taught: How likely a teacher finds each span of the batch's passages (``taught_loss``).
        before: The compressor as it was, whose reading is to be kept (``kept_loss``).
    """
    zero = torch.zeros((), device=batch.prompt.device)
    relevance = score = pointer = told = kept = zero
    memory = None
    if batch.given is not None:
        compressed = pair.compressor(batch.given, pair.generator.words)
        memory, logits = compressed.memory, compressed.relevance
        if len(batch.judged):
            relevance = F.binary_cross_entropy_with_logits(logits[batch.judged_at], batch.judged)
        if len(batch.scores):
            score = F.mse_loss(logits[batch.scored_at], batch.scores)
        if taught is not None:
            told = taught_loss(compressed, taught)
        if before is not None:
            with torch.no_grad():
                old = before(batch.given, pair.generator.words)
            kept = kept_loss(compressed, old)
        if compressed.spans is not None:
            if len(batch.answers):
                pointer = compressed.spans.only(batch.answers_at).nll(batch.answers).mean()
        elif compressed.pointer is not None:
            # The mean over what is not free, which may be nothing.
            total = F.nll_loss(
                compressed.pointer.flatten(0, 1),
                batch.pointed.flatten(),
                ignore_index=IGNORED,
                reduction="sum",
            )
            pointer = total / (batch.pointed != IGNORED).sum().clamp_min(1)
    if not len(batch.labels):  # passages that are only ranked
        return Losses(zero, relevance, score, pointer, zero, zero, told, kept)
    with _Copying(pair, batch) as copying:
        hidden = pair.generator(
            prompt_embeds(pair, batch, memory)[None],
            **_reading(batch),
        ).last_hidden_state[0]
    likely = F.log_softmax(pair.generator.logits(hidden[batch.labels_at]).float(), dim=-1)
    answer = F.nll_loss(likely, batch.labels)
    again = likely[batch.repeats_at, batch.repeats].exp().clamp(max=1 - 1e-5)
    repeats = -torch.log1p(-again).sum() / len(batch.labels)
    return Losses(answer, relevance, score, pointer, repeats, copying.loss, told, kept)


def taught_loss(compressed: Compressed, taught: Spans) -> Tensor:
    """Return how far a pair is from a teacher (Hinton et al., arXiv:1503.02531), a scalar.

    The divergence of its spans, none among them, from the teacher's, and the cross-entropy of its
    relevance with the probability that the teacher sees an answer; each a mean over passages.
    """
    assert compressed.spans is not None
    apart = _divergence(taught.every(), compressed.spans.every())
    likely = torch.sigmoid(taught.odds())
    return apart + F.binary_cross_entropy_with_logits(compressed.relevance, likely)


def kept_loss(compressed: Compressed, old: Compressed) -> Tensor:
    """Return how far a pair's reading went from what it was, a scalar.

    The divergence of its spans from those it found before, given that there is an answer, a mean
    over passages (learning without forgetting: Li and Hoiem, arXiv:1606.09282). Whether there is
    one is free to be learnt anew.
    """
    assert compressed.spans is not None
    assert old.spans is not None
    now, wanted = (spans.table.flatten(1).log_softmax(1) for spans in (compressed.spans, old.spans))
    return _divergence(wanted, now)


def _divergence(wanted: Tensor, found: Tensor) -> Tensor:
    """Return the mean over rows of KL(wanted || found), of log-probabilities, (rows, spans)."""
    return (wanted.exp() * (wanted - found)).sum(1).mean()


def _reading(batch: Batch) -> dict[str, object]:
    """Return how the generator's attention reads a batch."""
    if batch.prefixes is not None:
        return {"prefixes": batch.prefixes}
    return {"packing": batch.packing, "position_ids": batch.packing.position_ids}


class _Copying:
    """Teaches attention, in one layer, where the next word of the answer stands in a text.

    Half of the heads of the last layer but one are to look at that word from the word before it,
    -log of their mean attention (as Liu et al., arXiv:1609.04186, guide attention by alignments).
    A generator so small hardly finds out by itself that answers are copied.
    """

    def __init__(self, pair: OscarPair, batch: Batch) -> None:
        self._attention, self._query, self._key = _looking(pair.generator)
        self._batch = batch
        self._handle: RemovableHandle | None = None
        self.loss = torch.zeros((), device=batch.prompt.device)

    def __enter__(self) -> Self:
        if len(self._batch.copied):
            self._handle = self._attention.register_forward_pre_hook(self._see, with_kwargs=True)
        return self

    def __exit__(self, *raised: object) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Work the loss out from what the layer's attention is about to read."""
        hidden = (args[0] if args else kwargs["hidden_states"])[0]
        rotary = kwargs.get("position_embeddings")
        batch, whole = self._batch, self._attention.config.num_attention_heads
        size = hidden.shape[1] // whole
        looking = batch.labels_at[batch.copied_at]
        whose = batch.packing.sequence_ids[looking]
        starts = batch.packing.starts[whose]
        place = torch.arange(batch.packing.longest, device=hidden.device)
        seen = starts[:, None] + place <= looking[:, None]
        keys_at = (starts[:, None] + place).clamp(max=len(hidden) - 1)
        heads = max(1, whole // 2)

        def placed(projection: nn.Module, at: Tensor) -> Tensor:
            states: Tensor = projection(hidden).view(len(hidden), -1, size)[:, :heads]
            if rotary is not None:
                cos, sin = (part[0] for part in rotary)
                turned = torch.cat([-states[..., size // 2 :], states[..., : size // 2]], dim=-1)
                states = states * cos[:, None] + turned * sin[:, None]
            return states[at]

        query = placed(self._query, looking)  # (looking, heads, size)
        key = placed(self._key, keys_at)  # (looking, longest, heads, size)
        scores = torch.einsum("nhd,nlhd->nhl", query, key).float() * size**-0.5
        likely = scores.masked_fill(~seen[:, None], -torch.inf).log_softmax(-1)
        wanted = (batch.copied - starts)[:, None, None].expand(-1, heads, 1)
        of_heads = likely.gather(-1, wanted).squeeze(-1)
        self.loss = (math.log(heads) - of_heads.logsumexp(-1)).mean()


def _looking(generator: LlamaGenerator | TwoWayGenerator) -> tuple[Any, nn.Module, nn.Module]:
    """Return the attention of the last layer but one, and what makes its queries and keys."""
    two_way = isinstance(generator, TwoWayGenerator)
    layers: Any = generator.backbone.get_submodule("encoder.layer" if two_way else "layers")
    layer = layers[max(0, len(layers) - 2)]
    if two_way:
        attention = layer.attention.self
        return attention, attention.query, attention.key
    return layer.self_attn, layer.self_attn.q_proj, layer.self_attn.k_proj
