import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from condensery.networks.cached_attention import attend, cached_attention
from condensery.networks.caching import Cache, Span, Step

HEADS, SIZE = 4, 8
CPU = torch.device("cpu")


def cache_of(positions: int, shared: int, fill: float = float("nan")) -> Cache:
    """Whatever nobody wrote is NaN: to read it would show."""
    made = Cache(2, positions, shared, SIZE, dtype=torch.float32, device=CPU)
    for tensor in itertools.chain(*(made.layer(layer) for layer in range(made.layers))):
        tensor.fill_(fill)
    return made


def rows(count: int, heads: int, seed: int) -> Tensor:
    return torch.randn(count, heads, SIZE, generator=torch.Generator().manual_seed(seed))


def plain(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    """Attend over one whole sequence, by the formula."""
    key, value = (
        tensor.repeat_interleave(HEADS // tensor.shape[1], dim=1) for tensor in (key, value)
    )
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    row, place = torch.arange(len(query))[:, None], torch.arange(len(query))[None, :]
    seen = place <= row
    if window is not None:
        seen &= place > row - window
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.usefixtures("kernels")
def test_pieces_see_what_whole_sequences_see(shared: int, window: int | None) -> None:
    cache = cache_of(96, shared)
    order = np.random.default_rng(shared).permutation(96)
    lengths, places = [7, 20, 33], [order[:7], order[7:27], order[27:60]]
    whole = [
        tuple(rows(n, heads, 10 * i + j) for j, heads in enumerate((HEADS, shared, shared)))
        for i, n in enumerate(lengths)
    ]
    actual = [torch.full((n, HEADS, SIZE), torch.nan) for n in lengths]
    # Which rows of which sequence run together; single ones first.
    for parts in (
        [(0, 0, 6)],
        [(0, 6, 7), (1, 0, 1), (2, 0, 10)],
        [(2, 10, 11), (1, 1, 18)],
        [(1, 18, 19), (2, 11, 12)],
        [(1, 19, 20), (2, 12, 33)],
    ):
        step = Step(cache, [Span(places[i], a, b - a) for i, a, b in parts])
        parts_of = [torch.cat([whole[i][part][a:b] for i, a, b in parts]) for part in range(3)]
        filled = [
            nn.functional.pad(part, (0, 0, 0, 0, 0, step.padded - step.total), value=torch.nan)
            for part in parts_of
        ]
        out = attend(step, 1, *filled, scale=0.3, window=window)
        assert not out[step.total :].any()
        out = out[: step.total]
        for (i, a, b), part in zip(parts, out.split([b - a for _, a, b in parts]), strict=True):
            actual[i][a:b] = part
    for got, tensors in zip(actual, whole, strict=True):
        torch.testing.assert_close(got, plain(*tensors, 0.3, window), atol=1e-5, rtol=1e-5)
    assert cache.layer(0)[0].isnan().all(), "another layer's"


def test_steps_on_a_cpu_come_in_few_sizes_and_spare_places_take_the_rest() -> None:
    cache, places = cache_of(640, 1), np.arange(640)
    sizes = set()
    for count in range(1, 513):
        step = Step(cache, [Span(places, 0, count)])
        assert step.total == count <= step.padded < count + 16
        assert (step.places[count:] == cache.spare * 16).all()
        assert step.position_ids.shape == (1, step.padded)
        sizes.add(step.padded)
    assert len(sizes) <= 16 + 6 + 28
    assert {1, 7, 16} <= sizes, "of a few rows, each would be a large part"


def test_a_step_can_be_run_again() -> None:
    cache = cache_of(32, 2)
    tensors = [rows(9, heads, heads) for heads in (HEADS, 2, 2)]
    places = np.arange(32)[::-1].copy()
    first = attend(Step(cache, [Span(places, 0, 9)]), 0, *tensors, scale=1.0)
    step = Step(cache, [Span(places, 4, 5)])
    again = [attend(step, 0, *(tensor[4:] for tensor in tensors), scale=1.0) for _ in range(2)]
    torch.testing.assert_close(again[0], first[4:])
    assert torch.equal(again[0], again[1])


def test_what_cached_attention_does_not_do_is_refused() -> None:
    module = nn.Module()
    step = Step(cache_of(16, HEADS), [Span(np.arange(16), 0, 3)])
    tensors = [rows(3, HEADS, seed).transpose(0, 1)[None] for seed in range(3)]
    for wrong, message in (
        ({"step": None}, "keyword argument step"),
        ({"attention_mask": torch.zeros(1)}, "no mask"),
        ({"dropout": 0.1}, "no dropout"),
        ({"softcap": 30.0}, "softcap"),
    ):
        with pytest.raises(ValueError, match=message):
            cached_attention(module, *tensors, **{"attention_mask": None, "step": step, **wrong})
    with pytest.raises(ValueError, match="2 queries and 2 keys for a step of 3"):
        cached_attention(module, *(tensor[:, :, :2] for tensor in tensors), None, step=step)


@pytest.mark.parametrize("half", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("window", [None, 5])
def test_a_device_sees_in_bf16_what_a_cpu_sees_in_fp32(window: int | None, half: str) -> None:
    lengths, shared = [7, 40, 33], 2
    outs = []
    for device, dtype in (("cpu", torch.float32), (half, torch.bfloat16)):
        cache = Cache(1, 96, shared, SIZE * 8, dtype=dtype, device=torch.device(device))
        source = torch.Generator().manual_seed(0)
        out = []
        for spans in (
            [Span(np.arange(16, 96), 0, n) for n in lengths[:1]],
            [Span(np.arange(16, 96), 7, 1), Span(np.arange(16), 0, 9)],
            [Span(np.arange(16), 9, 4), Span(np.arange(16, 96), 8, 20)],
        ):
            step = Step(cache, spans)
            tensors = [
                torch.randn(step.total, heads, SIZE * 8, generator=source).to(device, dtype)
                for heads in (HEADS, shared, shared)
            ]
            filler = (0, 0, 0, 0, 0, step.padded - step.total)
            padded = [nn.functional.pad(tensor, filler) for tensor in tensors]
            seen = attend(step, 0, *padded, scale=0.125, window=window)[: step.total]
            out.append(seen.float().cpu())
        outs.append(torch.cat(out))
    torch.testing.assert_close(*outs, atol=0.05, rtol=0.05)
