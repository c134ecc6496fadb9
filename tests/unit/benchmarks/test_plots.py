"""The benchmarks' pictures: each of the figures that are kept is drawn, with all that it has."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "docs" / "benchmarks"


@pytest.fixture(scope="module")
def plots() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return load_script(ROOT / "benchmarks" / "plots.py", "plots")
    finally:
        sys.path.pop(0)


def bars_of(figure: Any) -> list[float]:
    return [bar.get_height() for axes in figure.axes for bar in axes.patches]


@pytest.mark.parametrize(
    "path", sorted(KEPT.glob("epyc-*/generate.json")), ids=lambda p: p.parent.name
)
def test_each_contender_has_a_bar_for_each_load(plots: Any, path: Path) -> None:
    report = json.loads(path.read_text())
    heights = bars_of(plots.draw_generate(report))
    for kind in ("engines", "bits"):
        for table in report[kind]:
            for row in table["rows"].values():
                assert row["questions_per_second"] in heights
                assert row["first_ms"] in heights


def test_what_was_not_run_is_left_out_and_what_was_is_named(plots: Any) -> None:
    report = json.loads((KEPT / "encode.json").read_text())
    report["tables"][-1]["results"].pop()
    figure = plots.draw_encode(report)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == [row["name"] for row in report["tables"][0]["results"]]
    assert len(bars_of(figure)) == sum(len(table["results"]) for table in report["tables"])
    assert plots.draw_generate({"engines": [], "bits": []}) is None
    assert plots.draw_soak({}) is None


def test_a_folder_is_drawn_beside_its_figures(plots: Any, tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text((KEPT / "service.json").read_text())
    (picture,) = plots.draw(tmp_path)
    assert picture == tmp_path / "service.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
