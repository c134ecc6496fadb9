import numpy as np
import pytest

from condensery.errors import EmptyInput, InputError
from condensery.jobs.rerank import rerank, sigmoid


async def test_the_most_relevant_comes_first_and_ties_keep_their_order(services):
    passages = ["a", "gold gold", "b", "gold"]
    result = await rerank(services, "where?", passages)
    assert [item.index for item in result.items] == [1, 3, 0, 2]
    assert [item.text for item in result.items] == ["gold gold", "gold", "a", "b"]


async def test_scores_are_sigmoids_unless_raw(services):
    (best,) = (await rerank(services, "q", ["gold gold"])).items
    assert best.score == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-6)
    (raw,) = (await rerank(services, "q", ["gold gold"], raw_scores=True)).items
    assert raw.score == 2.0


async def test_logits_that_one_sigmoid_can_not_tell_apart_are_still_ordered(services):
    result = await rerank(services, "q", ["gold" * 40, "gold" * 60, "gold" * 50])
    assert {item.score for item in result.items} == {1.0}
    assert [item.index for item in result.items] == [1, 2, 0]


async def test_top_n_keeps_the_best_and_no_default_cuts(services):
    passages = ["gold" * (place % 7) for place in range(30)]
    assert len((await rerank(services, "q", passages)).items) == 30
    top = (await rerank(services, "q", passages, top_n=3)).items
    assert [item.index for item in top] == [6, 13, 20]
    with pytest.raises(InputError, match="top_n: 0 is not a whole number"):
        await rerank(services, "q", passages, top_n=0)


async def test_no_passages_are_refused_by_the_doors_name_for_them(services):
    with pytest.raises(EmptyInput, match="texts: the list is empty"):
        await rerank(services, "q", [], field="texts")


async def test_a_query_that_was_cut_is_reported_and_refused_where_nothing_may_be_cut(services):
    assert (await rerank(services, "q " * 20, ["a"])).query_truncated
    assert not (await rerank(services, "q", ["a"])).query_truncated
    with pytest.raises(InputError, match="query"):
        await rerank(services, "q " * 20, ["a"], truncate=False)


def test_sigmoid_overflows_at_no_end():
    values = sigmoid(np.array([-1e4, -30, 0, 30, 1e4], np.float32))
    assert values[0] == 0
    assert values[1] == pytest.approx(np.exp(-30), rel=1e-3)
    assert values[2] == 0.5
    assert values[4] == 1
