"""What replies come to: shares with their intervals, times, and what a threshold would change."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from condensery.methods.rag.questions import SETTINGS, JudgedQuestion, Reply, Setting, scores
from condensery.methods.trainer.reports import bootstrap

# What is told where a question's own passage was left out: another one may hold the answer too.
NEAR = ("answered", "right", "wrong_but_answered")
KEPT = 0.95  # of the F1 that there is without a threshold
POINTS = 60  # of the curve: quantiles of the scores seen


@dataclass(frozen=True, slots=True)
class Judged:
    """A reply beside its question.

    Attributes:
        right: Whether an answer was given and is right, 0 or 1; as are ``em`` and ``f1`` 0
            without one.
        first, among: Whether the best passage read, or any of them, is of the right documents;
            None where the question names none, or no passage was told.
        held: Whether the answer's words stand in one of the right documents, by the places that
            the service gives; None where ``first`` is, or nothing is said of the words.
        would: F1 and ``right`` of the answer there would be without a threshold.
    """

    question: JudgedQuestion
    reply: Reply
    right: float
    em: float
    f1: float
    first: bool | None
    among: bool | None
    held: bool | None
    would: tuple[float, float]


def judge(question: JudgedQuestion, reply: Reply) -> Judged:
    """Judge one reply."""
    right = em = f1 = 0.0
    if reply.answered and question.answerable:
        right, em, f1 = scores(reply.answer, question.answers)
    would = (0.0, 0.0)
    if question.answerable and reply.text is not None:
        would_right, _, would_f1 = scores(reply.text, question.answers)
        would = (would_f1, would_right)
    first = among = held = None
    if question.answerable and question.documents and reply.cited and reply.setting == "as_it_is":
        first = reply.cited[0] in question.documents
        among = not set(question.documents).isdisjoint(reply.cited)
        if reply.grounded is not None:
            held = not set(question.documents).isdisjoint(reply.holding)
    return Judged(question, reply, right, em, f1, first, among, held, would)


def figures(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the figures of each setting that was asked, and the curve over them.

    Shares are ``mean``, ``low`` and ``high`` in percent (95%, bootstrap over the questions they
    are of), with ``of``, how many questions that is; what is of no question is left out.
    """
    settings = {
        setting: rows
        for setting in SETTINGS
        if (rows := [row for row in judged if row.reply.setting == setting])
    }
    return {
        "settings": {setting: setting_figures(rows) for setting, rows in settings.items()},
        "abstention": abstention(settings),
    }


def setting_figures(rows: Sequence[Judged]) -> dict[str, Any]:
    """Return one setting's figures."""
    answerable = [row for row in rows if row.question.answerable]
    unanswerable = [row for row in rows if not row.question.answerable]
    answered = [row for row in answerable if row.reply.answered]
    placed = [row for row in answerable if row.first is not None]
    spoken = [row for row in answered if row.reply.grounded is not None]
    shares: dict[str, Sequence[float | bool | None]] = {
        "answered": [row.reply.answered for row in answerable],
        "right": [row.right for row in answerable],
        "em": [row.em for row in answerable],
        "f1": [row.f1 for row in answerable],
        "right_of_answered": [row.right for row in answered],
        "wrong_but_answered": [row.reply.answered and not row.right for row in answerable],
        "not_found_but_answerable": [not_found(row.reply) for row in answerable],
        "verbatim_of_right": [row.reply.verbatim for row in answered if row.right],
        "right_and_verbatim": [bool(row.right) and row.reply.verbatim for row in answerable],
        "grounded": [row.reply.grounded for row in spoken],
        "grounded_of_right": [row.reply.grounded for row in spoken if row.right],
        "citation_first": [row.first for row in placed],
        "citation_among": [row.among for row in placed],
        "citation_by_offsets": [row.held for row in spoken if row.held is not None],
        "unanswerable_but_answered": [row.reply.answered for row in unanswerable],
    }
    if rows[0].reply.setting == "without_passage":
        shares = {name: shares[name] for name in NEAR}
    times = [row.reply.ms for row in rows if row.reply.error is None]
    return {
        "questions": len(rows),
        "unanswerable": len(unanswerable),
        "failed": sum(row.reply.error is not None for row in rows),
        **{name: share(values) for name, values in shares.items() if values},
        **({"ms": percentiles(times)} if times else {}),
    }


def not_found(reply: Reply) -> bool:
    """Tell whether the service said that it found no answer."""
    return not reply.answered and reply.error is None


def share(values: Sequence[float | bool | None]) -> dict[str, float]:
    """Return the mean of values 0 to 1 in percent, its 95% interval, and of how many it is."""
    estimate = bootstrap(np.array(values, dtype=np.float64)[:, None])
    named = {"mean": estimate.mean[0], "low": estimate.low[0], "high": estimate.high[0]}
    return {**{name: round(100 * float(value), 2) for name, value in named.items()},
            "of": len(values)}  # fmt: skip


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return the median and the 95th percentile, milliseconds."""
    middle, late = np.percentile(times, [50, 95])
    return {"p50": round(float(middle), 1), "p95": round(float(late), 1)}


def abstention(settings: Mapping[Setting, Sequence[Judged]]) -> dict[str, Any]:
    """Return what thresholds on the best passage's relevance would keep and stop.

    ``curve``: for each ``min_relevance`` the shares, in percent, of answerable questions that
    are answered and right, of unanswerable ones, and of those without their passage, that are
    answered; and ``wrong``, the share of answers that are wrong, an answer to an unanswerable
    question among them. ``aurc``: the mean of ``wrong`` over all coverages, most relevant first
    (the area under the risk-coverage curve; El-Yaniv and Wiener, 2010); lower is better.
    ``kept_95``: the highest threshold that keeps 95% of the F1 there is without one.

    Nothing where a reply has no relevance, or one that was not answered was not asked again.
    """
    asked = [row for row in settings.get("as_it_is", ()) if row.reply.error is None]
    near = [row for row in settings.get("without_passage", ()) if row.reply.error is None]
    every = [*asked, *near]
    if not asked or any(row.reply.relevance is None or row.reply.text is None for row in every):
        return {}
    relevance = np.array([_relevance(row) for row in every])
    seen = np.quantile(relevance, np.linspace(0, 1, POINTS + 1), method="lower")
    thresholds = np.unique([0.0, *np.floor(seen * 1e4) / 1e4])
    curve = [_point(float(threshold), asked, near) for threshold in thresholds]
    enough = [point for point in curve if point["f1"] >= KEPT * curve[0]["f1"]]
    return {"aurc": round(_aurc(asked), 4), "kept_95": enough[-1], "curve": curve}


def _relevance(row: Judged) -> float:
    return row.reply.relevance or 0.0


def _point(threshold: float, asked: Sequence[Judged], near: Sequence[Judged]) -> dict[str, float]:
    """Return a point of the curve; shares of no questions are left out."""
    answerable = [row for row in asked if row.question.answerable]
    unanswerable = [row for row in asked if not row.question.answerable]
    passed = [row for row in asked if _relevance(row) >= threshold]
    columns: dict[str, list[float | bool]] = {
        "f1": [row.would[0] * (_relevance(row) >= threshold) for row in answerable],
        "right": [row.would[1] * (_relevance(row) >= threshold) for row in answerable],
        "answered": [_relevance(row) >= threshold for row in answerable],
        "unanswerable_answered": [_relevance(row) >= threshold for row in unanswerable],
        "without_passage_answered": [_relevance(row) >= threshold for row in near],
        "coverage": [_relevance(row) >= threshold for row in asked],
        "wrong": [1 - row.would[1] for row in passed],
    }
    means = {name: round(100 * fmean(v), 2) for name, v in columns.items() if v}
    return {"min_relevance": threshold, "f1": 0.0, **means}


def risk_coverage(asked: Sequence[Judged]) -> Iterator[tuple[float, float]]:
    """Yield coverage and risk, 0 to 1, question by question, the most relevant first."""
    wrong = 0.0
    ranked = sorted(asked, key=_relevance, reverse=True)
    for count, row in enumerate(ranked, 1):
        wrong += 1 - row.would[1]
        yield count / len(ranked), wrong / count


def _aurc(asked: Sequence[Judged]) -> float:
    return fmean(risk for _, risk in risk_coverage(asked))
