"""A running encoder: texts to vectors, batched with whoever else asks."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from condensery.errors import CondenseryError, CorruptModel, ModelFault
from condensery.networks.backbone import Backbone
from condensery.networks.building import NetworkFiles, build_backbone
from condensery.networks.dtypes import dtype_name
from condensery.networks.pooling import Pooling, normalise
from condensery.networks.quantised import EncoderWeights
from condensery.runtime.batcher import Batcher
from condensery.runtime.feeding import BatchFeeder
from condensery.runtime.queue import BatchLimits
from condensery.runtime.tokenizing import (
    TOKENIZER,
    TextTokenizer,
    TokenizedText,
    Truncation,
    check_text,
)
from condensery.runtime.workers import Workers
from condensery.values import (
    Embedded,
    EmbeddedTokens,
    Floats,
    ModelInfo,
    ModelRole,
    TextToken,
    TruncationDirection,
)

if TYPE_CHECKING:
    from condensery.metrics import Metrics
    from condensery.store.manifest import Manifest, StoredModel

WARM_UP_TOKENS = (8, 16, 120, 480)


def describe_model(
    manifest: "Manifest", backbone: Backbone, files: NetworkFiles, **own: Any
) -> ModelInfo:
    """Return what ``/v1/models`` shows of a model.

    Args:
        files: What its network was built from.
        own: Fields of ``ModelInfo`` that only its kind has.

    Raises:
        CorruptModel: The manifest promises longer inputs than the network has positions for.
    """
    if backbone.longest is not None and manifest.max_tokens > backbone.longest:
        raise CorruptModel(
            f"{manifest.name}: max_tokens is {manifest.max_tokens}, but the network has "
            f"only {backbone.longest} positions"
        )
    rounded = f", weights {files.weights}" if backbone.rounded else ""
    return ModelInfo(
        id=manifest.name,
        kind=manifest.kind,
        method=manifest.method,
        fingerprint=manifest.fingerprint,
        max_tokens=manifest.max_tokens - backbone.extra_tokens,
        dtype=dtype_name(files.dtype) + rounded,
        device=str(files.device),
        licence=manifest.licence,
        created=manifest.created,
        **own,
    )


def network_files(
    stored: "StoredModel",
    device: torch.device,
    dtype: torch.dtype,
    weights: EncoderWeights = "float",
) -> NetworkFiles:
    """Return what a stored model's network is built from, to run on a device in a dtype.

    Raises:
        ModelNotFound: The base that has some of it is not in the store.
    """
    # Late: the store needs pydantic, absent where only forward passes run.
    from condensery.store.weights import load_state, open_folder

    def read_state() -> Mapping[str, Tensor]:
        return load_state(stored)

    name, shape, folder = stored.name, stored.manifest.shape, open_folder(stored)
    return NetworkFiles(name, stored.path, shape, device, dtype, read_state, folder, weights)


def vector_lengths(manifest: "Manifest", width: int) -> tuple[int, ...]:
    """Return the lengths that a stored model's vectors may be cut to, as its manifest has them.

    Raises:
        CorruptModel: A length is not one that the model's vectors can be cut to.
    """
    declared = manifest.shape.get("matryoshka", [])
    lengths = declared if isinstance(declared, list) else [declared]
    valid = [length for length in lengths if type(length) is int and 0 < length <= width]
    if len(valid) != len(lengths):
        raise CorruptModel(f"{manifest.name}: matryoshka {declared!r} of {width} dimensions")
    return tuple(sorted(set(valid)))


class EncoderInput(NamedTuple):
    """One text in a batch.

    Attributes:
        normalise: Whether its vector gets length 1.
        whole: Whether the vectors of all of its tokens are wanted, as the network gives them.
    """

    ids: list[int]
    normalise: bool
    whole: bool = False


class EncoderNetwork:
    """What a worker runs: a batch of token ids to fp32 vectors."""

    def __init__(self, backbone: Backbone, pooling: Pooling, model: str) -> None:
        self.backbone = backbone
        self.pooling: Pooling = pooling
        self.model = model

    @torch.inference_mode()
    def forward(self, texts: Sequence[EncoderInput]) -> list[Floats | CondenseryError]:
        """Embed a batch; a vector that is not finite fails its own text only.

        A text has its vector (dims,); those that are wanted whole have one a token, (tokens, dims).
        """
        every = any(text.whole for text in texts)
        hidden, packing = self.backbone.read(
            [text.ids for text in texts], pooling=None if every else self.pooling
        )
        vectors = self.backbone.pool(hidden, packing, self.pooling)
        scaled = [text.normalise for text in texts]
        if all(scaled):
            vectors = normalise(vectors)
        elif any(scaled):
            mask = torch.tensor(scaled, device=vectors.device)[:, None]
            vectors = torch.where(mask, normalise(vectors), vectors)
        array: Floats = vectors.cpu().numpy()
        finite: list[bool] = torch.isfinite(vectors).all(dim=1).tolist()
        rows: list[Floats | CondenseryError] = [
            row if good else self._fault() for row, good in zip(array, finite, strict=True)
        ]
        if every:
            first = 0
            for place, (text, length) in enumerate(zip(texts, packing.lengths, strict=True)):
                if text.whole:  # without what the network itself puts after it
                    rows[place] = self._each(hidden[first : first + len(text.ids)])
                first += length
        return rows

    def _each(self, hidden: Tensor) -> Floats | CondenseryError:
        if not bool(torch.isfinite(hidden).all()):
            return self._fault()
        rows: Floats = hidden.float().cpu().numpy().copy()  # not a part of the whole batch's
        return rows

    def _fault(self) -> ModelFault:
        return ModelFault(f"{self.model}: a vector came out with NaN or infinity")


class Encoder:
    """A running encoder; made by ``load``.

    Attributes:
        prompts: Text put before an input, by the prompt's name.
        default_prompt: Name of the one that is taken where none is named.
        content_tokens: Tokens of text that fit in one input, beside the special ones.
    """

    roles: frozenset[ModelRole] = frozenset({"encoder"})

    def __init__(
        self,
        network: EncoderNetwork,
        tokenizer: TextTokenizer,
        workers: Workers,
        *,
        info: ModelInfo,
        prompts: Mapping[str, str],
        normalize: bool,
        default_prompt: str | None = None,
        limits: BatchLimits | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self.info = info
        self.parts = (network,)
        self.prompts = prompts
        self.default_prompt = default_prompt
        self.content_tokens = tokenizer.max_tokens - tokenizer.special_tokens
        self._tokenizer = tokenizer
        self._normalize = normalize
        self._batcher: Batcher[EncoderInput, Floats] = Batcher(
            network.forward, workers, limits=limits, model=info.name, metrics=metrics
        )
        extra_tokens = network.backbone.extra_tokens
        self._feeder = BatchFeeder(self._batcher, info.name, metrics, extra_tokens)

    @classmethod
    def load(
        cls,
        stored: "StoredModel",
        workers: Workers,
        *,
        dtype: torch.dtype = torch.float32,
        weights: EncoderWeights = "float",
        limits: BatchLimits | None = None,
        metrics: "Metrics | None" = None,
        threads: ThreadPoolExecutor | None = None,
    ) -> "Encoder":
        """Load a stored encoder onto the workers' device. Blocks: call it off the event loop.

        Args:
            stored: Of kind "encoder", its files checked.
            dtype: What to compute in (``choose_dtype``); pooling is fp32 always.
            weights: What its layers' are held as (``can_quantise``).
            threads: Where texts are tokenised; shared between models.

        Raises:
            CorruptModel: It is no encoder, or its files don't make one.
            ModelNotFound: The base that has some of them is not in the store.
        """
        manifest = stored.manifest
        if manifest.kind != "encoder" or manifest.pooling is None:
            raise CorruptModel(
                f"{manifest.name}: kind {manifest.kind!r} with pooling {manifest.pooling!r} "
                "is no encoder"
            )
        files = network_files(stored, workers.device, dtype, weights)
        backbone = build_backbone(manifest.method, files)
        info = describe_model(
            manifest,
            backbone,
            files,
            dims=backbone.width,
            pooling=manifest.pooling,
            dimensions=vector_lengths(manifest, backbone.width),
        )
        folder = stored.file(TOKENIZER).parent
        # What the network puts to a text itself must have room, and is not among its tokens.
        tokenizer = TextTokenizer.load(folder, info.max_tokens, threads)
        try:
            backbone.check_texts(tokenizer.tokenizer, manifest.max_tokens)
        except ValueError as error:
            raise CorruptModel(f"{manifest.name}: {error}") from error
        return cls(
            EncoderNetwork(backbone, manifest.pooling, manifest.name),
            tokenizer,
            workers,
            info=info,
            prompts=manifest.prompts,
            default_prompt=manifest.default_prompt,
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
        side: TruncationDirection = "right",
        dimensions: int | None = None,
        field: str = "input",
    ) -> Embedded:
        """Embed each text, with ``prompt`` put before it.

        Args:
            texts: What to embed; "" is the special tokens alone.
            normalize: Scale vectors to length 1; None does what the model declares.
            truncate: Cut what is over the model's length; else refuse it.
            dimensions: How many of a vector's first numbers to keep, one of ``info.dimensions``;
                vectors of length 1 get that length again.
            field: The request's field that holds the texts, for messages.

        Raises:
            InputError: A text is over the limits, is too long and ``truncate`` is false, or is
                no valid Unicode.
            ModelFault: A vector came out non-finite.
            Overloaded: Too much waits already.
            Unavailable: Closed.
        """
        wanted = self._normalize if normalize is None else normalize
        truncation = Truncation(truncate, side)
        rows, count, truncated = await self._read(
            texts, prompt, truncation, field, lambda ids: EncoderInput(ids, wanted)
        )
        return self._embedded(rows, count, truncated, dimensions, scale=wanted)

    async def embed_tokenized(
        self,
        texts: Sequence[TokenizedText],
        characters: int,
        *,
        normalize: bool | None = None,
        dimensions: int | None = None,
    ) -> Embedded:
        """Embed texts whose tokens were made elsewhere, by this model's tokenizer.

        Args:
            characters: That they had, prompts included.

        Raises:
            ModelFault, Overloaded, Unavailable: As ``embed``, whose options the others are.
        """
        wanted = self._normalize if normalize is None else normalize
        rows, count, truncated = await self._feed(
            texts, characters, None, lambda ids: EncoderInput(ids, wanted)
        )
        return self._embedded(rows, count, truncated, dimensions, scale=wanted)

    def _embedded(
        self,
        rows: Sequence[Floats],
        tokens: int,
        truncated: tuple[int, ...],
        dimensions: int | None,
        *,
        scale: bool,
    ) -> Embedded:
        dims = self.info.dims or 0
        vectors = np.stack(rows) if rows else np.empty((0, dims), dtype=np.float32)
        if dimensions is not None and dimensions != dims:
            vectors = _shorten_vectors(vectors, dimensions, scale=scale)
        return Embedded(
            model=self.info.name,
            fingerprint=self.info.fingerprint,
            vectors=vectors,
            tokens=tokens,
            truncated=truncated,
        )

    async def embed_tokens(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "input",
    ) -> EmbeddedTokens:
        """Return the vector of every token as the network gives it, neither pooled nor scaled.

        Arguments and errors are those of ``embed``.
        """
        truncation = Truncation(truncate, side)
        rows, count, truncated = await self._read(
            texts,
            prompt,
            truncation,
            field,
            lambda ids: EncoderInput(ids, normalise=False, whole=True),
        )
        return EmbeddedTokens(self.info.name, self.info.fingerprint, tuple(rows), count, truncated)

    async def _read(
        self,
        texts: Sequence[str],
        prompt: str,
        truncation: Truncation,
        field: str,
        item: Callable[[list[int]], EncoderInput],
    ) -> tuple[list[Floats], int, tuple[int, ...]]:
        """Return what each text gives, the tokens of all, and which texts were cut."""
        characters = self._tokenizer.check(texts, field) + len(prompt) * len(texts)

        def tokenise(some: Sequence[str], first: int) -> Awaitable[list[TokenizedText]]:
            return self._tokenizer.tokenise(
                some,
                prompt=prompt,
                truncate=truncation.truncate,
                side=truncation.side,
                field=field,
                first=first,
            )

        return await self._feed(texts, characters, tokenise, item)

    async def _feed(
        self,
        texts: Sequence[Any],
        characters: int,
        tokenise: Callable[[Sequence[str], int], Awaitable[list[TokenizedText]]] | None,
        item: Callable[[list[int]], EncoderInput],
    ) -> tuple[list[Floats], int, tuple[int, ...]]:
        rows, tokens = await self._feeder.feed(
            texts, characters, tokenise, lambda text: item(text.ids)
        )
        truncated = tuple(place for place, text in enumerate(tokens) if text.truncated)
        return rows, sum(text.count for text in tokens), truncated

    @property
    def tokenizer_folder(self) -> Path | None:
        """The folder of its ``tokenizer.json``, from which other processes read the same."""
        return self._tokenizer.folder

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the character span of each token of ``text``, special tokens left out.

        Raises:
            InputError: The text is no valid Unicode.
        """
        return self._tokenizer.offsets(text)

    def pieces(self, text: str, *, special: bool = True, field: str = "inputs") -> list[TextToken]:
        """Return the tokens of a text, however many, with the special ones or without.

        Raises:
            InputError: It is over the character limit, or no valid Unicode.
        """
        check_text(text, field, self._tokenizer.max_characters)
        return self._tokenizer.pieces(text, special=special)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True, field: str = "ids") -> str:
        """Return the text of token ids.

        Raises:
            InputError: One is no token's.
        """
        return self._tokenizer.decode(ids, skip_special=skip_special, field=field)

    async def probe(self, text: str) -> Floats:
        """Return a text's vector, (1, dims), for the self-test to compare."""
        return (await self.embed([text])).vectors

    async def warm_up(self) -> None:
        """Run a few shapes, so that the first caller does not wait for kernels to be prepared."""
        texts = ["a " * length for length in WARM_UP_TOKENS]
        for text in texts:
            await self.embed([text])
        await asyncio.gather(*(self.embed(texts) for _ in range(self._batcher.workers)))

    @property
    def busy(self) -> bool:
        """Whether anything waits for its turn."""
        return self._batcher.queued_tokens > 0

    def close(self) -> None:
        """Refuse new texts and those that wait; batches that run are finished."""
        self._batcher.close()


def _shorten_vectors(vectors: Floats, dimensions: int, *, scale: bool) -> Floats:
    """Keep the first numbers of each vector, and its length of 1 (Matryoshka, arXiv:2205.13147)."""
    kept: Floats = vectors[:, :dimensions]
    if not scale:
        return np.ascontiguousarray(kept)
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    scaled: Floats = kept / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled
