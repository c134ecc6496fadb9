"""Reranking: a cross-encoder that learns its parent's scores of queries with passages."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.errors import InputError, shorten
from condensery.methods.retriever.batches import Example as Row
from condensery.methods.shrp.recipe import ShrpRecipe
from condensery.methods.trainer.batching import EVALUATED_TOKENS, Tokens, collate, in_batches
from condensery.methods.trainer.method import Draw, Epochs
from condensery.networks.backbone import load_classifier
from condensery.networks.classifier import Classifier, run_classifier
from condensery.runtime.classifier import TextPairTokenizer
from condensery.runtime.tokenizing import TOKENIZER
from condensery.store.manifest import StoredModel
from condensery.store.weights import open_folder

GROUP = 8  # passages of a query in a batch, the one that answers it among them
HELD_OUT, MOST_HELD_OUT = 10, 300  # one query in so many, and at most so many
DEPTH = 10  # of nDCG


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Padded pairs, query by query, with the parent's scores (queries, group)."""

    inputs: Mapping[str, Tensor]
    scores: Tensor
    names: Sequence[str]


class RerankTask:
    """The parent's scores, learnt: their distance, and how it ranks a query's passages.

    Args:
        parent: A stored reranker.
        rows: Queries with passages that answer them and that do not; some are held out.
        recipe: Weights of the losses, length, batch.
        device: Where the parent runs.
        dtype: What it computes in.
        padding: The token that fills up.

    Raises:
        InputError: There are too few rows, or one has no negatives; named.
    """

    kind = "reranker"

    def __init__(
        self,
        parent: StoredModel,
        rows: Sequence[Row],
        recipe: ShrpRecipe,
        *,
        device: torch.device,
        dtype: torch.dtype,
        padding: int = 0,
    ) -> None:
        if len(rows) < 2 * HELD_OUT:
            raise InputError(
                f"rows: {len(rows)} queries are too few: at least {2 * HELD_OUT}", field="rows"
            )
        for row in rows:
            if not row.negatives:
                raise InputError(f"{row.where}: negatives: has none", field="negatives")
        self._parent, self._recipe, self._padding = parent, recipe, padding
        self._length = min(recipe.length, parent.manifest.max_tokens)
        order = Epochs(len(rows))
        ordered = [rows[order(recipe.seed, place)] for place in range(len(rows))]
        held = min(MOST_HELD_OUT, len(rows) // HELD_OUT)
        self.validation, self._rows = ordered[:held], ordered[held:]
        self._queries = max(1, recipe.batch // GROUP)
        self.epoch_steps = recipe.epoch_steps or -(-len(self._rows) // self._queries)
        self._order = Epochs(len(self._rows))
        content = [[row.query, row.positives, row.negatives] for row in ordered]
        self.fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        model = load_classifier(open_folder(parent), device=device, dtype=dtype)
        self._teacher: Classifier = run_classifier(model)
        self._threads = ThreadPoolExecutor(1)
        self._tokenizer = TextPairTokenizer.load(
            parent.file(TOKENIZER).parent, self._length, self._threads
        )

    def tokenise(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens]:
        """Return the tokens of queries with passages, as the service reads them."""
        read = self._tokenizer.tokenise(list(pairs), truncate=True, field="rows")
        return [Tokens(row.ids, row.types) for row in asyncio.run(read)]

    def batch(self, draw: Draw, device: torch.device) -> ScoredBatch:
        """Return the batch of a draw: each query with an answer and passages that are none."""
        count = max(1, self._queries // draw.parts)
        first = (draw.step * draw.parts + draw.part) * count
        rng = draw.rng()
        pairs: list[tuple[str, str]] = []
        names = []
        for place in range(first, first + count):
            row = self._rows[self._order(draw.seed, place)]
            wrong = list(row.negatives)
            while len(wrong) < GROUP - 1:
                wrong += row.negatives
            chosen = [rng.choice(row.positives), *rng.sample(wrong, GROUP - 1)]
            pairs += [(row.query, passage) for passage in chosen]
            names.append(f"{row.where}: {shorten(row.query)}")
        tokens = self.tokenise(pairs)
        scores = self.scores(self._teacher, tokens).view(count, GROUP)
        return ScoredBatch(collate(tokens, self._padding, device), scores.to(device), names)

    def loss(self, network: nn.Module, batch: ScoredBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared distance of scores, and the KL divergence of rankings."""
        recipe, wanted = self._recipe, batch.scores
        own = network(**batch.inputs).logits.float().view(wanted.shape)
        terms = {"scores": F.mse_loss(own, wanted)}
        total = recipe.distil * terms["scores"]
        if recipe.relation:
            terms["ranking"] = F.kl_div(
                own.log_softmax(1), wanted.log_softmax(1), reduction="batchmean", log_target=True
            )
            total = total + recipe.relation * terms["ranking"]
        return total, terms

    @torch.no_grad()
    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Return nDCG@10 of held-out queries' own passages."""
        device = next(network.parameters()).device
        tokens = self.validation_tokens()
        logits = in_batches(
            tokens,
            EVALUATED_TOKENS,
            lambda rows: network(**collate(rows, self._padding, device)).logits,
        )
        by_query = self.gains(logits.flatten().tolist())
        return {"ndcg@10": sum(by_query) / len(by_query)}

    def validation_tokens(self) -> list[Tokens]:
        """Return the tokens of all held-out queries with all their passages."""
        return self.tokenise(
            [(row.query, text) for row in self.validation for text in _passages(row)]
        )

    def gains(self, scores: Sequence[float]) -> list[float]:
        """Return each held-out query's nDCG@10 when its passages are put into scores' order."""
        by_query: list[float] = []
        at = 0
        for row in self.validation:
            count = len(_passages(row))
            by_query.append(ndcg(scores[at : at + count], len(row.positives)))
            at += count
        return by_query

    @staticmethod
    def scores(network: Classifier, tokens: Sequence[Tokens]) -> Tensor:
        """Return a served network's scores of pairs, (pairs,)."""
        logits = in_batches(
            tokens,
            EVALUATED_TOKENS,
            lambda rows: network.read([row.ids for row in rows], [row.types for row in rows]),
        )
        return logits.flatten().float()


def ndcg(scores: Sequence[float], right: int) -> float:
    """Return nDCG@10 of passages whose first ``right`` are the right ones; of ties the worst."""
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], -place))
    gained = sum(1 / log2(rank + 2) for rank, p in enumerate(order[:DEPTH]) if p < right)
    return gained / sum(1 / log2(rank + 2) for rank in range(min(right, DEPTH)))


def _passages(row: Row) -> tuple[str, ...]:
    return row.positives + row.negatives
