"""Which passages an answer reads: as the search finds them, as the pair ranks them, or by both.

    python benchmarks/passages.py --data DATA --out docs/benchmarks/passages

For each collection the hybrid search's best 20 passages of each query are ordered by the search,
by the pair's rerank head, and by the head's logit less W times the logarithm of the place in the
search (`rank_weight`). W is learnt on two collections (the best mean nDCG@10 of a grid). The
threshold under which nothing is answered is learnt on the first of them, from the same questions
with their passage taken away; passages that hold an answer all the same are taken away, too. The
second is TimeQA, windows of few articles that say the same several times: of the first passages
left, 55 percent held an answer, so that they are no near misses. The orders are compared on five
others, none of which it saw: each by itself, and pooled, every collection counting alike. Scores
are kept in --work: run again to go on. Two collections are made here, of the sample index and of
the installed packages' documentation (benchmarks/technical); the others are in folders of DATA.
Writes OUT.json and OUT.md.

The threshold is the highest that keeps 95 percent of the F1 of the answers there.
"""

import argparse
import asyncio
import gzip
import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recording import Recording, tell_machine, tell_others, tell_versions

from condensery.agreement import f1_score
from condensery.atomic_files import write_atomically
from condensery.methods.oscar import tables
from condensery.methods.oscar.evaluating.asking import ask
from condensery.methods.oscar.measured import Passages
from condensery.methods.ranking.evaluation import (
    PAIR,
    measure,
    open_rankers,
    reorder,
    retrieve,
)
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.parts import StoredRows
from condensery.methods.ranking.rankers import PairRanker
from condensery.methods.ranking.retrieval import titled_text
from condensery.methods.ranking.sets import RankingSet, read_set
from condensery.methods.trainer.reports import bootstrap, table
from condensery.runtime.device import prepare_process
from condensery.runtime.oscar import OscarModel

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "service" / "condensery" / "samples"
GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0)
ANSWERS = "answers.json"  # of a set of questions, each one's by its id
DEPTH = 20  # what an answer's index search finds by default
SEED = 17
SEARCH = "hybrid"
KEPT = 95.0  # percent of the answers' F1 that a threshold has to keep
QUANTILES = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # of near misses, on the curve
Numbers = np.ndarray[Any, np.dtype[np.float64]]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read rows, gzipped or not."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_beir(
    folder: Path,
    corpus: Mapping[str, str],
    asked: Iterable[tuple[str, str, Sequence[str]]],
    most: int,
) -> Path:
    """Write a set in BEIR's form; ``asked`` are id, question and the passages that answer it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(asked)
    if len(rows) > most:
        rows = random.Random(SEED).sample(rows, most)

    def write(name: str, content: Iterable[Mapping[str, str]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in content)
        (folder / name).write_text(text, encoding="utf-8")

    write("corpus.jsonl", ({"_id": name, "text": text} for name, text in corpus.items()))
    write("queries.jsonl", ({"_id": name, "text": text} for name, text, _ in rows))
    judged = "".join(f"{name}\t{passage}\t1\n" for name, _, right in rows for passage in right)
    (folder / "qrels.test.tsv").write_text(judged, encoding="utf-8")
    return folder


def of_questions(folder: Path, file: Path, most: int, passages: int) -> Path:
    """Make a set of questions with their contexts."""
    rows = read_jsonl(file)
    names: dict[str, str] = {}
    for row in rows:
        if len(names) < passages or row["context"] in names:
            names.setdefault(row["context"], f"p{len(names)}")
    asked = (
        (str(row["id"]), row["question"], [names[row["context"]]])
        for row in rows
        if row["context"] in names
    )
    made = write_beir(folder, {name: text for text, name in names.items()}, asked, most)
    right = {str(row["id"]): row["answers"] for row in rows}
    (folder / ANSWERS).write_text(json.dumps(right), encoding="utf-8")
    return made


def of_samples(folder: Path) -> Path:
    """Make a set of the sample index."""
    corpus = {
        row["id"]: f"{row['title']}\n{row['text']}"
        for row in read_jsonl(SAMPLES / "passages.jsonl")
    }
    asked = (
        (row["id"], row["question"], [row["passage_id"]])
        for row in read_jsonl(SAMPLES / "questions.jsonl")
    )
    return write_beir(folder, corpus, asked, 10_000)


def of_technical(folder: Path) -> Path:
    """Make a set of the technical documentation, its answerable questions."""
    made = folder / "made"
    script = ROOT / "benchmarks" / "technical" / "collection.py"
    subprocess.run([sys.executable, str(script), "--out", str(made)], check=True)
    corpus = {row["id"]: row["text"] for row in read_jsonl(made / "documents.jsonl")}
    asked = (
        (row["id"], row["question"], row["passage_id"])
        for row in read_jsonl(made / "questions.jsonl")
        if row["answerable"]
    )
    return write_beir(folder, corpus, asked, 10_000)


def collections(args: argparse.Namespace) -> tuple[list[RankingSet], list[RankingSet]]:
    """Return those that the weight is learnt on, and those that are reported."""
    data, made, queries = args.data, args.work / "sets", args.queries
    cut = {"queries": queries, "others": args.others}
    # Of what the pair was not trained on: on its own data it seems better than it is.
    paragraphs = {
        "new_wiki": data / "squadshifts/new_wiki.jsonl.gz",
        "timeqa_human": data / "timeqa_human/train.jsonl.gz",
    }
    learnt = [
        read_set(of_questions(made / name, file, args.learn_on, args.others))
        for name, file in paragraphs.items()
    ]
    reported = [
        read_set(data / "squad_dev_paragraphs", queries=queries),
        read_set(data / "scifact", **cut),
        read_set(data / "medquad", **cut),
        read_set(of_samples(made / "samples"), queries=queries),
        read_set(of_technical(made / "technical"), queries=queries),
    ]
    return learnt, reported


def scores_of(
    ranking_set: RankingSet, work: Path, encoder: Any, rankers: Mapping[str, Any]
) -> tuple[dict[str, list[str]], dict[str, dict[str, float]]]:
    """Return what the search found for each query, and the pair's logits; kept in ``work``."""
    folder = work / ranking_set.name.replace(":", "-")
    measure(ranking_set, rankers, folder, depth=DEPTH, mode=SEARCH, encoder=encoder)
    found, _ = retrieve(ranking_set, DEPTH, folder, SEARCH, encoder)
    about = {
        "set": ranking_set.content,
        "depth": DEPTH,
        "search": SEARCH,
        "search_encoder": encoder.info.fingerprint,
        **rankers[PAIR].says,
    }
    rows = StoredRows(folder / f"{PAIR}-{SEARCH}.jsonl", about).found
    return found, {query: rows[query]["scores"] for query in ranking_set.queries}


def quality(
    ranking_set: RankingSet,
    found: Mapping[str, Sequence[str]],
    scores: Mapping[str, Mapping[str, float]],
    weight: float,
    depth: int = 10,
) -> Numbers:
    """Return each query's nDCG by the pair with the place in the search, weighed so."""
    order = {query: reorder(found[query], scores[query], weight) for query in found}
    return np.array(list(ndcg(order, ranking_set.judged, depth).values()))


def pooled(columns: Sequence[Numbers], seed: int = SEED) -> dict[str, float]:
    """Return the mean over collections of a figure of their queries, with its 95% interval.

    Collections count alike; queries are resampled within each.
    """
    rng = np.random.default_rng(seed)
    means = np.mean(
        [
            column[rng.integers(0, len(column), (10_000, len(column)))].mean(axis=1)
            for column in columns
        ],
        axis=0,
    )
    low, high = np.quantile(means, (0.025, 0.975))
    mean = float(np.mean([column.mean() for column in columns]))
    return {"mean": round(mean, 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def interval(column: Numbers) -> dict[str, float]:
    estimate = bootstrap(column[:, None], seed=SEED)
    return {key: round(float(getattr(estimate, key)[0]), 4) for key in ("mean", "low", "high")}


def compare(
    sets: Sequence[RankingSet], scored: Mapping[str, tuple[Any, Any]], weight: float
) -> dict[str, Any]:
    """Measure the three orders: nDCG@10, and how often a right passage is first (nDCG@1)."""
    figures: dict[str, Any] = {}
    for depth in (10, 1):
        columns: dict[str, list[Numbers]] = {}
        for ranking_set in sets:
            found, scores = scored[ranking_set.name]
            orders = {
                "found": np.array(list(ndcg(found, ranking_set.judged, depth).values())),
                "pair": quality(ranking_set, found, scores, 0.0, depth),
                "both": quality(ranking_set, found, scores, weight, depth),
            }
            orders |= {f"both - {name}": orders["both"] - orders[name] for name in list(orders)[:2]}
            about = figures.setdefault(ranking_set.name, {"queries": len(ranking_set.queries)})
            about[f"ndcg{depth}"] = {name: interval(column) for name, column in orders.items()}
            for name, column in orders.items():
                columns.setdefault(name, []).append(column)
        about = figures.setdefault("pooled", {"queries": sum(len(s.queries) for s in sets)})
        about[f"ndcg{depth}"] = {name: pooled(of_sets) for name, of_sets in columns.items()}
    return figures


@dataclass(frozen=True)
class Read:
    """What would be read first for a query.

    Attributes:
        scores: Relevance of the first passage, (queries,).
        names: Query and passage of each.
    """

    scores: Numbers
    names: list[tuple[str, str]]


def read_first(
    ranking_set: RankingSet,
    scored: Mapping[str, tuple[Any, Any]],
    weight: float,
    answers: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Read, Read]:
    """Return what would be read first: the right passage found, and taken away.

    Where ``answers`` are given, so are others that hold one of the query's.
    """
    found, scores = scored[ranking_set.name]
    texts = texts_of(ranking_set) if answers is not None else {}
    whole: list[tuple[str, str]] = []
    without: list[tuple[str, str]] = []
    for query, names in found.items():
        right = ranking_set.judged[query].keys()
        others = [name for name in names if name not in right]
        if answers is not None:
            others = [name for name in others if not holds(texts[name], answers[query])]
        if len(others) in (0, len(names)):
            continue  # it was not found, or there is nothing else
        for column, order in ((whole, names), (without, others)):
            column.append((query, reorder(order, scores[query], weight)[0]))

    def read(names: list[tuple[str, str]]) -> Read:
        logits = (scores[query][first] for query, first in names)
        return Read(np.array([1 / (1 + math.exp(-logit)) for logit in logits]), names)

    return read(whole), read(without)


def texts_of(ranking_set: RankingSet) -> dict[str, str]:
    """Return each passage's text with its title, by its id."""
    return {passage.id: titled_text(passage) for passage in ranking_set.passages}


def holds(text: str, answers: Iterable[str]) -> bool:
    """Return whether an answer stands in a text, as whole words, whatever their case."""
    return any(
        re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE) for answer in answers
    )


def f1_of(
    ranking_set: RankingSet,
    read: Read,
    pair: OscarModel,
    answers: Mapping[str, Sequence[str]],
) -> Numbers:
    """Return the F1 of the pair's answer to each query from the passage that it reads first."""
    texts = texts_of(ranking_set)

    async def ask_all() -> list[float]:
        scores = []
        for query, passage in read.names:
            outcome = await ask(pair, ranking_set.queries[query], [texts[passage]])
            scores.append(f1_score(outcome.answer, answers[query]))
        return scores

    return np.array(asyncio.run(ask_all()))


def answered(whole: Numbers, without: Numbers, least: float) -> tuple[float, float]:
    """Return the percentages of both kinds of questions that reach a threshold."""
    return tuple(round(100 * float((column >= least).mean()), 2) for column in (whole, without))


def near_misses(columns: Sequence[tuple[Numbers, Numbers, Numbers]]) -> dict[str, Any]:
    """Return what a threshold keeps and stops, collections counting alike; and choose one.

    Args:
        columns: Of each collection the relevance of what is read with the right passage found,
            the F1 of the answers to that, and the relevance of what is read without it.
    """

    def shares(least: float) -> dict[str, float]:
        rows = [
            (*answered(whole, without, least), 100 * f1[whole >= least].sum() / max(f1.sum(), 1e-9))
            for whole, f1, without in columns
        ]
        whole, near, kept = np.mean(rows, axis=0).round(2)
        return {
            "answered": float(whole),
            "f1_kept": float(kept),
            "wrong_without_gold": float(near),
        }

    candidates = np.unique(np.concatenate([whole for whole, _, _ in columns]))
    threshold = max(float(least) for least in candidates if shares(least)["f1_kept"] >= KEPT)
    spread = np.quantile(np.concatenate([without for *_, without in columns]), QUANTILES)
    curve = [
        {"min_relevance": round(least, 6), **shares(least)}
        for least in sorted({0.0, threshold, *spread.tolist()})
    ]
    rule = f"the highest that keeps {KEPT:g}% of the F1 of questions whose passage was found"
    return {"threshold": round(threshold, 4), "rule": rule, "curve": curve}


def page(content: Mapping[str, Any]) -> str:
    """Return the page."""
    measured = Passages.model_validate(content)
    of_first = {
        name: choice.model_copy(update={"ndcg10": choice.ndcg1})
        for name, choice in measured.reported.items()
    }
    weights = [
        [f"{weight:g}", *(f"{curve[f'{weight:g}']:.4f}" for curve in content["learnt"].values())]
        for weight in GRID
    ]
    assert measured.near_misses is not None
    others = [
        [name, *(f"{share:.1f}" for share in shares)]
        for name, shares in content["at_threshold"].items()
    ]
    lines = [
        "# Which passages an answer reads",
        "",
        (
            f"Of the {DEPTH} passages that the {SEARCH} search finds: as found, as"
            f" `{content['pair']}` ranks them, and by both (its logit less"
            f" {measured.rank_weight:g} times the logarithm of the place found). nDCG@10, 95%"
            " intervals (bootstrap over queries, differences paired); pooled, every collection"
            " counts alike."
        ),
        "",
        *tables.passages(measured),
        "The first passage alone (nDCG@1):",
        "",
        *tables.passages(measured.model_copy(update={"reported": of_first})),
        "## Near misses",
        "",
        (
            "Percent of questions that are answered by `min_relevance`, their passage found, and"
            f" taken away; and of the F1 of all answers. {measured.near_misses.threshold:.4g} is"
            f" {measured.near_misses.rule}, on {content['near_misses_of']}."
        ),
        "",
        *tables.abstention(measured.near_misses.curve),
        "On the others, at that threshold:",
        "",
        *table(["", "passage found", "taken away"], others),
        "## The weight",
        "",
        "nDCG@10 on the collections that it is learnt on, none of which is reported above:",
        "",
        *table(["weight", *content["learnt"]], weights),
    ]
    return "\n".join(lines)


def learn_weight(
    learnt: Sequence[RankingSet], scored: Mapping[str, tuple[Any, Any]]
) -> tuple[dict[str, dict[str, float]], float]:
    """Return nDCG@10 by weight on each collection and in the mean, and the weight of the best."""
    curves: dict[str, dict[str, float]] = {
        ranking_set.name: {
            f"{weight:g}": float(quality(ranking_set, *scored[ranking_set.name], weight).mean())
            for weight in GRID
        }
        for ranking_set in learnt
    }
    curves["mean"] = {
        f"{weight:g}": float(np.mean([curve[f"{weight:g}"] for curve in curves.values()]))
        for weight in GRID
    }
    return curves, max(GRID, key=lambda weight: curves["mean"][f"{weight:g}"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/passages"))
    parser.add_argument("--store", type=Path, required=True, help="root that holds --encoder")
    parser.add_argument("--encoder", default="minilm-l6")
    parser.add_argument("--pair", default="oscar-mini")
    parser.add_argument("--queries", type=int, default=300, help="of each collection")
    learn_on = "of each that weight and threshold are learnt on: of few, single answers decide"
    parser.add_argument("--learn-on", type=int, default=600, help=learn_on)
    parser.add_argument("--others", type=int, default=2000, help="passages beside the right ones")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--workers", type=int)
    args = parser.parse_args(argv)
    args.cross_encoder = None
    recording = Recording("benchmarks/passages.py", "torch", "faiss-cpu")
    prepare_process()
    learnt, reported = collections(args)
    with ExitStack() as stack, torch.inference_mode():
        rankers, encoder = open_rankers(args, stack)
        own = rankers[PAIR]
        assert isinstance(own, PairRanker)
        scored = {
            ranking_set.name: scores_of(ranking_set, args.work, encoder, {PAIR: own})
            for ranking_set in (*learnt, *reported)
        }
        curves, weight = learn_weight(learnt, scored)
        near = learnt[0]
        kept = args.work / "sets" / near.name.split(":")[0] / ANSWERS
        answers = json.loads(kept.read_text(encoding="utf-8"))
        whole, without = read_first(near, scored, weight, answers)
        f1 = f1_of(near, whole, own.pair, answers)
        calibrated = near_misses([(whole.scores, f1, without.scores)])
    content = {
        "pair": args.pair,
        "search": SEARCH,
        "depth": DEPTH,
        "rank_weight": weight,
        "learnt_on": [ranking_set.name for ranking_set in learnt],
        "learnt": curves,
        "reported": compare(reported, scored, weight),
        "near_misses": calibrated,
        "near_misses_of": near.name,
        "at_threshold": {
            item.name: answered(
                *(read.scores for read in read_first(item, scored, weight)),
                calibrated["threshold"],
            )
            for item in reported
        },
    }
    about = recording.about()
    # As `condensery publish oscar --part` reads it.
    text = json.dumps({"passages": content, "made": {"passages": about}}, indent=1)
    write_atomically(args.out.with_suffix(".json"), text + "\n")
    made = (
        f"Made on {about['date']} by `{about['command']}` on {tell_machine(about)}; "
        f"{tell_others(about)}; {tell_versions(about)}."
    )
    write_atomically(args.out.with_suffix(".md"), f"{page(content)}\n\n{made}\n")


if __name__ == "__main__":
    main()
