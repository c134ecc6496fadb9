"""A running sequence classifier: texts, or pairs of texts, to a logit for each label."""

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from condensery.errors import CondenseryError, CorruptModel, ModelFault
from condensery.networks import classifier as networks
from condensery.networks.backbone import load_classifier
from condensery.runtime.batcher import Batcher
from condensery.runtime.describing import describe
from condensery.runtime.encoder import WARM_UP_TOKENS
from condensery.runtime.feeding import Feeder
from condensery.runtime.limits import Limits
from condensery.runtime.pair_tokenizing import PairTokenizer, PairTokens
from condensery.runtime.tokenizing import Cutting
from condensery.runtime.workers import Workers
from condensery.values import Classified, Floats, Input, ModelInfo, Scored, Side

if TYPE_CHECKING:  # neither is there on a machine that only runs forward passes
    from condensery.metrics import Metrics
    from condensery.store.manifest import StoredModel


class Text(NamedTuple):
    """One text, or pair, in a batch."""

    ids: list[int]
    types: list[int]


class Network:
    """What a worker runs: a batch of token ids to the logits of each."""

    def __init__(self, network: networks.Classifier, model: str) -> None:
        self._network = network
        self._model = model

    def forward(self, texts: Sequence[Text]) -> list[Floats | CondenseryError]:
        """Read a batch; logits that are not finite fail their own text only."""
        logits = self._network.read([text.ids for text in texts], [text.types for text in texts])
        array: Floats = logits.cpu().numpy()
        finite: list[bool] = torch.isfinite(logits).all(dim=1).tolist()
        return [
            row if whole else ModelFault(f"{self._model}: a score came out with NaN or infinity")
            for row, whole in zip(array, finite, strict=True)
        ]


class Classifier:
    """A running sequence classifier; one of a single label reranks. Made by ``load``.

    Attributes:
        info: What ``/v1/models`` shows of it.
        parts: What holds its weights.
    """

    def __init__(
        self,
        network: Network,
        tokenizer: PairTokenizer,
        workers: Workers,
        *,
        info: ModelInfo,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self.info = info
        self.parts = (network,)
        self._tokenizer = tokenizer
        self._batcher: Batcher[Text, Floats] = Batcher(
            network.forward, workers, limits=limits, model=info.name, metrics=metrics
        )
        self._feeder = Feeder(self._batcher, info.name, metrics)

    @classmethod
    def load(
        cls,
        stored: "StoredModel",
        workers: Workers,
        *,
        dtype: torch.dtype = torch.float32,
        threads: ThreadPoolExecutor,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
    ) -> "Classifier":
        """Load a stored classifier onto the workers' device. Blocks: call it off the event loop.

        Args:
            stored: Of kind "classifier" or "reranker", its files checked.
            workers: Where its batches run.
            dtype: What to compute in; the head is fp32 always.
            threads: Where texts are tokenised; shared between models.
            limits: Of a batch and of the queue.
            metrics: Where to count.

        Raises:
            CorruptModel: It is no classifier, or its files don't make one.
        """
        manifest = stored.manifest
        labels = manifest.shape.get("labels")
        if manifest.kind not in ("classifier", "reranker") or not isinstance(labels, list):
            raise CorruptModel(f"{manifest.name}: kind {manifest.kind!r} is no classifier")
        model = load_classifier(stored.path, device=workers.device, dtype=dtype)
        if (count := getattr(model.config, "num_labels", 0)) != len(labels):
            raise CorruptModel(f"{manifest.name}: has {count} labels, its manifest {len(labels)}")
        try:
            network = networks.run_classifier(model)
        except ValueError as error:
            raise CorruptModel(f"{manifest.name}: {error}") from error
        info = describe(
            *(manifest, network.backbone, workers.device, dtype),
            dims=None,
            labels=tuple(map(str, labels)),
            independent=bool(manifest.shape.get("independent", len(labels) == 1)),
        )
        return cls(
            Network(network, manifest.name),
            PairTokenizer.load(stored.path, manifest.max_tokens, threads),
            workers,
            info=info,
            limits=limits,
            metrics=metrics,
        )

    async def classify(
        self,
        inputs: Sequence[Input],
        *,
        truncate: bool = True,
        side: Side = "right",
        field: str = "inputs",
    ) -> Classified:
        """Read each text or pair; logits in the order of ``info.labels``.

        Args:
            inputs: Texts, and pairs of texts.
            truncate: Cut what is over the model's length, the longer text of a pair first; else
                refuse it.
            side: Where to cut.
            field: The request's field that holds them, for messages.

        Raises:
            InputError: A text is over the limits, is too long and ``truncate`` is false, or is
                no valid Unicode.
            ModelFault: A logit came out non-finite.
            Overloaded: Too much waits already.
            Unavailable: Closed.
        """
        names = [f"{field}[{{}}]"] * 2
        cutting = Cutting(truncate, side)
        logits, tokens = await self._read(inputs, cutting, field=field, names=names)
        cut = tuple(place for place, one in enumerate(tokens) if one.truncated)
        return Classified(self.info.name, logits, _count(tokens), cut, self.info.fingerprint)

    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        side: Side = "right",
        field: str = "documents",
    ) -> Scored:
        """Score each passage for ``query`` by the logit of the only label; order kept.

        Raises:
            As ``classify``.
        """
        pairs = [(query, passage) for passage in passages]
        names = ["query", f"{field}[{{}}]"]
        cutting = Cutting(truncate, side)
        logits, tokens = await self._read(pairs, cutting, field=field, names=names)
        return Scored(
            self.info.name,
            logits[:, 0],
            _count(tokens),
            truncated=tuple(place for place, one in enumerate(tokens) if one.cut[1]),
            query_truncated=any(one.cut[0] for one in tokens),
            fingerprint=self.info.fingerprint,
        )

    async def _read(
        self, inputs: Sequence[Input], cutting: Cutting, *, field: str, names: Sequence[str]
    ) -> tuple[Floats, list[PairTokens]]:
        def tokenise(some: Sequence[Input], first: int) -> Awaitable[list[PairTokens]]:
            return self._tokenizer.tokenise(
                some, truncate=cutting.truncate, side=cutting.side, field=field, first=first
            )

        characters = self._tokenizer.check(inputs, names)
        rows, tokens = await self._feeder.feed(
            inputs, characters, tokenise, lambda one: Text(one.ids, one.types)
        )
        empty: Floats = np.empty((0, len(self.info.labels)), dtype=np.float32)
        return (np.stack(rows) if rows else empty), tokens

    async def warm_up(self) -> None:
        """Run a few shapes, so that the first caller does not wait for kernels to be prepared."""
        texts = ["a " * length for length in WARM_UP_TOKENS]
        for text in texts:
            await self.classify([text])
        await asyncio.gather(*(self.classify(texts * 4) for _ in range(4)))

    @property
    def busy(self) -> bool:
        """Whether anything waits for its turn."""
        return self._batcher.queued_tokens > 0

    def close(self) -> None:
        """Refuse new texts and those that wait; batches that run are finished."""
        self._batcher.close()


def _count(tokens: Sequence[PairTokens]) -> int:
    return sum(one.count for one in tokens)
