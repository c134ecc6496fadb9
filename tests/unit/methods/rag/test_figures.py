"""What replies come to, against figures counted by hand."""

from pathlib import Path
from typing import Any

import pytest

from condensery.methods.rag.figures import Judged, figures, judge, risk_coverage
from condensery.methods.rag.questions import JudgedQuestion, Reply
from condensery.methods.rag.report import draw_plot, write_page


def question(place: int, *answers: str) -> JudgedQuestion:
    row = {"id": f"q{place}", "question": f"Which one is {place}?"}
    return JudgedQuestion(place, row["question"], answers, (f"d{place}",) if answers else (), row)


def reply(place: int, answer: str | None, relevance: float | None, **more: Any) -> Reply:
    setting = more.pop("setting", "as_it_is")
    given = {"answered": answer is not None, "answer": answer or "", **more}
    return Reply(place, setting, relevance=relevance, **given)


@pytest.fixture
def judged() -> list[Judged]:
    """Four answerable ones: right, right and verbatim, wrong, not found; two unanswerable ones;
    and two without their passage."""
    pairs = [
        (
            question(0, "red"),
            reply(0, "red", 0.9, cited=("d0", "x"), ms=10.0, grounded=True, holding=("x", "d0")),
        ),
        (
            question(1, "Blue"),
            reply(
                1,
                "Blue",
                0.8,
                cited=("x", "d1", "y"),
                verbatim=True,
                ms=20.0,
                grounded=True,
                holding=("x",),
            ),
        ),
        (question(2, "deep green"), reply(2, "green", 0.7, cited=("x",), ms=30.0, grounded=False)),
        (question(3, "grey"), reply(3, None, 0.2, below="grey", cited=("d3",), ms=40.0)),
        (question(4), reply(4, "white", 0.6, ms=50.0)),
        (question(5), reply(5, None, 0.1, below="black", ms=60.0)),
        (question(0, "red"), reply(0, "pink", 0.5, setting="without_passage", ms=5.0)),
        (
            question(1, "Blue"),
            reply(1, None, 0.3, below="x", setting="without_passage", ms=5.0),
        ),
    ]
    return [judge(*pair) for pair in pairs]


def test_shares_are_those_that_one_counts(judged: list[Judged]) -> None:
    found = figures(judged)["settings"]["as_it_is"]
    expected = {
        "answered": (75, 4),
        "right": (50, 4),
        "em": (50, 4),
        "f1": (100 * (1 + 1 + 2 / 3 + 0) / 4, 4),
        "right_of_answered": (100 * 2 / 3, 3),
        "wrong_but_answered": (25, 4),
        "not_found_but_answerable": (25, 4),
        "verbatim_of_right": (50, 2),
        "right_and_verbatim": (25, 4),
        "grounded": (100 * 2 / 3, 3),
        "grounded_of_right": (100, 2),
        "citation_by_offsets": (100 / 3, 3),
        "citation_first": (50, 4),
        "citation_among": (75, 4),
        "unanswerable_but_answered": (50, 2),
    }
    for name, (mean, of) in expected.items():
        assert found[name]["mean"] == pytest.approx(mean, abs=0.01), name
        assert found[name]["of"] == of, name
        assert found[name]["low"] <= found[name]["mean"] <= found[name]["high"]
    assert (found["questions"], found["unanswerable"], found["failed"]) == (6, 2, 0)
    assert found["ms"] == {"p50": 35.0, "p95": 57.5}


def test_without_its_passage_only_what_is_answered_counts(judged: list[Judged]) -> None:
    found = figures(judged)["settings"]["without_passage"]
    assert found["answered"]["mean"] == 50
    assert found["right"]["mean"] == 0
    assert "citation_first" not in found


def test_a_failure_is_neither_answered_nor_not_found_and_has_no_time(
    judged: list[Judged],
) -> None:
    failed = judge(question(9, "any"), reply(9, None, None, error="InputError: no"))
    found = figures([*judged, failed])
    as_it_is = found["settings"]["as_it_is"]
    assert as_it_is["failed"] == 1
    assert as_it_is["answered"]["mean"] == 60
    assert as_it_is["not_found_but_answerable"]["mean"] == 20
    assert as_it_is["ms"] == {"p50": 35.0, "p95": 57.5}
    assert found["abstention"] == figures(judged)["abstention"]


def test_the_curve_is_what_each_threshold_would_have_answered(judged: list[Judged]) -> None:
    found = figures(judged)["abstention"]
    curve = {point["min_relevance"]: point for point in found["curve"]}
    assert curve[0.0]["answered"] == 100
    assert curve[0.0]["right"] == 75, "what was not found is right without a threshold"
    assert curve[0.0]["unanswerable_answered"] == 100
    assert curve[0.0]["without_passage_answered"] == 100
    assert curve[0.9]["right"] == 25
    assert curve[0.9]["wrong"] == 0
    assert curve[0.9]["unanswerable_answered"] == 0
    full = 1 + 1 + 2 / 3 + 1
    for point in found["curve"]:
        at = point["min_relevance"]
        f1 = (at <= 0.9) + (at <= 0.8) + (2 / 3) * (at <= 0.7) + (at <= 0.2)
        assert point["f1"] == pytest.approx(100 * f1 / 4, abs=0.01), at
    assert found["kept_95"]["min_relevance"] == pytest.approx(0.2, abs=1e-3)
    assert found["kept_95"]["f1"] == pytest.approx(100 * full / 4, abs=0.01)


def test_risk_falls_with_coverage_as_the_formula_says(judged: list[Judged]) -> None:
    asked = [row for row in judged if row.reply.setting == "as_it_is"]
    # most relevant first: right, right, wrong, unanswerable, right, unanswerable
    risks = [0, 0, 1 / 3, 2 / 4, 2 / 5, 3 / 6]
    points = list(risk_coverage(asked))
    assert [risk for _, risk in points] == pytest.approx(risks)
    assert [coverage for coverage, _ in points] == pytest.approx([n / 6 for n in range(1, 7)])
    assert figures(judged)["abstention"]["aurc"] == pytest.approx(sum(risks) / 6, abs=1e-4)


def test_without_scores_there_is_no_curve(judged: list[Judged], tmp_path: Path) -> None:
    rows = [judge(question(0, "red"), reply(0, "red", None, ms=10.0))]
    found = figures(rows)
    assert found["abstention"] == {}
    about = {"title": "t", "asked": "a", "command": "c"}
    assert "c" in write_page(about, found, rows)
    assert draw_plot(tmp_path / "p.png", "t", found, rows, None).stat().st_size > 1000


def test_the_page_shows_figures_failures_and_the_surest_wrong_answers(
    judged: list[Judged], tmp_path: Path
) -> None:
    failed = judge(question(9, "any"), reply(9, None, None, error="InputError: a | b"))
    rows = [*judged, failed]
    found = figures(rows)
    page = write_page({"title": "t", "asked": "a", "command": "c"}, found, rows)
    assert "InputError: a \\| b" in page
    assert page.index("green") < page.index("white")
    right = found["settings"]["as_it_is"]["right"]
    assert f"{right['mean']:.1f} ({right['low']:.1f} to {right['high']:.1f}) of 5" in page
    picture = draw_plot(tmp_path / "p.png", "t", found, rows, 0.5)
    assert picture.read_bytes().startswith(b"\x89PNG")
