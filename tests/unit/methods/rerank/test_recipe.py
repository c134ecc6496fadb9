import pytest

from condensery.errors import InputError
from condensery.methods.rerank.recipe import RerankRecipe


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queries", 0),
        ("negatives", 0),
        ("held_out", 0),
        ("length", 4),
        ("depth", 0),
        ("candidates", 1),
        ("candidates", 10_001),
        ("objective", "pairwise"),
        ("search", "hybrid"),
        ("rate", 0.0),
        ("head_rate", float("nan")),
        ("steps", 0),
        ("schedule", "step"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{field}={value!r}: must be") as caught:
        RerankRecipe(**{field: value})  # type: ignore[arg-type]  # which is what is tested
    assert caught.value.field == field
