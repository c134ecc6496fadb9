"""OSCAR's own setting on a GPU (arXiv:2504.07109, appendix D): milliseconds a question, and memory.

Random weights of real size, made on the device: a Mistral-7B generator, and the three compressors
of Table 5. A question of 128 tokens, 10 passages of 128, 32 tokens out. In process: the compressor
in large forward passes, the generator in this engine, and the same engine on the passages' own
tokens. Compressors read the question (as OSCAR must), and, since the paper's figures do not count
it, also without it.

    python benchmarks/oscar_gpu.py [--batches 256 1] [--rounds 3] [--tiny]

Writes docs/benchmarks/oscar_gpu.json and oscar_gpu.md. Needs torch and transformers only.
"""

import argparse
import asyncio
import gc
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from oscar_gpu_report import PAGE, PEAK_BATCH, render, render_memory
from random_pairs import compress_all, config_of, random_compressor, random_generator, reading_of
from recording import Recording, raw, tell_machine, tell_versions
from transformers import LlamaConfig, MistralConfig

from condensery.networks.accounting import CausalPairCost, DecoderShape
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar_paper import LLAMA_1B, MAPPING, MISTRAL_7B
from condensery.networks.stepping import Stepper
from condensery.runtime.engine import Engine
from condensery.runtime.queue import BatchLimits, default_limits
from condensery.runtime.scheduler import KVCacheConfig
from condensery.runtime.sequence import GenerationRequest, TokenEvent
from condensery.runtime.workers import Workers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
PASSAGES, MEMORY = 10, 8
STEP_TOKENS = 8192  # nobody watches a stream here
SPARE_BYTES = 12 << 30  # beside weights and cache: activations, graphs


@dataclass(frozen=True)
class Half:
    """A compressor: dimensions, its mapping, and positions beside question and passage."""

    shape: DecoderShape
    kind: Any
    mapping: int
    final_norm: bool
    specials: int  # with the question
    counted: int  # without it, as the paper counts


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    question: int
    passage: int
    answer: int
    generator: DecoderShape
    halves: dict[str, Half]


REAL = Sizes(
    *(128, 128, 32, MISTRAL_7B),
    {
        "OSCAR-llama": Half(LLAMA_1B, LlamaConfig, MAPPING, True, 3, 0),
        "OSCAR-5-Layers": Half(replace(MISTRAL_7B, layers=5), MistralConfig, 0, False, 8, 3),
        "OSCAR-8-Layers": Half(replace(MISTRAL_7B, layers=8), MistralConfig, 0, False, 8, 3),
    },
)
SMALL = DecoderShape(64, 4, 4, 2, 16, 128, 500)
TINY = Sizes(
    *(16, 16, 8, SMALL),
    {
        "OSCAR-llama": Half(DecoderShape(32, 2, 4, 2, 8, 64, 700), LlamaConfig, 48, True, 3, 0),
        "OSCAR-5-Layers": Half(replace(SMALL, layers=1), MistralConfig, 0, False, 8, 3),
        "OSCAR-8-Layers": Half(replace(SMALL, layers=2), MistralConfig, 0, False, 8, 3),
    },
)


def tokens_of(seed: int, count: int) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(1 << 20) for _ in range(count)]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        # Not the whole device, whose engine may be capturing graphs.
        torch.cuda.current_stream(device).synchronize()


def peak_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the FLOPs a second of one large product of random matrices."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(8):
        wait(device)
        started = time.perf_counter()
        for _ in range(4):
            a @ b
        wait(device)
        seconds.append((time.perf_counter() - started) / 4)
    return 2 * size**3 / statistics.median(seconds[2:])


class Bench:
    """A generator on a device, and what is asked of it."""

    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
        self.sizes, self.device, self.dtype = sizes, device, dtype
        network = random_generator(config_of(sizes.generator, MistralConfig), device, dtype)
        self.stepper = Stepper(network)
        self.workers = Workers(1, device)
        self.limits = default_limits(device)

    def engine(self, batch: int, prompt: int) -> Engine:
        """Make an engine with room for a batch, or for as much of it as there is memory."""
        need = batch * (prompt + self.sizes.answer + 32)
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info(self.device)
            need = min(need, (free - SPARE_BYTES) // self.stepper.bytes_per_position)
        # No limit of the queue: a batch waits for all of its turn.
        limits = BatchLimits(self.limits.batch_tokens, self.limits.batch_items, 1 << 40, 1e9)
        return Engine(
            *(self.stepper, self.workers),
            model="generator",
            limits=limits,
            cache=KVCacheConfig(batch, need, STEP_TOKENS),
            fixed=True,
        )

    def answer(self, engine: Engine, prompts: list[list[Any]]) -> float:
        """Answer all; returns the seconds."""

        async def answer_prompt(prompt: list[Any]) -> None:
            generation = engine.begin(GenerationRequest(prompt, self.sizes.answer))
            finish = None
            while finish is None:
                event = await generation.events.get()
                if not isinstance(event, TokenEvent):
                    raise event
                finish = event.finish

        async def every() -> None:
            await asyncio.gather(*map(answer_prompt, prompts))

        started = time.perf_counter()
        asyncio.run(every())
        wait(self.device)
        return time.perf_counter() - started

    def question(self, seed: int) -> list[int]:
        vocabulary = self.sizes.generator.vocabulary
        return [token % vocabulary for token in tokens_of(seed, self.sizes.question)]

    def plain(self, engine: Engine, batch: int) -> tuple[float, float]:
        """Return a batch's seconds of compression (none) and generation."""
        count, vocabulary = PASSAGES * self.sizes.passage, self.sizes.generator.vocabulary
        prompts = [
            [[t % vocabulary for t in tokens_of(-1 - seed, count)] + self.question(seed)]
            for seed in range(batch)
        ]
        return 0.0, self.answer(engine, prompts)

    def compressed(
        self, engine: Engine, batch: int, compressor: Any, half: Half, asked: bool
    ) -> tuple[float, float]:
        """Return a batch's seconds of compression and generation."""
        sizes = self.sizes
        beside = sizes.question + half.specials if asked else half.counted
        readings = [
            reading_of(
                tokens_of(seed, beside),
                tokens_of(10_000 + PASSAGES * seed + number, sizes.passage),
                half.shape.vocabulary,
            )
            for seed in range(batch)
            for number in range(PASSAGES)
        ]
        wait(self.device)
        started = time.perf_counter()
        vectors = compress_all(compressor, readings, self.limits.batch_tokens)
        wait(self.device)
        compressing = time.perf_counter() - started
        prompts: list[list[Any]] = []
        for seed in range(batch):
            mine = vectors[PASSAGES * seed : PASSAGES * (seed + 1)]
            parts = [part for vector in mine for part in (vector, [3])]  # a separator after each
            prompts.append([*parts, self.question(seed)])
        return compressing, self.answer(engine, prompts)


def flops(sizes: Sizes, half: Half | None, asked: bool) -> tuple[int, int]:
    """Return the true FLOPs of a question: of compression, and of generation."""
    # What is trimmed is not spent, so it may not count as done.
    generator = replace(sizes.generator, trimmed=True)
    cost = CausalPairCost.of(
        *(replace(half.shape, trimmed=True) if half else generator, generator),
        memory_tokens=MEMORY,
        mapping_size=half.mapping if half else 0,
        specials=(half.specials if asked else half.counted) if half else 0,
    )
    if half is None:
        return 0, cost.generate(sizes.question + PASSAGES * sizes.passage, sizes.answer)
    compression = PASSAGES * cost.compress(sizes.question if asked else 0, sizes.passage)
    prompt = sizes.question + PASSAGES * (MEMORY + 1)
    return compression, cost.generate(prompt, sizes.answer)


def measure(bench: Bench, batches: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Measure every batch: plain, and each compressor with and without the question."""
    sizes = bench.sizes
    plain_prompt = sizes.question + PASSAGES * sizes.passage
    short_prompt = sizes.question + PASSAGES * (MEMORY + 2)  # its room: a place after each part
    for batch in batches:
        engine = bench.engine(batch, plain_prompt)
        yield cell(bench, batch, "plain", None, True, rounds, engine, None)
        engine.close()
        del engine
        engine = bench.engine(batch, short_prompt + PASSAGES)
        for name, half in sizes.halves.items():
            compressor = random_compressor(
                *(config_of(half.shape, half.kind), sizes.generator.hidden_size),
                *(bench.device, bench.dtype),
                mapping=half.mapping,
                final_norm=half.final_norm,
            )
            for asked in (True, False):
                yield cell(bench, batch, name, half, asked, rounds, engine, compressor)
            del compressor
        engine.close()
        del engine


def cell(
    bench: Bench,
    batch: int,
    name: str,
    half: Half | None,
    asked: bool,
    rounds: int,
    engine: Engine,
    compressor: Any,
) -> dict[str, Any]:
    cuda = bench.device.type == "cuda"
    seconds = []
    for number in range(rounds + 1):  # the first one warms up
        if cuda:
            torch.cuda.reset_peak_memory_stats(bench.device)
        if half is None:
            figures = bench.plain(engine, batch)
        else:
            figures = bench.compressed(engine, batch, compressor, half, asked)
        if number:
            seconds.append(figures)
    peak = torch.cuda.max_memory_allocated(bench.device) / 1e9 if cuda else 0.0
    fixed = engine._fixed
    decoder = fixed.decoder if fixed is not None else None
    compression, generation = flops(bench.sizes, half, asked)
    made = {
        "name": name,
        "question": asked,
        "batch": batch,
        "compress_ms": 1000 * statistics.median(a for a, _ in seconds) / batch,
        "generate_ms": 1000 * statistics.median(b for _, b in seconds) / batch,
        "total_ms": 1000 * statistics.median(a + b for a, b in seconds) / batch,
        "peak_gb": peak,
        "tflops_compress": compression / 1e12,
        "tflops_generate": generation / 1e12,
        "graphs": len(decoder.sizes) if decoder is not None and cuda else 0,
        "rounds": seconds,
    }
    print(json.dumps({key: value for key, value in made.items() if key != "rounds"}), flush=True)
    return made


def write(
    out: Path, report: dict[str, Any], cells: list[dict[str, Any]], batches: list[int]
) -> None:
    """Write what was measured so far of the batches that were asked for."""
    measured = {cell["batch"] for cell in cells}
    shown = [batch for batch in batches if batch in measured]
    tables = "\n\n".join(render(cells, batch, 1e12 * report["peak"]) for batch in shown)
    context = {"machine": tell_machine(report), "versions": tell_versions(report)}
    page = PAGE.format(**(report | context), tables=tables, memory=render_memory(cells))
    (out / "oscar_gpu.json").write_text(raw({**report, "cells": cells}))
    (out / "oscar_gpu.md").write_text(page)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--batches", nargs="+", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="small dimensions: a trial, anywhere")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    recording = Recording("benchmarks/oscar_gpu.py", "torch", "transformers")
    cuda = torch.cuda.is_available()
    if not cuda and not args.tiny:
        parser.error("no CUDA device: --tiny runs the same code anywhere")
    device = torch.device("cuda" if cuda else "cpu")
    dtype = torch.bfloat16 if cuda else torch.float32
    sizes = TINY if args.tiny else REAL
    asked = args.batches or ([4, 1] if args.tiny else [256, 1])
    peak = peak_flops(device, dtype, 512 if args.tiny else 8192)
    bench = Bench(sizes, device, dtype)
    args.out.mkdir(parents=True, exist_ok=True)
    setting = {
        "device": torch.cuda.get_device_name(device) if cuda else "a CPU",
        "dtype": dtype_name(dtype),
        "tiny": ", tiny sizes: a trial that says nothing" if args.tiny else "",
        "question": sizes.question,
        "passages": PASSAGES,
        "passage": sizes.passage,
        "answer": sizes.answer,
        "rounds": args.rounds,
        "peak": peak / 1e12,
        "peak_batch": PEAK_BATCH,
    }
    cells: list[dict[str, Any]] = []
    # After each: what a run that is cut has measured is not lost.
    for made in measure(bench, [*asked, *({PEAK_BATCH} - set(asked))], args.rounds):
        cells.append(made)
        report = {**setting, "graphs": cells[0]["graphs"], **recording.about()}
        write(args.out, report, cells, asked)
    bench.workers.close()
    print((args.out / "oscar_gpu.md").read_text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
