"""Measure how well models rerank what a search finds, on sets in BEIR's form."""

import argparse
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
import torch

from condensery.errors import InputError
from condensery.index.fusion import weigh_place
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.parts import (
    StoredRows,
    check_out,
    fingerprint,
    write_part,
)
from condensery.methods.ranking.rankers import CrossEncoderRanker, EncoderRanker, PairRanker, Ranker
from condensery.methods.ranking.retrieval import Mode, Retriever, titled_text
from condensery.methods.ranking.sets import RankingSet, add_sets, read_sets
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.methods.trainer.arguments import open_model
from condensery.methods.trainer.reports import bootstrap, command_line
from condensery.networks.dtypes import dtype_name
from condensery.parsers import Parser
from condensery.runtime.device import choose_device, choose_dtype, prepare_process
from condensery.runtime.encoder import Encoder
from condensery.runtime.oscar import OscarModel
from condensery.runtime.workers import Workers
from condensery.store.store import ModelStore, shipped_store

BM25: Mode = "bm25"
LOGGED_EVERY = 20  # queries between lines of progress
Candidates = Mapping[str, Sequence[str]]  # query, passages, best first
log = logging.getLogger(__name__)
DEPTH, SEED = 50, 17
ENCODER, PAIR, CROSS_ENCODER = "encoder", "pair", "cross_encoder"
PLACED = f"{PAIR}_with_place"
MOST_WEIGHT = 100


def retrieve(
    ranking_set: RankingSet,
    depth: int,
    work: Path,
    mode: Mode = BM25,
    encoder: Encoder | None = None,
) -> tuple[dict[str, list[str]], float]:
    """Return the best passages of each query, and the seconds a query took.

    Args:
        ranking_set: The set.
        depth: Most passages.
        work: Folder for the index.
        mode: How they are searched for.
        encoder: Makes the vectors, for what is not ``bm25``.
    """
    encoder = None if mode == BM25 else encoder
    folder = work / ("index" if encoder is None else f"index-{encoder.info.name}")
    with Retriever.build(ranking_set.passages, folder, encoder=encoder) as retriever:
        began = time.perf_counter()
        hits = retriever.search(list(ranking_set.queries.values()), depth, mode)
        seconds = (time.perf_counter() - began) / len(ranking_set.queries)
    candidates = {
        query: [name for name, _ in ranked]
        for query, ranked in zip(ranking_set.queries, hits, strict=True)
    }
    return candidates, seconds


def score(
    ranking_set: RankingSet, candidates: Candidates, ranker: Ranker, stored: StoredRows
) -> float:
    """Score the candidates of the queries that have no stored scores yet.

    Returns:
        Seconds that reading passages ahead of the queries took.
    """
    # As they are indexed: the title on a line before the text.
    texts = {passage.id: titled_text(passage) for passage in ranking_set.passages}
    missing = [query for query in ranking_set.queries if query not in stored.found]
    ahead = ranker.prepare(
        list(dict.fromkeys(texts[name] for query in missing for name in candidates[query]))
    )
    for done, query in enumerate(missing, start=1):
        names = candidates[query]
        began = time.perf_counter()
        scores = ranker.scores(ranking_set.queries[query], [texts[name] for name in names])
        seconds = time.perf_counter() - began
        stored.add(query, seconds=seconds, scores=dict(zip(names, scores, strict=True)))
        if done % LOGGED_EVERY == 0 or done == len(missing):
            log.info("%s: %d of %d queries", ranking_set.name, done, len(missing))
    return ahead


def reorder(
    names: Sequence[str], scores: Mapping[str, float], rank_weight: float = 0.0
) -> list[str]:
    """Sort by falling score; of equal ones what came first stays first.

    Args:
        names: In the order of the search.
        scores: Logits.
        rank_weight: How much places in that order count too (``weigh_place``).
    """
    places = {name: place for place, name in enumerate(names, start=1)}
    return sorted(names, key=lambda name: -weigh_place(scores[name], places[name], rank_weight))


def compare(
    ranking_set: RankingSet, candidates: Candidates, orders: Mapping[str, Candidates], seed: int
) -> dict[str, Any]:
    """Measure all orders of the same candidates: nDCG@10, each difference from the others.

    Args:
        ranking_set: The set.
        candidates: The search's.
        orders: Theirs, by name; the search's is one of them.
        seed: Of the bootstrap.

    Returns:
        For each order ``ndcg10``, ``low``, ``high`` (95%, bootstrap over queries); under
        ``differences`` those of each order from those named before it, paired; and ``recall``,
        the mean share of a query's judged passages that are among the candidates: what no order
        can exceed.
    """
    queries = list(ranking_set.queries)
    columns = {}
    for name, order in orders.items():
        measured = ndcg(order, ranking_set.judged)
        columns[name] = np.array([measured[query] for query in queries])
    names = list(columns)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[:i]]
    table = np.stack([*columns.values(), *(columns[a] - columns[b] for a, b in pairs)], axis=1)
    estimates = bootstrap(table, seed=seed)
    rows = [
        [round(float(value), 4) for value in bounds]
        for bounds in zip(estimates.mean, estimates.low, estimates.high, strict=True)
    ]
    figures: dict[str, Any] = {
        name: dict(zip(("ndcg10", "low", "high"), row, strict=True))
        for name, row in zip(names, rows, strict=False)
    }
    figures["differences"] = {
        f"{a}_minus_{b}": dict(zip(("ndcg10", "low_95", "high_95"), row, strict=True))
        for (a, b), row in zip(pairs, rows[len(names) :], strict=True)
    }
    judged = ranking_set.judged
    figures["recall"] = round(
        fmean(len(judged[q].keys() & set(candidates[q])) / len(judged[q]) for q in queries), 4
    )
    return figures


def measure(
    ranking_set: RankingSet,
    rankers: Mapping[str, Ranker],
    work: Path,
    *,
    depth: int = DEPTH,
    seed: int = SEED,
    mode: Mode = BM25,
    encoder: Encoder | None = None,
    rank_weights: Sequence[float] = (),
) -> dict[str, Any]:
    """Rerank one set's queries by each ranker; scores in ``work`` are not made again.

    Args:
        ranking_set: The set.
        rankers: By their name in the report.
        work: Folder of this set: the index and the scores.
        depth: Passages found that are reranked.
        seed: Of the bootstrap.
        mode: How they are searched for; the name of that order in the report.
        encoder: Makes the vectors, for what is not ``bm25``.
        rank_weights: Also measure the pair's scores with the places in the search, weighed so:
            ``pair_with_place``, with the weight after it where there are several.

    Raises:
        InputError: ``work`` holds the scores of another set or model.
        StorageError: The disk refuses; what is scored is kept.
    """
    candidates, search_seconds = retrieve(ranking_set, depth, work, mode, encoder)
    orders: dict[str, Any] = {mode: candidates}
    about: dict[str, dict[str, Any]] = {mode: {"seconds": round(search_seconds, 4)}}
    # Scores of runs before there were other searches are BM25's
    found_by: dict[str, Any] = {}
    if mode != BM25:
        assert encoder is not None
        found_by = {"search": mode, "search_encoder": encoder.info.fingerprint}
    for name, ranker in rankers.items():
        path = work / (f"{name}.jsonl" if mode == BM25 else f"{name}-{mode}.jsonl")
        content = {"set": ranking_set.content, "depth": depth, **found_by, **ranker.says}
        stored = StoredRows(path, content)
        ahead = score(ranking_set, candidates, ranker, stored)
        rows = {query: stored.found[query] for query in ranking_set.queries}
        orders[name] = {q: reorder(candidates[q], row["scores"]) for q, row in rows.items()}
        for weight in rank_weights if name == PAIR else ():
            placed = PLACED if len(rank_weights) == 1 else f"{PLACED}_{weight:g}"
            orders[placed] = {
                q: reorder(candidates[q], row["scores"], weight) for q, row in rows.items()
            }
            about[placed] = {"rank_weight": weight}
        about[name] = {
            **ranker.says,
            "seconds": round(fmean(row["seconds"] for row in rows.values()), 4),
            **({"seconds_ahead": round(ahead, 1)} if ahead else {}),
        }
    figures = compare(ranking_set, candidates, orders, seed)
    for name, facts in about.items():
        figures[name] |= facts
    return {
        "queries": len(ranking_set.queries),
        "depth": depth,
        "seed": seed,
        **({} if mode == BM25 else {"search": mode}),
        **figures,
    }


def open_rankers(
    args: argparse.Namespace, stack: ExitStack
) -> tuple[dict[str, Ranker], Encoder | None]:
    """Load what the command names; ``stack`` closes it. Also returns the encoder, if there is one.

    Raises:
        ModelNotFound: The store has no such model.
        InputError: A model is of another kind; names it.
    """
    device = choose_device(args.device)
    dtype = choose_dtype(device, args.dtype)
    store = ModelStore(shipped_store(), args.store)
    rankers: dict[str, Ranker] = {}
    encoder: Encoder | None = None
    if args.encoder or args.pair:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        workers = Workers(args.workers, device)
        stack.callback(workers.close)
    if args.encoder:
        stored = open_model(store, args.encoder, "encoder", "encoder")
        encoder = Encoder.load(stored, workers, dtype=dtype, threads=threads)
        stack.callback(encoder.close)
        rankers[ENCODER] = EncoderRanker(encoder)
    if args.pair:
        stored = open_model(store, args.pair, "oscar-pair", "pair")
        base = store.open_base(stored) if stored.manifest.base else None
        pair = OscarModel.load(stored, base, workers, dtype=dtype, threads=threads)
        stack.callback(pair.close)
        if not pair.traits.scores:
            raise InputError(f"pair: {args.pair!r} has no rerank head", field="pair")
        rankers[PAIR] = PairRanker(pair)
    if args.cross_encoder:
        path: Path = args.cross_encoder
        model = CrossEncoder.open(path, device=device, dtype=dtype)
        about: dict[str, object] = {
            "model": path.resolve().name,
            "fingerprint": fingerprint(path),
            "dtype": dtype_name(dtype),
        }
        rankers[CROSS_ENCODER] = CrossEncoderRanker(model, about)
    return rankers, encoder


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery eval rerank``."""
    parser = Parser(prog="condensery eval rerank", description=__doc__)
    add_sets(parser, seed=SEED)
    parser.add_argument("--store", type=Path, required=True, help="root of the stored models")
    parser.add_argument("--encoder", help="a stored encoder's name")
    parser.add_argument("--pair", help="a stored pair's name")
    parser.add_argument("--cross-encoder", type=Path, help="directory of one")
    parser.add_argument("--depth", type=int, default=DEPTH, help="passages reranked")
    parser.add_argument(
        "--search",
        choices=get_args(Mode),
        default=BM25,
        help="how passages are found (bm25); by vectors --encoder's",
    )
    parser.add_argument(
        "--rank-weight",
        type=float,
        nargs="+",
        default=(),
        metavar="W",
        help="also by --pair's logit less W times the logarithm of the place in the search",
    )
    parser.add_argument("--workers", type=int, help="threads of one each on a CPU (a core each)")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for indexes and scores; run again to go on"
    )
    words = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    check_out(args.out)
    if args.depth < 1:
        raise InputError(f"depth: {args.depth} is less than 1", field="depth", value=args.depth)
    if args.search != BM25 and not args.encoder:
        raise InputError.at("search", f"{args.search} needs --encoder", args.search)
    if args.rank_weight and not args.pair:
        raise InputError.at("rank_weight", "weighs a pair's scores: it needs --pair")
    if wrong := [weight for weight in args.rank_weight if not 0 <= weight <= MOST_WEIGHT]:
        raise InputError.at("rank_weight", f"{wrong[0]:g} is not 0 to {MOST_WEIGHT}", wrong[0])
    prepare_process()
    if args.workers:
        torch.set_num_threads(args.workers)  # for the cross-encoder, which has no workers
    sets = read_sets(dict.fromkeys(args.sets), queries=args.queries, seed=args.seed)
    with ExitStack() as stack, torch.inference_mode():
        rankers, encoder = open_rankers(args, stack)
        part = {
            ranking_set.name: {
                **measure(
                    ranking_set,
                    rankers,
                    args.work / ranking_set.name,
                    depth=args.depth,
                    seed=args.seed,
                    mode=args.search,
                    encoder=encoder,
                    rank_weights=args.rank_weight,
                ),
                "command": command_line("eval rerank", words),
            }
            for ranking_set in sets
        }
    sys.stdout.write(write_part({"rerank": part}, args.out))


if __name__ == "__main__":
    main()
