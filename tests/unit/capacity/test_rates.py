"""What lies between measured points, and files of rates, whole and broken."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from measured_rates import make_point, make_rates

from condensery.capacity.rates import Cost, read_rates, write_rates
from condensery.errors import InputError, ModelNotFound


def test_between_two_lengths_a_cost_is_on_the_line() -> None:
    rates = make_rates()
    one, each = rates.texts("embed", "enc", 60)
    assert one.alone == pytest.approx(0.007)  # halfway from 2 ms to 12
    # 16 texts: 17 ms at 10 tokens, 162 at 110; halfway 89.5, and 15 of them beyond the first
    assert each.alone == pytest.approx((0.0895 - 0.007) / 15)
    assert one.concurrent == pytest.approx(0.0065)
    short, _ = rates.texts("embed", "enc", 3)
    assert short.alone == 0.002, "a shorter text costs what the shortest measured one does"


def test_a_larger_index_is_on_the_line_through_those_measured() -> None:
    rates = make_rates()
    assert rates.query("enc", 5500).alone == pytest.approx(0.0075)
    assert rates.query("enc", 19_000).alone == pytest.approx(0.021)
    assert rates.query("enc", 10).alone == pytest.approx(0.003)
    with pytest.raises(InputError, match=r"1000000.*10000"):
        rates.query("enc", 1_000_000)


def test_a_cost_is_never_under_nothing() -> None:
    assert Cost(1, 1, 1, 1).plus(Cost(2, 0.5, 2, 1), -1) == Cost(0, 0.5, 0, 0)


def test_what_was_not_measured_is_refused_by_name() -> None:
    rates = make_rates()
    with pytest.raises(ModelNotFound, match=r"bert.*enc, pair, cls.*bench rates"):
        rates.model_for("embed", "bert")
    with pytest.raises(InputError, match=r"rerank.*enc"):
        rates.model_for("rerank", "enc")
    with pytest.raises(InputError, match=r"embed.*cls"):
        rates.model_for("embed", "cls")
    with pytest.raises(InputError, match=r"400.*up to 110"):
        rates.texts("embed", "enc", 400)
    without = make_rates(points=make_point("embed", "enc", 2, 1, tokens=10))
    with pytest.raises(InputError, match="answer"):
        without.pairs("answer", "pair")
    with pytest.raises(InputError, match="door"):
        without.door()


def test_an_accelerators_work_is_what_its_callers_kept_it_busy() -> None:
    rates = make_rates(device="cuda:0", servers=1)
    one, _ = rates.texts("embed", "enc", 10)
    assert one.concurrent == pytest.approx(1.5 / 2000)  # 2000 / 1.5 requests a second


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    rates, file = make_rates(), tmp_path / "rates.json"
    write_rates(file, rates)
    assert read_rates(file) == rates


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 1}, "format 1"),
        ({"points": []}, "no points"),
        ({"servers": 0}, "servers=0"),
        ({"memory": None}, "no rates"),
    ],
)
def test_a_file_that_is_none_is_refused(
    tmp_path: Path, change: dict[str, object], told: str
) -> None:
    file = tmp_path / "rates.json"
    file.write_text(json.dumps({**asdict(make_rates()), **change}))
    with pytest.raises(InputError, match=told) as error:
        read_rates(file)
    assert "rates.json" in error.value.message


def test_figures_that_no_measurement_gives_are_refused(tmp_path: Path) -> None:
    content = asdict(make_rates())
    content["points"][3]["core_seconds"] = -1
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"points\[3\]\.core_seconds is -1"):
        read_rates(file)
    for text, told in (("[]", "format"), ("{", "rates.json"), ("\0", "rates.json")):
        file.write_text(text)
        with pytest.raises(InputError, match=told):
            read_rates(file)
    with pytest.raises(InputError, match="bench rates"):
        read_rates(tmp_path / "none.json")
