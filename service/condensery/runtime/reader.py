"""A running OSCAR pair: compress, score, answer."""

from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from condensery.answers import CompressedPassage
from condensery.errors import CondenseryError, InputError, ModelNotFound
from condensery.networks.oscar import OscarPair
from condensery.questions import GREEDY, Sampling
from condensery.runtime.compressor import Compressor
from condensery.runtime.generator import UNBOUNDED, Generator, Token
from condensery.runtime.limits import Limits, default_limits
from condensery.runtime.pair import Pair, bert_pair, open_pair
from condensery.runtime.pair_info import info_of, traits_of
from condensery.runtime.pair_texts import CheckedTexts, Prompt, too_long
from condensery.runtime.reading_cost import Counted, ReadingCost
from condensery.runtime.room import Bounds
from condensery.runtime.workers import Workers
from condensery.values import Floats, ModelInfo, PairTraits, Scored, Side

if TYPE_CHECKING:
    from condensery.metrics import Metrics
    from condensery.store.manifest import StoredModel

WARM_UP = "How long is the river?", "The river is 1,200 kilometres long and ends in a delta."


class Reader:
    """An OSCAR pair as the jobs see it; it reranks too (``score``), if it has a rerank head.

    Args:
        pair: Ready to run.
        workers: Where the compressor's batches run.
        info: What ``/v1/models`` shows.
        threads: Where longer texts are tokenised.
        traits: What the pair can do; by default what its shape says.
        generators: Where the generator's steps run, if on another device.
        limits: Of batches, and of the queue, on a device.
        bounds: What the generator may hold.
        metrics: Where to count.

    Attributes:
        info: As given.
        traits: As given.
        parts: What holds its weights.

    Raises:
        CorruptModel: The generator does not run in steps.
        SettingError: The bounds leave no room.
    """

    def __init__(
        self,
        pair: Pair,
        workers: Workers,
        *,
        info: ModelInfo,
        threads: ThreadPoolExecutor,
        traits: PairTraits | None = None,
        generators: Workers | None = None,
        limits: Callable[[torch.device], Limits] = default_limits,
        bounds: Bounds = UNBOUNDED,
        metrics: "Metrics | None" = None,
    ) -> None:
        texts, name = pair.texts, info.name
        self.info = info
        self.parts = (pair.compressor, pair.generator)
        self.traits = traits or traits_of(pair)
        self._pair = pair
        self._texts = CheckedTexts(*(texts, pair.separators, threads), model=name, metrics=metrics)
        self._positions = texts.positions
        # Positions of a prompt without passages, and what each passage adds to its own.
        self._frame = self._texts.prompt_now("", []).size
        self._around = self._texts.prompt_now("", [""]).size - self._frame
        # First the half that may refuse: what the workers serve is not taken from them again.
        self._generator = Generator(
            *(pair.generator, pair.deltas, texts.stop, generators or workers),
            model=name,
            name=pair.token,
            limits=limits((generators or workers).device),
            bounds=bounds,
            metrics=metrics,
        )
        self._compressor = Compressor(
            *(pair.compressor, workers),
            model=name,
            limits=limits(workers.device),
            metrics=metrics,
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
        limits: Callable[[torch.device], Limits] = default_limits,
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
        pair = open_pair(stored, base, dtype=dtype, **devices)
        info = info_of(
            pair,
            name=manifest.name,
            fingerprint=manifest.fingerprint,
            licence=manifest.licence,
            created=manifest.created,
        )
        return cls(
            *(pair, workers),
            info=info,
            threads=threads,
            traits=traits_of(pair, manifest.defaults),
            generators=generators,
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
        limits: Callable[[torch.device], Limits] = default_limits,
        metrics: "Metrics | None" = None,
    ) -> "Reader":
        """Run networks that are ready for packed inference; ``directory`` has the tokenizer."""
        ready = bert_pair(pair, directory)
        info = info_of(ready, name=name)
        return cls(ready, workers, info=info, threads=threads, limits=limits, metrics=metrics)

    async def score(
        self,
        query: str,
        passages: Sequence[str],
        *,
        truncate: bool = True,
        side: Side = "right",
        field: str = "documents",
    ) -> Scored:
        """Score each passage for ``query``; order kept. Passages of any length: windows.

        Args:
            query: What is asked; cut where the compressor can't hold it.
            passages: What is scored.
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
        asked, windows = await self._texts.read(query, passages, field)
        if asked.read < asked.tokens and side == "left":
            raise InputError(
                f"truncation_direction: {self.info.name} cuts a query on the right only, and this "
                f"one has {asked.tokens} tokens, over its {asked.limit}",
                field="truncation_direction",
                value=side,
            )
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
        return Scored(
            *(self.info.name, scores, tokens),
            query_truncated=cut,
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
            afford: Given the tokens of each passage, says how many of the first are compressed;
                by default all.

        Raises:
            InputError: A text is over the limits.
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time ran out.
            Unavailable: Closed.
        """
        _, windows = await self._texts.read(question, passages, field, afford)
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
            question: In whole.
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
        if (spare := self.room(prompt, max_tokens)) < 0:
            raise too_long(prompt, len(context), max_tokens, spare)
        answer = self.generate_from(prompt, max_tokens=max_tokens, sampling=sampling, stop=stop)
        async with aclosing(answer) as tokens:
            async for token in tokens:
                yield token

    def tokenise(self, question: str, context: Sequence[Floats | str]) -> Prompt:
        """Return the prompt of a question and a context, for ``generate_from``; in this thread.

        Raises:
            InputError: A text is over the limits.
        """
        return self._texts.prompt_now(question, context)

    def sizes(self, context: Sequence[Floats | str]) -> list[int]:
        """Return about how many positions each passage takes in a prompt; in this thread."""
        return [self._texts.prompt_now("", [one]).size - self._frame for one in context]

    def count(self, question: str, prompt: Prompt, kept: Sequence[str] | None) -> Counted:
        """Count what an answer's cost is made of; in this thread.

        Args:
            question: As asked.
            prompt: Made of it and of what the generator reads.
            kept: The text of the passages in context, as far as they are read; None where the
                prompt holds it already.
        """
        asked = self._texts.asked(question)
        window = self._pair.texts.text_tokens - self._texts.beside(asked)
        return Counted(
            flops=self._pair.cost,
            asked=asked,
            prompt=prompt,
            plain=prompt.size if kept is None else self._texts.prompt_now(question, kept).size,
            window=min(window, self._pair.window or window),
        )

    async def generate_from(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
    ) -> AsyncGenerator[Token, None]:
        """Answer a prompt that ``tokenise`` made, and that there is room for.

        Raises:
            InputError: A stop string can't be one.
            Overloaded, DeadlineExceeded, ModelFault, Unavailable: As ``Generator.generate``.
        """
        answer = self._generator.generate(
            prompt.parts, max_tokens=max_tokens, sampling=sampling, stop=stop
        )
        async with aclosing(answer) as tokens:
            async for token in tokens:
                yield token

    def spare(self, question: str, context: Sequence[Floats | str], max_tokens: int) -> int:
        """Return the positions that a context and its answer leave free; negative: too long."""
        return self.room(self.tokenise(question, context), max_tokens)

    def room(self, prompt: Prompt, max_tokens: int) -> int:
        """Return the positions that a prompt and its answer leave free; negative: too long."""
        left = self._positions - prompt.size - max_tokens
        return min(left, self._generator.spare(prompt.parts, prompt.size, max_tokens))

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
        counted = self.count(question, self.tokenise(question, context), kept)
        return counted.cost(read, completion_tokens=completion_tokens)

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

    @property
    def busy(self) -> bool:
        """Whether anything waits for its turn, or is being answered."""
        return self._compressor.busy or self._generator.busy

    def close(self) -> None:
        """Refuse new work."""
        self._compressor.close()
        self._generator.close()


def _whole(found: CompressedPassage | CondenseryError) -> CompressedPassage:
    if isinstance(found, CondenseryError):
        raise found
    return found
