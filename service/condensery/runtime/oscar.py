"""A running OSCAR pair: compress, score, answer.

Passages, read for a question, become memory vectors and scores in one forward pass; a generator
answers from those vectors, or from text.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from condensery.errors import CondenseryError, InputError, ModelNotFound
from condensery.networks.known_answers import PromptTable
from condensery.networks.oscar import OscarPair
from condensery.networks.quantised import EncoderWeights, Weights
from condensery.networks.quoting import Quotes
from condensery.question import (
    GREEDY,
    AnswerCost,
    CompressedPassage,
    GeneratedToken,
    Sampling,
)
from condensery.runtime.compressor import Compressor, CompressorHalf
from condensery.runtime.device import WeightsSetting, choose_weights
from condensery.runtime.generator import NO_GENERATOR_LIMITS, Generator, TokenGenerator
from condensery.runtime.generator_server import GeneratorServer, GeneratorServerConfig
from condensery.runtime.oscar_pair import (
    CheckedTexts,
    CountedAnswer,
    GeneratorPrompt,
    PairFacts,
    RunnablePair,
    context_too_long,
    open_pair,
    pair_info,
    pair_traits,
    runnable_bert_pair,
)
from condensery.runtime.queue import BatchLimits, default_limits
from condensery.runtime.scheduler import GeneratorLimits
from condensery.runtime.workers import Workers
from condensery.values import (
    Floats,
    ModelInfo,
    ModelRole,
    PairTraits,
    Scored,
    TruncationDirection,
)

if TYPE_CHECKING:
    from condensery.metrics import Metrics
    from condensery.store.manifest import StoredModel

WARM_UP = "How long is the river?", "The river is 1,200 kilometres long and ends in a delta."


class OscarModel:
    """An OSCAR pair as the jobs see it; it reranks too (``score``), if it has a rerank head.

    Args:
        traits: What the pair can do; by default what its shape gives.
        generators: Where the generator's steps run, if on another device.
        generator_server: Where it runs, if on another server; the pair was opened for that.

    Attributes:
        roles: What it can be asked for; it reranks where it has a rerank head.
        facts: What of it needs no weights.
        compressor: Its first half.
        generator: Its second.

    Raises:
        CorruptModel: The generator does not run in steps.
        SettingError: The limits leave no room for a cache.
    """

    parts: Sequence[Any] = ()

    def __init__(
        self,
        pair: RunnablePair,
        workers: Workers,
        *,
        info: ModelInfo,
        threads: ThreadPoolExecutor,
        traits: PairTraits | None = None,
        generators: Workers | None = None,
        limits: Callable[[torch.device], BatchLimits] = default_limits,
        generator_limits: GeneratorLimits = NO_GENERATOR_LIMITS,
        generator_server: GeneratorServerConfig | None = None,
        metrics: "Metrics | None" = None,
    ) -> None:
        # First the half that may refuse, before there is anything to undo.
        generator: TokenGenerator
        if isinstance(pair.generator, PromptTable):
            assert generator_server is not None  # or it was not opened so
            generator = GeneratorServer(
                generator_server,
                pair.generator,
                pair.known,
                pair.detokenizer,
                pair.texts.stop,
                longest=pair.texts.positions,
                model=info.name,
                name=pair.token,
                metrics=metrics,
            )
        else:
            generator = Generator(
                pair.generator,
                pair.detokenizer,
                pair.texts.stop,
                generators or workers,
                model=info.name,
                name=pair.token,
                prefix=pair.prefix,
                limits=limits((generators or workers).device),
                generator_limits=generator_limits,
                metrics=metrics,
            )
        with ExitStack() as begun:  # else the workers would hold what fails here, and its weights
            begun.callback(generator.close)
            compressor = Compressor(
                pair.compressor,
                workers,
                model=info.name,
                limits=limits(workers.device),
                metrics=metrics,
            )
            begun.callback(compressor.close)
            self.parts = (pair.compressor, pair.generator)
            self._join(
                pair.facts,
                compressor,
                generator,
                info=info,
                threads=threads,
                traits=traits or pair_traits(pair.texts),
                metrics=metrics,
            )
            begun.pop_all()

    def _join(
        self,
        pair: PairFacts,
        compressor: CompressorHalf,
        generator: TokenGenerator,
        *,
        info: ModelInfo,
        threads: ThreadPoolExecutor,
        traits: PairTraits,
        metrics: "Metrics | None",
    ) -> None:
        """Put the halves, wherever they run, behind the texts, which are read here."""
        self.info = info
        self.traits = traits
        self.roles: frozenset[ModelRole] = frozenset(
            {"oscar-pair", "reranker"} if traits.scores else {"oscar-pair"}
        )
        self.facts = pair
        self._texts = CheckedTexts(
            pair.texts, pair.separators, threads, model=info.name, metrics=metrics
        )
        self._positions = pair.texts.positions
        # Positions of a prompt without passages, and what each passage adds to its own.
        self._frame = self._texts.make_prompt("", []).size
        one, two = (self._texts.make_prompt("", [""] * count).size for count in (1, 2))
        self._around = two - one  # the first text may bring the question a second time
        self.compressor = compressor
        self.generator = generator

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
        limits: Callable[[torch.device], BatchLimits] = default_limits,
        generator_limits: GeneratorLimits = NO_GENERATOR_LIMITS,
        generator_weights: WeightsSetting = "float",
        compressor_weights: EncoderWeights = "float",
        generator_server: GeneratorServerConfig | None = None,
        metrics: "Metrics | None" = None,
    ) -> "OscarModel":
        """Load a stored pair; ``base`` is the encoder whose word embeddings it shares, if any.

        Raises:
            CorruptModel: The files don't make a pair.
            SettingError: The limits leave no room for a cache, the generator's device is not for
                such weights, or no other server can run it.
        """
        manifest = stored.manifest
        devices: dict[str, Any] = {
            "compressor": workers.device,
            "generator": (generators or workers).device,
        }
        here = generator_server is None
        weights: Weights = "float"  # which a server's are is its own affair
        if here:
            chosen = generator_weights
            weights = choose_weights(devices["generator"], dtype, chosen, manifest.quality)
        rounded: Any = {"weights": weights, "compressor_weights": compressor_weights}
        pair = open_pair(stored, base, dtype=dtype, generates=here, **rounded, **devices)
        info = pair_info(
            pair,
            **rounded,
            name=manifest.name,
            fingerprint=manifest.fingerprint,
            licence=manifest.licence,
            created=manifest.created,
        )
        return cls(
            pair,
            workers,
            info=info,
            threads=threads,
            traits=pair_traits(pair.texts, manifest.defaults),
            generators=generators,
            limits=limits,
            generator_limits=generator_limits,
            generator_server=generator_server,
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
        limits: Callable[[torch.device], BatchLimits] = default_limits,
        metrics: "Metrics | None" = None,
    ) -> "OscarModel":
        """Run networks that are ready for packed inference; ``directory`` has the tokenizer."""
        ready = runnable_bert_pair(pair, directory)
        info = pair_info(ready, name=name)
        return cls(ready, workers, info=info, threads=threads, limits=limits, metrics=metrics)

    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "documents",
    ) -> Scored:
        """Score each passage for ``query``; order kept. Passages of any length: windows.

        Args:
            query: What is asked; cut where the compressor can't hold it.
            truncate: Cut the query where it is too long; else refuse it.
            side: Where; only "right" is known of queries that are too long.
            field: The request's field that holds the passages, for messages.

        Raises:
            InputError: A text is over the limits, or the query is too long and ``truncate`` is
                false, or ``side`` is "left".
            ModelNotFound: The pair has no rerank head.
            ModelFault: A passage failed.
        """
        if not self.traits.scores:
            raise ModelNotFound(
                f"model {self.info.name!r} has no rerank head, so it scores no passages",
                field="model",
                value=self.info.name,
            )
        cut, windows = await self._texts.read(query, passages, field)
        truncated = cut.read < cut.tokens
        if truncated and side == "left":
            raise InputError.at(
                "truncation_direction",
                f"{self.info.name} cuts a query on the right only, and this "
                f"one has {cut.tokens} tokens, over its {cut.limit}",
                side,
            )
        if truncated and not truncate:
            raise InputError(
                f"query has {cut.tokens} tokens, over the model's {cut.limit}, and truncate "
                "is false",
                field="query",
                value=cut.tokens,
            )
        scored = [_or_raise(result) for result in await self.compressor.compress(windows)]
        scores: Floats = np.array([passage.relevance for passage in scored], dtype=np.float32)
        return Scored(
            self.info.name,
            scores,
            cut.read + sum(passage.tokens_in for passage in scored),
            query_truncated=truncated,
            fingerprint=self.info.fingerprint,
        )

    async def compress(
        self,
        question: str,
        passages: Sequence[str],
        *,
        field: str = "documents",
        afford: Callable[[Sequence[int]], int] | None = None,
    ) -> list[CompressedPassage | CondenseryError]:
        """Compress and score each passage in one forward pass, at the finest rate.

        Order and count are kept. A passage that fails has its error in its place, and harms no
        other; what concerns all of them is raised.

        Args:
            question: Cut where the compressor can't hold it beside a passage.
            passages: One too long for the compressor is read in windows; the best counts, or all
                of them where nothing is scored.
            field: The request's field that holds the passages, for messages.
            afford: From the tokens of each passage, how many of the first are compressed;
                by default all.

        Raises:
            InputError: A text is over the limits.
            Overloaded, DeadlineExceeded, Unavailable: As ``Batcher.submit_each``.
        """
        _, windows = await self._texts.read(question, passages, field, afford)
        return await self.compressor.compress(windows)

    async def generate(
        self,
        question: str,
        context: Sequence[Floats | str],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        texts: Sequence[str] = (),
        pointed: Sequence[tuple[int, int] | None] = (),
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Answer from a context: memory vectors, or text, of passages, best first.

        Args:
            context: Of each passage its memory (vectors, hidden), or its text.
            texts: Of each passage what is read of it, for a pair that quotes, and
            pointed: what its memory points at of that (``quotes``).

        Raises:
            ContextTooLong: It does not fit, the answer's tokens included.
            InputError: A text is over the limits, or a stop string can't be one.
            Overloaded, DeadlineExceeded, ModelFault, Unavailable: As ``Generator.generate``.
        """
        prompt = await self._texts.prompt(question, context)
        if (spare := self.free_positions(prompt, max_tokens)) < 0:
            raise context_too_long(prompt, len(context), max_tokens, spare)
        quotes = self.quotes(texts, pointed)
        answer = self.generate_from_prompt(
            prompt, max_tokens=max_tokens, sampling=sampling, stop=stop, quotes=quotes
        )
        async with aclosing(answer) as tokens:
            async for token in tokens:
                yield token

    def make_prompt(self, question: str, context: Sequence[Floats | str]) -> GeneratorPrompt:
        """Return the prompt of a question and a context; in this thread.

        Raises:
            InputError: A text is over the limits.
        """
        return self._texts.make_prompt(question, context)

    def count_positions(self, context: Sequence[Floats | str]) -> list[int]:
        """Return about how many positions each passage takes in a prompt; in this thread."""
        # A second text stands beside each: the first may bring the question a second time.
        beside = self._texts.make_prompt("", [""]).size
        return [self._texts.make_prompt("", ["", item]).size - beside for item in context]

    @property
    def generator_share(self) -> float:
        """What the generator costs for a token that it reads, over what the compressor does."""
        cost, few, many = self.facts.cost, 64, 128
        generator = cost.generate(many, 0) - cost.generate(few, 0)
        return generator / max(1, cost.compress(0, many) - cost.compress(0, few))

    def count_answer(
        self, question: str, prompt: GeneratorPrompt, kept: Sequence[str] | None
    ) -> CountedAnswer:
        """Count what an answer's cost is made of; in this thread.

        Args:
            prompt: Made of it and of what the generator reads.
            kept: The text of the passages in context, as far as they are read; None where the
                prompt holds it already.
        """
        cut = self._texts.cut(question)
        window = self.facts.texts.text_tokens - self._texts.window_overhead(cut)
        return CountedAnswer(
            flops=self.facts.cost,
            asked=cut,
            prompt=prompt,
            plain=prompt.size if kept is None else self._texts.make_prompt(question, kept).size,
            window=min(window, self.facts.window or window),
        )

    def generate_from_prompt(
        self,
        prompt: GeneratorPrompt,
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        quotes: Quotes | None = None,
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Answer a prompt that ``make_prompt`` made, and that there is room for.

        ``quotes`` are those of the texts that it was made of.

        Raises:
            InputError: A stop string can't be one.
            Overloaded, DeadlineExceeded, ModelFault, Unavailable: As ``Generator.generate``.
        """
        return self.generator.generate(
            prompt.parts, max_tokens=max_tokens, sampling=sampling, stop=stop, quotes=quotes
        )

    def quotes(
        self, texts: Sequence[str], pointed: Sequence[tuple[int, int] | None] = ()
    ) -> Quotes | None:
        """Return what an answer may say that reads these texts; None: anything. In this thread.

        Args:
            texts: As far as they are read.
            pointed: Of each one read as vectors, the characters that those point at.
        """
        return self.facts.texts.quotes(texts, pointed)

    def free_positions_for(
        self, question: str, context: Sequence[Floats | str], max_tokens: int
    ) -> int:
        """Return the positions that a context and its answer leave free; negative: too long."""
        return self.free_positions(self.make_prompt(question, context), max_tokens)

    def free_positions(self, prompt: GeneratorPrompt, max_tokens: int) -> int:
        """Return the positions that a prompt and its answer leave free; negative: too long."""
        left = self._positions - prompt.size - max_tokens
        return min(left, self.generator.free_positions(prompt.parts, prompt.size, max_tokens))

    def expected_ms(
        self, compress_tokens: int, vectors: int, text_tokens: int, passages: int
    ) -> float:
        """Return about how long it takes to the first token, as measured so far; 0 if unknown.

        What waits before it is left out.

        Args:
            compress_tokens: Of passages that are still to be compressed.
            vectors: Memory vectors in context.
            text_tokens: Tokens of passages that are read plain.
        """
        around = self._frame + passages * self._around
        prompt_seconds = self.generator.expected_seconds(around + vectors + text_tokens)
        compress_seconds = self.compressor.expected_seconds(compress_tokens)
        known = prompt_seconds and (compress_seconds or not compress_tokens)
        return 1000 * (prompt_seconds + compress_seconds) if known else 0.0

    def count_cost(
        self,
        question: str,
        read: Sequence[CompressedPassage],
        context: Sequence[Floats | str],
        kept: Sequence[str],
        *,
        completion_tokens: int,
    ) -> AnswerCost:
        """Count what an answer took.

        Args:
            read: Every passage that the compressor read for it, kept or not.
            kept: The text of the passages in context, as far as they were read.
            completion_tokens: Tokens generated, the one that ends the answer included.
        """
        counted = self.count_answer(question, self.make_prompt(question, context), kept)
        return counted.cost(read, completion_tokens=completion_tokens)

    async def probe(self, text: str) -> Floats:
        """Return a passage's memory vectors and its score, flat, for the self-test to compare."""
        (result,) = await self.compress(WARM_UP[0], [text])
        compressed = _or_raise(result)
        return np.append(compressed.memory.ravel(), np.float32(compressed.relevance or 0.0))

    async def warm_up(self) -> None:
        """Answer once, so that the first caller does not wait for kernels to be prepared.

        A generator that is not there yet (``unready``) is no reason not to compress.

        Raises:
            ModelFault: The pair fails on plain text.
        """
        question, passage = WARM_UP
        answering = await self.generator.start()
        for count in (1, 5, 10):
            results = await self.compress(question, [passage] * count)
            context: list[Floats | str] = [_or_raise(result).memory for result in results]
            while context and self.free_positions_for(question, context, 4) < 0:
                context.pop()
            if answering:
                async for _ in self.generate(question, context, max_tokens=4):
                    pass

    @property
    def writer(self) -> str | None:
        """By what name another server's model writes the answers; None: its own generator does."""
        return self.generator.writer

    @property
    def unready(self) -> str | None:
        """Why it can't answer now, though it compresses and ranks; None: it can."""
        return self.generator.unready

    def watch(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``unready`` is another than before."""
        self.generator.watch(callback)

    @property
    def busy(self) -> bool:
        """Whether anything waits for its turn, or is being answered."""
        return self.compressor.busy or self.generator.busy

    def close(self) -> None:
        """Refuse new work."""
        self.compressor.close()
        self.generator.close()


def _or_raise(result: CompressedPassage | CondenseryError) -> CompressedPassage:
    if isinstance(result, CondenseryError):
        raise result
    return result
