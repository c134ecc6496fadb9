"""A report's figures as Markdown tables; a column or table without figures is left out."""

from collections.abc import Sequence

from condensery.methods.oscar.measured import (
    Estimate,
    Example,
    Interval,
    Passages,
    Point,
    Rank,
    Report,
    Setting,
    WeightsMeasured,
    key_of,
)
from condensery.methods.trainer.reports import Cells, number, table

FIXED = {
    "no_passage": "no passage",
    "others_passages": "passages of other articles",
    "gold": "its passage alone",
    "gold_plain": "its passage alone, as text",
    "gold_among_five": "its passage among five of its article, all read",
    "gold_among_five_best_one": "the same five, the best scored one read",
    "gold_among_five_plain": "the same five, as text",
}
RETRIEVED = {
    "plain": "top {count}, as text",
    "compressed": "top {count}, all read as vectors",
    "reranked": "top {count}, reranked by the pair, {read} read as vectors",
    "bm25": "BM25's top {count}, {read} read as text",
}
CURVE_ROWS = 11


def fixed_settings(report: Report) -> list[str]:
    """Return the table of the settings that retrieve nothing, and of those without words here."""
    keys = [*FIXED, *(key for key in report.settings if key_of(key) not in (*FIXED, *RETRIEVED))]
    rows = [
        _setting(_words(report, key), report.settings[key])
        for key in keys
        if key in report.settings
    ]
    return table(_HEAD, rows)


def retrieved_settings(report: Report) -> list[str]:
    """Return the table of the settings that retrieve, by the number of passages."""
    families = list(RETRIEVED)
    keys = [key for key in report.settings if key_of(key) in families and key not in families]
    keys.sort(key=lambda key: (int(key.rpartition("_")[2]), families.index(key_of(key))))
    return table(_HEAD, [_setting(_words(report, key), report.settings[key]) for key in keys])


_HEAD = (
    *("the generator is given", "found", "EM", "F1", "match", "judge"),
    *("seconds", "TFLOPs", "vectors", "positions", "left out"),
)


def _setting(words: str, setting: Setting) -> Cells:
    return (
        words,
        "" if setting.gold_found is None else f"{setting.gold_found.share:.1f}",
        *(spread(figure) for figure in (setting.em, setting.f1, setting.match, setting.judge)),
        *(number(value) for value in (setting.seconds, setting.tflops)),
        *(_whole(value) for value in (setting.vectors, setting.tokens)),
        number(setting.left_out) if setting.left_out else "",
    )


def spread(figure: Estimate | None) -> str:
    """Return a percentage with its interval: ``31.7 (27.9 to 35.4)``."""
    if figure is None:
        return ""
    if figure.low is None or figure.high is None:
        return f"{figure.mean:.1f}"
    return f"{figure.mean:.1f} ({figure.low:.1f} to {figure.high:.1f})"


def differences(report: Report) -> list[str]:
    """Return the table of differences on the same questions."""
    rows = [
        (
            key.replace("_minus_", " − ").replace("_", " "),
            f"{difference.f1:+.1f}",
            f"{difference.low_95:+.1f} to {difference.high_95:+.1f}",
        )
        for key, difference in report.differences.items()
    ]
    return table(("difference, on the same questions", "F1", "95% interval"), rows)


def rerank(report: Report) -> list[str]:
    """Return the table of rankings."""
    rows = [
        (
            name,
            str(ranking.queries),
            str(ranking.depth or ""),
            *(
                _rank(rank)
                for rank in (ranking.bm25, ranking.encoder, ranking.pair, ranking.cross_encoder)
            ),
        )
        for name, ranking in report.rerank.items()
    ]
    head = ("queries of", "queries", "reranked", "BM25", "encoder", "this pair", "cross-encoder")
    return table(head, rows)


def passages(report: Passages) -> list[str]:
    """Return the table of orders of what a search found: nDCG@10 and differences."""

    def cell(interval: Interval, sign: str = "") -> str:
        low, high = (f"{bound:{sign}.3f}" for bound in (interval.low, interval.high))
        return f"{interval.mean:{sign}.3f} ({low} to {high})"

    names = list(dict.fromkeys(name for c in report.reported.values() for name in c.ndcg10))
    rows = [
        (
            name,
            str(choice.queries),
            *(
                cell(choice.ndcg10[order], "+" if " - " in order else "")
                if order in choice.ndcg10
                else ""
                for order in names
            ),
        )
        for name, choice in report.reported.items()
    ]
    return table(("queries of", "queries", *(name.replace("_", " ") for name in names)), rows)


def rerank_differences(report: Report) -> list[str]:
    """Return the table of how the pair's rankings differ from the others, on the same queries."""
    rows = []
    for name, ranking in report.rerank.items():
        for key, difference in ranking.differences.items():
            better, _, worse = key.partition("_minus_")
            if "pair" in (better, worse):
                low, high = difference.low_95, difference.high_95
                words = " − ".join(part.replace("_", "-") for part in (better, worse))
                rows.append(
                    (name, words, f"{difference.ndcg10:+.3f}", f"{low:+.3f} to {high:+.3f}")
                )
    head = ("queries of", "difference, on the same queries", "nDCG@10", "95% interval")
    return table(head, rows, left=2)


def _rank(rank: Rank | None) -> str:
    if rank is None:
        return ""
    digits = 1 if rank.ndcg10 > 1 else 3  # percent, or a share
    text = f"{rank.ndcg10:.{digits}f}"
    if rank.low is None or rank.high is None:
        return text
    return f"{text} ({rank.low:.{digits}f} to {rank.high:.{digits}f})"


def baseline(report: Report, name: str) -> list[str]:
    """Return the table of another reader beside this pair, with the share of its EM."""
    rows = []
    for key, other in report.baselines[name].items():
        for own in _beside(report, key):
            mine = report.settings[own]
            share = f"{100 * mine.em.mean / other.em.mean:.0f}%" if other.em.mean > 0 else ""
            em, f1 = ((spread(a), spread(b)) for a, b in ((other.em, mine.em), (other.f1, mine.f1)))
            rows.append((_words(report, own), *em, share, *f1))
    head = ("given", "its EM", "this pair's EM", "share", "its F1", "this pair's F1")
    return table(head, rows)


def _beside(report: Report, key: str) -> list[str]:
    """Return the settings in which the pair had the same passages, as a baseline's setting."""
    family = key_of(key)
    same: list[str] = [key]
    if family.removesuffix("_plain") == "gold_among_five":
        same = ["gold_among_five", "gold_among_five_best_one", "gold_among_five_plain"]
    elif family in ("plain", "compressed", "reranked"):
        count = key.rpartition("_")[2]
        same = [f"{family}_{count}" for family in ("compressed", "reranked", "plain")]
    return [setting for setting in dict.fromkeys(same) if setting in report.settings]


def _words(report: Report, key: str) -> str:
    family = key_of(key)
    if family not in RETRIEVED or key == family:
        return FIXED.get(key, key.replace("_", " "))
    read = report.settings[key].read
    count = key.rpartition("_")[2]
    return RETRIEVED[family].format(count=count, read="the best" if read is None else f"{read:.3g}")


def weights(measured: WeightsMeasured) -> list[str]:
    """Return the table of what rounding a generator's weights costs."""
    rows = [
        (
            name,
            spread(row.em),
            f"{row.em_lost:.2f} ({row.em_lost_low_95:.2f} to {row.em_lost_high_95:.2f})",
            f"{row.changed:.1f}%",
        )
        for name, row in measured.rounded().items()
    ]
    return table(("weights", "EM", "lost", "other answers"), rows)


def abstention(curve: Sequence[Point]) -> list[str]:
    """Return a few points of the curve as a table, the first and the last among them."""
    points = sorted(curve, key=lambda point: point.min_relevance)
    last = len(points) - 1
    few = min(CURVE_ROWS, len(points))
    places = sorted({round(place * last / max(1, few - 1)) for place in range(few)})
    columns = {
        "answered": "answered",
        "f1_answered": "F1 of those",
        "f1_kept": "F1 kept",
        "wrong_without_gold": "answered without their passage",
    }
    shown = [name for name in columns if any(getattr(p, name) is not None for p in points)]
    rows = [
        (
            f"{points[place].min_relevance:.4g}",
            *(
                "" if value is None else f"{value:.1f}"
                for value in (getattr(points[place], name) for name in shown)
            ),
        )
        for place in places
    ]
    return table(("least relevance", *(columns[name] for name in shown)), rows)


def examples(answered: Sequence[Example]) -> list[str]:
    """Return questions with answers."""
    rows = [
        (example.question, example.answer or "(nothing)", example.gold[0]) for example in answered
    ]
    return table(("question", "its answer", "right"), rows, left=3)


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
