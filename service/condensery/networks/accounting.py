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
    """Both halves' cost, and what lies beside their layers.

    Attributes:
        compressor: The compressor's backbone.
        generator: The generator's.
        window: Mapping, rerank head and the pointer's queries, for each window read.
        window_token: The pointer's keys and their use, for each of a window's passage tokens.
        token: Output projection, for each token generated.
        slots: Positions that memory and rerank tokens take.
    """

    compressor: LayerCost
    generator: LayerCost
    window: int
    window_token: int
    token: int
    slots: int

    @classmethod
    def of(
        cls, shape: OscarShape, *, hidden_size: int, mlp_size: int, layers: int, vocabulary: int
    ) -> "PairCost":
        """Work the cost out; sizes are the compressor backbone's, and the shared vocabulary's."""
        memory = shape.memory_tokens
        mapping = 2 * memory * 2 * hidden_size * shape.mapping_size
        attention = 4 * hidden_size * hidden_size
        queries = keys = 0
        if shape.copy:
            queries = 2 * memory * hidden_size * (hidden_size + 1)  # and the gate
            keys = 2 * hidden_size * (hidden_size + 2 * memory)  # scores, and the words' mix
        return cls(
            compressor=LayerCost(attention + 2 * hidden_size * mlp_size, layers, hidden_size),
            generator=LayerCost(
                attention + 3 * hidden_size * shape.generator_mlp_size,
                shape.generator_layers,
                hidden_size,
            ),
            window=mapping + 2 * hidden_size + queries,
            window_token=keys,
            token=2 * hidden_size * (hidden_size + vocabulary),
            slots=shape.slots,
        )

    def compress(self, question: int, passage: int) -> int:
        """FLOPs of reading one window of ``passage`` tokens for ``question`` tokens."""
        read = self.compressor.sequence(question + passage + 3 + self.slots)
        return read + self.window + self.window_token * (passage + 1)  # its [SEP] too

    def generate(self, prompt: int, generated: int) -> int:
        """FLOPs of answering with ``generated`` tokens to ``prompt`` positions."""
        return self.generator.causal(prompt, generated) + self.token * generated
