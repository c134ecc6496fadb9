"""FLOPs from dimensions alone: two for each multiply-add of every matrix product."""

from dataclasses import dataclass

from condensery.networks.oscar_shape import OscarShape


@dataclass(frozen=True, slots=True)
class LayerCost:
    """A transformer's cost: weights of a layer's matrices, layers, and the hidden size."""

    layer_weights: int
    layers: int
    hidden_size: int

    def sequence(self, tokens: int) -> int:
        """FLOPs of one bidirectional pass over ``tokens``, attention scores included."""
        return self.layers * (
            2 * self.layer_weights * tokens + 4 * self.hidden_size * tokens * tokens
        )

    def causal(self, prompt: int, generated: int) -> int:
        """FLOPs of reading ``prompt`` positions and then ``generated`` more, one at a time."""
        read = prompt + max(0, generated - 1)  # the last token is not read again
        scores = 4 * self.hidden_size * read * (read + 1) // 2
        return self.layers * (2 * self.layer_weights * read + scores)


@dataclass(frozen=True, slots=True)
class PairCost:
    """Both halves' cost, and what each passage and each generated token adds beside."""

    compressor: LayerCost
    generator: LayerCost
    passage: int
    token: int

    @classmethod
    def of(
        cls, shape: OscarShape, *, hidden_size: int, mlp_size: int, layers: int, vocabulary: int
    ) -> "PairCost":
        """Work the cost out; sizes are the compressor backbone's, and the shared vocabulary's."""
        mapping = 2 * shape.memory_tokens * 2 * hidden_size * shape.mapping_size
        attention = 4 * hidden_size * hidden_size
        return cls(
            compressor=LayerCost(attention + 2 * hidden_size * mlp_size, layers, hidden_size),
            generator=LayerCost(
                attention + 3 * hidden_size * shape.generator_mlp_size,
                shape.generator_layers,
                hidden_size,
            ),
            passage=mapping + 2 * hidden_size,
            token=2 * hidden_size * (hidden_size + vocabulary),
        )

    def generate(self, prompt: int, generated: int) -> int:
        """FLOPs of answering with ``generated`` tokens to ``prompt`` positions."""
        return self.generator.causal(prompt, generated) + self.token * generated
