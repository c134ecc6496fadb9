from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from condensery.networks.oscar_interface import cut_windows


@pytest.mark.parametrize(
    ("tokens", "size", "wanted"),
    [
        (0, 8, [(0, 0)]),
        (8, 8, [(0, 8)]),
        (9, 8, [(0, 8), (1, 9)]),
        (14, 8, [(0, 8), (6, 14)]),
        (20, 8, [(0, 8), (6, 14), (12, 20)]),
        (3, 1, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_windows_start_at_the_first_token_and_end_at_the_last(
    tokens: int, size: int, wanted: list[tuple[int, int]]
) -> None:
    assert cut_windows(tokens, size) == wanted


@given(tokens=st.integers(0, 3000), size=st.integers(1, 200))
def test_windows_cover_every_token_and_none_is_over_size(tokens: int, size: int) -> None:
    windows = cut_windows(tokens, size)
    covered = set()
    for start, end in windows:
        assert 0 <= start <= end <= tokens
        assert end - start == min(tokens, size)
        covered.update(range(start, end))
    assert covered == set(range(tokens))
    assert sorted(set(windows)) == windows


@given(tokens=st.integers(201, 3000), size=st.integers(8, 200))
def test_neighbours_share_about_a_quarter_or_more(tokens: int, size: int) -> None:
    windows = cut_windows(tokens, size)
    for (_, end), (start, _) in pairwise(windows):
        assert end - start >= size // 4 - 1
