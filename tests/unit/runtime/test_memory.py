import torch
from torch import nn

from condensery.networks.linear import Dense
from condensery.runtime.memory import give_back, weight_bytes


class Half:
    """No module, and holds some."""

    def __init__(self, inner: nn.Module, words: torch.Tensor) -> None:
        self._inner = inner
        self._words = words
        self.other = "no tensor"


def test_every_weight_counts_once_whoever_holds_it() -> None:
    inner = nn.Linear(8, 4)  # 36 numbers
    inner.register_buffer("scale", torch.ones(2, dtype=torch.float64))
    words = torch.zeros(10, 3, dtype=torch.bfloat16)
    wanted = {"cpu": 36 * 4 + 2 * 8 + 30 * 2}
    assert weight_bytes([Half(inner, words)]) == wanted
    assert weight_bytes([Half(inner, words), inner, Half(inner, words)]) == wanted


def test_weights_that_are_packed_count_as_before() -> None:
    for fp32 in (False, True):
        dense = Dense.of(nn.Linear(32, 16, bias=False), fp32=fp32)
        assert weight_bytes([dense]) == {"cpu": 32 * 16 * 4}


def test_what_is_free_can_be_given_back_at_any_time() -> None:
    give_back()
    give_back()
