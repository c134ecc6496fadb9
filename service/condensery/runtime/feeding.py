"""A model's inputs, tokenised part by part, into its batcher; counted on their way.

The first texts of a long list run while the last are tokenised.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from condensery.request_context import current_request
from condensery.runtime.batcher import Batcher, CostedItems
from condensery.runtime.queue import NO_METRICS, Item, Result
from condensery.runtime.tokenizing import TYPICAL_CHARACTERS_PER_TOKEN, TokenizedText

if TYPE_CHECKING:
    from condensery.metrics import Metrics


# A longer list is tokenised in parts, so that the device starts on the first while the rest is
# read, and nobody waits for a long list to be tokenised.
PART_TEXTS = 64

Tokenised = TypeVar("Tokenised", bound=TokenizedText)


class BatchFeeder(Generic[Item, Result]):
    """Tokenises a model's inputs, hands them to the model's batcher, and counts them."""

    def __init__(
        self,
        batcher: Batcher[Item, Result],
        model: str,
        metrics: "Metrics | None",
        extra_tokens: int = 0,
    ) -> None:
        self._batcher = batcher
        self._model = model
        self._extra = extra_tokens  # which the network puts to each input: work, but no text
        self._metrics: Metrics = metrics or NO_METRICS

    async def feed(
        self,
        inputs: Sequence[Any],
        characters: int,
        tokenise: Callable[[Sequence[Any], int], Awaitable[list[Tokenised]]] | None,
        item: Callable[[Tokenised], Item],
    ) -> tuple[list[Result], list[Tokenised]]:
        """Run every input; returns the results and the tokens, in order.

        Args:
            tokenise: Given some of the inputs, and the place of the first one; None where the
                inputs are tokens already.
            item: What the batcher takes, of one that is tokenised.

        Raises:
            InputError: As ``tokenise``.
            ModelFault, Overloaded, DeadlineExceeded, Unavailable: As the batcher.
        """
        tokens: list[Tokenised] = []
        stats = current_request().stats
        stats.characters += characters
        stats.inputs += len(inputs)

        def note(part: Any) -> Any:
            """Count what is tokenised; returns it as the batcher takes it."""
            tokens.extend(part)
            counts = [text.count for text in part]
            stats.tokens += sum(counts)
            return [item(text) for text in part], [count + self._extra for count in counts]

        # Quoted: types that are called for each request took a twentieth of its time.
        async def read() -> "AsyncGenerator[CostedItems[Item], None]":
            assert tokenise is not None
            for start in range(0, len(inputs), PART_TEXTS):
                began = time.perf_counter()
                with self._metrics.stage(self._model, "tokenize"):
                    part = await tokenise(inputs[start : start + PART_TEXTS], start)
                stats.tokenizing += time.perf_counter() - began
                yield note(part)

        cost = characters // TYPICAL_CHARACTERS_PER_TOKEN + (2 + self._extra) * len(inputs)
        parts = note(inputs) if tokenise is None else read()
        rows = await self._batcher.submit_parts(parts, len(inputs), cost)
        count, truncated = sum(t.count for t in tokens), sum(t.truncated for t in tokens)
        self._metrics.input_tokens.labels(self._model).inc(count)
        self._metrics.truncated_inputs.labels(self._model).inc(truncated)
        return rows, tokens
