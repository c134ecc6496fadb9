"""What puts passages in an order: an encoder, a pair's rerank head, a cross-encoder."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from condensery.errors import ModelFault
from condensery.index.prompts import make_index_prompts
from condensery.methods.ranking.retrieval import embed
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.runtime.encoder import Encoder
from condensery.runtime.oscar import OscarModel
from condensery.values import Floats


class Ranker(Protocol):
    """Scores passages for queries.

    Attributes:
        says: What it is, for the report; other scores come from another.
    """

    says: dict[str, object]

    def prepare(self, texts: Sequence[str]) -> float:
        """Read passages before any query, where that helps; returns the seconds it took."""
        ...

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each passage; more is more relevant."""
        ...


class EncoderRanker:
    """Inner products of an encoder's vectors; passages are embedded once, as an index would.

    What is too long for the encoder is cut.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.says: dict[str, object] = {
            "model": encoder.info.name,
            "fingerprint": encoder.info.fingerprint,
            "dtype": encoder.info.dtype,
        }
        self._encoder = encoder
        self._vectors: dict[str, Floats] = {}

    def prepare(self, texts: Sequence[str]) -> float:
        """Embed the passages that are not embedded yet."""
        began = time.perf_counter()
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            vectors = embed(self._encoder, new, make_index_prompts(self._encoder).passage)
            self._vectors.update(zip(new, vectors, strict=True))
        return time.perf_counter() - began

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the query's inner product with each passage."""
        self.prepare(texts)
        (vector,) = embed(self._encoder, [query], make_index_prompts(self._encoder).query)
        return [float(self._vectors[text] @ vector) for text in texts]


class PairRanker:
    """A pair's rerank head, as ``/rerank`` has it: of a long passage the best window counts."""

    def __init__(self, pair: OscarModel) -> None:
        self.says: dict[str, object] = {
            "model": pair.info.name,
            "fingerprint": pair.info.fingerprint,
            "dtype": pair.info.dtype,
        }
        self.pair = pair

    def prepare(self, texts: Sequence[str]) -> float:
        """Do nothing: it reads passages together with the query."""
        return 0.0

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the logit of each passage."""
        return _finite(asyncio.run(self.pair.score(query, texts)).scores.tolist())


class CrossEncoderRanker:
    """A cross-encoder of a directory; what is too long for it is cut.

    Args:
        model: That is open.
        says: Its name and fingerprint.
    """

    def __init__(self, model: CrossEncoder, about: dict[str, object]) -> None:
        self.says = about
        self._model = model

    def prepare(self, texts: Sequence[str]) -> float:
        """Do nothing: it reads passages together with the query."""
        return 0.0

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the logit of each passage."""
        return _finite(self._model.scores(query, texts))


def _finite(scores: list[float]) -> list[float]:
    """Refuse NaN, which no order holds."""
    if not np.isfinite(scores).all():
        raise ModelFault("a passage's score is not finite", field="passages")
    return scores
