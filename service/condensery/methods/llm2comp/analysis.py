"""How much room embeddings use, and how alike memory tokens are (paper, section 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from condensery.methods.llm2comp.network import MOST_TOKENS, MemoryNetwork
from condensery.methods.ranking.similarities import Similarities, spearman
from condensery.methods.trainer.batching import Tokens, by_length
from condensery.methods.trainer.reports import DPI, new_figure, save_figure
from condensery.networks.llm2comp import token_similarity

Vectors = NDArray[np.float32]


def singular_values(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Return the singular values of embeddings' covariance matrix, the largest first.

    Args:
        vectors: (texts, dims), of any length; with fewer texts than dimensions there are as many
            values as texts, the last of them 0.
    """
    centred = vectors.astype(np.float64)
    centred -= centred.mean(0)
    values = np.linalg.svd(centred, compute_uv=False).astype(np.float64)
    return values**2 / max(1, len(vectors) - 1)


def effective_dimension(values: NDArray[np.float64]) -> float:
    """Return how many even dimensions would spread variance as unevenly: the entropy's exponent.

    The paper reads the number off its plots, where the values drop to nothing.

    Args:
        values: Of the covariance, as ``singular_values`` gives them.
    """
    total = values.sum()
    if total <= 0:
        return 1.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def dimensions_for(values: NDArray[np.float64], share: float = 0.99) -> int:
    """Return how many of the largest values are needed for a share of the variance."""
    total = values.sum()
    if total <= 0:
        return 1
    return int(np.searchsorted(np.cumsum(values) / total, share)) + 1


@dataclass(frozen=True, slots=True)
class Analysis:
    """What embeddings of some texts are like.

    Attributes:
        values: Singular values of their covariance, the largest first.
        similarity: Mean cosines of memory tokens of a text with each other, (k, k); empty of a
            network without.
        texts: How many there were.
    """

    values: NDArray[np.float64]
    similarity: NDArray[np.float64]
    texts: int

    def figures(self) -> dict[str, float]:
        """Return what a log shows of it."""
        figures: dict[str, float] = {
            "effective dimension": effective_dimension(self.values),
            "dimensions for 99 %": dimensions_for(self.values),
        }
        k = len(self.similarity)
        if k > 1:
            others = self.similarity[~np.eye(k, dtype=bool)]
            figures["memory similarity"] = float(others.mean())
        return figures

    def to_json(self) -> dict[str, Any]:
        """Return it as a report has it."""
        return {
            "texts": self.texts,
            "singular_values": [float(f"{value:.6g}") for value in self.values],
            "similarity": np.round(self.similarity, 6).tolist(),
            "figures": self.figures(),
        }


@torch.no_grad()
def analyse(network: MemoryNetwork, rows: Sequence[Sequence[int]]) -> Analysis:
    """Embed texts, and look at what comes out.

    Args:
        network: In evaluation mode.
        rows: Token ids of each.
    """
    if not network.shape.k:
        vectors = network.embed(rows).cpu().numpy()
        return Analysis(singular_values(vectors), np.empty((0, 0)), len(rows))
    parts = [
        network.memory_states([rows[place] for place in places]).float().cpu()
        for places in by_length([Tokens(row) for row in rows], MOST_TOKENS)
    ]
    vectors = torch.cat([part.mean(1) for part in parts]).numpy()
    similarity = token_similarity(parts).numpy()
    return Analysis(singular_values(vectors), similarity, len(rows))


@torch.no_grad()
def correlations(
    network: MemoryNetwork, alike: Sequence[tuple[Similarities, Sequence[Sequence[int]]]]
) -> dict[str, float]:
    """Return Spearman's correlation of cosines with people's scores, by set.

    Args:
        network: In evaluation mode.
        alike: Sets, each with its texts' token ids: all first ones, then all second ones.
    """
    figures = {}
    for item, rows in alike:
        vectors = torch.nn.functional.normalize(network.embed(rows), dim=1).cpu().numpy()
        count = len(item.pairs)
        figures[f"spearman {item.name}"] = spearman(vectors[:count], vectors[count:], item.scores)
    return figures


def draw_spectra(spectra: Mapping[str, Sequence[float]], path: Path, *, dpi: int = DPI) -> Path:
    """Draw singular values by their place, a line a model (the paper's figures 4 and 9)."""
    figure = new_figure(6, 4)
    axes = figure.subplots()
    for label, values in spectra.items():
        largest = max(values[0], 1e-30) if len(values) else 1.0
        shares = np.maximum(np.array(values) / largest, 1e-12)
        axes.semilogy(np.arange(1, len(shares) + 1), shares, label=label)
    axes.set_ylim(1e-7, 1.5)
    axes.set_xlabel("principal component")
    axes.set_ylabel("singular value of the covariance, of the largest")
    axes.set_title("Embeddings of held-out texts")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right", fontsize="small")
    return save_figure(figure, path, dpi=dpi)


def draw_similarity(
    matrices: Mapping[str, Sequence[Sequence[float]]], path: Path, *, dpi: int = DPI
) -> Path:
    """Draw how alike memory tokens are, a square a model (the paper's figures 5 and 6)."""
    figure = new_figure(1 + 3 * len(matrices), 3.2)
    squares = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axes, (label, matrix) in zip(squares, matrices.items(), strict=True):
        picture = axes.imshow(np.array(matrix), cmap="viridis", vmin=0, vmax=1)
        axes.set_title(label, fontsize="small")
        axes.set_xlabel("memory token")
    figure.colorbar(picture, ax=list(squares), label="mean cosine")
    return save_figure(figure, path, dpi=dpi)
