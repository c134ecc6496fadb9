import pytest
from tiny_generators import tiny_causal

from condensery.errors import SettingError
from condensery.networks.oscar_causal import CausalGenerator
from condensery.networks.stepping import Stepper
from condensery.runtime.scheduler import (
    CACHE_BYTES,
    MIN_POSITIONS,
    SEPARATOR_POSITIONS,
    GeneratorLimits,
    default_kv_cache_config,
    kv_cache_config,
)

# Three layers of keys and values, 2 heads of 8 features, 4 bytes each.
BYTES = 3 * 2 * 2 * 8 * 4


@pytest.fixture(scope="module")
def stepper() -> Stepper:
    return Stepper(CausalGenerator(tiny_causal()))


def test_without_bounds_room_is_what_suits(stepper: Stepper) -> None:
    assert stepper.bytes_per_position == BYTES
    assert kv_cache_config(stepper, GeneratorLimits()) == default_kv_cache_config(stepper)


def test_one_sequence_of_the_longest_kind_fits_however_much_a_position_takes(
    monkeypatch: pytest.MonkeyPatch, stepper: Stepper
) -> None:
    assert default_kv_cache_config(stepper).positions == CACHE_BYTES // BYTES
    monkeypatch.setattr(Stepper, "bytes_per_position", CACHE_BYTES // 10)
    assert default_kv_cache_config(stepper).positions == stepper.longest + SEPARATOR_POSITIONS


def test_each_bound_holds_alone_and_both_together(stepper: Stepper) -> None:
    suits = default_kv_cache_config(stepper)
    few = kv_cache_config(stepper, GeneratorLimits(sequences=3))
    assert (few.sequences, few.positions) == (3, suits.positions)
    small = kv_cache_config(stepper, GeneratorLimits(cache_mib=2))
    assert (small.sequences, small.positions) == (suits.sequences, 2 * 2**20 // BYTES)
    both = kv_cache_config(stepper, GeneratorLimits(sequences=3, cache_mib=2))
    assert (both.sequences, both.positions) == (3, 2 * 2**20 // BYTES)
    assert both.step_tokens == suits.step_tokens


def test_a_cache_that_holds_no_answer_is_refused_by_the_setting_s_name(
    monkeypatch: pytest.MonkeyPatch, stepper: Stepper
) -> None:
    monkeypatch.setattr(Stepper, "bytes_per_position", 2**20 // (MIN_POSITIONS - 1))
    with pytest.raises(SettingError, match=r"generator_cache_mib=1 holds 255 positions") as caught:
        kv_cache_config(stepper, GeneratorLimits(cache_mib=1))
    assert caught.value.field == "generator_cache_mib"
    kv_cache_config(stepper, GeneratorLimits(cache_mib=2))
