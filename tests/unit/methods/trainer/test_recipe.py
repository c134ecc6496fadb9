import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from condensery.errors import InputError
from condensery.methods.trainer.recipe import TrainerRecipe


@pytest.mark.parametrize(
    ("schedule", "make"),
    [("cosine", get_cosine_schedule_with_warmup), ("linear", get_linear_schedule_with_warmup)],
)
def test_the_schedules_are_those_of_transformers_one_step_sooner_in_the_warm_up(
    schedule: str, make: object
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = make(optimizer, num_warmup_steps=10, num_training_steps=100)  # type: ignore[operator]
    recipe = TrainerRecipe(steps=100, warmup=10, schedule=schedule)  # type: ignore[arg-type]
    for step in range(100):
        wanted = reference.get_last_lr()[0]
        if step < 10:
            wanted += 0.1  # theirs begins with a step at rate 0, ours does not
        assert recipe.scale(step) == pytest.approx(wanted, abs=1e-9)
        optimizer.step()
        reference.step()


def test_the_rate_stays_until_its_decay_begins_and_falls_to_its_floor() -> None:
    recipe = TrainerRecipe(steps=100, warmup=10, schedule="linear", decay=0.4, floor=0.1)
    rates = [recipe.scale(step) for step in range(100)]
    assert rates[9:61] == pytest.approx([1.0] * 52)
    assert rates[80] == pytest.approx(0.55)
    assert rates[99] == pytest.approx(0.1 + 0.9 / 40)
    assert TrainerRecipe(steps=10, warmup=0).scale(0) == 1.0
    assert TrainerRecipe(steps=10, warmup=100).scale(0) == pytest.approx(0.01)


def test_a_warm_up_may_begin_above_nothing() -> None:
    recipe = TrainerRecipe(steps=100, warmup=10, warm_from=0.2)
    rates = [recipe.scale(step) for step in range(11)]
    assert rates[:10] == pytest.approx([0.2 + 0.08 * (step + 1) for step in range(10)])
    assert recipe.fixed()["warm_from"] == 0.2
    assert "warm_from" not in TrainerRecipe(steps=100).fixed()  # so that earlier runs go on


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0), ("accumulate", 0), ("every", 0), ("keep", 0), ("log_every", 0),
        ("warmup", -1), ("schedule", "step"), ("decay", 0.0), ("decay", 1.5), ("floor", -0.1),
        ("warm_from", 1.1), ("clip", 0.0), ("clip", float("nan")), ("betas", (0.9, 1.0)),
    ],
)  # fmt: skip
def test_a_recipe_that_can_not_be_trained_with_names_the_field_and_the_value(
    field: str, value: object
) -> None:
    with pytest.raises(InputError) as caught:
        TrainerRecipe(**{"steps": 10, field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert f"{field}={value!r}" in caught.value.message
