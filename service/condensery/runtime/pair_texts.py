"""A pair's texts, checked, and tokenised where that does not stop the event loop."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from condensery.callers import current
from condensery.errors import ContextTooLong, InputError
from condensery.networks.oscar_interface import PairTexts, Part, Reading
from condensery.runtime.tokenizing import CHARACTERS_PER_TOKEN, INLINE_CHARACTERS, check_text
from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as the compressor reads it; the generator reads all of it.

    Attributes:
        text: As far as it is read.
        tokens: In whole.
        limit: That are read at most; None where the compressor reads no question, and cuts none.
    """

    text: str
    tokens: int
    limit: int | None

    @property
    def read(self) -> int:
        """Tokens of it that are read."""
        return self.tokens if self.limit is None else min(self.tokens, self.limit)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A generator's prompt.

    Attributes:
        parts: Token ids, or memory vectors.
        text: Tokens that are text.
        vectors: Memory vectors.
        size: Positions of both, and of the separators between parts.
    """

    parts: list[Part]
    text: int
    vectors: int
    size: int


class CheckedTexts:
    """A pair's texts for a service: limits checked, long ones tokenised in a thread.

    Args:
        texts: The pair's.
        separators: Positions that its generator puts between two parts of a prompt.
        threads: Where longer texts are tokenised.
        model: The pair's name in metrics.
        metrics: Where to count.
    """

    def __init__(
        self,
        texts: PairTexts,
        separators: int,
        threads: ThreadPoolExecutor,
        *,
        model: str = "",
        metrics: "Metrics | None" = None,
    ) -> None:
        self._model = model
        self._metrics = metrics
        self._texts = texts
        self._separators = separators
        self._threads = threads
        self.max_characters = texts.text_tokens * CHARACTERS_PER_TOKEN

    def asked(self, question: str) -> Asked:
        """Cut a question to what the compressor reads of it.

        Raises:
            InputError: It is over the character limit, or no valid Unicode.
        """
        check_text(question, "query", self.max_characters)
        return self._cut(question)

    async def read(
        self,
        question: str,
        passages: Sequence[str],
        field: str,
        afford: Callable[[Sequence[int]], int] | None = None,
    ) -> tuple[Asked, list[list[Reading]]]:
        """Return the question as it is read, and the windows of each passage.

        Args:
            question: In whole.
            passages: Theirs.
            field: The request's field that holds the passages, for messages.
            afford: Given the tokens of each passage, says how many of the first are read.

        Raises:
            InputError: A text is over the character limit, or no valid Unicode; names ``field``.
        """
        characters = self._check(question, passages, field)
        metrics, spent = self._metrics, current().spent
        began = time.perf_counter()
        with nullcontext() if metrics is None else metrics.stage(self._model, "tokenize"):
            asked, windows = await self._run(characters, lambda: self._read(question, passages))
        spent.tokenizing += time.perf_counter() - began
        spent.characters += characters
        sizes = [readings[-1].first + readings[-1].tokens for readings in windows]
        if afford is not None:
            windows = windows[: afford(sizes)]
        spent.inputs += len(windows)
        spent.passages += len(windows)
        tokens = sum(sizes[: len(windows)])
        spent.tokens += asked.read + tokens
        if metrics is not None:
            metrics.input_tokens.labels(self._model).inc(asked.tokens + tokens)
            if asked.read < asked.tokens:
                metrics.truncated_inputs.labels(self._model).inc()
        return asked, windows

    async def prompt(self, question: str, context: Sequence[Floats | str]) -> Prompt:
        """Return the generator's prompt.

        Raises:
            InputError: As in ``read``.
        """
        characters = self._check(question, _texts_of(context))
        return await self._run(characters, lambda: self.prompt_now(question, context))

    def prompt_now(self, question: str, context: Sequence[Floats | str]) -> Prompt:
        """Do what ``prompt`` does, in this thread; raises likewise."""
        self._check(question, _texts_of(context))
        given = [one if isinstance(one, str) else as_tensor(one) for one in context]
        parts = self._texts.prompt(question, given)
        vectors = sum(len(part) for part in parts if isinstance(part, Tensor))
        whole = sum(map(len, parts))
        size = whole + self._separators * (len(parts) - 1)
        return Prompt(parts, whole - vectors, vectors, size)

    def beside(self, asked: Asked) -> int:
        """Return the tokens that a window has beside its passage's own."""
        ((reading,),) = self._readings(asked.text, [""])
        return reading.head + reading.tail

    def _check(self, question: str, texts: Sequence[str], field: str = "documents") -> int:
        most = self.max_characters
        characters = check_text(question, "query", most)
        return characters + sum(check_text(t, f"{field}[{i}]", most) for i, t in enumerate(texts))

    def _read(self, question: str, passages: Sequence[str]) -> tuple[Asked, list[list[Reading]]]:
        asked = self._cut(question)
        return asked, self._readings(asked.text, passages)

    def _cut(self, question: str) -> Asked:
        return Asked(*self._texts.cut(question), self._texts.query_tokens)

    def _readings(self, question: str, passages: Sequence[str]) -> list[list[Reading]]:
        try:
            return self._texts.readings(question, passages)
        except ValueError as error:  # with little room for texts, a question may take all of it
            raise InputError(f"query: {error}", field="query") from error

    async def _run(self, characters: int, function: Callable[[], Found]) -> Found:
        if characters <= INLINE_CHARACTERS:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _texts_of(context: Sequence[Floats | str]) -> list[str]:
    """Return each passage's text, "" where it is memory, so that each keeps its place."""
    return [one if isinstance(one, str) else "" for one in context]


def as_tensor(memory: Floats) -> Tensor:
    """Return memory vectors as torch has them, without a copy where it can be."""
    # torch warns of arrays that can't be written; nothing writes to these either way.
    return torch.from_numpy(memory if memory.flags.writeable else memory.copy())


def too_long(prompt: Prompt, passages: int, max_tokens: int, spare: int) -> ContextTooLong:
    """Return the error of a prompt that does not fit, with the remedy.

    Args:
        prompt: What does not fit.
        passages: In it.
        max_tokens: Of its answer.
        spare: Positions that are left free; negative.
    """
    room = prompt.size + max_tokens + spare
    remedy = "keep fewer passages (rerank.top_n) or ask for" if passages else "ask for"
    return ContextTooLong(
        f"the context takes {prompt.size} positions and max_tokens is {max_tokens}, but the "
        f"generator has {room}: {remedy} fewer tokens (max_tokens)",
        field="rerank.top_n" if passages else "max_tokens",
        value=passages or max_tokens,
    )
