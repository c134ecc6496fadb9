"""What a memory encoder costs (LLM2Comp): its parameters, and a text's FLOPs with k tokens more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from condensery.networks.accounting import DecoderShape
from condensery.networks.effir_paper import LLAMA2_7B, retriever_parameters
from condensery.networks.effir_shape import Pruning
from condensery.networks.llm2comp_shape import MemoryShape

PAPER_COUNTS = (1, 2, 4, 8, 16)  # k of the paper's figure 3, which takes 8
LENGTHS = (16, 32, 128, 512)  # tokens of a text, its start token included


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Cost of a memory encoder by its dimensions.

    Attributes:
        backbone: The language model's, with its own vocabulary.
        memory: How it reads.
    """

    backbone: DecoderShape
    memory: MemoryShape

    @classmethod
    def of(cls, config: Mapping[str, Any], memory: MemoryShape) -> "MemoryCost":
        """Read the dimensions out of an encoder's ``config.json``, memory tokens in its vocabulary.

        Raises:
            ValueError: A dimension is missing or wrong, or parts of the network are dropped; the
                key is named.
        """
        if Pruning.named(config) and not Pruning.from_config(config).dense:
            raise ValueError("config.json: parts of the network are dropped, which is not counted")
        rows = config.get("vocab_size")
        own = rows - memory.memory_tokens if type(rows) is int else rows
        shape = DecoderShape.from_config({**config, "vocab_size": own}, trimmed=True)
        return cls(shape, memory)

    @property
    def parameters(self) -> int:
        """Weights, the memory tokens' rows included; a head and biases are not there."""
        dense = retriever_parameters(self.backbone, Pruning(self.backbone.layers))
        return dense + self.memory.memory_tokens * self.backbone.hidden_size

    def read(self, tokens: int) -> int:
        """FLOPs of a text's vector.

        Of the last layer, the MLP reads the effective memory tokens alone.

        Args:
            tokens: Of the text, its start token included; memory tokens come on top.
        """
        positions = tokens + self.memory.memory_tokens
        return self.backbone.body().sequence(positions, positions - len(self.memory.kept))

    def read_alone(self, tokens: int) -> int:
        """FLOPs of the same network over the text alone, the mean of whose states is the vector."""
        return self.backbone.body().sequence(tokens)

    def record(self, tokens: int = 128) -> dict[str, int]:
        """Return what a manifest and a report say of it, for a text of so many tokens."""
        return {
            "parameters": self.parameters,
            f"flops_{tokens}_tokens": self.read(tokens),
            f"flops_{tokens}_tokens_without_memory": self.read_alone(tokens),
        }


def paper_costs(counts: Sequence[int] = PAPER_COUNTS) -> Iterator[MemoryCost]:
    """Yield the paper's model, Llama-2-7B, with each number of memory tokens."""
    for count in counts:
        yield MemoryCost(replace(LLAMA2_7B, trimmed=True), MemoryShape(count, start_token=1))
