"""What memory encoders are worth, beside what their language model gives without training."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from condensery.atomic_files import write_atomically
from condensery.methods.llm2comp.network import MemoryNetwork, open_base
from condensery.methods.llm2comp.recipe import NetworkShape
from condensery.methods.llm2comp.sources import Base
from condensery.methods.llm2comp.weights import StageResult
from condensery.methods.ranking.measures import DEPTH, ndcg
from condensery.methods.ranking.retrieval import titled_text
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.ranking.similarities import Similarities, spearman
from condensery.methods.retriever.measuring import MeasuringSetup
from condensery.methods.retriever.timing import Vectors
from condensery.methods.trainer.batching import Tokens
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.reports import paired_bootstrap
from condensery.networks.building import build_backbone
from condensery.networks.pooling import normalise
from condensery.runtime.encoder import network_files
from condensery.runtime.tokenizing import TOKENIZER, TextTokenizer
from condensery.store.manifest import StoredModel

SEED = 17
RESAMPLED = 1000  # of the interval of a correlation
BLOCK = 4096  # texts: an encoding takes a hundred times its ids
UNTRAINED = {"last": "language model, last token", "weighted": "language model, weighted mean"}
Figures = NDArray[np.float32]
Read = Callable[[Sequence[Tokens]], Figures]


@dataclass(frozen=True, slots=True)
class Embedder:
    """Texts to vectors of length 1.

    Attributes:
        read: From token ids; (texts, dims).
        tokenizer: Cuts texts to what there is room for.
    """

    read: Read
    tokenizer: TextTokenizer

    def tokens(self, texts: Sequence[str], prompt: str = "") -> list[Tokens]:
        """Return what is read of texts."""
        most = self.tokenizer.max_characters
        rows: list[Tokens] = []
        for first in range(0, len(texts), BLOCK):
            part = [text[:most] for text in texts[first : first + BLOCK]]
            rows += [Tokens(row.ids) for row in self.tokenizer.encode(part, prompt=prompt)]
        return rows

    def __call__(self, texts: Sequence[str], prompt: str = "") -> Figures:
        """Embed texts, each with a prompt before it; returns (texts, dims)."""
        return self.read(self.tokens(texts, prompt))


def untrained(base: Base, shape: NetworkShape, pooling: str, setup: TrainingSetup) -> MemoryNetwork:
    """Open the language model itself as an encoder: causal, by the states that pooling takes."""
    words = base.words(shape)
    own = replace(shape, pooling=pooling, attention="auto")
    folder = open_base(base.folder, device=setup.device, dtype=setup.dtype)
    network = MemoryNetwork(folder, own, words.start)
    network.place(setup)
    return network.eval()


def trained(
    base: Base, shape: NetworkShape, stage: StageResult, setup: TrainingSetup
) -> MemoryNetwork:
    """Open what a stage made."""
    words = base.words(shape)
    folder = open_base(base.folder, device=setup.device, dtype=setup.dtype)
    network = MemoryNetwork(folder, shape, words.start, weights=(stage.weights, stage.scale))
    network.place(setup)
    return network.eval()


def network_embedder(network: MemoryNetwork, base: Base, most: int) -> Embedder:
    """Embed by a network as it is trained.

    Args:
        network: In evaluation mode.
        base: Its language model.
        most: Tokens of a text, memory tokens included.
    """
    shape = network.shape
    room = most - shape.k
    if shape.pooling == "echo":
        room = (most + network.begins) // 2

    @torch.no_grad()
    def read(rows: Sequence[Tokens]) -> Figures:
        vectors = normalise(network.embed([row.ids for row in rows]))
        array: Figures = vectors.cpu().numpy()
        return array

    return Embedder(read, TextTokenizer(base.words(shape).tokenizer, room))


def stored_embedder(stored: StoredModel, where: MeasuringSetup) -> Embedder:
    """Embed by a stored encoder as it is served."""
    manifest = stored.manifest
    backbone = build_backbone(manifest.method, network_files(stored, where.device, where.dtype))
    folder = stored.file(TOKENIZER).parent
    tokenizer = TextTokenizer.load(folder, manifest.max_tokens - backbone.extra_tokens)
    return Embedder(Vectors(backbone, manifest.pooling or "mean"), tokenizer)


@dataclass(frozen=True, slots=True)
class Trial:
    """What encoders are measured on, one after the other.

    Attributes:
        similarities: Scored pairs.
        sets: Retrieval sets.
        work: Folder where figures are kept, so that a run that goes on need not measure again.
    """

    similarities: Sequence[Similarities] = ()
    sets: Sequence[RankingSet] = ()
    work: Path | None = None
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def measure(self, name: str, open_it: Callable[[], Embedder], about: str, query: str) -> None:
        """Measure an encoder on all of it.

        Args:
            name: What it is called.
            open_it: Called where something is not measured yet.
            about: Tells it from others.
            query: Prompt of retrieval's queries.
        """
        opened: list[Embedder] = []

        def embed(texts: Sequence[str], prompt: str = "") -> Figures:
            if not opened:
                opened.append(open_it())
            return opened[0](texts, prompt)

        own = self.figures.setdefault(name, {})
        for item in self.similarities:
            content = json.dumps([item.pairs, item.scores.tolist()])
            own[item.name] = self._kept(
                f"{about} {item.name} {_digest(content)}", partial(measure_pairs, embed, item)
            )
        for ranking in self.sets:
            content = f"{ranking.content} {sorted(ranking.queries)} {query}"
            own[ranking.name] = self._kept(
                f"{about} {ranking.name} {_digest(content)}",
                partial(measure_set, embed, ranking, query),
            )

    def _kept(self, about: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        path = None if self.work is None else self.work / f"{_digest(about)[:24]}.json"
        if path is not None and path.is_file():
            kept: dict[str, Any] = json.loads(path.read_text())
            return kept
        figures = measure()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(figures) + "\n")
        return figures

    def report(self, name: str, others: Sequence[str]) -> dict[str, Any]:
        """Return all figures by set, and what one encoder has more than some others.

        Each ``minus`` has a 95 % interval, by resampling queries, or pairs, the same for both.
        """
        by_set: dict[str, Any] = {}
        for item in self.similarities:
            cosines = {n: np.array(of_it[item.name]["by"]) for n, of_it in self.figures.items()}
            values = {n: of_it[item.name]["spearman"] for n, of_it in self.figures.items()}
            minus = {
                n: _correlation_difference(cosines[name], cosines[n], item.scores) for n in others
            }
            by_set[item.name] = {
                "measure": "spearman",
                "size": len(item.pairs),
                "models": values,
                "minus": minus,
            }
        for ranking in self.sets:
            by_query = {n: of_it[ranking.name]["by"] for n, of_it in self.figures.items()}
            own = by_query[name]
            minus = {
                n: list(paired_bootstrap([*own.values()], [by_query[n][q] for q in own], seed=SEED))
                for n in others
            }
            by_set[ranking.name] = {
                "measure": f"ndcg@{DEPTH}",
                "size": len(own),
                "models": {n: fmean(values.values()) for n, values in by_query.items()},
                "minus": minus,
            }
        return by_set


Embed = Callable[..., Figures]


def measure_pairs(embed: Embed, item: Similarities) -> dict[str, Any]:
    """Return Spearman's correlation of cosines with scores, and the cosines."""
    left, right = (embed([pair[side] for pair in item.pairs]) for side in (0, 1))
    cosines = [round(float(value), 6) for value in (left * right).sum(1)]
    return {"spearman": spearman(left, right, item.scores), "by": cosines}


def measure_set(embed: Embed, ranking: RankingSet, query: str = "") -> dict[str, Any]:
    """Return each query's nDCG@10 over the whole corpus, by inner product.

    Args:
        embed: Of texts and a prompt.
        ranking: Passages and queries.
        query: Prompt of queries.
    """
    passages = embed([titled_text(passage) for passage in ranking.passages])
    queries = embed([*ranking.queries.values()], query)
    best = np.argsort(-(queries @ passages.T), axis=1, kind="stable")[:, :DEPTH]
    names = [passage.id for passage in ranking.passages]
    hits = {q: [names[at] for at in row] for q, row in zip(ranking.queries, best, strict=True)}
    return {"by": ndcg(hits, ranking.judged, DEPTH)}


def _correlation_difference(
    own: NDArray[np.float64], other: NDArray[np.float64], scores: NDArray[np.float64]
) -> list[float]:
    def rank(values: NDArray[np.float64], picks: NDArray[np.int64] | slice) -> float:
        one = values[picks][:, None]
        return spearman(one, np.ones_like(one), scores[picks])

    rng = np.random.default_rng(SEED)
    draws = [rng.integers(len(scores), size=len(scores)) for _ in range(RESAMPLED)]
    differences = [rank(own, picks) - rank(other, picks) for picks in draws]
    low, high = np.percentile(differences, [2.5, 97.5])
    return [rank(own, slice(None)) - rank(other, slice(None)), float(low), float(high)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
