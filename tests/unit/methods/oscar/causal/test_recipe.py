import math

import pytest

from condensery.errors import InputError
from condensery.methods.oscar.causal.recipe import CausalRecipe


def test_the_defaults_are_the_papers() -> None:
    """OSCAR (arXiv:2504.07109), Table 7 and section 4.1."""
    recipe = CausalRecipe()
    assert (recipe.batch, recipe.epochs, recipe.passages, recipe.label_tokens) == (128, 1, 5, 128)
    assert (recipe.lora_rank, recipe.lora_alpha, recipe.lora_dropout) == (16, 32, 0.1)
    assert (recipe.generator_rate, recipe.rate(layers=False)) == (1e-4, 1e-4)
    assert recipe.rate(layers=True) == 5e-5
    assert (recipe.weight_decay, recipe.clip, recipe.weight()) == (0.1, 1.0, 0.05)
    trainer = recipe.trainer(893_000, every=500)
    assert (trainer.steps, trainer.schedule, trainer.accumulate) == (
        math.ceil(893_000 / 128),
        "linear",
        16,
    )
    assert trainer.warmup == math.ceil(0.05 * trainer.steps)


def test_a_steps_rows_are_shared_by_the_processes() -> None:
    recipe = CausalRecipe(batch=24, rows=4, steps=10)
    assert [recipe.trainer(5, 2, count).accumulate for count in (1, 2, 3)] == [6, 3, 2]
    with pytest.raises(InputError, match=r"batch=24: must be shared by 4 processes evenly"):
        recipe.trainer(5, 2, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stage", "warm-up"), ("generator_tuning", "some"), ("batch", 0), ("rows", 3),
        ("passages", 0), ("label_tokens", 0), ("lora_rank", 0), ("lora_dropout", 1.0),
        ("epochs", 0.0), ("generator_rate", -1.0), ("compressor_rate", math.nan),
        ("warmup", 1.5), ("plain", -0.1), ("rerank_weight", -1.0), ("steps", -1),
    ],
)  # fmt: skip
def test_what_can_not_be_trained_with_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^(batch=128|{field}={value!r}): must be ") as caught:
        CausalRecipe(**{field: value})  # type: ignore[arg-type]  # some are wrong on purpose
    assert caught.value.field in (field, "batch")
