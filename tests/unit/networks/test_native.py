import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from condensery.networks import native

built = pytest.mark.skipif(native.kernels() is None, reason="no compiler when it was installed")
DTYPES = [torch.float32, torch.bfloat16]


@built
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 64, 80, 128, 512])
@pytest.mark.parametrize(("heads", "shared"), [(6, 6), (8, 2), (7, 1)])
def test_attention_is_that_of_torch(dtype: torch.dtype, size: int, heads: int, shared: int) -> None:
    source = torch.Generator().manual_seed(size + heads)
    draws = np.random.default_rng(size)
    keys, values = (torch.randn(600, shared, size, generator=source).to(dtype) for _ in range(2))
    query = torch.randn(5, heads, size, generator=source).to(dtype)
    counts = [1, 2, 15, 100, 300]
    order = draws.permutation(600)
    # Anywhere in the cache; what is not theirs would show.
    mine = np.split(order[: sum(counts)], np.cumsum(counts)[:-1])
    keys[order[sum(counts) :]] = torch.nan
    ends = np.cumsum([0, *counts])
    got = native.attend(query, keys, values, np.concatenate(mine), ends, 0.2)
    assert got.dtype == dtype
    for row, places in enumerate(mine):
        wanted = F.scaled_dot_product_attention(
            query[row].float()[None, :, None],
            *(table[places].float().transpose(0, 1)[None] for table in (keys, values)),
            scale=0.2,
            enable_gqa=True,
        )[0, :, 0]
        atol, rtol = (1e-5, 2e-5) if dtype == torch.float32 else (1e-4, 2**-8)
        torch.testing.assert_close(got[row].float(), wanted, atol=atol, rtol=rtol)


@built
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_hang_on_others_and_one_with_a_nan_fails_alone(dtype: torch.dtype) -> None:
    keys, values = (torch.randn(64, 2, 16).to(dtype) for _ in range(2))
    query = torch.randn(3, 4, 16).to(dtype)
    keys[9] = torch.nan
    places, ends = np.array([0, 1, 2, 8, 9, 30]), np.array([0, 3, 5, 6])
    whole = native.attend(query, keys, values, places, ends, 1.0)
    alone = native.attend(query[:1], keys, values, places[:3], ends[:2], 1.0)
    assert torch.equal(whole[0], alone[0])
    assert whole[1].isnan().all()
    assert whole[2].isfinite().all()
    # Of one key alone its value, whatever the score; a score of any size overflows nothing.
    assert torch.equal(whole[2], values[30].repeat_interleave(2, dim=0))
    large = native.attend(1e4 * query[:1], keys, values, places[:3], ends[:2], 1.0)
    assert large.isfinite().all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("length", [1, 16, 48, 100, 128, 1024, 1040])
def test_softmax_is_that_of_torch(length: int) -> None:
    scores = (10 * torch.randn(3, 5, length, generator=torch.Generator().manual_seed(1))).bfloat16()
    scores[0, 1, length // 2 :] = -torch.inf
    scores[0, 1, 0] = 3.0
    scores[1, 2, -1] = torch.nan
    scores[2, 3] = -torch.inf
    scores[2, 4, 0] = 3e38
    wanted = scores.float().softmax(-1)
    got = native.softmax(scores.clone())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), wanted, atol=1e-37, rtol=2**-8, equal_nan=True)
    assert got[1, 2].isnan().all()
    assert int(got.isnan().any(-1).sum()) == 2, "each row by itself"


def test_softmax_of_what_the_kernel_does_not_take_is_torchs() -> None:
    for scores in (
        torch.randn(2, 32),
        torch.randn(32, 2).bfloat16().T,
        torch.randn(2, 32, dtype=torch.bfloat16, requires_grad=True),
        torch.randn(2, 0, dtype=torch.bfloat16),
    ):
        before = scores.clone()
        assert torch.equal(native.softmax(scores), scores.softmax(-1))
        assert torch.equal(scores, before)


@built
def test_rows_are_rounded_and_scaled_by_their_largest() -> None:
    for dtype in DTYPES:
        rows = torch.tensor([[1.0, -2.0, 0.5, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, torch.inf, 0, 0]])
        codes, sizes = native.round_rows(rows.to(dtype))
        assert codes[0].tolist() == [128 + 64, 1, 128 + 32, 255]
        assert codes[1].tolist() == [128] * 4
        assert sizes[0].item() == 2
        assert sizes[2].isnan().all()
        product = torch.arange(8.0).reshape(2, 4)
        scaled = native.scale_rows(product, torch.tensor([[2.0], [0.5]]), torch.ones(4), dtype)
        assert scaled.dtype == dtype
        assert scaled.tolist() == [[1, 3, 5, 7], [3, 3.5, 4, 4.5]]
        assert (
            native.scale_rows(product, torch.ones(2, 1), None, dtype).tolist() == product.tolist()
        )


def copied(tmp_path: Path) -> Path:
    for suffix in (".c", ".py"):
        shutil.copy(native.SOURCE.with_suffix(suffix), tmp_path / f"native{suffix}")
    return tmp_path / "native.py"


def run(script: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_it_is_built_once_and_anew_for_another_source(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    script = copied(tmp_path)
    assert run(script).endswith("was built by cc")
    (first,) = tmp_path.glob("native-*.so")
    assert run(script) == f"{first.name} is there"
    source = tmp_path / "native.c"
    source.write_text(source.read_text() + "\n")
    assert "was built" in run(script)
    (second,) = tmp_path.glob("native-*.so")
    assert second.name != first.name


def test_without_a_compiler_or_with_a_broken_one_it_says_so_and_goes_on(tmp_path: Path) -> None:
    script = copied(tmp_path)
    assert run(script, PATH=str(tmp_path)).startswith("no C compiler")
    assert run(script, CC="false").startswith("false failed, so no kernels were built")
    assert run(script, CC="/no/such/compiler").startswith("no kernels were built: ")
    assert not list(tmp_path.glob("native-*.so"))


def test_what_is_for_another_machine_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "native-0.so"
    broken.write_bytes(b"\x7fELF, but of nobody's")
    monkeypatch.setattr(native, "library", lambda: broken)
    native.kernels.cache_clear()
    try:
        assert native.kernels() is None
        assert not native.takes(torch.zeros(1, 1))
    finally:
        native.kernels.cache_clear()
