"""Lists of texts to a batcher, part by part, so that the first run while the last are read."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from condensery.callers import current
from condensery.runtime.batcher import Batcher, Part
from condensery.runtime.lanes import Item, Result

if TYPE_CHECKING:  # not there on a machine that only runs forward passes
    from condensery.metrics import Metrics

# A longer list is tokenised in parts, so that the device starts on the first while the rest is
# read, and nobody waits for a long list to be tokenised.
PART_TEXTS = 64
# About what prose has; a request's cost is guessed by it before it is tokenised.
CHARACTERS_PER_TOKEN = 4


class Read(Protocol):
    """A text, or a pair of texts, as a tokenizer gives it."""

    @property
    def count(self) -> int:
        """Its tokens, special ones included."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether some of it was cut off."""
        ...


Tokenised = TypeVar("Tokenised", bound=Read)


class Feeder(Generic[Item, Result]):
    """Tokenises what a model is given, hands it to the model's batcher, and counts it.

    Args:
        batcher: The model's.
        model: Its name in metrics.
        metrics: Where to count; None counts nowhere.
    """

    def __init__(
        self, batcher: Batcher[Item, Result], model: str, metrics: "Metrics | None"
    ) -> None:
        self._batcher = batcher
        self._model = model
        self._metrics = metrics

    async def feed(
        self,
        inputs: Sequence[Any],
        characters: int,
        tokenise: Callable[[Sequence[Any], int], Awaitable[list[Tokenised]]],
        item: Callable[[Tokenised], Item],
    ) -> tuple[list[Result], list[Tokenised]]:
        """Run every input; returns the results and the tokens, in order.

        Args:
            inputs: What to read.
            characters: Of all of them.
            tokenise: Given some of the inputs, and the place of the first one.
            item: What the batcher takes, of one that is tokenised.

        Raises:
            InputError: As ``tokenise``.
            ModelFault, Overloaded, DeadlineExceeded, Unavailable: As the batcher.
        """
        tokens: list[Tokenised] = []
        spent = current().spent
        spent.characters += characters
        spent.inputs += len(inputs)

        async def parts() -> AsyncGenerator[Part[Item], None]:
            for start in range(0, len(inputs), PART_TEXTS):
                began = time.perf_counter()
                with self._tokenizing():
                    part = await tokenise(inputs[start : start + PART_TEXTS], start)
                spent.tokenizing += time.perf_counter() - began
                tokens.extend(part)
                spent.tokens += sum(one.count for one in part)
                yield [item(one) for one in part], [one.count for one in part]

        cost = characters // CHARACTERS_PER_TOKEN + 2 * len(inputs)
        rows = await self._batcher.submit_parts(parts(), len(inputs), cost)
        if self._metrics is not None:
            self._metrics.input_tokens.labels(self._model).inc(sum(one.count for one in tokens))
            self._metrics.truncated_inputs.labels(self._model).inc(
                sum(one.truncated for one in tokens)
            )
        return rows, tokens

    def _tokenizing(self) -> AbstractContextManager[None]:
        if self._metrics is None:
            return nullcontext()
        return self._metrics.stage(self._model, "tokenize")
