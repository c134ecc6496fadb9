"""SHRP's parameters and FLOPs (arXiv:2512.20635, Table 1), from BERT-base's dimensions alone.

The paper's parameters are those of the deployed network: of a converted layer one head's queries,
keys and values, the expander and two norms. Its FLOPs are another network's: the matrices of one
head *with* an output projection, which is not deployed, and no attention scores. ``true_flops``
counts what is computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

PAPER_TOKENS = 128


@dataclass(frozen=True, slots=True)
class BertShape:
    """Dimensions of a BERT-like encoder.

    Attributes:
        hidden_size: Width of the layers.
        layers: How many.
        heads: Of each layer's attention.
        mlp_size: Neurons of each layer's MLP.
        labels: Of the classifier after the pooler; None: neither is there.
    """

    hidden_size: int
    layers: int
    heads: int
    mlp_size: int
    labels: int | None = None

    @property
    def head_size(self) -> int:
        """Of one head."""
        return self.hidden_size // self.heads

    @property
    def layer_parameters(self) -> int:
        """Of a plain layer: four projections, the MLP, two norms; with biases."""
        hidden = self.hidden_size
        projections = 4 * (hidden * hidden + hidden)
        return projections + 2 * hidden * self.mlp_size + self.mlp_size + hidden + 4 * hidden

    @property
    def expert_parameters(self) -> int:
        """Of a converted layer with one expert: three projections, the expander, two norms."""
        hidden, head = self.hidden_size, self.head_size
        return 3 * (hidden * head + head) + head * hidden + hidden + 4 * hidden

    @property
    def parameters(self) -> int:
        """Of the whole network, embeddings left out."""
        hidden = self.hidden_size
        top = 0 if self.labels is None else hidden * hidden + hidden + (hidden + 1) * self.labels
        return self.layers * self.layer_parameters + top

    def layer_flops(self, tokens: int) -> int:
        """Of a plain layer over a sequence; two a multiplication and addition, scores counted."""
        hidden = self.hidden_size
        matrices = 4 * hidden * hidden + 2 * hidden * self.mlp_size
        return 2 * tokens * (matrices + 2 * tokens * hidden)

    def expert_flops(self, tokens: int) -> int:
        """Of a converted layer with one expert."""
        hidden, head = self.hidden_size, self.head_size
        return 2 * tokens * (4 * hidden * head + 2 * tokens * head)


BERT_BASE = BertShape(hidden_size=768, layers=12, heads=12, mlp_size=3072, labels=2)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of Table 1.

    Attributes:
        converted: Layers that are converted and pruned to one expert.
        paper_parameters: Percent of parameters gone, as printed.
        paper_flops: Percent of FLOPs left, as printed.
        paper_throughput: Times the dense model's throughput, as printed.
    """

    converted: int
    paper_parameters: float
    paper_flops: float
    paper_throughput: float
    shape: BertShape = BERT_BASE

    @property
    def parameters_gone(self) -> float:
        """Percent of parameters gone, embeddings left out, pooler and classifier counted."""
        saved = self.shape.layer_parameters - self.shape.expert_parameters
        return 100 * self.converted * saved / self.shape.parameters

    @property
    def flops_as_counted(self) -> float:
        """Percent of FLOPs left as the paper counts them: weights only, an output projection."""
        hidden, head = self.shape.hidden_size, self.shape.head_size
        layer = 4 * hidden * hidden + 2 * hidden * self.shape.mlp_size
        return self._left(5 * hidden * head / layer)

    def true_flops(self, tokens: int = PAPER_TOKENS) -> float:
        """Percent of FLOPs left, layers alone, with attention scores and no output projection."""
        return self._left(self.shape.expert_flops(tokens) / self.shape.layer_flops(tokens))

    def _left(self, share: float) -> float:
        return 100 * (1 - self.converted / self.shape.layers * (1 - share))


def rows() -> Iterator[Row]:
    """Yield Table 1's rows of converted layers."""
    yield Row(2, 16.1, 83.91, 1.19)
    yield Row(4, 32.2, 67.82, 1.43)
    yield Row(6, 48.2, 51.74, 1.81)
    yield Row(8, 64.3, 35.65, 2.46)
    yield Row(10, 80.4, 19.56, 3.82)
    yield Row(11, 88.5, 11.52, 5.24)
