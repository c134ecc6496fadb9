"""EffiR's parameter counts (its Tables 1 to 3 and 5), and ours from the dimensions alone.

The paper counts the embedding table, the layers that are left and the last norm; the head is not
counted, for a retriever has none. The norm before a dropped sub-layer goes with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from condensery.networks.accounting import DecoderShape
from condensery.networks.effir_shape import Pruning
from condensery.networks.oscar_paper import MISTRAL_7B

BILLION = 1e9
LLAMA2_7B = DecoderShape(4096, 32, 32, 32, 128, 11008, 32000)


@dataclass(frozen=True, slots=True)
class Count:
    """A model of the paper's tables.

    Attributes:
        backbone: The dense model's name.
        variant: What was dropped.
        shape: The dense model's dimensions.
        pruning: What is left of them.
        narrowed: Share of the remaining MLPs' neurons that is gone as well, over all layers.
        paper: Billions of parameters, as printed.
    """

    backbone: str
    variant: str
    shape: DecoderShape
    pruning: Pruning
    narrowed: float
    paper: float

    @property
    def parameters(self) -> int:
        """Parameters, counted as the paper counts."""
        dense = retriever_parameters(self.shape, self.pruning)
        kept = self.shape.layers - len(self.pruning.mlp)
        gone = round(self.narrowed * kept * self.shape.mlp_size)
        return dense - 3 * self.shape.hidden_size * gone


def retriever_parameters(shape: DecoderShape, pruning: Pruning) -> int:
    """Return the parameters of a Llama-like backbone without its head, biases left out."""
    hidden = shape.hidden_size
    attention = 2 * hidden * (shape.heads + shape.key_heads) * shape.head_size + hidden
    weights = shape.table + hidden
    for layer in range(shape.layers):
        if layer not in pruning.attention:
            weights += attention
        if size := pruning.size(layer, shape.mlp_size):
            weights += 3 * hidden * size + hidden
    return weights


def counts() -> Iterator[Count]:
    """Yield the models of the paper; which layers are dropped does not matter here."""
    mistral = (
        ("full", 0, 0, 0.0, 7.1),
        ("drop 8 attention", 8, 0, 0.0, 6.8),
        ("drop 16 attention", 16, 0, 0.0, 6.4),
        ("drop 8 blocks", 8, 8, 0.0, 5.4),
        ("drop 16 blocks", 16, 16, 0.0, 3.6),
        ("drop 8 MLP", 0, 8, 0.0, 5.7),
        ("drop 16 MLP", 0, 16, 0.0, 4.3),
        ("drop 20 MLP", 0, 20, 0.0, 3.6),
        ("drop 24 MLP", 0, 24, 0.0, 2.9),
        ("drop 16 MLP, 8 attention", 8, 16, 0.0, 4.0),
        ("drop 16 MLP, width -30%", 0, 16, 0.3, 3.4),
    )
    llama = (
        ("full", 0, 0, 0.0, 6.6),
        ("drop 20 MLP", 0, 20, 0.0, 3.9),
        ("drop 20 MLP, width -30%", 0, 20, 0.3, 3.4),
        ("drop 20 MLP, width -50%", 0, 20, 0.5, 3.1),
        ("drop 24 MLP", 0, 24, 0.0, 3.4),
        ("drop 28 MLP", 0, 28, 0.0, 2.8),
    )
    for name, shape, rows in (("Mistral-7B", MISTRAL_7B, mistral), ("LLaMA2-7B", LLAMA2_7B, llama)):
        for variant, attention, mlp, narrowed, paper in rows:
            pruning = Pruning(shape.layers, tuple(range(attention)), tuple(range(mlp)))
            yield Count(name, variant, shape, pruning, narrowed, paper)
