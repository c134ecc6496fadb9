"""A running OSCAR pair: compress, score, answer."""

from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from condensery.errors import InputError
from condensery.networks.accounting import PairCost
from condensery.networks.oscar import OscarPair
from condensery.runtime.batcher import Limits
from condensery.runtime.compressor import Compressor
from condensery.runtime.deltas import PieceDeltas
from condensery.runtime.generator import Generator, Token
from condensery.runtime.pair import load_pair
from condensery.runtime.pieces import Pieces, PieceTokenizer
from condensery.runtime.workers import Workers
from condensery.values import CompressedPassage, Floats, ModelInfo, Scored

if TYPE_CHECKING:
    from condensery.metrics import Metrics
    from condensery.store.manifest import StoredModel

WARM_UP = "How long is the river?", "The river is 1,200 kilometres long and ends in a delta."


@dataclass(frozen=True, slots=True)
class ReadingCost:
    """What one answer took: FLOPs from config dimensions, tokens as counted.

    Attributes:
        prompt_tokens: Text tokens in the generator's prompt.
        context_vectors: Memory vectors in it.
        context_tokens: Tokens of the passages it was given, compressed or plain.
        flops_used: Compression (of all candidates, if any) and generation.
        flops_plain: Generation from the same passages' own tokens.
        question_tokens: Tokens of the question as asked.
        question_limit: Tokens of it that were read.
    """

    prompt_tokens: int
    context_vectors: int
    context_tokens: int
    flops_used: int
    flops_plain: int
    question_tokens: int
    question_limit: int


class Reader:
    """An OSCAR pair as the jobs see it; it reranks too (``score``).

    Args:
        pair: The networks, ready for packed inference.
        tokenizer: The pair's.
        workers: Where batches and steps run.
        info: What ``/v1/models`` shows.
        cost: The pair's FLOPs.
        limits: Of batches and of the queue.
        metrics: Where to count.
    """

    def __init__(
        self,
        pair: OscarPair,
        tokenizer: PieceTokenizer,
        workers: Workers,
        *,
        info: ModelInfo,
        cost: PairCost,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        self.info = info
        self._shape = pair.shape
        self._tokenizer = tokenizer
        self._cost = cost
        self._metrics = metrics
        name = info.name
        self._compressor = Compressor(
            pair, tokenizer, workers, model=name, limits=limits, metrics=metrics
        )
        self._generator = Generator(
            pair.generator,
            lambda: PieceDeltas(tokenizer.piece),
            frozenset({tokenizer.specials.end}),
            workers,
            model=name,
            limits=limits,
            metrics=metrics,
        )

    @classmethod
    def load(
        cls,
        stored: "StoredModel",
        base: "StoredModel",
        workers: Workers,
        *,
        dtype: torch.dtype,
        threads: ThreadPoolExecutor,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
    ) -> "Reader":
        """Load a stored pair; ``base`` is the encoder whose word embeddings it shares.

        Raises:
            CorruptModel: The files don't make a pair.
        """
        manifest = stored.manifest
        return cls.of(
            load_pair(stored, base, device=workers.device, dtype=dtype),
            stored.path,
            workers,
            name=manifest.name,
            threads=threads,
            fingerprint=manifest.fingerprint,
            licence=manifest.licence,
            created=manifest.created,
            limits=limits,
            metrics=metrics,
        )

    @classmethod
    def of(
        cls,
        pair: OscarPair,
        directory: Path,
        workers: Workers,
        *,
        name: str,
        threads: ThreadPoolExecutor,
        fingerprint: str = "",
        licence: str = "",
        created: int = 0,
        limits: Limits | None = None,
        metrics: "Metrics | None" = None,
    ) -> "Reader":
        """Run networks that are ready for packed inference; ``directory`` has the tokenizer."""
        config = pair.compressor.backbone.config
        shape = pair.shape
        info = ModelInfo(
            name=name,
            kind="oscar-pair",
            method="oscar",
            fingerprint=fingerprint,
            dims=None,
            max_tokens=shape.query_tokens + shape.passage_tokens + 3,
            dtype=str(pair.generator.words.dtype).removeprefix("torch."),
            device=str(workers.device),
            licence=licence,
            created=created,
        )
        cost = PairCost.of(
            shape,
            hidden_size=config.hidden_size,
            mlp_size=config.intermediate_size,
            layers=config.num_hidden_layers,
            vocabulary=config.vocab_size,
        )
        tokenizer = PieceTokenizer(directory, info.max_tokens, threads)
        return cls(pair, tokenizer, workers, info=info, cost=cost, limits=limits, metrics=metrics)

    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        field: str = "documents",
    ) -> Scored:
        """Score each passage for ``query``; order kept. Passages of any length: windows.

        Args:
            query: What is asked; cut to the pair's ``query_tokens``.
            passages: What is scored.
            truncate: Cut the query where it is too long; else refuse it.
            field: The request's field that holds the passages, for messages.

        Raises:
            InputError: A text is over the limits, or the query is too long and ``truncate`` is
                false.
        """
        question, texts = await self._read(query, passages, field)
        limit = self._shape.query_tokens
        cut = len(question.ids) > limit
        if cut and not truncate:
            raise InputError(
                f"query has {len(question.ids)} tokens, over the model's {limit}, and truncate "
                "is false",
                field="query",
                value=len(question.ids),
            )
        found = await self._compressor.compress(question.ids[:limit], texts)
        scores: Floats = np.array([p.relevance for p in found], dtype=np.float32)
        tokens = min(len(question.ids), limit) + sum(len(t.ids) for t in texts)
        return Scored(self.info.name, scores, tokens, query_truncated=cut)

    async def compress(self, question: str, passages: Sequence[str]) -> list[CompressedPassage]:
        """Compress and score each passage in one forward pass; order and count kept."""
        asked, texts = await self._read(question, passages)
        return await self._compressor.compress(asked.ids[: self._shape.query_tokens], texts)

    async def generate(
        self, question: str, memory: Sequence[Floats], *, max_tokens: int
    ) -> AsyncGenerator[Token, None]:
        """Answer greedily from the memory vectors of the passages kept, best first."""
        async with aclosing(self._generate(question, memory, max_tokens)) as tokens:
            async for token in tokens:
                yield token

    async def generate_plain(
        self, question: str, passages: Sequence[str], *, max_tokens: int
    ) -> AsyncGenerator[Token, None]:
        """Answer greedily from the passages' own tokens, uncompressed."""
        texts = await self._tokenizer.encode(passages, "documents")
        context = [text.ids for text in texts]
        async with aclosing(self._generate(question, context, max_tokens)) as tokens:
            async for token in tokens:
                yield token

    async def _generate(
        self, question: str, context: Sequence[Floats | list[int]], max_tokens: int
    ) -> AsyncGenerator[Token, None]:
        (asked,) = await self._tokenizer.encode([question], "query")
        ids = asked.ids[: self._shape.query_tokens]
        specials = self._tokenizer.specials
        prompt = [*context, [specials.start, *ids, specials.end]]
        size = sum(len(part) + 1 for part in prompt) - 1
        room = self._shape.generator_positions
        if size + max_tokens > room:
            raise InputError(
                f"the context takes {size} positions and max_tokens is {max_tokens}, but the "
                f"generator has {room}: keep fewer passages (rerank.top_n)",
                field="rerank.top_n",
                value=len(context),
            )
        async with aclosing(self._generator.generate(prompt, max_tokens=max_tokens)) as tokens:
            async for token in tokens:
                yield token

    async def _read(
        self, question: str, passages: Sequence[str], field: str = "documents"
    ) -> tuple[Pieces, list[Pieces]]:
        stage = (
            nullcontext()
            if self._metrics is None
            else self._metrics.stage(self.info.name, "tokenize")
        )
        with stage:
            (asked,) = await self._tokenizer.encode([question], "query")
            texts = await self._tokenizer.encode(passages, field)
        if self._metrics is not None:
            name = self.info.name
            count = len(asked.ids) + sum(len(t.ids) for t in texts)
            self._metrics.input_tokens.labels(name).inc(count)
            if len(asked.ids) > self._shape.query_tokens:
                self._metrics.truncated_inputs.labels(name).inc()
        return asked, texts

    def cost(
        self,
        question: str,
        compressed: Sequence[CompressedPassage],
        kept: Sequence[str],
        *,
        plain: bool,
        completion_tokens: int,
    ) -> ReadingCost:
        """Count what an answer took.

        Args:
            question: As asked.
            compressed: Every passage that the compressor read, kept or not.
            kept: The passages whose vectors (or, with ``plain``, tokens) the generator read.
            plain: Whether it read them as text.
            completion_tokens: Tokens generated, the one that ends the answer included.
        """
        shape = self._shape
        whole = self._tokenizer.count([question])
        asked = min(whole, shape.query_tokens)
        tokens = self._tokenizer.count(kept)
        separators = len(kept)
        text = asked + 2
        flops_plain = self._cost.generate(tokens + separators + text, completion_tokens)
        if plain:
            return ReadingCost(
                text + tokens, 0, tokens, flops_plain, flops_plain, whole, shape.query_tokens
            )
        vectors = len(kept) * shape.memory_tokens
        used = self._cost.generate(vectors + separators + text, completion_tokens)
        for passage in compressed:
            # A passage in several windows: each is full, so the windows' tokens can be told.
            size = min(passage.tokens_in, shape.passage_tokens)
            used += passage.windows * self._cost.compress(asked, size)
        return ReadingCost(text, vectors, tokens, used, flops_plain, whole, shape.query_tokens)

    async def warm_up(self) -> None:
        """Answer once, so that the first caller does not wait for kernels to be prepared."""
        question, passage = WARM_UP
        for count in (1, 5, 10):
            found = await self.compress(question, [passage] * count)
            memory = [p.memory for p in found]
            async for _ in self.generate(question, memory, max_tokens=4):
                pass

    def close(self) -> None:
        """Refuse new work."""
        self._compressor.close()
        self._generator.close()
