"""The paper's three stages at a real size, on random weights and random tokens: speed and memory.

    python benchmarks/llm2comp_gpu.py --size llama-2-7b --device cuda --steps 20 [--recompute]

Each stage is trained by the trainer that `condensery train llm2comp` has, checkpoints included, in
the paper's recipe (0.36 million samples: 8,000 steps of 4 texts, 1,000 of 128, 200 of 1,024), of
which `--steps` are run; the rest is a product. `--size tiny` tries it on any machine. Writes
llm2comp_gpu.json and llm2comp_gpu.md into docs/benchmarks. Needs torch, transformers and peft only.
"""

import argparse
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_pairs import config_of
from recording import Recording, raw, tell_command, tell_machine, tell_versions

from condensery.methods.llm2comp.data import ContrastBatch, SplitBatches, TextRows, ViewBatches
from condensery.methods.llm2comp.network import MemoryNetwork, random_base
from condensery.methods.llm2comp.recipe import (
    NetworkShape,
    PretextRecipe,
    StageRecipe,
    SupervisedRecipe,
    UnsupervisedRecipe,
)
from condensery.methods.llm2comp.training import ContrastTraining, PretextTraining, StageTraining
from condensery.methods.llm2comp.weights import StageResult, load_stage
from condensery.methods.trainer.method import Draw, TrainingSetup
from condensery.methods.trainer.trainer import run_training
from condensery.networks.accounting import DecoderShape
from condensery.networks.dtypes import dtype_name
from condensery.networks.effir_paper import LLAMA2_7B

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
TINY = DecoderShape(64, 2, 4, 4, 16, 128, 500)
SIZES = {"llama-2-7b": LLAMA2_7B, "tiny": TINY}
# Tokens of wikitext's texts of 1,000 characters and more, Wikipedia's sentences, queries, passages.
LENGTHS = {"pretext": (220, 511), "unsupervised": (10, 60), "query": (10, 60), "passage": (60, 220)}
TEXTS = 2048
# Steps, and texts or queries a step in all processes together.
PAPER = {"pretext": (8000, 4), "unsupervised": (1000, 128), "supervised": (200, 1024)}
PAGE = """# LLM2Comp's training at the size of {size}

On {device} beside {machine}, {dtype}, random weights, {k} memory tokens, adapters of rank {rank};
medians over {steps} steps of each stage, the first two left out.

| stage | texts a step | tokens a step | s a step | tokens/s | memory, GiB | paper's stage, h |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}
Tokens are those of texts, read by the encoder, memory tokens and padding not counted. The paper's
stage is {paper} at this speed on one device. {named}.
Made on {date} by `{command}`.
"""


class Unwatched:
    """What a stage's training asks of a monitor where nothing is measured."""

    rows = None

    def figures(self, network: MemoryNetwork) -> dict[str, float]:
        return {}

    def analyse(self, network: MemoryNetwork) -> None:
        return None


def random_rows(kind: str, vocabulary: int) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    """Return random token ids of such texts' lengths."""
    source, ids = random.Random(kind), np.random.default_rng(0)
    lengths = [source.randint(*LENGTHS[kind]) for _ in range(TEXTS)]
    return [ids.integers(vocabulary, size=length, dtype=np.int32) for length in lengths]


def texts_of(kind: str, vocabulary: int) -> TextRows:
    rows = random_rows(kind, vocabulary)
    return TextRows(rows, [kind] * len(rows), 0, kind)


class RandomRanked:
    """Queries with a positive and a hard negative each."""

    def __init__(self, vocabulary: int, batch: int) -> None:
        self._queries = [row.tolist() for row in random_rows("query", vocabulary)]
        self._passages = [row.tolist() for row in random_rows("passage", vocabulary)]
        self._batch = batch

    def __call__(self, draw: Draw) -> ContrastBatch:
        """Return the draw's queries and passages."""
        chosen = draw.rng().sample(range(len(self._queries)), self._batch)
        passages = [self._passages[n - shift] for n in chosen for shift in (0, 1)]
        keys = torch.tensor([2 * n + shift for n in chosen for shift in (0, 1)])
        names = [str(n) for n in chosen]
        return ContrastBatch(
            [self._queries[n] for n in chosen], passages, keys, keys[::2, None], names
        )


@dataclass
class Clock:
    """When each step began, and with how many tokens."""

    device: torch.device
    times: list[float]

    def begin_step(self, step: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.times.append(time.perf_counter())


def recipes(args: argparse.Namespace) -> list[StageRecipe]:
    """Return the paper's recipes, of fewer steps, and batches of one device's share."""
    common: dict[str, Any] = {"steps": args.steps, "recompute": args.recompute}
    return [
        PretextRecipe(**common),
        UnsupervisedRecipe(**common, batch=args.batch),
        SupervisedRecipe(**common, batch=args.batch),
    ]


def begin(
    recipe: StageRecipe, network: MemoryNetwork, setup: TrainingSetup, clock: Clock
) -> StageTraining[Any]:
    """Return the training of a stage on random tokens."""
    vocabulary = network.vocabulary
    rest = (network, Unwatched(), {"stage": recipe.stage}, {"scale": network.shape.scale}, setup)
    if isinstance(recipe, PretextRecipe):
        batches = SplitBatches(texts_of("pretext", vocabulary), recipe.batch)
        return PretextTraining(batches, recipe, *rest, clock.begin_step)
    if isinstance(recipe, UnsupervisedRecipe):
        views = ViewBatches(texts_of("unsupervised", vocabulary), recipe.batch)
        return ContrastTraining(views, recipe, *rest, clock.begin_step)
    assert isinstance(recipe, SupervisedRecipe)
    ranked: Any = RandomRanked(vocabulary, recipe.batch)
    return ContrastTraining(ranked, recipe, *rest, clock.begin_step)


def tokens_of(method: StageTraining[Any], recipe: StageRecipe) -> float:
    """Return a step's tokens of texts, the mean over the steps."""
    counts = []
    for step in range(recipe.steps):
        batch: Any = method.batch(Draw(recipe.seed, step))
        rows = batch.rows if recipe.stage == "pretext" else [*batch.queries, *batch.passages]
        counts.append(sum(map(len, rows)))
    return statistics.fmean(counts)


def measure(
    shape: DecoderShape, args: argparse.Namespace, setup: TrainingSetup, work: Path
) -> list[dict[str, Any]]:
    """Train the stages one after the other; returns a row of figures each."""
    rows = []
    earlier: StageResult | None = None
    for recipe in recipes(args):
        network = MemoryNetwork(
            random_base(config_of(shape), device=setup.device, dtype=setup.dtype),
            NetworkShape(memory_tokens=args.memory_tokens),
            1,
            embeddings=recipe.embeddings,  # type: ignore[arg-type]
            weights=None if earlier is None else (earlier.weights, earlier.scale),
        )
        network.place(setup)
        clock = Clock(setup.device, [])
        method = begin(recipe, network, setup, clock)
        tokens = tokens_of(method, recipe)
        if setup.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(setup.device)
        run_training(method, work / recipe.stage)
        seconds = [after - before for before, after in pairwise(clock.times[2:])]
        steps, batch = PAPER[recipe.stage]
        step = statistics.median(seconds)
        rows.append(
            {
                "stage": recipe.stage,
                "texts": recipe.batch,
                "tokens": tokens,
                "seconds": seconds,
                "tokens_per_second": tokens / step,
                "peak_bytes": peak(setup.device),
                "paper_hours": steps * batch / recipe.batch * step / 3600,
            }
        )
        earlier = load_stage(work / recipe.stage)
        del method, network
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def peak(device: torch.device) -> int:
    """Return the most memory so far, bytes: the device's, or the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="llama-2-7b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20, help="of each stage, at least 4")
    parser.add_argument("--batch", type=int, default=128, help="of the contrastive stages")
    parser.add_argument("--memory-tokens", type=int, default=8)
    parser.add_argument("--recompute", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if args.steps < 4:
        parser.error("--steps must be at least 4")
    words = sys.argv[1:] if argv is None else argv
    recording = Recording(
        "benchmarks/llm2comp_gpu.py",
        *("torch", "transformers", "peft"),
        command=f"python benchmarks/llm2comp_gpu.py {tell_command(words)}".strip(),
    )
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    setup = TrainingSetup(device, dtype, every=args.steps)
    shape = replace(SIZES[args.size], tied=False)
    with tempfile.TemporaryDirectory() as work:
        stages = measure(shape, args, setup, Path(work))
    result = {
        "size": args.size,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "a CPU",
        "dtype": dtype_name(dtype),
        "stages": stages,
        **recording.about(),
    }
    lines = [
        f"| {row['stage']} | {row['texts']} | {row['tokens']:,.0f} | "
        f"{statistics.median(row['seconds']):.3f} | {row['tokens_per_second']:,.0f} | "
        f"{row['peak_bytes'] / 2**30:.1f} | {row['paper_hours']:.2f} |"
        for row in stages
    ]
    page = PAGE.format(
        **{key: result[key] for key in ("size", "device", "dtype", "date", "command")},
        machine=tell_machine(result),
        k=args.memory_tokens,
        rank=NetworkShape().lora_rank,
        steps=args.steps,
        rows="\n".join(lines) + "\n",
        paper="; ".join(f"{stage}: {n:,} steps of {m:,}" for stage, (n, m) in PAPER.items()),
        named=tell_versions(result),
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "llm2comp_gpu.json").write_text(raw(result))
    (args.out / "llm2comp_gpu.md").write_text(page)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
