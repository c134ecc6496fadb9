"""Sentence embeddings: a network that learns its parent's vectors, from plain text.

Beside the vectors themselves it learns how the texts of a batch resemble each other, and where
there are rows of queries with passages, to tell a query's passage from the others'.
"""

import hashlib
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from condensery.atomic_files import sync_path
from condensery.errors import InputError, shorten
from condensery.methods.ranking.similarities import Similarities, spearman
from condensery.methods.retriever.batches import Example as Row
from condensery.methods.retriever.timing import Vectors
from condensery.methods.retriever.tuning import contrastive
from condensery.methods.shrp.recipe import ShrpRecipe
from condensery.methods.trainer.batching import (
    EVALUATED_TOKENS,
    LengthBuckets,
    Tokens,
    collate,
    in_batches,
)
from condensery.methods.trainer.method import Draw, Epochs
from condensery.networks.backbone import load_backbone
from condensery.networks.pooling import Pooling, normalise
from condensery.runtime.tokenizing import TOKENIZER, TextTokenizer
from condensery.store.manifest import StoredModel
from condensery.store.weights import open_folder

AT_ONCE = 4096  # texts: an encoding takes a hundred times its ids
HELD_OUT, MOST_HELD_OUT = 50, 1000  # one text in so many, and at most so many


def _keep(vectors: NDArray[np.float32], path: Path) -> None:
    """Write vectors in half precision, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}.npy")  # of several processes each makes it
    np.save(aside, vectors.astype(np.float16), allow_pickle=False)
    sync_path(aside)
    aside.replace(path)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Padded texts with the parent's vectors, and queries with their passages after them.

    Attributes:
        inputs: Texts, then queries, then as many passages.
        vectors: Of the texts, (texts, dims).
        hidden: The last hidden states of the texts' tokens, (tokens, dims), if they are learnt.
        names: What to call the texts.
    """

    inputs: Mapping[str, Tensor]
    vectors: Tensor
    hidden: Tensor | None
    names: Sequence[str]


class EmbeddingTask:
    """The parent's vectors, learnt.

    Args:
        parent: A stored encoder.
        texts: What to learn on; some are held out.
        recipe: Weights of the losses, length, batch.
        rows: Queries with passages, for the contrastive loss.
        similarities: To measure on meanwhile.
        work: Folder where the parent's vectors are kept.
        device: Where the parent runs.
        dtype: What it computes in.
        padding: The token that fills up.

    Raises:
        InputError: There are too few texts, or no rows for the contrastive loss.
    """

    kind = "encoder"

    def __init__(
        self,
        parent: StoredModel,
        texts: Sequence[str],
        recipe: ShrpRecipe,
        *,
        rows: Sequence[Row] = (),
        similarities: Sequence[Similarities] = (),
        work: Path,
        device: torch.device,
        dtype: torch.dtype,
        padding: int = 0,
    ) -> None:
        if recipe.contrast and not rows:
            raise InputError("rows: the contrastive loss learns from rows; none are given")
        if len(texts) < 2 * HELD_OUT:
            raise InputError(
                f"text: {len(texts)} texts are too few: at least {2 * HELD_OUT}", field="text"
            )
        self._recipe, self._rows, self._similarities = recipe, rows, similarities
        self._padding = padding
        self._pooling: Pooling = parent.manifest.pooling or "mean"
        most = min(recipe.length, parent.manifest.max_tokens)
        self._tokenizer = TextTokenizer.load(parent.file(TOKENIZER).parent, most)
        order = np.random.default_rng(recipe.seed).permutation(len(texts))
        held = min(MOST_HELD_OUT, len(texts) // HELD_OUT)
        self._texts = [texts[place] for place in order]
        tokens = self.tokenise(self._texts)
        content = "\n".join([*self._texts, *(f"{r.query}\t{r.positives}" for r in rows)])
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        self._held, self._tokens = tokens[:held], tokens[held:]
        self._first = held
        read = partial(load_backbone, open_folder(parent), device=device, dtype=dtype)
        # Where hidden states are learnt the parent reads every batch, and its vectors come along.
        self._parent = Vectors(read(), self._pooling) if recipe.hidden else None
        if self._parent is not None:
            self._goals = self._parent(self._held)
        else:
            name = f"{parent.manifest.fingerprint} {self.fingerprint} {most} {dtype}"
            path = work / f"vectors-{hashlib.sha256(name.encode()).hexdigest()[:16]}.npy"
            if not path.is_file():
                _keep(Vectors(read(), self._pooling)(tokens), path)
            self._goals = np.load(path, mmap_mode="r")
        self._draw = LengthBuckets(
            [len(row.ids) for row in self._tokens], recipe.batch, recipe.epoch_steps
        )
        self._pairs = Epochs(len(rows)) if rows else None
        self.epoch_steps = self._draw.epoch_steps

    def tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of texts, cut to the length."""
        most = self._tokenizer.max_characters
        rows: list[Tokens] = []
        for first in range(0, len(texts), AT_ONCE):
            part = [text[:most] for text in texts[first : first + AT_ONCE]]
            rows += [Tokens(array("i", row.ids)) for row in self._tokenizer.encode(part)]
        return rows

    def validation_tokens(self) -> Sequence[Tokens]:
        """Return the tokens of the texts held out."""
        return self._held

    def batch(self, draw: Draw, device: torch.device) -> TextBatch:
        """Return the batch of a draw; as many queries with a passage each as a half of it."""
        rows = self._draw(draw)
        tokens = [self._tokens[row] for row in rows]
        if self._recipe.contrast and self._pairs is not None:
            count = max(2, len(rows) // 2)
            first = (draw.step * draw.parts + draw.part) * count
            chosen = [self._rows[self._pairs(draw.seed, first + n)] for n in range(count)]
            rng = draw.rng()
            tokens += self.tokenise([row.query for row in chosen])
            tokens += self.tokenise([rng.choice(row.positives) for row in chosen])
        if self._parent is None:
            goals = np.array(self._goals[[row + self._first for row in rows]], dtype=np.float32)
            hidden, vectors = None, torch.from_numpy(goals).to(device)
        else:
            hidden, vectors = self._parent.read(tokens[: len(rows)])
        return TextBatch(
            collate(tokens, self._padding, device),
            vectors,
            hidden,
            [shorten(self._texts[row + self._first]) for row in rows],
        )

    def loss(self, network: nn.Module, batch: TextBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted distances to the parent's vectors, and the contrastive loss."""
        recipe, wanted = self._recipe, batch.vectors
        states = self._states(network, batch.inputs)
        everything = self._pool(states, batch.inputs)
        own, rest = everything[: len(wanted)], everything[len(wanted) :]
        terms = {"vectors": (1 - (own * wanted).sum(1)).mean()}
        total = recipe.distil * terms["vectors"]
        if batch.hidden is not None:
            mask = batch.inputs["attention_mask"][: len(wanted)].bool()
            near = F.cosine_similarity(states[: len(wanted)][mask], batch.hidden, dim=1)
            terms["hidden"] = (1 - near).mean()
            total = total + recipe.hidden * terms["hidden"]
        if recipe.relation and len(own) > 2:
            terms["relation"] = relation_loss(own, wanted, recipe.temperature)
            total = total + recipe.relation * terms["relation"]
        if recipe.contrast and len(rest):
            queries, passages = rest.chunk(2)
            terms["contrast"] = contrastive(queries, passages, temperature=recipe.temperature)
            total = total + recipe.contrast * terms["contrast"]
        return total, terms

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        """Return figures on what was held out, and on the pairs given."""
        return self.measure(network, self._similarities)

    @torch.no_grad()
    def measure(self, network: nn.Module, similarities: Sequence[Similarities]) -> dict[str, float]:
        """Return the mean cosine to the parent's vectors of held-out texts, and correlations."""
        vectors = self._embed(network, self._held)
        wanted = np.array(self._goals[: self._first], dtype=np.float32)
        figures = {"cosine": float((vectors * wanted).sum(1).mean())}
        for item in similarities:
            left, right = (
                self._embed(network, self.tokenise([pair[side] for pair in item.pairs]))
                for side in (0, 1)
            )
            figures[f"spearman {item.name}"] = spearman(left, right, item.scores)
        return figures

    def _embed(self, network: nn.Module, rows: Sequence[Tokens]) -> NDArray[np.float32]:
        device = next(network.parameters()).device
        vectors: NDArray[np.float32] = in_batches(
            rows,
            EVALUATED_TOKENS,
            lambda part: self._read(network, collate(part, self._padding, device)).cpu(),
        ).numpy()
        return vectors

    def _read(self, network: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return vectors of length 1, (texts, dims), float32."""
        return self._pool(self._states(network, inputs), inputs)

    def _states(self, network: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return last hidden states, (texts, longest, dims), float32."""
        states: Tensor = network(**inputs).last_hidden_state.float()
        return states

    def _pool(self, hidden: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        if self._pooling == "cls":
            return normalise(hidden[:, 0])
        mask = inputs["attention_mask"][..., None].float()
        return normalise((hidden * mask).sum(1) / mask.sum(1))


def relation_loss(own: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """Return how far texts' likenesses to each other are from the parent's: a KL divergence.

    Args:
        own: Vectors of length 1, (texts, dims).
        wanted: The parent's, as many.
        temperature: Of the softmax over the other texts of the batch.
    """
    others = ~torch.eye(len(own), dtype=torch.bool, device=own.device)
    logits, goals = (
        (vectors @ vectors.T / temperature)[others].view(len(own), -1) for vectors in (own, wanted)
    )
    return F.kl_div(
        logits.log_softmax(1), goals.log_softmax(1), reduction="batchmean", log_target=True
    )
