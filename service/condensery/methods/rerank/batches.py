"""Batches of queries, each with a passage that answers it and some that do not, and their loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from condensery.errors import shorten
from condensery.methods.rerank.model import PairTokenizer
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.sources import Query
from condensery.methods.trainer.batching import Tokens
from condensery.methods.trainer.method import Draw, Epochs, Loss


@dataclass(frozen=True, slots=True)
class Batch:
    """Pairs of some queries.

    Attributes:
        pairs: Query by query, the passage that answers it first.
        queries: How many; each has as many pairs.
        names: What to call each query.
    """

    pairs: Sequence[Tokens]
    queries: int
    names: Sequence[str]


class Batches:
    """Every query once an epoch, in a new order each, with other negatives each time.

    Args:
        passages: The corpus.
        queries: Queries to train on.
        negatives: What does not answer them, at least ``recipe.negatives`` each.
        pair_tokenizer: Makes pairs.
        recipe: How many of each.
    """

    def __init__(
        self,
        passages: Sequence[str],
        queries: Sequence[Query],
        negatives: Sequence[Sequence[int]],
        pair_tokenizer: PairTokenizer,
        recipe: RerankRecipe,
    ) -> None:
        self._passages, self._queries, self._negatives = passages, queries, negatives
        self._pair_tokenizer, self._recipe = pair_tokenizer, recipe
        self._order = Epochs(len(queries))

    def __call__(self, draw: Draw) -> Batch:
        """Return the draw's batch; batches of a step follow each other in the epoch's order."""
        count = self._recipe.queries
        first = (draw.step * draw.parts + draw.part) * count
        rng = draw.rng()
        texts: list[str] = []
        passages: list[str] = []
        names = []
        for number in range(first, first + count):
            row = self._order(draw.seed, number)
            query = self._queries[row]
            chosen = [
                rng.choice(query.gold),
                *rng.sample(self._negatives[row], self._recipe.negatives),
            ]
            texts += [query.text] * len(chosen)
            passages += [self._passages[number] for number in chosen]
            names.append(f"{query.where}: {shorten(query.text)}")
        return Batch(self._pair_tokenizer.read(texts, passages), count, names)


class RankLoss:
    """The loss of a batch by a network's logits.

    ``listwise``: -log softmax of the gold passage's logit among its query's, the localised
    contrastive estimate (Gao et al., arXiv:2101.08751). ``pointwise``: binary cross-entropy of
    each pair (Nogueira and Cho, arXiv:1901.04085).
    """

    def __init__(self, pair_tokenizer: PairTokenizer, objective: str) -> None:
        self._pair_tokenizer = pair_tokenizer
        self._objective = objective

    def __call__(self, module: nn.Module, batch: Batch) -> Loss:
        """Return the mean over the batch's queries; ``gold_first``: the share it ranks right."""
        device = next(module.parameters()).device
        inputs = self._pair_tokenizer.collate(batch.pairs, device)
        logits = module(**inputs).logits.float().view(batch.queries, -1)
        gold = torch.zeros(batch.queries, dtype=torch.long, device=device)
        if self._objective == "listwise":
            total = F.cross_entropy(logits, gold)
        else:
            wanted = F.one_hot(gold, logits.shape[1]).float()
            total = F.binary_cross_entropy_with_logits(logits, wanted)
        first = (logits[:, :1] > logits[:, 1:]).all(1).float().mean()
        return Loss(total, batch.queries, batch.queries, {"gold_first": first})
