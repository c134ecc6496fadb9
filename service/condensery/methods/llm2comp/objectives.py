"""What a compressed text is asked to be good for: read on from, or told from others.

A text ``n_1 .. n_L`` (``n_1`` the start token) is split after ``a`` tokens. The encoder reads the
first part and gives ``k`` memory states ``m``; the frozen language model g reads them in its place:
``[start] m_1 .. m_k n_{a+1} .. n_L``. Source: LLM2Comp (AAAI 2026), equations 1 to 5 and 8.

g's scores are those of its own words. The released code grew its head by k random rows, which
no text ever asks for; a base without such rows is what was meant to be distilled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condensery.methods.llm2comp.network import MemoryNetwork, padded
from condensery.methods.lm.model import CHUNK, linear_cross_entropy
from condensery.methods.retriever.tuning import contrastive
from condensery.methods.trainer.method import Loss
from condensery.methods.trainer.processes import Processes


@dataclass(frozen=True, slots=True)
class SplitTexts:
    """Texts with the places where they are split.

    Attributes:
        rows: Token ids, the start token included.
        splits: Of each, how many tokens are compressed, the start token among them.
        names: What to call each.
    """

    rows: Sequence[Sequence[int]]
    splits: Sequence[int]
    names: Sequence[str]


def pretext_loss(network: MemoryNetwork, batch: SplitTexts, objective: str) -> Loss:
    """Return how well the frozen language model reads on from the memory tokens.

    Args:
        network: In training.
        batch: Texts.
        objective: ``ctkd``, ``nll`` or ``reconstruction``.
    """
    if objective == "ctkd":
        return distilled_continuation(network, batch)
    return likelihood_loss(network, batch, again=objective == "reconstruction")


def read_memory(
    network: MemoryNetwork, firsts: Sequence[Sequence[int]], seconds: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Compress the first parts, and let the frozen language model read them and the second parts.

    Returns:
        Its states from the last memory token on, (texts, 1 + longest second, hidden): state 0
        predicts a second part's first token, and so on; and the second parts' lengths (texts,).
    """
    memory = network.memory_states(firsts)
    ids, lengths = padded(seconds, network.device)
    parts = [memory, network.base_embeddings(ids)]
    if network.start is not None:
        start = torch.full((len(firsts), 1), network.start, device=network.device)
        parts.insert(0, network.base_embeddings(start))
    hidden = network.read_on(torch.cat(parts, dim=1))
    return hidden[:, network.begins + network.shape.k - 1 :], lengths


def distilled_continuation(network: MemoryNetwork, batch: SplitTexts) -> Loss:
    """Return CTKD: KL(g given the text || g given the memory), a continuation's C + 1 places.

    From the last place of what is compressed to the continuation's last token, whose successor
    is predicted too: positions a-1 .. a+C-1 of the text, k .. k+C of what the memory begins. Sum
    over words, mean over a text's places, mean over texts; float32.
    """
    firsts = [row[:split] for row, split in zip(batch.rows, batch.splits, strict=True)]
    seconds = [row[split:] for row, split in zip(batch.rows, batch.splits, strict=True)]
    student, lengths = read_memory(network, firsts, seconds)
    ids, _ = padded(batch.rows, network.device)
    with torch.no_grad():
        whole = network.read_on(network.base_embeddings(ids))
    splits = torch.tensor(batch.splits, device=network.device)
    places = torch.arange(student.shape[1], device=network.device)[None]
    kept = places <= lengths[:, None]
    at = (splits[:, None] - 1 + places).clamp(max=whole.shape[1] - 1)
    teacher = whole.gather(1, at[..., None].expand(-1, -1, whole.shape[-1]))
    weights = (kept / (lengths[:, None] + 1.0) / len(batch.rows)).float()
    total = linear_divergence(student[kept], teacher[kept], network.head, weights[kept])
    return Loss(total, len(batch.rows), len(batch.rows))


def likelihood_loss(network: MemoryNetwork, batch: SplitTexts, *, again: bool) -> Loss:
    """Return the negative log-likelihood of the continuation, or of the beginning once more.

    Mean over all tokens of the batch; the start token is never predicted.
    """
    pairs = [*zip(batch.rows, batch.splits, strict=True)]
    firsts = [row[:split] for row, split in pairs]
    seconds = [row[network.begins : split] if again else row[split:] for row, split in pairs]
    hidden, lengths = read_memory(network, firsts, seconds)
    ids, _ = padded(seconds, network.device)
    kept = torch.arange(ids.shape[1], device=network.device)[None] < lengths[:, None]
    total = linear_cross_entropy(hidden[:, :-1][kept], network.head, ids[kept])
    return Loss(total, float(kept.sum()), len(batch.rows))


def linear_divergence(student: Tensor, teacher: Tensor, head: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of KL(teacher || student) over places, each over all words.

    Args:
        student: States, (places, hidden); they alone get gradients.
        teacher: States, as many.
        head: What scores words by either, (vocabulary, hidden).
        weights: Of the places, (places,).
    """
    learns = torch.is_grad_enabled()  # in the function it never is
    loss: Tensor = _Divergence.apply(student, teacher, head, weights, learns)  # type: ignore[no-untyped-call]
    return loss


class _Divergence(torch.autograd.Function):
    """Keeps the gradient that each chunk of logits gives, instead of the logits."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, head: Tensor, weights: Tensor, learns: bool
    ) -> Tensor:
        gradient = torch.empty_like(student)
        total = student.new_zeros((), dtype=torch.float32)
        for at in range(0, len(student), CHUNK):
            part = slice(at, at + CHUNK)
            own, wanted = (
                (states[part] @ head.T).float().log_softmax(1) for states in (student, teacher)
            )
            shares = wanted.exp()
            total += weights[part] @ (shares * (wanted - own)).sum(1)
            if learns:  # d KL / d logits = softmax(student) - softmax(teacher)
                by_logits = own.exp_().sub_(shares).mul_(weights[part, None])
                gradient[part] = by_logits.to(head.dtype) @ head
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * above[0].to(gradient.dtype), None, None, None, None


def contrast_loss(
    vectors: Tensor,
    queries: int,
    *,
    temperature: float,
    keys: Tensor | None = None,
    answers: Tensor | None = None,
    processes: Processes | None = None,
) -> Loss:
    """Return InfoNCE of cosines (equation 8), of queries against passages, in one direction.

    For the unsupervised stage, the first views are the queries and the second ones the passages.

    Args:
        vectors: Of the queries, then of their passages, (queries * (1 + group), dims), of any
            length: of each query its positive, then its hard negatives.
        queries: How many.
        temperature: Of the cosines.
        keys: What tells passages' texts apart; see ``retriever.tuning.contrastive``.
        answers: The keys of all that answers each query: never negatives of it.
        processes: Whose passages are candidates too, gradients included.
    """
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    asked, passages = unit[:queries], unit[queries:]
    total = contrastive(
        asked,
        passages,
        temperature=temperature,
        keys=None if keys is None else keys.to(unit.device),
        answers=None if answers is None else answers.to(unit.device),
        processes=processes,
    )
    nearest = (asked @ passages.T).argmax(1)
    own = torch.arange(queries, device=unit.device) * (len(passages) // queries)
    return Loss(total, queries, queries, {"first": (nearest == own).float().mean()})
