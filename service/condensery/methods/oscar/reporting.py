"""A measured report into what is about to be published: its plots, and the defaults it chooses."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.errors import InputError
from condensery.methods.oscar.measured import Point, Report, check_report
from condensery.methods.oscar.plots import draw_plots
from condensery.methods.trainer.publishing import Publication
from condensery.store.manifest import REPORT, Defaults, Manifest

# A threshold is worth it if it stops at least this share of the answers without their passage.
STOPPED = 0.5
FIVE = 5


def defaults(report: Report | None) -> Defaults:
    """Choose a pair's defaults from its report; the service's own hold where nothing was measured.

    ``top_n``, by F1: all K, where reading all that was retrieved (``compressed_K``, the largest K
    over 1) is better than reading the best scored of it (``reranked_K``); else one, where of five
    passages reading the best scored (``gold_among_five_best_one``) is as good as reading all
    (``gold_among_five``); else as many as ``reranked_K`` reads, or five where that is one.

    ``min_relevance``: the threshold that was learnt from near misses (``passages``), else the one
    that the report recommends (its ``rule`` says how), if it stops at least half of the answers to
    questions without their passage; else none.

    ``rank_weight``: the one that was learnt (``passages``), if any was.
    """
    if report is None:
        return Defaults()
    return Defaults(
        top_n=_top_n(report),
        min_relevance=_min_relevance(report),
        rank_weight=None if report.passages is None else report.passages.rank_weight,
    )


def _top_n(report: Report) -> int | None:
    read = None
    counts = [count for count in report.counts("reranked", "compressed") if count > 1]
    if counts:
        best, every = (
            report.settings[f"{family}_{counts[-1]}"] for family in ("reranked", "compressed")
        )
        if every.f1.mean > best.f1.mean:
            return counts[-1]
        read = None if best.read is None else max(1, round(best.read))
    best_one, five = report.f1("gold_among_five_best_one"), report.f1("gold_among_five")
    if best_one is None or five is None:
        return read
    if best_one >= five:
        return 1
    return FIVE if read in (None, 1) else read


def _min_relevance(report: Report) -> float | None:
    near_misses = None if report.passages is None else report.passages.near_misses
    if near_misses is not None and near_misses.threshold is not None:
        return near_misses.threshold
    abstention = report.abstention
    if abstention is None or abstention.threshold is None or not 0 < abstention.threshold <= 1:
        return None
    before, after = (wrong_at(abstention.curve, at) for at in (0.0, abstention.threshold))
    if before is None or after is None or after > (1 - STOPPED) * before:
        return None
    return abstention.threshold


def wrong_at(curve: Sequence[Point], min_relevance: float) -> float | None:
    """Return how many questions are answered without their passage, percent; None if unknown.

    Args:
        curve: Measured at some thresholds.
        min_relevance: The one that is asked for; the nearest one below it counts.
    """
    points = [
        point
        for point in curve
        if point.min_relevance <= min_relevance and point.wrong_without_gold is not None
    ]
    return max(points, key=lambda point: point.min_relevance).wrong_without_gold if points else None


def quality(report: Report) -> dict[str, Any]:
    """Return the main figures, which go into the manifest; the rest is in ``report.json``."""
    on = report.measured_on
    seed = "" if report.seed is None else f" (seed {report.seed})"
    figures: dict[str, Any] = {
        "measured_on": f"{on.questions} questions of {on.file or 'a file without a name'}{seed}",
        **{
            key: {"em": setting.em.mean, "f1": setting.f1.mean}
            for key, setting in report.settings.items()
        },
    }
    if report.gold_ranked_first_among_five is not None:
        figures["gold_ranked_first_among_five"] = report.gold_ranked_first_among_five
    if report.weights is not None:
        figures["generator_weights"] = {
            "measured_on": f"{report.weights.questions} questions of {report.weights.file}",
            "dtype": report.weights.dtype,
            **({"smallest": report.weights.smallest} if report.weights.smallest else {}),
            **{
                name: {"em": row.em.mean, "em_lost": row.em_lost}
                for name, row in report.weights.rounded().items()
            },
        }
    if report.rerank:
        figures["ndcg10"] = {
            name: {
                by: rank.ndcg10
                for by in ("bm25", "encoder", "pair", "cross_encoder")
                if (rank := getattr(ranking, by)) is not None
            }
            for name, ranking in report.rerank.items()
        }
    return figures


@dataclass(frozen=True, slots=True)
class ReportContent:
    """What a report adds to a pair.

    Attributes:
        report: As it was read.
        manifest: With its figures and the defaults that they choose.
        plots: The plots' names.
    """

    report: Report
    manifest: Manifest
    plots: tuple[str, ...]


def add_report(content: Mapping[str, Any], manifest: Manifest, pair: Publication) -> ReportContent:
    """Write a report and its plots, and have the manifest say what was measured.

    Args:
        content: The JSON that ``condensery eval oscar`` wrote.
        manifest: What the store would say of the pair without it; ``base_fingerprint`` included.
        pair: Has all of the pair's files; ``report.json`` and the plots are added.

    Raises:
        InputError: The report is none of format 2, or of another pair: its fingerprint is not that
            of what would be published.
    """
    report = check_report(content)
    _check_whose(report, manifest, pair.files)
    measured = manifest.model_copy(
        update={"defaults": defaults(report), "quality": {**manifest.quality, **quality(report)}}
    )
    pair.add_json(REPORT, content)
    folder = pair.folder / "plots"
    plots = draw_plots(report, folder, measured.defaults.min_relevance)
    pair.files.update({f"plots/{name}.png": folder / f"{name}.png" for name in plots})
    return ReportContent(report, measured, tuple(plots))


def _check_whose(report: Report, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Refuse a report that was measured on other weights."""
    if report.fingerprint is None:
        return
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    mine = manifest.model_copy(update={"files": hashes}).fingerprint
    if report.fingerprint != mine:
        raise InputError(
            f"report: was measured on {report.fingerprint}, and this run's pair is {mine}: measure "
            "what is published",
            field="report.fingerprint",
            value=report.fingerprint,
        )
