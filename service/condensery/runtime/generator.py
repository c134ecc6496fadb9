"""A running generator: greedy decoding, one step at a time on the shared workers."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from condensery.errors import CondenseryError, ModelFault
from condensery.networks.oscar_generator import Generator as Network
from condensery.runtime.batcher import Batcher, Limits
from condensery.runtime.detokenizing import Detokenizer
from condensery.runtime.device import Workers
from condensery.values import FinishReason, Floats


@dataclass(frozen=True, slots=True)
class Token:
    """One step: the text it adds (may be empty), tokens so far, and why it was the last."""

    text: str
    count: int
    finish: FinishReason | None = None


@dataclass(slots=True, eq=False)
class Stream:
    """A sequence being generated: what its next step reads, and its key/value cache."""

    embeds: Tensor
    cache: DynamicCache = field(default_factory=DynamicCache)


class Generator:
    """Streams answers. Sequences take turns step by step, so none waits for a whole other.

    Args:
        network: The pair's generator.
        piece_of: Word piece of an id.
        stop_id: The id that ends an answer.
        workers: Where steps run.
        model: Name in metrics and messages.
    """

    def __init__(
        self,
        network: Network,
        piece_of: Callable[[int], str],
        stop_id: int,
        workers: Workers,
        *,
        model: str,
    ) -> None:
        self._network = network
        self._piece_of = piece_of
        self._stop_id = stop_id
        self._model = model
        self._batcher: Batcher[Stream, int] = Batcher(
            self._step, workers, limits=Limits(batch_items=1), model=model
        )

    async def generate(
        self, prompt: Sequence[Floats | Sequence[int]], *, max_tokens: int
    ) -> AsyncIterator[Token]:
        """Continue a prompt greedily.

        Args:
            prompt: Parts in order: memory vectors (vectors, hidden), or word-piece ids; a
                separator follows every part but the last.
            max_tokens: Most tokens generated.
        """
        sequence = Stream(self._embed(prompt))
        detokenizer = Detokenizer()
        cost = sequence.embeds.shape[1]
        for count in range(1, max_tokens + 1):
            (chosen,) = await self._batcher.submit([sequence], [cost])
            cost = 1
            if chosen == self._stop_id:
                yield Token("", count - 1, "stop")
                return
            text = detokenizer.push(self._piece_of(chosen))
            yield Token(text, count, "length" if count == max_tokens else None)

    @torch.inference_mode()
    def _embed(self, prompt: Sequence[Floats | Sequence[int]]) -> Tensor:
        words = self._network.words
        separator = self._network.separator.to(words.dtype)[None]
        parts: list[Tensor] = []
        for part in prompt:
            if isinstance(part, np.ndarray):
                parts.append(torch.from_numpy(part).to(words))
            else:
                parts.append(words[torch.tensor(part, dtype=torch.long, device=words.device)])
            parts.append(separator)
        return torch.cat(parts[:-1])[None]

    @torch.inference_mode()
    def _step(self, sequences: list[Stream]) -> list[int | CondenseryError]:
        return [self._next(sequence) for sequence in sequences]

    def _next(self, sequence: Stream) -> int | CondenseryError:
        """Read what is new of a sequence and choose its next token."""
        out = self._network(
            sequence.embeds, past_key_values=sequence.cache, use_cache=True
        ).last_hidden_state
        logits = self._network.logits(out[:, -1])
        best, chosen = logits.float().max(dim=-1)
        if not torch.isfinite(best).item():
            return ModelFault(f"{self._model}: the next token's scores are NaN or infinite")
        sequence.embeds = self._network.words[chosen][None]
        return int(chosen)

    def close(self) -> None:
        """Refuse new steps."""
        self._batcher.close()
