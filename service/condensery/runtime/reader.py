"""A running OSCAR pair: compress, score, answer."""

from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from condensery.errors import CondenseryError, ContextTooLong, InputError, ModelNotFound
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_interface import Reading
from condensery.questions import GREEDY, Sampling
from condensery.runtime.compressor import Compressor
from condensery.runtime.generator import UNBOUNDED, Generator, Token
from condensery.runtime.limits import Limits
from condensery.runtime.pair import Pair, bert_pair, open_pair
from condensery.runtime.pair_texts import Asked, CheckedTexts, Prompt
from condensery.runtime.reading_cost import ReadingCost, cost_of_answer
from condensery.runtime.room import Bounds
from condensery.runtime.workers import Workers
from condensery.values import CompressedPassage, Floats, ModelInfo, PairTraits, Scored

if TYPE_CHECKING:
    from condensery.metrics import Metrics
    from condensery.store.manifest import Defaults, StoredModel

WARM_UP = "How long is the river?", "The river is 1,200 kilometres long and ends in a delta."


class Reader:
    """An OSCAR pair as the jobs see it; it reranks too (``score``), if it has a rerank head.

    Args:
        pair: Ready to run.
        workers: Where the compressor's batches run.
        name: In the store.
        threads: Where longer texts are tokenised.
        generators: Where the generator's steps run, if on another device.
        defaults: What the pair does where nothing is asked for.
        fingerprint: Of the stored model; likewise the licence, and when it was made.
        limits: Of batches and of the queue.
        bounds: What the generator may hold.
        metrics: Where to count.

    Attributes:
        info: What ``/v1/models`` shows.
        traits: What it can do.

    Raises:
        CorruptModel: The generator does not run in steps.
        SettingError: The bounds leave no room.
    """

    def __init__(
        self,
        pair: Pair,
        workers: Workers,
        *,
        name: str,
        threads: ThreadPoolExecutor,
        generators: Workers | None = None,
        defaults: "Defaults | None" = None,
        fingerprint: str = "",
        licence: str = "",
        created: int = 0,
        limits: Limits | None = None,
        bounds: Bounds = UNBOUNDED,
        metrics: "Metrics | None" = None,
    ) -> None:
        texts = pair.texts
        devices = dict.fromkeys(map(str, pair.devices))
        self.info = ModelInfo(
            name=name,
            kind="oscar-pair",
            method="oscar",
            fingerprint=fingerprint,
            dims=None,
            max_tokens=texts.text_tokens,
            dtype=str(pair.generator.dtype).removeprefix("torch."),
            device=", ".join(devices),
            licence=licence,
            created=created,
        )
        self.traits = _traits(pair, defaults)
        self._pair = pair
        self._metrics = metrics
        self._texts = CheckedTexts(texts, pair.separators, threads)
        self._positions = texts.positions
        # Positions of a prompt without passages, and what each passage adds to its own.
        self._frame = self._texts.prompt_now("", []).size
        self._around = self._texts.prompt_now("", [""]).size - self._frame
        # First the half that may refuse: what the workers serve is not taken from them again.
        self._generator = Generator(
            *(pair.generator, pair.deltas, texts.stop, generators or workers),
            model=name,
            name=pair.token,
            limits=limits,
            bounds=bounds,
            metrics=metrics,
        )
        self._compressor = Compressor(
            pair.compressor, workers, model=name, limits=limits, metrics=metrics
        )

    @classmethod
    def load(
        cls,
        stored: "StoredModel",
        base: "StoredModel | None",
        workers: Workers,
        *,
        dtype: torch.dtype,
        threads: ThreadPoolExecutor,
        generators: Workers | None = None,
        limits: Limits | None = None,
        bounds: Bounds = UNBOUNDED,
        metrics: "Metrics | None" = None,
    ) -> "Reader":
        """Load a stored pair of any kind; ``base`` is the encoder whose words it shares, if any.

        Raises:
            CorruptModel: The files don't make a pair.
            SettingError: The bounds leave no room.
        """
        manifest = stored.manifest
        devices = {"compressor": workers.device, "generator": (generators or workers).device}
        return cls(
            open_pair(stored, base, dtype=dtype, **devices),
            workers,
            name=manifest.name,
            threads=threads,
            generators=generators,
            defaults=manifest.defaults,
            fingerprint=manifest.fingerprint,
            licence=manifest.licence,
            created=manifest.created,
            limits=limits,
            bounds=bounds,
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
        metrics: "Metrics | None" = None,
    ) -> "Reader":
        """Run networks that are ready for packed inference; ``directory`` has the tokenizer."""
        ready = bert_pair(pair, directory)
        return cls(ready, workers, name=name, threads=threads, metrics=metrics)

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
            ModelNotFound: The pair has no rerank head.
            ModelFault: A passage failed.
        """
        if not self.traits.scores:
            raise ModelNotFound(
                f"model {self.info.name!r} has no rerank head, so it scores no passages",
                field="model",
                value=self.info.name,
            )
        asked, windows = await self._read(query, passages, field)
        if asked.read < asked.tokens and not truncate:
            raise InputError(
                f"query has {asked.tokens} tokens, over the model's {asked.limit}, and truncate "
                "is false",
                field="query",
                value=asked.tokens,
            )
        found = [_whole(one) for one in await self._compressor.compress(windows)]
        scores: Floats = np.array([one.relevance for one in found], dtype=np.float32)
        tokens = asked.read + sum(one.tokens_in for one in found)
        cut = asked.read < asked.tokens
        return Scored(self.info.name, scores, tokens, query_truncated=cut)

    async def compress(
        self, question: str, passages: Sequence[str], *, field: str = "documents"
    ) -> list[CompressedPassage | CondenseryError]:
        """Compress and score each passage in one forward pass, at the finest rate.

        Order and count are kept. A passage that fails has its error in its place, and harms no
        other; what concerns all of them is raised.

        Args:
            question: Cut to the pair's ``query_tokens``.
            passages: One too long for the compressor is read in windows, and the best counts.
            field: The request's field that holds the passages, for messages.

        Raises:
            InputError: A text is over the limits.
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time ran out.
            Unavailable: Closed.
        """
        _, windows = await self._read(question, passages, field)
        return await self._compressor.compress(windows)

    async def generate(
        self,
        question: str,
        context: Sequence[Floats | str],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
    ) -> AsyncGenerator[Token, None]:
        """Answer from a context: memory vectors, or text, of passages, best first.

        Args:
            question: Cut to the pair's ``query_tokens``.
            context: Of each passage its memory (vectors, hidden), or its text.
            max_tokens: Most tokens of the answer.
            sampling: How they are chosen.
            stop: Strings that end it.

        Raises:
            ContextTooLong: It does not fit, the answer's tokens included.
            InputError: A text is over the limits, or a stop string can't be one.
            Overloaded, DeadlineExceeded, ModelFault, Unavailable: As ``Generator.generate``.
        """
        prompt = await self._texts.prompt(question, context)
        if (spare := self._spare(prompt, max_tokens)) < 0:
            room = prompt.size + max_tokens + spare
            remedy = "keep fewer passages (rerank.top_n) or ask for" if context else "ask for"
            field = "rerank.top_n" if context else "max_tokens"
            raise ContextTooLong(
                f"the context takes {prompt.size} positions and max_tokens is {max_tokens}, but "
                f"the generator has {room}: {remedy} fewer tokens (max_tokens)",
                field=field,
                value=len(context) or max_tokens,
            )
        answer = self._generator.generate(
            prompt.parts, max_tokens=max_tokens, sampling=sampling, stop=stop
        )
        async with aclosing(answer) as tokens:
            async for token in tokens:
                yield token

    def spare(self, question: str, context: Sequence[Floats | str], max_tokens: int) -> int:
        """Return the positions that a context and its answer leave free; negative: too long."""
        return self._spare(self._texts.prompt_now(question, context), max_tokens)

    def expected_ms(
        self, compress_tokens: int, vectors: int, text_tokens: int, passages: int
    ) -> float:
        """Return about how long it takes to the first token, as measured so far; 0 if unknown.

        What waits before it is left out.

        Args:
            compress_tokens: Of passages that are still to be compressed.
            vectors: Memory vectors in context.
            text_tokens: Tokens of passages that are read plain.
            passages: In context.
        """
        around = self._frame + passages * self._around
        reading = self._generator.expects(around + vectors + text_tokens)
        compressing = self._compressor.expects(compress_tokens)
        known = reading and (compressing or not compress_tokens)
        return 1000 * (reading + compressing) if known else 0.0

    def cost(
        self,
        question: str,
        read: Sequence[CompressedPassage],
        context: Sequence[Floats | str],
        kept: Sequence[str],
        *,
        completion_tokens: int,
    ) -> ReadingCost:
        """Count what an answer took.

        Args:
            question: As asked.
            read: Every passage that the compressor read for it, kept or not.
            context: What the generator read.
            kept: The text of the passages in context, as far as they were read.
            completion_tokens: Tokens generated, the one that ends the answer included.
        """
        return cost_of_answer(
            *(self._pair, self._texts, question, read, context, kept), completion=completion_tokens
        )

    async def warm_up(self) -> None:
        """Answer once, so that the first caller does not wait for kernels to be prepared.

        Raises:
            ModelFault: The pair fails on plain text.
        """
        question, passage = WARM_UP
        for count in (1, 5, 10):
            found = await self.compress(question, [passage] * count)
            context: list[Floats | str] = [_whole(one).memory for one in found]
            while context and self.spare(question, context, 4) < 0:
                context.pop()
            async for _ in self.generate(question, context, max_tokens=4):
                pass

    def close(self) -> None:
        """Refuse new work."""
        self._compressor.close()
        self._generator.close()

    async def _read(
        self, question: str, passages: Sequence[str], field: str
    ) -> tuple[Asked, list[list[Reading]]]:
        name, metrics = self.info.name, self._metrics
        stage: AbstractContextManager[None] = nullcontext()
        if metrics is not None:
            stage = metrics.stage(name, "tokenize")
        with stage:
            asked, windows = await self._texts.read(question, passages, field)
        if metrics is not None:
            tokens = sum(readings[-1].first + readings[-1].tokens for readings in windows)
            metrics.input_tokens.labels(name).inc(asked.tokens + tokens)
            if asked.read < asked.tokens:
                metrics.truncated_inputs.labels(name).inc()
        return asked, windows

    def _spare(self, prompt: Prompt, max_tokens: int) -> int:
        left = self._positions - prompt.size - max_tokens
        return min(left, self._generator.spare(prompt.parts, prompt.size, max_tokens))


def _whole(found: CompressedPassage | CondenseryError) -> CompressedPassage:
    if isinstance(found, CondenseryError):
        raise found
    return found


def _traits(pair: Pair, defaults: "Defaults | None") -> PairTraits:
    texts = pair.texts
    traits = PairTraits(texts.vectors, texts.rates, texts.scores)
    top_n = None if defaults is None else defaults.top_n
    least = None if defaults is None else defaults.min_relevance
    return PairTraits(
        *(traits.vectors, traits.rates, traits.scores),
        top_n=traits.top_n if top_n is None else top_n,
        min_relevance=traits.min_relevance if least is None else least,
    )
