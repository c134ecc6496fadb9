"""FLOPs from dimensions alone: two for each multiply-add of every matrix product.

What is looked up (embeddings) and what is no matrix product (norms, rotations, softmax) is left
out, as ``torch.profiler`` leaves it out. Attention scores are counted where a token sees another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from condensery.networks.oscar_shape import BertShape, OscarShape


class InferenceCosts(Protocol):
    """Costs of any pair; ``flops_*`` in replies come from here."""

    def compress(self, question: int, passage: int) -> int:
        """FLOPs of reading one window of ``passage`` tokens for ``question`` tokens."""
        ...

    def generate(self, prompt: int, generated: int) -> int:
        """FLOPs of answering with ``generated`` tokens to ``prompt`` positions."""
        ...


@dataclass(frozen=True, slots=True)
class LayerCost:
    """A transformer's cost: weights of a layer's matrices, layers, and the width of attention.

    Attributes:
        layer_weights: Weights of one layer's matrices.
        layers: How many.
        attention_size: Heads times a head's size, which need not be the hidden size.
        trimmed: Weights of the last layer that see those positions alone whose last hidden states
            are used (``networks.last_layer``).
    """

    layer_weights: int
    layers: int
    attention_size: int
    trimmed: int = 0

    def matrices(self, tokens: int, unused: int = 0) -> int:
        """FLOPs of the layers' matrices, without attention scores.

        Args:
            tokens: All positions.
            unused: Those whose last hidden states nothing uses.
        """
        return 2 * (self.layer_weights * self.layers * tokens - self.trimmed * unused)

    def sequence(self, tokens: int, unused: int = 0) -> int:
        """FLOPs of one bidirectional pass over ``tokens``, attention scores included."""
        scores = self.layers * 4 * self.attention_size * tokens * tokens
        return self.matrices(tokens, unused) + scores

    def causal(self, prompt: int, generated: int, unused: int = 0) -> int:
        """FLOPs of reading ``prompt`` positions and then ``generated`` more, one at a time."""
        read = prompt + max(0, generated - 1)  # the last token is not read again
        seen = read * (read + 1) // 2
        return self.matrices(read, unused) + self.layers * 4 * self.attention_size * seen

    def prefixed(self, prompt: int, generated: int, unused: int = 0) -> int:
        """FLOPs of the same where each position of the prompt sees all of it."""
        unseen = prompt * (prompt - 1) // 2  # of those behind it, by one that is causal
        return (
            self.causal(prompt, generated, unused) + self.layers * 4 * self.attention_size * unseen
        )


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Dimensions of a Llama-like decoder: grouped key heads, a gated MLP.

    Attributes:
        hidden_size: Features of the residual stream.
        layers: Of them.
        heads: Query heads of a layer.
        key_heads: Key (and value) heads of a layer.
        head_size: Features of a head.
        mlp_size: Neurons of each of the gated MLP's two branches.
        vocabulary: Tokens that the head scores.
        tied: Whether the head is the embedding table; counts for parameters, not for FLOPs.
        trimmed: Whether the last MLP reads those positions alone whose states are used.
    """

    hidden_size: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    mlp_size: int
    vocabulary: int
    tied: bool = False
    trimmed: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, trimmed: bool = False) -> "DecoderShape":
        """Read the dimensions out of a transformers ``config.json``.

        Raises:
            ValueError: A dimension is missing, or is no positive integer; it is named.
        """
        heads = _positive(config, "num_attention_heads")
        hidden = _positive(config, "hidden_size")
        return cls(
            hidden_size=hidden,
            layers=_positive(config, "num_hidden_layers"),
            heads=heads,
            key_heads=_positive(config, "num_key_value_heads", heads),
            head_size=_positive(config, "head_dim", hidden // heads),
            mlp_size=_positive(config, "intermediate_size"),
            vocabulary=_positive(config, "vocab_size"),
            tied=bool(config.get("tie_word_embeddings", False)),
            trimmed=trimmed,
        )

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's matrices: q and o, k and v, gate, up and down."""
        attention = 2 * (self.heads + self.key_heads) * self.head_size
        return self.hidden_size * attention + self.mlp_weights

    @property
    def mlp_weights(self) -> int:
        """Weights of one layer's MLP: gate, up and down."""
        return 3 * self.hidden_size * self.mlp_size

    @property
    def table(self) -> int:
        """Weights of the embedding table, or of the head."""
        return self.vocabulary * self.hidden_size

    @property
    def parameters(self) -> int:
        """Weights of all matrices, head included; norms and biases are left out."""
        return self.layers * self.layer_weights + self.table * (1 if self.tied else 2)

    def body(self, layers: int | None = None) -> LayerCost:
        """Return the cost of the first ``layers``, or of all."""
        return LayerCost(
            self.layer_weights,
            self.layers if layers is None else layers,
            self.heads * self.head_size,
            self.mlp_weights if self.trimmed else 0,
        )


def mapping_flops(vectors: int, read: int, hidden: int, written: int) -> int:
    """FLOPs of taking ``vectors`` through a two-layer mapping of these sizes; 0 hidden is none."""
    return 2 * vectors * hidden * (read + written)


@dataclass(frozen=True, slots=True)
class CausalPairCost:
    """Cost of a pair whose halves are both causal language models.

    Attributes:
        compressor: The compressor's layers; it has no head.
        generator: The generator's.
        head: FLOPs of scoring the next token.
        vector: FLOPs of mapping a memory vector.
        score: FLOPs of the rerank head; 0 without one.
        memory: Memory vectors of a window, where ``rate`` is 0.
        rate: If not 0, a text of n tokens becomes ``n // rate + 1`` vectors.
        specials: Positions of a compressor's prompt that are neither question nor passage.
        question: Whether the compressor reads the question.
    """

    compressor: LayerCost
    generator: LayerCost
    head: int
    vector: int
    score: int
    memory: int
    rate: int
    specials: int
    question: bool = True

    @classmethod
    def of(
        cls,
        compressor: DecoderShape,
        generator: DecoderShape,
        *,
        memory_tokens: int,
        memory_rate: int = 0,
        mapping_size: int = 0,
        rerank: bool = False,
        specials: int = 0,
        question: bool = True,
    ) -> "CausalPairCost":
        """Work the cost out; ``compressor.layers`` are those it runs, no mapping is size 0."""
        sizes = (compressor.hidden_size, mapping_size, generator.hidden_size)
        return cls(
            compressor=compressor.body(),
            generator=generator.body(),
            head=2 * generator.table,
            vector=mapping_flops(1, *sizes),
            score=2 * compressor.hidden_size * rerank,
            memory=memory_tokens,
            rate=memory_rate,
            specials=specials,
            question=question,
        )

    def compress(self, question: int, passage: int) -> int:
        """FLOPs of reading one window of ``passage`` tokens for ``question`` tokens."""
        text = question * self.question + passage + self.specials
        memory = text // self.rate + 1 if self.rate else self.memory
        read = self.compressor.causal(text + memory + bool(self.score), 0, unused=text)
        return read + memory * self.vector + self.score

    def generate(self, prompt: int, generated: int) -> int:
        """FLOPs of answering with ``generated`` tokens to ``prompt`` positions."""
        return self.generator.causal(prompt, generated, unused=prompt - 1) + self.head * generated


@dataclass(frozen=True, slots=True)
class PairCost:
    """Cost of a pair with a BERT-size compressor: both halves', and what lies beside their layers.

    Attributes:
        compressor: The compressor's backbone.
        generator: The generator's.
        window: Mapping, rerank head and the pointer's queries and gate, for each window read.
        window_token: The pointer's keys and their use, for each of a window's passage tokens.
        token: Output projection and head, for each token generated.
        slots: Positions that memory and rerank tokens take.
        two_way: Whether each position of the generator's prompt sees all of it.
    """

    compressor: LayerCost
    generator: LayerCost
    window: int
    window_token: int
    token: int
    slots: int
    two_way: bool = False

    @classmethod
    def of(
        cls, shape: OscarShape, *, hidden_size: int, mlp_size: int, layers: int, vocabulary: int
    ) -> "PairCost":
        """Work the cost out; sizes are the compressor backbone's, and the shared vocabulary's."""
        memory = shape.memory_tokens
        mapping = mapping_flops(memory, hidden_size, shape.mapping_size, hidden_size)
        queries = keys = 0
        if shape.copy:
            queries = 2 * memory * hidden_size  # the gate
            keys = 2 * hidden_size * memory  # the words' mix
            if shape.walk or shape.bounds:
                keys += 4 * hidden_size  # where the answer starts, and ends
            else:
                queries += 2 * memory * hidden_size * hidden_size
                keys += 2 * hidden_size * (hidden_size + memory)  # keys, and their scores
        mlp, deep = shape.generator_mlp_size, shape.generator_layers
        gated = 3 * hidden_size * mlp
        causal = LayerCost(4 * hidden_size * hidden_size + gated, deep, hidden_size, gated)
        two_way = _bert(hidden_size, mlp, deep, trimmed=True)
        return cls(
            # A pointer reads the states of the passage's words too.
            compressor=_bert(hidden_size, mlp_size, layers, trimmed=not shape.copy),
            generator=two_way if shape.two_way else causal,
            window=mapping + 2 * hidden_size + queries,
            window_token=keys,
            token=2 * hidden_size * (hidden_size + vocabulary),
            slots=shape.slots,
            two_way=shape.two_way,
        )

    @classmethod
    def beside(
        cls,
        shape: BertShape,
        generator: DecoderShape,
        *,
        hidden_size: int,
        mlp_size: int,
        layers: int,
    ) -> "PairCost":
        """Work the cost out beside a causal language model; sizes are the compressor backbone's."""
        sizes = (hidden_size, shape.mapping_size, generator.hidden_size)
        return cls(
            compressor=_bert(hidden_size, mlp_size, layers, trimmed=True),
            generator=generator.body(),
            window=mapping_flops(shape.memory_tokens, *sizes) + 2 * hidden_size,
            window_token=0,
            token=2 * generator.table,
            slots=shape.slots,
        )

    def compress(self, question: int, passage: int) -> int:
        """FLOPs of reading one window of ``passage`` tokens for ``question`` tokens."""
        text = question + passage + 3
        read = self.compressor.sequence(text + self.slots, unused=text)
        return read + self.window + self.window_token * (passage + 1)  # its [SEP] too

    def generate(self, prompt: int, generated: int) -> int:
        """FLOPs of answering with ``generated`` tokens to ``prompt`` positions."""
        read = self.generator.prefixed if self.two_way else self.generator.causal
        return read(prompt, generated, unused=prompt - 1) + self.token * generated


def _bert(hidden_size: int, mlp_size: int, layers: int, *, trimmed: bool) -> LayerCost:
    square, mlp = hidden_size * hidden_size, 2 * hidden_size * mlp_size
    # Of the last layer, keys, values and queries are made of all positions.
    return LayerCost(4 * square + mlp, layers, hidden_size, (square + mlp) * trimmed)


def _positive(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:  # True is an int too
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
    return value
