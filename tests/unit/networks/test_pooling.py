import pytest
import torch

from condensery.networks.packing import Packing
from condensery.networks.pooling import normalise, pool

LENGTHS = [3, 1, 20]
PACKING = Packing.of(LENGTHS, dtype=torch.float32, total_multiple=32)


def hidden(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows = torch.randn(PACKING.total, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows[sum(LENGTHS) :] = torch.nan  # filler must not be read
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mean_pooling_is_each_sequence_s_mean_in_fp32(dtype: torch.dtype) -> None:
    rows = hidden(dtype)
    wanted = torch.stack([part.float().mean(0) for part in rows[:24].split(LENGTHS)])
    got = pool(rows, PACKING, "mean")
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0)


def test_cls_and_last_pooling_take_the_first_and_the_last_token() -> None:
    rows = hidden()
    assert torch.equal(pool(rows, PACKING, "cls"), rows[[0, 3, 4]])
    assert torch.equal(pool(rows, PACKING, "last"), rows[[2, 3, 23]])


def test_normalised_rows_have_length_one_and_a_zero_row_stays_zero() -> None:
    rows = torch.cat([torch.randn(4, 8) * 1e3, torch.zeros(1, 8)])
    lengths = normalise(rows).norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([1.0, 1, 1, 1, 0]), atol=1e-6, rtol=0)
