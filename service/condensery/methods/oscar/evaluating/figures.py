"""What outcomes come to: means with their intervals, and what sets settings apart."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from condensery.agreement import exact_match, f1_score, normalise_answer
from condensery.methods.oscar.evaluating.asking import Outcome
from condensery.methods.oscar.evaluating.judging import Judged
from condensery.methods.oscar.evaluating.measuring import ChosenPassages, swapped
from condensery.methods.oscar.evaluating.placing import Row
from condensery.methods.oscar.evaluating.settings import Setting
from condensery.methods.trainer.reports import bootstrap


def match(answer: str, golds: Sequence[str]) -> float:
    """Return 1.0 if a gold answer stands in the answer when both are normalised, else 0.0.

    A gold answer of which nothing is left is found only in an answer of which nothing is left.

    Source: OSCAR, arXiv:2504.07109, appendix A.2 (accuracy).
    """
    text = normalise_answer(answer)
    return float(any(gold in text if gold else not text for gold in map(normalise_answer, golds)))


METRICS = {"em": exact_match, "f1": f1_score, "match": match}
COMPARED = (
    ("gold_among_five", "no_passage"),
    ("gold_among_five", "others_passages"),
    ("gold_among_five_best_one", "gold_among_five"),
    ("gold_plain", "gold"),
    ("gold_among_five_plain", "gold_among_five"),
    ("gold_among_five_plain", "gold_among_five_best_one"),
)
COMPARED_RETRIEVED = (
    ("plain", "compressed"),
    ("plain", "reranked"),
    ("reranked", "compressed"),
    ("reranked", "bm25"),
)

Outcomes = Mapping[str, Sequence[Outcome]]


POINTS = 40  # of the curve: quantiles of the scores seen, wherever a pair's scores lie
KEPT = 0.95  # of the F1 on questions whose passage is there
RULE = (
    "of the thresholds that keep 95% of the F1 on questions whose passage is there, the one with "
    "the highest mean over both kinds of questions of SQuAD 2.0's score (F1 if answered and the "
    "passage is there, 1 if not answered and it is not, else 0); of equal ones the lowest"
)


def abstention(
    setting: str, there: Sequence[tuple[float, float]], missing: Sequence[float]
) -> dict[str, Any]:
    """Return the curve, and the threshold that ``RULE`` recommends; 0 is to answer always.

    A question is answered where its best passage's relevance reaches the threshold, as in the
    service (``min_relevance``).

    Args:
        setting: Where the questions with their passage are from, for the report.
        there: The relevance of the best passage (0 to 1) and the F1 (0 to 1) of each of them.
        missing: The relevance of the best passage of questions no passage of which holds the
            answer.

    Source: the rule's score is that of SQuAD 2.0 (Rajpurkar et al., 2018), which likewise takes
    the threshold at which it is best.
    """
    relevance, f1 = np.array([value for value, _ in there]), np.array([value for _, value in there])
    without = np.array(missing)
    quantiles = np.quantile(np.concatenate([relevance, without]), np.linspace(0, 1, POINTS + 1))
    thresholds = np.unique([0.0, *np.floor(quantiles * 1e4) / 1e4])
    curve: list[dict[str, float | None]] = []
    best, chosen = -1.0, 0.0
    for threshold in thresholds.tolist():
        answered, wrong = relevance >= threshold, without >= threshold
        curve.append(
            {
                "min_relevance": threshold,
                "answered": round(100 * float(answered.mean()), 2),
                "f1_answered": round(100 * float(f1[answered].mean()), 2)
                if answered.any()
                else None,
                "wrong_without_gold": round(100 * float(wrong.mean()), 2),
            }
        )
        kept = float((f1 * answered).mean())
        worth = kept + float((~wrong).mean())
        if kept >= KEPT * float(f1.mean()) and worth > best + 1e-12:
            best, chosen = worth, threshold
    return {"threshold": chosen, "setting": setting, "rule": RULE, "curve": curve}


def interval(values: Sequence[float]) -> dict[str, float]:
    """Return the mean of values 0 to 1 in percent, and its 95% bootstrap interval."""
    estimate = bootstrap(np.array(values)[:, None])
    return _percent(estimate.mean[0], estimate.low[0], estimate.high[0])


def _percent(mean: float, low: float, high: float) -> dict[str, float]:
    named = {"mean": mean, "low": low, "high": high}
    return {name: round(100 * float(value), 2) for name, value in named.items()}


class Figures:
    """The figures of one evaluation.

    Args:
        rows: The questions.
        settings: In which they were asked.
        given: The passages of each.
        outcomes: What came of it, by the setting's key.
        judged: What the judge said, if there was one.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        settings: Sequence[Setting],
        chosen: ChosenPassages,
        outcomes: Outcomes,
        judged: Judged | None = None,
    ) -> None:
        self._rows, self._settings, self._given = rows, settings, chosen
        self._outcomes, self._judged = outcomes, judged
        self._scores = {
            (setting.key, name): [
                metric(outcome.answer, row["answers"])
                for outcome, row in zip(outcomes[setting.key], rows, strict=True)
            ]
            for setting in settings
            for name, metric in METRICS.items()
        }

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return each setting's figures by its key."""
        table = np.array(list(self._scores.values())).T
        estimates = bootstrap(table)
        intervals = dict(
            zip(
                self._scores,
                zip(estimates.mean, estimates.low, estimates.high, strict=True),
                strict=True,
            )
        )
        return {
            setting.key: {
                **self._cost(setting),
                **{name: _percent(*intervals[setting.key, name]) for name in METRICS},
                **self._judgement(setting),
                **self._found(setting),
            }
            for setting in self._settings
        }

    def _cost(self, setting: Setting) -> dict[str, float]:
        """Return what a question takes on average."""
        outcomes = self._outcomes[setting.key]
        return {
            "passages": round(
                fmean(len(self._passages(setting, outcome.place)) for outcome in outcomes), 2
            ),
            "read": round(fmean(outcome.read for outcome in outcomes), 2),
            "left_out": round(fmean(outcome.left_out for outcome in outcomes), 2),
            "seconds": round(max(outcome.elapsed for outcome in outcomes) / len(outcomes), 4),
            "tflops": float(f"{fmean(outcome.flops for outcome in outcomes) / 1e12:.4g}"),
            "vectors": round(fmean(outcome.vectors for outcome in outcomes), 1),
            "tokens": round(fmean(outcome.positions for outcome in outcomes), 1),
        }

    def _passages(self, setting: Setting, place: int) -> list[str]:
        return self._given.passages[setting.source][place][: setting.count]

    def _judgement(self, setting: Setting) -> dict[str, Any]:
        if self._judged is None:
            return {}
        scores = [
            self._judged.scores.get((outcome.place, outcome.answer))
            for outcome in self._outcomes[setting.key]
        ]
        judged = [score for score in scores if score is not None]
        if not judged:  # all of them are told in ``judge.failed``
            return {}
        counts = {"questions": len(judged), "failed": len(scores) - len(judged)}
        return {"judge": {**interval(judged), **counts}}

    def _found(self, setting: Setting) -> dict[str, Any]:
        """Say of retrieved passages how often the question's own is there, and what then holds."""
        with_gold = all(row["context"] for row in self._rows)
        if setting.source not in ("retrieved", "bm25") or not with_gold:
            return {}
        there = [
            self._rows[place]["context"] in self._passages(setting, place)
            for place in range(len(self._rows))
        ]
        figures: dict[str, Any] = {"share": round(100 * fmean(there), 2)}
        for name in METRICS if any(there) else ():
            values = self._scores[setting.key, name]
            figures[name] = round(
                100
                * fmean(value for value, is_there in zip(values, there, strict=True) if is_there),
                2,
            )
        return {"gold_found": figures}

    def differences(self) -> dict[str, dict[str, Any]]:
        """Return the paired differences of F1 and EM between settings that bear on each other."""
        counts = sorted(
            {setting.count for setting in self._settings if setting.source in ("retrieved", "bm25")}
        )
        wanted = [
            *COMPARED,
            *((f"{a}_{k}", f"{b}_{k}") for k in counts for a, b in COMPARED_RETRIEVED),
        ]
        pairs = [
            (a, b) for a, b in wanted if (a, "f1") in self._scores and (b, "f1") in self._scores
        ]
        if not pairs:
            return {}
        columns = [
            np.array(self._scores[a, name]) - np.array(self._scores[b, name])
            for a, b in pairs
            for name in ("f1", "em")
        ]
        drawn = bootstrap(np.array(columns).T)
        rows = [
            _percent(*estimate) for estimate in zip(drawn.mean, drawn.low, drawn.high, strict=True)
        ]
        return {
            f"{a}_minus_{b}": {
                "f1": rows[2 * at]["mean"],
                "low_95": rows[2 * at]["low"],
                "high_95": rows[2 * at]["high"],
                "em": rows[2 * at + 1],
            }
            for at, (a, b) in enumerate(pairs)
        }

    def abstention(self) -> dict[str, Any]:
        """Return when to abstain, where gold and others' passages were scored; else nothing.

        Of the ways to read five passages, that with the better F1 counts: the one that the
        pair's manifest should name.
        """
        ways = [
            key
            for key in ("gold_among_five", "gold_among_five_best_one")
            if key in self._outcomes and _scored(self._outcomes[key])
        ]
        if not ways or not _scored(self._outcomes.get("others_passages", ())):
            return {}
        key = max(ways, key=lambda way: fmean(self._scores[way, "f1"]))
        scores = zip(self._outcomes[key], self._scores[key, "f1"], strict=True)
        there = [(outcome.relevance or 0.0, value) for outcome, value in scores]
        missing = [outcome.relevance or 0.0 for outcome in self._outcomes["others_passages"]]
        return {"abstention": abstention(key, there, missing)}

    def ranked_first(self) -> dict[str, float]:
        """Return how often the gold one of five is scored best, in percent."""
        for key in ("gold_among_five", "gold_among_five_best_one"):
            if _scored(self._outcomes.get(key, ())):
                pairs = zip(self._outcomes[key], self._given.gold_at, strict=True)
                share = fmean(float(outcome.first == at) for outcome, at in pairs)
                return {"gold_ranked_first_among_five": round(100 * share, 2)}
        return {}

    def replaced(self) -> dict[str, Any]:
        """Say whether answers follow where the passage is rewritten (``measuring.swapped``)."""
        if "replaced" not in self._outcomes:
            return {}
        outcomes = self._outcomes["replaced"]
        rows = swapped(self._rows, self._outcomes["gold"], self._given)
        pairs = list(zip(outcomes, rows, strict=True))

        def share(values: Sequence[float]) -> float | None:
            return round(100 * fmean(values), 2) if values else None

        return {
            "replaced": {
                "questions": len(rows),
                "follows_em": share(
                    [exact_match(outcome.answer, row["answers"]) for outcome, row in pairs]
                ),
                "follows_f1": share(
                    [f1_score(outcome.answer, row["answers"]) for outcome, row in pairs]
                ),
                "keeps_old_answer": share(
                    [exact_match(outcome.answer, row["old"]) for outcome, row in pairs]
                ),
            }
        }

    def examples(self, count: int = 12) -> list[dict[str, Any]]:
        """Return the first questions and answers of the most telling setting."""
        order = ("gold_among_five", "gold_among_five_best_one", *reversed(list(self._outcomes)))
        key = next(key for key in order if key in self._outcomes and key != "replaced")
        pairs = zip(self._rows[:count], self._outcomes[key], strict=False)
        return [
            {"question": row["question"], "answer": outcome.answer, "gold": row["answers"]}
            for row, outcome in pairs
        ]


def _scored(outcomes: Sequence[Outcome]) -> bool:
    return bool(outcomes) and all(outcome.relevance is not None for outcome in outcomes)
