"""What a pair of causal language models is trained to do.

OSCAR (arXiv:2504.07109), section 3: cross-entropy on a teacher's answers from the compressed
passages, and squared error against a cross-encoder's scores, in one forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from condensery.methods.oscar.causal.items import Item
from condensery.methods.trainer.method import Loss
from condensery.networks.backbone import CPU_ROW_MULTIPLE
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_interface import Memories
from condensery.networks.oscar_texts import CausalTexts
from condensery.networks.packing import Packing


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """What one forward pass gives.

    Attributes:
        memories: Of all readings, one after another; None where every passage was plain.
        logprobs: Of each item's label, (its tokens,).
    """

    memories: Memories | None
    logprobs: tuple[Tensor, ...]


def run_forward(pair: CausalPair, items: Sequence[Item], texts: CausalTexts) -> ForwardResult:
    """Compress what is to be compressed, and say each label: a packed row a half, no padding."""
    readings = [window for item in items for window in item.readings]
    memories = pair.compressor.compress(readings) if readings else None
    vectors = iter(memories.split() if memories else ())
    rows, counts = [], []
    for item in items:
        prompt = item.prompt(texts, [next(vectors) for _ in item.readings])
        rows.append(pair.generator.embed([*prompt, item.label[:-1]])[0])
        counts.append(len(item.label))
    device, dtype = pair.generator.device, pair.generator.dtype
    packing = Packing.of(
        [len(row) for row in rows],
        dtype=dtype,
        device=device,
        total_multiple=CPU_ROW_MULTIPLE if device.type == "cpu" else 1,
    )
    row = torch.cat(rows)
    filler = row.new_zeros(packing.total - len(row), row.shape[1])
    hidden = pair.generator(
        torch.cat([row, filler])[None],
        position_ids=packing.position_ids,
        packing=packing,
        use_cache=False,
    ).last_hidden_state[0]
    ends = packing.ends.tolist()
    spans = zip(ends, counts, strict=True)
    at = [place for end, count in spans for place in range(end - count + 1, end + 1)]
    labels = torch.tensor([t for item in items for t in item.label], device=device)
    scores = pair.generator.logits(hidden[torch.tensor(at, device=device)]).float()
    likely = scores.log_softmax(-1).gather(1, labels[:, None])[:, 0]
    return ForwardResult(memories, likely.split(counts))


def loss(pair: CausalPair, items: Sequence[Item], texts: CausalTexts, weight: float) -> Loss:
    """Return the mean over the items of what each is to lower.

    That is the mean of its label's cross-entropies, and ``weight`` times the mean squared error
    of its passages' relevance. Means, so that neither long labels nor many passages weigh more.
    An item without scores has no second term.

    Args:
        pair: In training.
        items: The batch.
        texts: The pair's.
        weight: Lambda.
    """
    result = run_forward(pair, items, texts)
    label = torch.stack([-logprobs.mean() for logprobs in result.logprobs]).mean()
    rerank = torch.zeros((), device=label.device)
    relevance = None if result.memories is None else result.memories.relevance
    if relevance is not None and weight:
        pieces = relevance.split([len(item.readings) for item in items])
        errors = [
            (piece - piece.new_tensor(item.scores)).square().mean()
            for piece, item in zip(pieces, items, strict=True)
            if item.scores is not None and len(piece)
        ]
        if errors:
            rerank = torch.stack(errors).sum() / len(items)
    total = label + weight * rerank
    terms: dict[str, Tensor] = {"label": label, "rerank": rerank}
    return Loss(total, weight=len(items), items=len(items), terms=terms)
