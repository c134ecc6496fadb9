"""A running encoder: texts to vectors, batched with whoever else asks."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from condensery.errors import CondenseryError, CorruptModel, ModelFault
from condensery.networks.backbone import Backbone, load_backbone
from condensery.networks.pooling import Pooling, normalise, pool
from condensery.runtime.batcher import Batcher, Part
from condensery.runtime.limits import Limits
from condensery.runtime.tokenizing import TextTokenizer, Tokens
from condensery.runtime.workers import Workers
from condensery.values import Embedded, Floats, ModelInfo, Side

if TYPE_CHECKING:  # neither is there on a machine that only runs forward passes
    from condensery.metrics import Metrics
    from condensery.store.manifest import StoredModel

# A longer list is tokenised in parts, so that the device starts on the first while the rest is
# read, and nobody waits for a long list to be tokenised.
PART_TEXTS = 64
# About what prose has; a request's cost is guessed by it before it is tokenised.
CHARACTERS_PER_TOKEN = 4

WARM_UP_TOKENS = (8, 16, 120, 480)


class Text(NamedTuple):
    """One text in a batch."""

    ids: list[int]
    normalise: bool


class Network:
    """What a worker runs: a batch of token ids to one fp32 vector each."""

    def __init__(self, backbone: Backbone, pooling: Pooling, model: str) -> None:
        self.backbone = backbone
        self.pooling: Pooling = pooling
        self.model = model

    @torch.inference_mode()
    def forward(self, texts: Sequence[Text]) -> list[Floats | CondenseryError]:
        """Embed a batch; a vector that is not finite fails its own text only."""
        hidden, packing = self.backbone.read([text.ids for text in texts])
        vectors = pool(hidden, packing, self.pooling)
        scaled = [text.normalise for text in texts]
        if all(scaled):
            vectors = normalise(vectors)
        elif any(scaled):
            chosen = torch.tensor(scaled, device=vectors.device)[:, None]
            vectors = torch.where(chosen, normalise(vectors), vectors)
        return self._rows(vectors)

    def _rows(self, vectors: Tensor) -> list[Floats | CondenseryError]:
        array: Floats = vectors.cpu().numpy()
        finite: list[bool] = torch.isfinite(vectors).all(dim=1).tolist()
        return [
            row if whole else ModelFault(f"{self.model}: a vector came out with NaN or infinity")
            for row, whole in zip(array, finite, strict=True)
        ]


class Encoder:
    """A running encoder; made by ``load``.

    Attributes:
        info: What ``/v1/models`` shows of it.
        prompts: Text put before an input, by the prompt's name.
        content_tokens: Tokens of text that fit in one input, beside the special ones.
    """

    def __init__(
        self,
        network: Network,
        tokenizer: TextTokenizer,
        workers: Workers,
        *,
        info: ModelInfo,
        prompts: Mapping[str, str],
        normalize: bool,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self.info = info
        self.prompts = prompts
        self.content_tokens = tokenizer.max_tokens - tokenizer.special_tokens
        self._tokenizer = tokenizer
        self._normalize = normalize
        self._metrics = metrics
        self._batcher: Batcher[Text, Floats] = Batcher(
            network.forward, workers, limits=limits, model=info.name, metrics=metrics
        )

    @classmethod
    def load(
        cls,
        stored: "StoredModel",
        workers: Workers,
        *,
        dtype: torch.dtype = torch.float32,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
        threads: ThreadPoolExecutor | None = None,
    ) -> "Encoder":
        """Load a stored encoder onto the workers' device. Blocks: call it off the event loop.

        Args:
            stored: Of kind "encoder", its files checked.
            workers: Where its batches run.
            dtype: What to compute in (``choose_dtype``); pooling is fp32 always.
            limits: Of a batch and of the queue.
            metrics: Where to count.
            threads: Where texts are tokenised; shared between models.

        Raises:
            CorruptModel: It is no encoder, or its files don't make one.
        """
        manifest = stored.manifest
        if manifest.kind != "encoder" or manifest.pooling is None:
            raise CorruptModel(
                f"{manifest.name}: kind {manifest.kind!r} with pooling {manifest.pooling!r} "
                "is no encoder"
            )
        backbone = load_backbone(stored.path, device=workers.device, dtype=dtype)
        if backbone.longest is not None and manifest.max_tokens > backbone.longest:
            raise CorruptModel(
                f"{manifest.name}: max_tokens is {manifest.max_tokens}, but the network has "
                f"only {backbone.longest} positions"
            )
        info = ModelInfo(
            name=manifest.name,
            kind=manifest.kind,
            method=manifest.method,
            fingerprint=manifest.fingerprint,
            dims=backbone.width,
            max_tokens=manifest.max_tokens,
            dtype=str(dtype).removeprefix("torch."),
            device=str(workers.device),
            licence=manifest.licence,
            created=manifest.created,
            pooling=manifest.pooling,
        )
        return cls(
            Network(backbone, manifest.pooling, manifest.name),
            TextTokenizer.load(stored.path, manifest.max_tokens, threads),
            workers,
            info=info,
            prompts=manifest.prompts,
            normalize=manifest.normalize,
            limits=limits,
            metrics=metrics,
        )

    async def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        normalize: bool | None = None,
        truncate: bool = True,
        side: Side = "right",
        field: str = "input",
    ) -> Embedded:
        """Embed each text, with ``prompt`` put before it.

        Args:
            texts: What to embed; "" is the special tokens alone.
            prompt: Put before each text.
            normalize: Scale vectors to length 1; None does what the model declares.
            truncate: Cut what is over the model's length; else refuse it.
            side: Where to cut.
            field: The request's field that holds the texts, for messages.

        Raises:
            InputError: A text is over the limits, is too long and ``truncate`` is false, or is
                no valid Unicode.
            ModelFault: A vector came out non-finite.
            Overloaded: Too much waits already.
            Unavailable: Closed.
        """
        characters = self._tokenizer.check(texts, field)
        wanted = self._normalize if normalize is None else normalize
        tokens: list[Tokens] = []

        async def parts() -> AsyncGenerator[Part[Text], None]:
            for start in range(0, len(texts), PART_TEXTS):
                with self._tokenizing():
                    part = await self._tokenizer.tokenise(
                        texts[start : start + PART_TEXTS],
                        prompt=prompt,
                        truncate=truncate,
                        side=side,
                        field=field,
                        first=start,
                    )
                tokens.extend(part)
                yield [Text(text.ids, wanted) for text in part], [text.count for text in part]

        cost = (characters + len(prompt) * len(texts)) // CHARACTERS_PER_TOKEN + 2 * len(texts)
        rows = await self._batcher.submit_parts(parts(), len(texts), cost)
        truncated = tuple(place for place, text in enumerate(tokens) if text.truncated)
        count = sum(text.count for text in tokens)
        if self._metrics is not None:
            self._metrics.input_tokens.labels(self.info.name).inc(count)
            self._metrics.truncated_inputs.labels(self.info.name).inc(len(truncated))
        dims = self.info.dims or 0
        return Embedded(
            model=self.info.name,
            fingerprint=self.info.fingerprint,
            vectors=np.stack(rows) if rows else np.empty((0, dims), dtype=np.float32),
            tokens=count,
            truncated=truncated,
        )

    def _tokenizing(self) -> AbstractContextManager[None]:
        if self._metrics is None:
            return nullcontext()
        return self._metrics.stage(self.info.name, "tokenize")

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the character span of each token of ``text``, special tokens left out.

        Raises:
            InputError: The text is no valid Unicode.
        """
        return self._tokenizer.offsets(text)

    async def warm_up(self) -> None:
        """Run a few shapes, so that the first caller does not wait for kernels to be prepared."""
        texts = ["a " * length for length in WARM_UP_TOKENS]
        for text in texts:
            await self.embed([text])
        await asyncio.gather(*(self.embed(texts * 4) for _ in range(4)))

    def close(self) -> None:
        """Refuse new texts and those that wait; batches that run are finished."""
        self._batcher.close()
