"""A pair's measured report on SQuAD's dev set, what its card says (``card``)."""

import argparse
import asyncio
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from condensery.agreement import exact
from condensery.methods.oscar.data import read_jsonl
from condensery.methods.oscar.evaluation import Row, Scores, beside, of_others, replaced, score
from condensery.methods.oscar.scoring import paired_bootstrap
from condensery.runtime.device import choose_device, choose_dtype, prepare_process
from condensery.runtime.reader import Reader
from condensery.runtime.workers import Workers
from condensery.store.store import ModelStore


def sample(path: Path, count: int, seed: int) -> list[Row]:
    """Choose questions of a SQuAD file at random."""
    rows = list(read_jsonl(path))
    return random.Random(seed).sample(rows, min(count, len(rows)))


async def measure(reader: Reader, rows: list[Row], *, seed: int) -> dict[str, Any]:
    """Ask every question in every setting; see ``card`` for what they are."""
    rng = random.Random(seed)
    alone = [[row["context"]] for row in rows]
    placed = beside(rows, 5, rng)
    five = [passages for passages, _ in placed]
    settings: dict[str, tuple[list[list[str]], dict[str, Any]]] = {
        "gold": (alone, {}),
        "gold_among_five": (five, {}),
        "gold_among_five_best_one": (five, {"keep": 1}),
        "no_passage": ([[] for _ in rows], {}),
        "others_passages": (of_others(rows, 5, rng), {}),
        "gold_plain": (alone, {"plain": True}),
    }
    found: dict[str, Scores] = {}
    report: dict[str, Any] = {"questions": len(rows), "seed": seed, "settings": {}}
    for name, (passages, options) in settings.items():
        started = time.perf_counter()
        found[name] = await score(reader, rows, passages, **options)
        report["settings"][name] = {
            **{key: round(value, 2) for key, value in found[name].means().items()},
            "seconds": round(time.perf_counter() - started, 1),
        }
    first = [
        float(a == b) for a, (_, b) in zip(found["gold_among_five"].first, placed, strict=True)
    ]
    report["gold_ranked_first_among_five"] = round(100 * fmean(first), 2)
    report["differences"] = {}
    for worse in ("no_passage", "others_passages"):
        mean, low, high = paired_bootstrap(found["gold_among_five"].f1, found[worse].f1)
        report["differences"][f"gold_among_five_minus_{worse}"] = {
            "f1": round(100 * mean, 2),
            "low_95": round(100 * low, 2),
            "high_95": round(100 * high, 2),
        }
    report["replaced"] = await measure_replaced(reader, rows, found["gold"], rng)
    report["examples"] = [
        {"question": row["question"], "answer": text, "gold": row["answers"]}
        for row, text in list(zip(rows, found["gold_among_five"].answers, strict=True))[:12]
    ]
    return report


async def measure_replaced(
    reader: Reader, rows: list[Row], gold: Scores, rng: random.Random
) -> dict[str, Any]:
    """Swap the answers in the passages of questions answered right: does the answer follow?"""
    right = [row for row, em in zip(rows, gold.em, strict=True) if em]
    swapped = replaced(right, rng)
    found = await score(reader, swapped, [[row["context"]] for row in swapped])
    stayed = [exact(text, row["old"]) for text, row in zip(found.answers, swapped, strict=True)]
    return {
        "questions": len(swapped),
        "follows_em": round(100 * fmean(found.em), 2) if swapped else None,
        "follows_f1": round(100 * fmean(found.f1), 2) if swapped else None,
        "keeps_old_answer": round(100 * fmean(stayed), 2) if swapped else None,
    }


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery eval oscar``."""
    parser = argparse.ArgumentParser(prog="condensery eval oscar", description=__doc__)
    parser.add_argument("--model", default="oscar-mini", help="a pair's name in the store")
    parser.add_argument("--store", type=Path, required=True, help="root that holds its base too")
    parser.add_argument("--shipped", type=Path, help="a second root")
    parser.add_argument("--questions", type=Path, required=True, help="SQuAD's dev.jsonl.gz")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--out", type=Path, help="where to write the report (JSON)")
    args = parser.parse_args(argv)
    prepare_process()
    device = choose_device("auto")
    store = ModelStore(args.shipped, args.store)
    stored = store.open(args.model)
    workers = Workers(None, device)
    dtype = choose_dtype(device)
    with ThreadPoolExecutor(2) as threads, torch.inference_mode():
        base = store.open_base(stored) if stored.manifest.base else None
        reader = Reader.load(stored, base, workers, dtype=dtype, threads=threads)
        rows = sample(args.questions, args.count, args.seed)
        report = asyncio.run(measure(reader, rows, seed=args.seed))
        reader.close()
        workers.close()
    report = {"model": stored.name, "fingerprint": stored.manifest.fingerprint, **report}
    text = json.dumps(report, indent=1, ensure_ascii=False)
    if args.out:
        args.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
