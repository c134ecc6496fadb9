"""What a model must pass before its first request."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from condensery.errors import ModelFault
from condensery.runtime.encoder import Encoder
from condensery.runtime.loader import self_test
from condensery.runtime.workers import Workers


@pytest.fixture
def encoder(tiny: Callable[..., Any], workers: Workers) -> Encoder:
    return Encoder.load(tiny(), workers)


def meddle(encoder: Encoder, change: Callable[[Any, int], Any]) -> None:
    """Change what each forward pass gives, by how many came before it."""
    forward, calls = encoder._batcher._forward, [0]

    def changed(texts: Any) -> Any:
        calls[0] += 1
        return [change(row, calls[0]) for row in forward(texts)]

    encoder._batcher._forward = changed


async def test_a_sound_model_passes(encoder: Encoder) -> None:
    await self_test(encoder)


async def test_one_that_gives_other_numbers_each_time_does_not(encoder: Encoder) -> None:
    meddle(encoder, lambda row, call: row + np.float32(0.01 * call))
    with pytest.raises(ModelFault, match="tiny: the same text gave other numbers the second time"):
        await self_test(encoder)


async def test_differences_of_rounding_pass(encoder: Encoder) -> None:
    meddle(encoder, lambda row, call: row * np.float32(1 + 1e-4 * (call % 2)))
    await self_test(encoder)


@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_one_whose_numbers_are_none_does_not(encoder: Encoder, value: float) -> None:
    meddle(encoder, lambda row, call: np.full_like(row, value))
    with pytest.raises(ModelFault, match="tiny: NaN or infinity"):
        await self_test(encoder)
