"""A running sequence classifier: texts, or pairs of texts, to a logit for each label.

One of a single label reranks: the logit is a passage's score for a query.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer

from condensery.errors import CondenseryError, CorruptModel, InputError, ModelFault
from condensery.networks import classifier as networks
from condensery.networks.building import build_classifier
from condensery.networks.quantised import EncoderWeights
from condensery.runtime.batcher import Batcher
from condensery.runtime.encoder import WARM_UP_TOKENS, describe_model, network_files
from condensery.runtime.feeding import BatchFeeder
from condensery.runtime.queue import BatchLimits
from condensery.runtime.tokenizing import (
    CUT_CHARACTERS_PER_TOKEN,
    TOKENIZER,
    TextTokenizer,
    TokenizedText,
    Truncation,
    check_text,
    run_tokenizing,
)
from condensery.runtime.workers import Workers
from condensery.values import (
    Classified,
    Floats,
    Input,
    ModelInfo,
    ModelRole,
    Scored,
    TruncationDirection,
)

if TYPE_CHECKING:
    from condensery.metrics import Metrics
    from condensery.store.manifest import StoredModel


@dataclass(frozen=True, slots=True)
class TokenizedTextPair(TokenizedText):
    """One text, or one pair, as the model reads it.

    Attributes:
        types: As many as ids; 1 for the second text, where the tokenizer marks it.
        cut: Whether the first text was cut, and whether the second was.
    """

    types: list[int]
    cut: tuple[bool, bool]


class TextPairTokenizer:
    """A classifier's tokenizer. What is too long loses tokens of the longer text first.

    That is how sentence-transformers' cross-encoders and TEI cut (``longest_first``).
    """

    def __init__(self, texts: TextTokenizer, threads: ThreadPoolExecutor) -> None:
        self._texts = texts
        self._threads = threads
        self.max_tokens = texts.max_tokens
        self._joining: dict[TruncationDirection, Tokenizer] = {}
        for side in get_args(TruncationDirection):
            joining = Tokenizer.from_str(texts.tokenizer.to_str())
            joining.no_padding()
            joining.enable_truncation(self.max_tokens, strategy="longest_first", direction=side)
            self._joining[side] = joining
        self._special = [joining.num_special_tokens_to_add(pair) for pair in (False, True)]

    @classmethod
    def load(cls, path: Path, max_tokens: int, threads: ThreadPoolExecutor) -> "TextPairTokenizer":
        """Read ``tokenizer.json`` in the directory ``path``.

        Raises:
            CorruptModel: It is missing or unreadable.
        """
        return cls(TextTokenizer.load(path, max_tokens, threads), threads)

    def check(self, inputs: Sequence[Input], fields: Sequence[str]) -> int:
        """Check that each text can be tokenised; returns how many characters there are.

        Args:
            fields: What the request calls each text of an input, with ``{}`` for its place.

        Raises:
            InputError: One is over the limit, or no valid Unicode.
        """
        most = self._texts.max_characters
        return sum(
            check_text(text, name.format(place), most)
            for place, texts in enumerate(inputs)
            for name, text in zip(fields, _texts(texts), strict=False)
        )

    async def tokenise(
        self,
        inputs: Sequence[Input],
        *,
        truncate: bool,
        side: TruncationDirection = "right",
        field: str,
        first: int = 0,
    ) -> list[TokenizedTextPair]:
        """Tokenise what has passed ``check``, in a thread of its own unless it is short.

        Args:
            field: The request's field that holds them, for messages.

        Raises:
            InputError: An input is too long, and ``truncate`` is false.
        """
        characters = sum(len(text) for texts in inputs for text in _texts(texts))
        tokenise = partial(self._tokenise, inputs, truncate, side, field, first)
        return await run_tokenizing(tokenise, characters, self._threads)

    def _tokenise(
        self,
        inputs: Sequence[Input],
        truncate: bool,
        side: TruncationDirection,
        field: str,
        first: int,
    ) -> list[TokenizedTextPair]:
        different = list(dict.fromkeys(text for texts in inputs for text in _texts(texts)))
        encoded = dict(zip(different, self._encode(different, truncate, side), strict=True))
        tokenised = []
        for place, texts in enumerate(inputs, first):
            parts = [encoded[text] for text in _texts(texts)]
            count = sum(map(len, parts)) + self._special[len(parts) - 1]
            if count > self.max_tokens and not truncate:
                where = f"{field}[{place}]"
                raise InputError(
                    f"{where} has {count} tokens, over the model's {self.max_tokens}, and "
                    "truncate is false",
                    field=where,
                    value=count,
                )
            tokenised.append(self._join(parts, side, cut=count > self.max_tokens))
        return tokenised

    def _join(
        self, parts: Sequence[Encoding], side: TruncationDirection, *, cut: bool
    ) -> TokenizedTextPair:
        joining: Any = self._joining[side]  # whose stubs name each argument
        whole = joining.post_process(*parts)
        parts_cut = [False, False]
        if cut:
            left = whole.sequence_ids
            for number, part in enumerate(parts):
                parts_cut[number] = left.count(number) < len(part)
        which = parts_cut[0], parts_cut[1]
        return TokenizedTextPair(whole.ids, any(which), whole.type_ids, which)

    def _encode(
        self, texts: Sequence[str], truncate: bool, side: TruncationDirection
    ) -> list[Encoding]:
        """Tokenise each text without special tokens; of a very long one only what may be read."""
        tokenizer = self._texts.tokenizer
        most = self.max_tokens * CUT_CHARACTERS_PER_TOKEN
        kept = slice(most) if side == "right" else slice(-most, None)
        parts = [text[kept] if truncate else text for text in texts]
        encodings: list[Encoding] = tokenizer.encode_batch(parts, add_special_tokens=False)
        for place, (text, part) in enumerate(zip(texts, parts, strict=True)):
            # The part is as good as the text where its outermost word, which the cut may have gone
            # through, lies beyond all that can be read.
            if len(part) < len(text):
                words = encodings[place].word_ids[:: 1 if side == "right" else -1]
                if len(words) <= self.max_tokens or words[self.max_tokens] == words[-1]:
                    encodings[place] = tokenizer.encode(text, add_special_tokens=False)
        return encodings


def _texts(texts: Input) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts


class ClassifierInput(NamedTuple):
    """One text, or pair, in a batch."""

    ids: list[int]
    types: list[int]


class ClassifierNetwork:
    """What a worker runs: a batch of token ids to the logits of each."""

    def __init__(self, network: networks.Classifier, model: str) -> None:
        self._network = network
        self._model = model

    def forward(self, texts: Sequence[ClassifierInput]) -> list[Floats | CondenseryError]:
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
        roles: What it can be asked for; rerankers classify too, by their one label.
    """

    def __init__(
        self,
        network: ClassifierNetwork,
        tokenizer: TextPairTokenizer,
        workers: Workers,
        *,
        info: ModelInfo,
        limits: BatchLimits | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self.info = info
        self.parts = (network,)
        self.roles: frozenset[ModelRole] = frozenset(
            {"classifier", "reranker"} if info.kind == "reranker" else {"classifier"}
        )
        self._tokenizer = tokenizer
        self._batcher: Batcher[ClassifierInput, Floats] = Batcher(
            network.forward, workers, limits=limits, model=info.name, metrics=metrics
        )
        self._feeder = BatchFeeder(self._batcher, info.name, metrics)

    @classmethod
    def load(
        cls,
        stored: "StoredModel",
        workers: Workers,
        *,
        dtype: torch.dtype = torch.float32,
        weights: EncoderWeights = "float",
        threads: ThreadPoolExecutor,
        limits: BatchLimits | None = None,
        metrics: "Metrics | None" = None,
    ) -> "Classifier":
        """Load a stored classifier onto the workers' device. Blocks: call it off the event loop.

        Args:
            stored: Of kind "classifier" or "reranker", its files checked.
            dtype: What to compute in; the head is fp32 always.
            weights: What its layers' are held as (``can_quantise``); the head's are floats.
            threads: Where texts are tokenised; shared between models.

        Raises:
            CorruptModel: It is no classifier, or its files don't make one.
            ModelNotFound: The base that has some of them is not in the store.
        """
        manifest = stored.manifest
        labels = manifest.shape.get("labels")
        if manifest.kind not in ("classifier", "reranker") or not isinstance(labels, list):
            raise CorruptModel(f"{manifest.name}: kind {manifest.kind!r} is no classifier")
        files = network_files(stored, workers.device, dtype, weights)
        network = build_classifier(manifest.method, files)
        if network.labels != len(labels):
            raise CorruptModel(
                f"{manifest.name}: has {network.labels} labels, its manifest {len(labels)}"
            )
        info = describe_model(
            manifest,
            network.backbone,
            files,
            dims=None,
            labels=tuple(map(str, labels)),
            independent=bool(manifest.shape.get("independent", len(labels) == 1)),
        )
        return cls(
            ClassifierNetwork(network, manifest.name),
            TextPairTokenizer.load(stored.file(TOKENIZER).parent, manifest.max_tokens, threads),
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
        side: TruncationDirection = "right",
        field: str = "inputs",
    ) -> Classified:
        """Read each text or pair; logits in the order of ``info.labels``.

        Args:
            truncate: Cut what is over the model's length, the longer text of a pair first; else
                refuse it.
            field: The request's field that holds them, for messages.

        Raises:
            As ``Encoder.embed``, of logits.
        """
        names = [f"{field}[{{}}]"] * 2
        truncation = Truncation(truncate, side)
        logits, tokens = await self._read(inputs, truncation, field=field, names=names)
        cut = tuple(place for place, text in enumerate(tokens) if text.truncated)
        return Classified(self.info.name, logits, _count(tokens), cut, self.info.fingerprint)

    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "documents",
    ) -> Scored:
        """Score each passage for ``query`` by the logit of the only label; order kept.

        Raises:
            As ``classify``.
        """
        pairs = [(query, passage) for passage in passages]
        names = ["query", f"{field}[{{}}]"]
        truncation = Truncation(truncate, side)
        logits, tokens = await self._read(pairs, truncation, field=field, names=names)
        return Scored(
            self.info.name,
            logits[:, 0],
            _count(tokens),
            truncated=tuple(place for place, pair in enumerate(tokens) if pair.cut[1]),
            query_truncated=any(pair.cut[0] for pair in tokens),
            fingerprint=self.info.fingerprint,
        )

    async def _read(
        self, inputs: Sequence[Input], truncation: Truncation, *, field: str, names: Sequence[str]
    ) -> tuple[Floats, list[TokenizedTextPair]]:
        def tokenise(some: Sequence[Input], first: int) -> Awaitable[list[TokenizedTextPair]]:
            return self._tokenizer.tokenise(
                some, truncate=truncation.truncate, side=truncation.side, field=field, first=first
            )

        characters = self._tokenizer.check(inputs, names)
        rows, tokens = await self._feeder.feed(
            inputs, characters, tokenise, lambda text: ClassifierInput(text.ids, text.types)
        )
        empty: Floats = np.empty((0, len(self.info.labels)), dtype=np.float32)
        return (np.stack(rows) if rows else empty), tokens

    async def probe(self, text: str) -> Floats:
        """Return a text's logits, (1, labels), for the self-test to compare."""
        return (await self.classify([text])).logits

    async def warm_up(self) -> None:
        """Run a few shapes, so that the first caller does not wait for kernels to be prepared."""
        texts = ["a " * length for length in WARM_UP_TOKENS]
        for text in texts:
            await self.classify([text])
        await asyncio.gather(*(self.classify(texts) for _ in range(self._batcher.workers)))

    @property
    def busy(self) -> bool:
        """Whether anything waits for its turn."""
        return self._batcher.queued_tokens > 0

    def close(self) -> None:
        """Refuse new texts and those that wait; batches that run are finished."""
        self._batcher.close()


def _count(tokens: Sequence[TokenizedTextPair]) -> int:
    return sum(text.count for text in tokens)
