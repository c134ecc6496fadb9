"""An OSCAR pair: a compressor and the generator that reads its vectors.

Source: OSCAR, "Online Soft Compression And Reranking", arXiv:2504.07109.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig

from condensery.networks.dtypes import Calls
from condensery.networks.oscar_compressor import Compressor
from condensery.networks.oscar_generator import make_generator, standardised
from condensery.networks.oscar_shape import OscarShape
from condensery.networks.pointers import AnyPointer, BoundsPointer, Pointer, SpanHead, SpanPointer

WORDS = "compressor.backbone.embeddings.word_embeddings.weight"


class OscarPair(nn.Module):
    """Both halves over one frozen word table.

    Args:
        config: The compressor backbone's configuration.
        shape: The pair's dimensions.
        words: The base encoder's word embeddings, (vocabulary, hidden); not part of the pair's
            own weights, the stored pair names the model that has them.
    """

    def __init__(self, config: BertConfig, shape: OscarShape, words: Tensor) -> None:
        super().__init__()
        self.shape = shape
        pointer: type[AnyPointer] = (
            BoundsPointer if shape.bounds else SpanPointer if shape.walk else Pointer
        )
        self.compressor = Compressor(
            config,
            shape,
            generator_size=config.hidden_size,
            pointer=pointer if shape.copy else None,
        )
        if isinstance(self.compressor.pointer, SpanHead):
            self.compressor.pointer.sharp = shape.sharp
        self.generator = make_generator(standardised(words), shape, config)
        table = self.compressor.backbone.embeddings.word_embeddings
        # Not copied: in fp32 it stays mapped from the base's file, as that encoder's own is.
        table.weight = nn.Parameter(words.to(table.weight.dtype), requires_grad=False)

    @classmethod
    def of_state(
        cls, config: BertConfig, shape: OscarShape, words: Tensor, state: dict[str, Tensor]
    ) -> "OscarPair":
        """Make a pair of what ``own_state`` gave; its first weights are not drawn.

        Raises:
            ValueError: A tensor is missing, unknown, or of another shape.
        """
        with _Undrawn():
            pair = cls(config, shape, words)
        pair.load_own_state(state)
        return pair

    def own_state(self) -> dict[str, Tensor]:
        """Return the weights that belong to the pair, without the shared word table."""
        return {name: value for name, value in self.state_dict().items() if name != WORDS}

    def load_own_state(self, state: dict[str, Tensor]) -> None:
        """Load what ``own_state`` gave.

        Raises:
            ValueError: A tensor is missing, unknown, or of another shape.
        """
        try:
            missing, unexpected = self.load_state_dict(state, strict=False)
        except RuntimeError as error:  # names each tensor of another shape
            raise ValueError(f"not this pair's weights: {error}") from error
        if unexpected or set(missing) != {WORDS}:
            raise ValueError(
                f"not this pair's weights: missing {sorted(set(missing) - {WORDS})}, "
                f"unknown {sorted(unexpected)}"
            )


class _Undrawn(Calls):
    """Leaves weights as they lie where they would be drawn at random, in this thread.

    Drawing them was a quarter of the time that loading a pair took.
    """

    # By name: transformers puts functions of its own in the place of torch's while it draws.
    _draws = frozenset(("normal_", "uniform_", "kaiming_uniform_"))

    def call(self, func: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        if func.__name__ in self._draws:
            return args[0] if args else options["tensor"]
        if func is torch.randn:
            func = torch.empty
        return func(*args, **options)
