"""How well a pair in training answers: asked through a running copy, as the service would."""

import asyncio
import copy
import math
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from condensery.methods.oscar.evaluating.asking import ask
from condensery.methods.oscar.evaluating.placing import Row, place_among_others
from condensery.networks.oscar import OscarPair
from condensery.question import exact_match, f1_score
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import prepare_for_inference
from condensery.runtime.queue import BatchLimits, default_limits
from condensery.runtime.workers import Workers

AT_ONCE = 16  # questions asked side by side


@dataclass(frozen=True, slots=True)
class Scores:
    """Per question: EM, F1, the answer, and which passage the rerank head put first (-1: none)."""

    em: list[float]
    f1: list[float]
    answers: list[str]
    first: list[int]

    def means(self) -> dict[str, float]:
        """Return EM and F1 in percent."""
        return {"em": 100 * fmean(self.em), "f1": 100 * fmean(self.f1)}


async def score(
    reader: OscarModel,
    rows: Sequence[Row],
    passages: Sequence[Sequence[str]],
    *,
    keep: int | None = None,
    plain: bool = False,
) -> Scores:
    """Answer every row's question from its passages and score against its gold answers.

    Args:
        reader: The running pair.
        rows: Questions {question, answers}.
        passages: For each question.
        keep: How many of the best passages the generator reads; None for all.
        plain: Let it read their tokens instead of memory vectors.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def one(row: Row, texts: Sequence[str]) -> tuple[str, int]:
        async with room:
            found = await ask(reader, row["question"], texts, keep=keep, plain=plain)
            return found.answer, found.first

    found = await asyncio.gather(*map(one, rows, passages))
    return Scores(
        [exact_match(text, row["answers"]) for (text, _), row in zip(found, rows, strict=True)],
        [f1_score(text, row["answers"]) for (text, _), row in zip(found, rows, strict=True)],
        [text for text, _ in found],
        [first for _, first in found],
    )


def running(pair: OscarPair, directory: Path, workers: Workers) -> OscarModel:
    """Run a copy of networks in training; ``directory`` holds their tokenizer."""
    served = prepare_for_inference(copy.deepcopy(pair).eval())
    threads = ThreadPoolExecutor(1)
    return OscarModel.of(
        served, directory, workers, name="in-training", threads=threads, limits=unlimited_wait
    )


def unlimited_wait(device: torch.device) -> BatchLimits:
    """Return limits under which nobody is sent away: a run must not end for a busy machine."""
    return replace(default_limits(device), queue_seconds=math.inf)


def validate(
    pair: OscarPair, directory: Path, rows: Sequence[Row], *, limit: int
) -> dict[str, object]:
    """Answer ``limit`` validation questions: gold passage compressed and plain, and among five."""
    rng = random.Random(0)
    rows = rng.sample(list(rows), min(limit, len(rows)))
    workers = Workers(max(1, torch.get_num_threads()))
    reader = running(pair, directory, workers)
    placed = place_among_others(rows, 5, rng)

    async def ask_all() -> dict[str, object]:
        alone = [[row["context"]] for row in rows]
        gold = await score(reader, rows, alone)
        plain = await score(reader, rows, alone, plain=True)
        five = await score(reader, rows, [passages for passages, _ in placed])
        first = [float(a == b) for a, (_, b) in zip(five.first, placed, strict=True)]
        pairs = zip(rows[:4], gold.answers, strict=False)
        return {
            "gold": gold.means(),
            "plain": plain.means(),
            "among_five": five.means(),
            "gold_first": float(np.mean(first)),
            "samples": [f"{r['question']} -> {a} [{r['answers'][0]}]" for r, a in pairs],
        }

    try:
        return asyncio.run(ask_all())
    finally:
        reader.close()
        workers.close()
