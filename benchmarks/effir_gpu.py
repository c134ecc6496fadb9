"""EffiR's speed-ups on a GPU (its Table 3): 1,000 queries and 1,000 passages, weights random.

Mistral-7B's size, whole, without 16 and 20 of its MLPs, and without 16 with 30% of the remaining
neurons gone. Two ways: transformers' own model under torch.compile on padded batches, as the paper
measured, and packed batches as the service runs them. All models take turns, round by round.

    python benchmarks/effir_gpu.py [--rounds 3] [--texts 1000] [--tiny]

Writes docs/benchmarks/effir_gpu.json and effir_gpu.md. Needs torch and transformers only.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from random_pairs import config_of, fill
from recording import Recording, raw, tell_command, tell_machine, tell_versions
from transformers import MistralConfig, PreTrainedModel

from condensery.methods.effir.speed import batches
from condensery.networks.accounting import DecoderShape
from condensery.networks.attention import PACKED
from condensery.networks.backbone import Backbone
from condensery.networks.decoders import fill_buffers
from condensery.networks.dtypes import dtype_name
from condensery.networks.effir_paper import retriever_parameters
from condensery.networks.effir_shape import Pruning
from condensery.networks.loading import build_pruned
from condensery.networks.oscar_paper import MISTRAL_7B

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
# Table 3: speed-ups for queries and for documents.
PAPER = {"16M": (1.64, 1.55), "20M": (1.93, 1.80), "16M, -30% width": (1.97, 1.82)}
TINY = DecoderShape(64, 8, 4, 2, 16, 128, 500)
# Tokens of NQ's questions behind EffiR's prompt, and of its passages.
LENGTHS = {"queries": (28, 44), "passages": (90, 180)}
BATCH = 50  # texts a padded batch: 1,000 are whole ones, compiled once
PACKED_TOKENS = 16_384  # tokens a packed one
WAYS = ("packed", "compiled")
Texts = list[list[int]]
PAGE = """# EffiR's speed-ups on a GPU

On {device} beside {machine}, {dtype},
random weights of the size of {size}; {texts} texts of each kind, medians of {rounds} rounds in
turns. Paper: its Table 3 (one H100, transformers, torch.compile).

{tables}
- Packed: padding-free batches through `networks/backbone.py`, as the service runs them. Compiled:
  transformers' own model under torch.compile, padded batches.
- Tokens are real ones, padding not counted; the share is of the {rate:.3g} TFLOP/s that this device
  reaches in one large product.
- {named}. Made on {date} by `{command}`; all rounds are in `effir_gpu.json`.
"""


def variants(shape: DecoderShape) -> dict[str, Pruning]:
    """Return what is left in each variant; on tiny models, the same shares of its layers."""
    layers = shape.layers
    names = {"whole": 0.0, "16M": 16 / 32, "20M": 20 / 32, "16M, -30% width": 16 / 32}
    by_name: dict[str, Pruning] = {}
    for name, share in names.items():
        # The last ones, as in Mistral-7B; which they are changes no time.
        gone = tuple(range(layers - 1 - round(share * layers), layers - 1)) if share else ()
        sizes = None
        if "width" in name:
            left = round(0.7 * shape.mlp_size / 8) * 8
            sizes = tuple(0 if layer in gone else left for layer in range(layers))
        by_name[name] = Pruning(layers, (), gone, sizes)
    return by_name


def make(
    shape: DecoderShape, pruning: Pruning, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """Make a model with random weights where it runs."""
    model = build_pruned(config_of(shape, MistralConfig), pruning)
    fill(model, device, dtype)
    fill_buffers(model, device)
    return model.eval().requires_grad_(requires_grad=False)


def texts_of(
    kind: str, count: int, vocabulary: int, lengths: Mapping[str, tuple[int, int]] = LENGTHS
) -> Texts:
    """Return random token ids of such texts' lengths."""
    source = random.Random(kind)
    low, high = lengths[kind]
    return [
        [source.randrange(vocabulary) for _ in range(source.randint(low, high))]
        for _ in range(count)
    ]


def padded(texts: Texts, device: torch.device, count: int = BATCH) -> list[tuple[Any, Any]]:
    """Return padded batches of texts by length, ready on the device."""
    rows = sorted(texts, key=len)
    batches = []
    for start in range(0, len(rows), count):
        batch = rows[start : start + count]
        # One width a kind of text: a compiled model is compiled once.
        width = max(map(len, rows))
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros(len(batch), width, dtype=torch.long)
        for row, text in enumerate(batch):
            ids[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        batches.append((ids.to(device), mask.to(device)))
    return batches


def timed(
    run: Callable[[], object],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return a run's seconds, the device's included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - began


def matmul_rate(device: torch.device, dtype: torch.dtype, side: int) -> float:
    """Return the FLOPs a second of one large product, the best of ten."""
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    best = min(timed(lambda: a @ b, device) for _ in range(10))
    return 2 * side**3 / best


def flops(shape: DecoderShape, pruning: Pruning, texts: Texts) -> int:
    """Return the operations of texts: two a weight and token, and attention's."""
    weights = retriever_parameters(shape, pruning) - shape.table
    attentions = shape.layers - len(pruning.attention)
    heads = shape.heads * shape.head_size
    return sum(2 * weights * len(text) + 4 * attentions * heads * len(text) ** 2 for text in texts)


@torch.inference_mode()
def measure(
    shape: DecoderShape,
    device: torch.device,
    dtype: torch.dtype,
    count: int,
    rounds: int,
    ways: Sequence[str] = WAYS,
) -> Iterator[dict[str, Any]]:
    """Time every variant in each way, in turns; yields what there is after each kind of text."""
    texts = {kind: texts_of(kind, count, shape.vocabulary) for kind in LENGTHS}
    shapes = variants(shape)
    models = {name: make(shape, pruning, device, dtype) for name, pruning in shapes.items()}
    result: dict[str, Any] = {
        "tokens": {kind: sum(map(len, some)) for kind, some in texts.items()},
        "flops": {
            kind: {name: flops(shape, pruning, some) for name, pruning in shapes.items()}
            for kind, some in texts.items()
        },
        "seconds": {},
    }
    for way in ways:
        for kind, some in texts.items():
            runs = {
                name: compiled_run(model, some, device)
                if way == "compiled"
                else packed_run(model, some)
                for name, model in models.items()
            }
            result["seconds"].setdefault(way, {})[kind] = turns(runs, rounds, device)
            yield result


def turns(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each run, all of them once a round; one round more goes before."""
    by: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            taken = timed(run, device, clock)
            if number:  # the first one compiles
                by[name].append(taken)
    return by


def compiled_run(
    model: Any, texts: Texts, device: torch.device, count: int = BATCH
) -> Callable[[], object]:
    """Return the paper's way: transformers' model under torch.compile, so many texts a batch."""
    model.set_attn_implementation("sdpa")

    def read(ids: torch.Tensor, mask: torch.Tensor) -> object:
        return model(input_ids=ids, attention_mask=mask, use_cache=False)

    # Code of its own for each: compiled calls that share it are told apart by guards, one set
    # after the other, and past eight are not compiled at all.
    own = FunctionType(read.__code__.replace(), globals(), closure=read.__closure__)
    fast = torch.compile(own, dynamic=False, fullgraph=True)
    rows = padded(texts, device, count)

    def run() -> None:
        for ids, mask in rows:
            fast(ids, mask)

    return run


def packed_run(model: Any, texts: Texts) -> Callable[[], object]:
    """Return the service's way."""
    model.set_attn_implementation(PACKED)
    backbone = Backbone(model)
    rows = batches(texts, PACKED_TOKENS)
    return lambda: [backbone.read(batch) for batch in rows]


def tables(result: dict[str, Any]) -> str:
    """Write a table for each way and kind of text."""
    lines: list[str] = []
    for way, kinds in result["seconds"].items():
        for place, (kind, by) in enumerate(kinds.items()):
            tokens = result["tokens"][kind]
            lines += [f"## {kind.capitalize()}, {way}", ""]
            lines += ["| model | seconds | tokens/s | speed-up | paper | of matmul rate |"]
            lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
            whole = statistics.median(by["whole"])
            for name, rounds in by.items():
                taken = statistics.median(rounds)
                share = result["flops"][kind][name] / taken / result["matmul"]
                paper = f"{PAPER[name][place]:.2f}x" if name in PAPER else "–"
                lines.append(
                    f"| {name} | {taken:.3f} | {tokens / taken:,.0f} | {whole / taken:.2f}x | "
                    f"{paper} | {share:.0%} |"
                )
            lines.append("")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--tiny", action="store_true", help="try it at small size, on any machine")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    words = sys.argv[1:] if argv is None else argv
    recording = Recording(
        "benchmarks/effir_gpu.py",
        *("torch", "transformers"),
        command=f"python benchmarks/effir_gpu.py {tell_command(words)}".strip(),
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = TINY if args.tiny else MISTRAL_7B
    rate = matmul_rate(device, dtype, 256 if args.tiny else 8192)
    about = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "a CPU",
        "dtype": dtype_name(dtype),
        "matmul": rate,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    page = ""
    for timed_so_far in measure(shape, device, dtype, args.texts, args.rounds, args.ways):
        result = timed_so_far | about | recording.about()
        page = PAGE.format(
            **{key: result[key] for key in ("device", "dtype", "date", "command")},
            machine=tell_machine(result),
            size="a tiny model" if args.tiny else "Mistral-7B",
            texts=args.texts,
            rounds=args.rounds,
            tables=tables(result),
            rate=rate / 1e12,
            named=tell_versions(result),
        )
        # As it goes: a run that its time cuts short leaves what it has.
        (args.out / "effir_gpu.json").write_text(raw(result))
        (args.out / "effir_gpu.md").write_text(page)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
