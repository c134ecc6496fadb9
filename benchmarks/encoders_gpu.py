"""Encoders on a GPU: forward passes against what the card can do, and what a service makes of them.

First the forward passes alone, packed batches of token ids through `networks/backbone.py`: sizes of
MiniLM-L6, BERT-base and Mistral-7B, queries and passages, with the share of the card's matmul rate
that they reach, the time in which it computes at all, and where that time goes. Then the engine as
a service has it, tokenising, batching and fetching vectors, in one process and in several that
share the card: single queries, and lists of passages. Weights are random. The most telling first;
what is there is written after each row.

    python benchmarks/encoders_gpu.py [--seconds 5] [--processes 4] [--tiny]

Writes docs/benchmarks/encoders_gpu.json and encoders_gpu.md. Needs torch, transformers and
tokenizers, and a tokenizer of BERT's kind (--tokenizer, by default that of `oscar-mini`).
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from effir_gpu import flops as decoder_flops
from effir_gpu import matmul_rate, texts_of, timed
from encoders_gpu_engine import SIZES, TINY, TOKENS, BertSize, build, engine_rows, whole
from recording import Recording, raw, tell_machine, tell_versions

from condensery.methods.effir.speed import batches
from condensery.networks.accounting import DecoderShape
from condensery.networks.backbone import Backbone
from condensery.networks.dtypes import dtype_name

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
TOKENIZERS = sorted((ROOT / "model_store" / "oscar-mini").glob("*"))
BATCH_TOKENS = 32_768  # of a packed batch
PROFILED = 3  # operations named
AIMS = {
    ("MiniLM-L6", "queries"): "20,000 queries/s",
    ("BERT-base", "passages"): "10,000 sequences/s",
    ("Mistral-7B", "passages"): "60 % of the matmul rate",
}
PAGE = """# Encoders on a GPU

On {device} beside {machine}, {dtype}, random weights{tiny}. Medians of {rounds} rounds.

## Forward passes

Packed batches of at most {batch:,} tokens, ids in, hidden states out, all on the card. "Of the
rate": of the {rate:.3g} TFLOP/s of one large product; "busy": the share of the time in which the
card computes (torch's profiler, one round); then what takes most of that.

{forward}

## The engine

Texts in, vectors out, in a service's engine without its doors: each caller sends its next request
once it has its vectors, {seconds:g} s a row. Processes share the card, each with its own model.

{engine}

{versions}. Made on {date} by `{command}`; all rounds are in `encoders_gpu.json`.
"""


def flops(size: BertSize | DecoderShape, texts: list[list[int]]) -> int:
    """Return the operations of texts: two a weight and token, and attention's."""
    if isinstance(size, DecoderShape):
        return decoder_flops(size, whole(size), texts)
    layer = 4 * size.width**2 + 2 * size.width * size.mlp
    return sum(
        size.layers * (2 * layer * len(text) + 4 * size.width * len(text) ** 2) for text in texts
    )


@torch.inference_mode()
def forward_row(
    name: str, kind: str, size: BertSize | DecoderShape, backbone: Backbone, args: Any
) -> dict[str, Any]:
    """Time the forward passes of one size over one kind of text."""
    count = args.texts if kind == "passages" else 4 * args.texts
    texts = texts_of(kind, count, size.vocabulary, TOKENS)
    packs = batches(texts, args.batch_tokens)

    def run() -> None:
        for pack in packs:
            backbone.read(pack)

    run()  # kernels are chosen, and memory is taken
    seconds = [timed(run, backbone.device) for _ in range(args.rounds)]
    return {
        "model": name,
        "kind": kind,
        "texts": len(texts),
        "tokens": sum(map(len, texts)),
        "flops": flops(size, texts),
        "seconds": seconds,
        **profile(run, backbone.device),
    }


def profile(run: Any, device: torch.device) -> dict[str, Any]:
    """Return how much of a round the device computes, and its longest operations."""
    if device.type != "cuda":
        return {"busy": None, "longest": []}
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        seconds = timed(run, device)
    # Kernels alone: an operation's own row counts those it started once more.
    kernels = [
        (event.key, event.self_device_time_total / 1e6)
        for event in profiler.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    kernels.sort(key=lambda row: -row[1])
    whole = sum(taken for _, taken in kernels)
    longest = [(key[:60], taken / whole) for key, taken in kernels[:PROFILED] if whole]
    return {"busy": min(1.0, whole / seconds), "longest": longest}


# The page


def forward_table(rows: list[dict[str, Any]], rate: float) -> str:
    """Write what the forward passes do."""
    lines = ["| | | texts/s | tokens/s | of the rate | busy | longest | aim |"]
    lines.append("|---|---|---:|---:|---:|---:|---|---|")
    for row in rows:
        seconds = statistics.median(row["seconds"])
        busy = "–" if row["busy"] is None else f"{row['busy']:.0%}"
        longest = ", ".join(f"`{name}` {share:.0%}" for name, share in row["longest"])
        lines.append(
            f"| {row['model']} | {row['kind']} | {row['texts'] / seconds:,.0f} "
            f"| {row['tokens'] / seconds:,.0f} | {row['flops'] / seconds / rate:.0%} | {busy} "
            f"| {longest or '–'} | {AIMS.get((row['model'], row['kind']), '')} |"
        )
    return "\n".join(lines)


def engine_table(rows: list[dict[str, Any]]) -> str:
    """Write what the engine does."""
    if not rows:
        return "Not run."
    lines = ["| | processes | callers | texts a request | texts/s | p50, ms | p95, ms |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    lines += [
        f"| {row['model']}, {row['kind']} | {row['processes']} | {row['callers']} | {row['list']} "
        f"| {row['texts_per_second']:,.0f} | {row['p50_ms']:.1f} | {row['p95_ms']:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, and write after each row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=4000, help="passages; four times the queries")
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row of the engine")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--models", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--engines", nargs="*", choices=SIZES, default=["MiniLM-L6", "BERT-base"])
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZERS[-1] if TOKENIZERS else None)
    parser.add_argument("--tiny", action="store_true", help="try it at small size, on any machine")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    recording = Recording("benchmarks/encoders_gpu.py", "torch", "transformers", "tokenizers")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rate = matmul_rate(device, dtype, 256 if args.tiny else 8192)
    forward: list[dict[str, Any]] = []
    engine: list[dict[str, Any]] = []
    args.out.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        report: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "a CPU",
            "dtype": dtype_name(dtype),
            "rate": rate,
            **recording.about(),
        }
        kept = {**report, "forward": forward, "engine": engine}
        (args.out / "encoders_gpu.json").write_text(raw(kept))
        page = PAGE.format(
            **{key: report[key] for key in ("device", "dtype", "date", "command")},
            machine=tell_machine(report),
            tiny=", tiny" if args.tiny else "",
            rounds=args.rounds,
            batch=args.batch_tokens,
            rate=rate / 1e12,
            seconds=args.seconds,
            forward=forward_table(forward, rate),
            engine=engine_table(engine),
            versions=tell_versions(report),
        )
        (args.out / "encoders_gpu.md").write_text(page)

    for name in args.models:
        size = (TINY if args.tiny else SIZES)[name]
        backbone = build(size, device, dtype)
        for kind in ("passages", "queries"):
            forward.append(forward_row(name, kind, size, backbone, args))
            write()
        del backbone
    if args.engines:
        for row in engine_rows(args, dtype):
            engine.append(row)
            write()
    sys.stdout.write((args.out / "encoders_gpu.md").read_text())


if __name__ == "__main__":
    main()
