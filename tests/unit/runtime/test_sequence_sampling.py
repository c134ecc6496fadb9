import collections
import math
import random

import pytest
import torch

from condensery.errors import InputError
from condensery.question import GREEDY, Sampling
from condensery.runtime.sequence import SampledToken, sample_tokens

HALVES = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


def frequencies(
    sampling: Sampling, scores: torch.Tensor = HALVES, count: int = 4000
) -> list[float]:
    draws = random.Random(7)
    choices = sample_tokens(
        scores.expand(count, -1).contiguous(),
        [sampling] * count,
        [draws.random() for _ in range(count)],
    )
    seen = collections.Counter(choice.id for choice in choices if choice is not None)
    return [seen[token] / count for token in range(scores.shape[1])]


def test_greedy_takes_the_best_whatever_is_drawn() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, -2.0]])
    assert sample_tokens(scores, [GREEDY] * 2, [0.99, 0.0]) == [SampledToken(1), SampledToken(0)]


def test_tokens_come_as_often_as_they_are_likely() -> None:
    assert frequencies(Sampling(temperature=1.0)) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)


def test_a_temperature_sharpens_or_flattens() -> None:
    weights = [p**2 for p in (0.5, 0.3, 0.15, 0.05)]
    wanted = [weight / sum(weights) for weight in weights]
    assert frequencies(Sampling(temperature=0.5)) == pytest.approx(wanted, abs=0.03)
    assert frequencies(Sampling(temperature=1e-30), count=50) == [1, 0, 0, 0], "no overflow"


@pytest.mark.parametrize("temperature", [1e-37, 1e-44, 1e-46, math.ulp(0.0)])
def test_no_temperature_is_so_small_that_scores_overflow(temperature: float) -> None:
    scores = torch.tensor([[-300.0, 299.0, 300.0]])
    assert frequencies(Sampling(temperature=temperature), scores, count=50) == [0, 0, 1]


def test_a_token_that_comes_once_top_p_is_reached_is_left_out_and_draws_part_at_the_edges() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.25]]).log()  # whose sums floats hold exactly
    wish = Sampling(temperature=1.0, top_p=0.5)
    assert sample_tokens(scores, [wish], [1 - 2**-24]) == [SampledToken(0)]
    whole = Sampling(temperature=1.0)
    for draw, token in ((0.0, 0), (0.49, 0), (0.5, 1), (0.75, 2)):
        assert sample_tokens(scores, [whole], [draw]) == [SampledToken(token)], draw


def test_top_p_keeps_the_likeliest_that_reach_it() -> None:
    assert frequencies(Sampling(temperature=1.0, top_p=0.79)) == pytest.approx(
        [0.625, 0.375, 0, 0], abs=0.03
    )
    assert frequencies(Sampling(temperature=1.0, top_p=0.81))[2] > 0
    assert frequencies(Sampling(temperature=1.0, top_p=1e-6)) == [1, 0, 0, 0]


def test_the_last_draw_gives_a_token_that_is_kept() -> None:
    scores = torch.tensor([[0.0] * 1000 + [-math.inf] * 10])
    (last,) = sample_tokens(scores, [Sampling(temperature=1.0)], [1 - 2**-53])
    assert last == SampledToken(999)


def test_rows_are_chosen_each_by_its_own_wish() -> None:
    scores = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    wishes = [GREEDY, Sampling(1.0), Sampling(2.0, 0.5), GREEDY, Sampling(0.3), Sampling(1.0, 0.1)]
    draws = [0.1, 0.9, 0.5, 0.3, 0.7, 0.2]
    together = sample_tokens(scores, wishes, draws)
    alone = [sample_tokens(scores[i : i + 1], [wishes[i]], [draws[i]])[0] for i in range(6)]
    assert together == alone
    assert len({choice.id for choice in together}) > 2


def test_log_probabilities_are_the_models_own() -> None:
    (chosen,) = sample_tokens(HALVES, [Sampling(temperature=0.1, top_p=0.2, logprobs=2)], [0.5])
    assert chosen.logprob == pytest.approx(math.log(0.5))
    assert [token for token, _ in chosen.top] == [0, 1]
    assert [math.exp(logprob) for _, logprob in chosen.top] == pytest.approx([0.5, 0.3])
    (none,) = sample_tokens(HALVES, [Sampling(logprobs=0)], [0.5])
    assert (none.logprob, none.top) == (pytest.approx(math.log(0.5)), ())
    (all_of_them,) = sample_tokens(HALVES, [Sampling(logprobs=20)], [0.5])
    assert len(all_of_them.top) == 4


def test_scores_that_are_not_finite_choose_nothing() -> None:
    scores = torch.tensor([[1.0, math.nan], [math.inf, 0.0], [-math.inf, 0.0], [0.0, 1.0]])
    wish = Sampling(temperature=1.0, logprobs=1)
    for wishes in ([GREEDY] * 4, [wish] * 4):
        choices = sample_tokens(scores, wishes, [0.5] * 4)
        assert [choice is None for choice in choices] == [True, True, False, False]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (-0.1, 2.1, math.nan)),
        *(("top_p", value) for value in (0.0, 1.1)),
        *(("logprobs", value) for value in (-1, 21)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field}={value} is not") as caught:
        Sampling(**{field: value})
    assert (caught.value.field, caught.value.value is value) == (field, True)
