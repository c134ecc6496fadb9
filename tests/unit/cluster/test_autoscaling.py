from types import SimpleNamespace

import pytest

from condensery.cluster.autoscaling import TOKENS, TokensPolicy


@pytest.mark.parametrize(
    ("in_hand", "wanted"),
    [([0], 1), ([1], 1), ([100], 1), ([101], 2), ([60, 60], 2), ([0, 0, 0], 1), ([1000], 10)],
)
def test_there_is_a_replica_for_each_so_many_tokens_in_hand(
    in_hand: list[float], wanted: int
) -> None:
    metrics = {TOKENS: dict(enumerate(in_hand))}
    context = SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=7)
    assert TokensPolicy(100)(context) == (wanted, {})


@pytest.mark.parametrize("metrics", [None, {}, {TOKENS: {}}])
def test_while_no_replica_has_reported_nothing_changes(metrics: object) -> None:
    context = SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=3)
    assert TokensPolicy(100)(context) == (3, {})
