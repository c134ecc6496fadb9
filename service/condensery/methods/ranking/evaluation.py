"""Measure how well models rerank BM25's best passages, on sets in BEIR's form."""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from condensery.errors import InputError
from condensery.methods.ranking.parts import (
    StoredRows,
    check_out,
    command_line,
    fingerprint,
    write_part,
)
from condensery.methods.ranking.rankers import CrossEncoderRanker, EncoderRanker, PairRanker, Ranker
from condensery.methods.ranking.reranking import BM25, compare, reorder, retrieve, score
from condensery.methods.ranking.sets import RankingSet, add_sets, read_sets
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.methods.trainer.arguments import open_model
from condensery.networks.dtypes import dtype_name
from condensery.runtime.device import choose_device, choose_dtype, prepare_process
from condensery.runtime.encoder import Encoder
from condensery.runtime.oscar import OscarModel
from condensery.runtime.workers import Workers
from condensery.store.store import ModelStore, shipped_store

log = logging.getLogger(__name__)
DEPTH, SEED = 50, 17
ENCODER, PAIR, CROSS_ENCODER = "encoder", "pair", "cross_encoder"


def measure(
    ranking_set: RankingSet,
    rankers: Mapping[str, Ranker],
    work: Path,
    *,
    depth: int = DEPTH,
    seed: int = SEED,
) -> dict[str, Any]:
    """Rerank one set's queries by each ranker; scores in ``work`` are not made again.

    Args:
        ranking_set: The set.
        rankers: By their name in the report.
        work: Folder of this set: the index and the scores.
        depth: Passages of BM25's that are reranked.
        seed: Of the bootstrap.

    Raises:
        InputError: ``work`` holds the scores of another set or model.
        StorageError: The disk refuses; what is scored is kept.
    """
    candidates, bm25_seconds = retrieve(ranking_set, depth, work)
    orders: dict[str, Any] = {BM25: candidates}
    about: dict[str, dict[str, Any]] = {BM25: {"seconds": round(bm25_seconds, 4)}}
    for name, ranker in rankers.items():
        stored = StoredRows(
            work / f"{name}.jsonl", {"set": ranking_set.content, "depth": depth, **ranker.says}
        )
        ahead = score(ranking_set, candidates, ranker, stored)
        rows = {query: stored.found[query] for query in ranking_set.queries}
        orders[name] = {q: reorder(candidates[q], row["scores"]) for q, row in rows.items()}
        about[name] = {
            **ranker.says,
            "seconds": round(fmean(row["seconds"] for row in rows.values()), 4),
            **({"seconds_ahead": round(ahead, 1)} if ahead else {}),
        }
    figures = compare(ranking_set, candidates, orders, seed)
    for name, facts in about.items():
        figures[name] |= facts
    return {"queries": len(ranking_set.queries), "depth": depth, "seed": seed, **figures}


def open_rankers(args: argparse.Namespace, stack: ExitStack) -> dict[str, Ranker]:
    """Load what the command names; ``stack`` closes it.

    Raises:
        ModelNotFound: The store has no such model.
        InputError: A model is of another kind; names it.
    """
    device = choose_device(args.device)
    dtype = choose_dtype(device, args.dtype)
    store = ModelStore(shipped_store(), args.store)
    rankers: dict[str, Ranker] = {}
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
    return rankers


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``condensery eval rerank``."""
    parser = argparse.ArgumentParser(prog="condensery eval rerank", description=__doc__)
    add_sets(parser, seed=SEED)
    parser.add_argument("--store", type=Path, required=True, help="root of the stored models")
    parser.add_argument("--encoder", help="a stored encoder's name")
    parser.add_argument("--pair", help="a stored pair's name")
    parser.add_argument("--cross-encoder", type=Path, help="directory of one")
    parser.add_argument("--depth", type=int, default=DEPTH, help="passages reranked")
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
    prepare_process()
    if args.workers:
        torch.set_num_threads(args.workers)  # for the cross-encoder, which has no workers
    sets = read_sets(dict.fromkeys(args.sets), queries=args.queries, seed=args.seed)
    with ExitStack() as stack, torch.inference_mode():
        rankers = open_rankers(args, stack)
        part = {
            ranking_set.name: {
                **measure(
                    ranking_set,
                    rankers,
                    args.work / ranking_set.name,
                    depth=args.depth,
                    seed=args.seed,
                ),
                "command": command_line("eval rerank", words),
            }
            for ranking_set in sets
        }
    sys.stdout.write(write_part({"rerank": part}, args.out))


if __name__ == "__main__":
    main()
