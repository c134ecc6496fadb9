import json
from pathlib import Path
from typing import Any

import pytest
from tiny_report import tiny_report

from condensery.errors import InputError
from condensery.methods.oscar.measured import check_report, key_of, read_report


def test_a_report_is_read_whole_and_kept_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    written = tiny_report(something_new={"by": "a later writer"})
    path.write_text(json.dumps(written))
    report, content = read_report(path)
    assert content == written
    assert report.settings["gold"].f1.mean == 49.6
    assert (report.settings["gold"].f1.low, report.settings["gold"].f1.high) == (46.6, 52.6)
    assert report.counts("reranked", "compressed") == [1, 2, 5, 10, 20, 50]
    assert report.f1("nobody") is None
    # A figure may be a mean alone.
    assert report.baselines["extractive_reader"]["gold_among_five"].em.mean == 40.0
    assert report.baselines["extractive_reader"]["gold_among_five"].em.low is None


def test_settings_and_what_they_were_measured_on_are_enough() -> None:
    least = {
        "format": 2,
        "model": "pair",
        "measured_on": {"questions": 3},
        "settings": {"gold": {"em": 1.5, "f1": {"mean": 2}}},
    }
    report = check_report(least)
    assert (report.abstention, report.rerank, report.training) == (None, {}, [])


@pytest.mark.parametrize(
    ("key", "family"), [("plain_50", "plain"), ("gold_among_five", "gold_among_five"), ("a", "a")]
)
def test_families_are_told_by_their_number(key: str, family: str) -> None:
    assert key_of(key) == family


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in tiny_report().items() if key != name}


def beside(**of: int) -> dict[str, Any]:
    return tiny_report(baselines={"reader": {"gold": {"em": 1, "f1": 2, **of}}})


def test_another_readers_figures_are_of_the_same_questions() -> None:
    report = check_report(beside(questions=2000, seed=17))
    assert report.baselines["reader"]["gold"].em.mean == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (without("format"), "format: None is not 2"),
        (tiny_report(format=1), "format: 1 is not 2"),
        (tiny_report(format=True), "format: True is not 2"),
        ([], "format: None is not 2"),
        (without("settings"), "settings: Field required"),
        (tiny_report(settings={}), "settings: "),
        (tiny_report(settings={"gold": {"em": "high", "f1": 3}}), r"settings\.gold\.em: .*'high'"),
        (tiny_report(settings={"gold": {"em": True, "f1": 3}}), r"settings\.gold\.em: .*True"),
        (tiny_report(measured_on={"questions": 0}), r"measured_on\.questions: .*0"),
        (
            beside(questions=1999, seed=17),
            r"reader\.gold is of 1999 questions \(seed 17\)",
        ),
        (beside(questions=2000, seed=16), r"they don't compare"),
    ],
)
def test_what_is_no_report_of_format_2_is_refused_by_place_and_value(
    content: Any, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=says) as caught:
        read_report(path)
    assert str(path) in caught.value.message
    assert (caught.value.field or "").startswith("report")


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"format": NaN}', None])
def test_a_file_that_can_not_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"report: .*report\.json: "):
        read_report(path)
