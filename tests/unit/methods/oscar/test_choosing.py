from typing import Any

import pytest
from tiny_report import tiny_report

from condensery.methods.oscar.measured import check_report
from condensery.methods.oscar.reporting import defaults, quality, wrong_at


def measured(f1: dict[str, float], read: dict[str, float] | None = None, **parts: Any) -> Any:
    settings = {
        key: {"em": 0, "f1": value, "read": (read or {}).get(key)} for key, value in f1.items()
    }
    return check_report(tiny_report(settings=settings, **parts))


FIVE = {"gold_among_five": 40.0, "gold_among_five_best_one": 40.0}
MORE = {**FIVE, "gold_among_five_best_one": 39.0}
K20 = {"reranked_20": 30.0, "compressed_20": 30.0}


@pytest.mark.parametrize(
    ("f1", "read", "top_n"),
    [
        ({**FIVE, "gold_among_five_best_one": 41.0}, {}, 1),
        (FIVE, {}, 1),  # of equals, what reads less
        (MORE, {}, 5),
        ({"gold_among_five": 40.0}, {}, None),
        # All of what was retrieved, the most that both settings are there of.
        ({**FIVE, **K20, "compressed_20": 31.0, "reranked_50": 9.0}, {"reranked_20": 3.0}, 20),
        # Not all: then the five decide between one and more.
        ({**FIVE, **K20}, {"reranked_20": 3.0}, 1),
        ({**MORE, **K20}, {"reranked_20": 3.0}, 3),
        ({**MORE, **K20}, {"reranked_20": 1.0}, 5),
        ({**MORE, **K20}, {}, 5),
        (K20, {"reranked_20": 3.4}, 3),
        (K20, {"reranked_20": 1.0}, 1),
        (K20, {}, None),
        # One passage leaves nothing to choose.
        ({**MORE, "reranked_1": 30.0, "compressed_1": 39.0}, {"reranked_1": 1.0}, 5),
    ],
)
def test_the_pair_reads_by_default_as_many_as_were_measured_to_be_best(
    f1: dict[str, float], read: dict[str, float], top_n: int | None
) -> None:
    assert defaults(measured(f1, read)).top_n == top_n


def test_without_a_report_the_services_own_defaults_hold() -> None:
    assert (defaults(None).top_n, defaults(None).min_relevance) == (None, None)


def curve(*wrong: float | None) -> list[dict[str, Any]]:
    return [
        {"min_relevance": at / 10, "answered": 100 - at, "wrong_without_gold": share}
        for at, share in enumerate(wrong)
    ]


@pytest.mark.parametrize(
    ("abstention", "min_relevance"),
    [
        (None, None),
        ({"threshold": 0.2, "curve": curve(90, 60, 45, 0)}, 0.2),
        ({"threshold": 0.25, "curve": curve(90, 60, 45, 0)}, 0.25),  # between two points
        ({"threshold": 0.1, "curve": curve(90, 60, 45, 0)}, None),  # too few are stopped
        ({"threshold": 0.0, "curve": curve(90, 60, 45, 0)}, None),
        ({"curve": curve(90, 60, 45, 0)}, None),
        ({"threshold": 0.2, "curve": []}, None),
        ({"threshold": 0.2, "curve": curve(None, None, None)}, None),
        ({"threshold": 1.5, "curve": curve(90, 0)}, None),
    ],
)
def test_the_recommended_threshold_is_the_default_where_it_stops_half_of_the_wrong(
    abstention: Any, min_relevance: float | None
) -> None:
    assert defaults(measured(FIVE, abstention=abstention)).min_relevance == min_relevance


def test_a_threshold_learnt_from_near_misses_goes_before_the_reports_own() -> None:
    own = {"threshold": 0.2, "curve": curve(90, 60, 45, 0)}
    near = {
        "threshold": 0.25,
        "curve": curve(100, 90, 80, 70),
    }  # few are stopped, as near as they are
    report = measured(FIVE, abstention=own, passages={"rank_weight": 0.75, "near_misses": near})
    assert (defaults(report).min_relevance, defaults(report).rank_weight) == (0.25, 0.75)
    without = measured(FIVE, abstention=own, passages={"rank_weight": 0.75})
    assert defaults(without).min_relevance == 0.2


def test_what_is_answered_without_its_passage_is_read_off_the_nearest_point_below() -> None:
    points = check_report(tiny_report(abstention={"curve": curve(90, None, 40)})).abstention
    assert points is not None
    shares = [wrong_at(points.curve, at) for at in (-0.1, 0.0, 0.15, 0.2, 1.0)]
    assert shares == [None, 90, 90, 40, 40]


def test_the_manifest_holds_the_main_figures() -> None:
    figures = quality(check_report(tiny_report()))
    assert figures["measured_on"] == "2000 questions of dev.jsonl.gz (seed 17)"
    assert figures["gold"] == {"em": 32.24, "f1": 49.6}
    assert figures["gold_ranked_first_among_five"] == 97.17
    assert figures["ndcg10"]["scifact"] == {"bm25": 67.62, "encoder": 64.5, "pair": 68.0}
