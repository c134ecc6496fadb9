"""Encoding in process: this encoder against its peers, same model, texts and dtype.

Peers: sentence-transformers, OpenVINO, ONNX Runtime, torch.compile; those that are not installed
are named and left out (`make bench` installs all).
Each contender lives in a process of its own, so that none meets another's thread pools or heap,
and only one works at a time. Rounds are interleaved, in an order that turns, so that what else
the machine does falls on all. Times go from texts to vectors: tokenising, batching and all.
Each computes in fp32 and, where the CPU multiplies it, in bf16, so that a dtype's gain is not taken
for anybody's: the ratio that counts is the one between equal dtypes. Figures are medians over the
rounds; vectors are compared in the same run.

    python benchmarks/encode.py [--rounds 7] [--texts 256] [--peers OpenVINO ...]

Writes docs/benchmarks/encode.json and encode.md.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from encode_contenders import (
    COMPILED,
    DTYPES,
    MODEL,
    ONNX,
    OPENVINO,
    OURS,
    PEER,
    Vectors,
    contenders,
    load,
)
from recording import (
    Recording,
    busy_seconds,
    cpu_seconds,
    raw,
    tell_machine,
    tell_others,
    tell_versions,
)

from condensery.store.importing import import_minilm
from condensery.store.store import ModelStore

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "service" / "condensery" / "samples"
RESULTS = ROOT / "docs" / "benchmarks"
REFERENCE = f"{PEER} fp32"  # whose vectors the others' are held against
# Of ours: else the figures are of something else.
LEAST_COSINE = {
    f"{OURS} fp32": 0.999999,
    f"{OURS} int16": 0.99998,
    f"{OURS} bf16": 0.9995,
    f"{OURS} int8": 0.99,
}
WARM_UPS = 2
PACKAGES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "openvino",
    "onnxruntime",
)
PAGE = """# Encoding in process

all-MiniLM-L6-v2 on {machine}.
Medians of {rounds} rounds, the contenders interleaved; the range over the rounds in brackets. Times
go from texts to vectors, tokenising included.

{tables}

- "To default" is the ratio to sentence-transformers' `encode` at its defaults (fp32, batches of 32
  sorted by length): what the dtype and the engine gain together. "Ours to it" is `condensery` in
  the same dtype against this row: what is gained by this encoder alone.
- OpenVINO, ONNX Runtime and torch.compile are engines for a graph: they get the same tokenizer and
  batches of 32 sorted by length. OpenVINO is in its mode for throughput ({streams}; the precision
  is what it says it runs in); ONNX Runtime and torch.compile use the threads they choose;
  torch.compile has dynamic shapes and frozen weights, and its compiling is before the rounds. ONNX
  Runtime has no bf16 on a CPU.{missing}
- {bf16} `condensery` chooses {chosen} by itself on this machine.
- condensery int16, where there is one, is what `--encoder-weights auto` takes on a CPU with AVX2
  alone: weights and inputs of its products have as many steps as sums of 32 bits have room for.
- condensery int8, where there is one, is `--encoder-weights int8`: weights and inputs of its
  products are rounded to 8 bits, for who asks for it; what a search loses by it is in
  docs/encodings.md. No peer's row is in 8 bits.
- The cosine is to the vectors of sentence-transformers in fp32, in the same run.
- `condensery` runs {workers} workers of one thread each, sentence-transformers {threads} threads.
- Cores: what the contender used while it worked. Foreign cores: what other processes of the
  machine used meanwhile; the more, the less the figures say. Over the whole run {others}.
- {versions}.
- Made on {date} by `{command}`; each round is in `encode.json`.
"""
BF16 = """sentence-transformers' bf16 is `model_kwargs={"dtype": torch.bfloat16}`, the rest at its
  defaults; it was seen to compute in it. Its vectors are normalised in bf16, so that their lengths
  are not 1; the cosine leaves that out."""
NO_BF16 = "This CPU does not multiply bf16, so nobody runs in it."
TABLE = """## {title}

{texts} texts of {mean:.0f} tokens in the mean ({shortest} to {longest}), special ones included.

| | tokens/s | texts/s | to default | ours to it | cosine least / mean | cores | foreign cores |
|---|---|---|---|---|---|---|---|
{rows}"""


@dataclass(frozen=True)
class Workload:
    title: str
    texts: list[str]


class Contender:
    """A process that encodes when it is told to."""

    def __init__(self, name: str, store: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=contend, args=(name, store, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.about: dict[str, Any] = self.pipe.recv()

    def encode(self, texts: Sequence[str]) -> tuple[dict[str, float], Vectors]:
        """Return the round's seconds, cores and foreign cores, and the vectors."""
        pid, me = self.process.pid, os.getpid()
        assert pid is not None
        before = busy_seconds(), cpu_seconds(pid), cpu_seconds(me), time.perf_counter()
        self.pipe.send(texts)
        seconds, vectors = self.pipe.recv()
        busy, theirs, mine, took = (
            now - then
            for now, then in zip(
                (busy_seconds(), cpu_seconds(pid), cpu_seconds(me), time.perf_counter()),
                before,
                strict=True,
            )
        )
        foreign = max(0.0, busy - theirs - mine)
        cell = {"seconds": seconds, "cores": theirs / took, "foreign_cores": foreign / took}
        return cell, vectors

    def stop(self) -> None:
        self.pipe.send(None)
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()


def contend(name: str, store: Path, pipe: Connection) -> None:
    """Encode what comes through ``pipe``, until None comes."""
    about, encode = load(name, store)
    pipe.send(about)
    while (texts := pipe.recv()) is not None:
        started = time.perf_counter()
        vectors = encode(texts)
        pipe.send((time.perf_counter() - started, np.asarray(vectors, np.float32)))


def passages(count: int) -> Workload:
    """Deal the sample passages' words out in runs of 60 to 120 words: about 120 tokens."""
    lines = (SAMPLES / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    words = " ".join(json.loads(line)["text"] for line in lines).split()
    chance = random.Random(0)
    texts, at = [], 0
    for _ in range(count):
        length = chance.randint(60, 120)
        texts.append(" ".join((words + words)[at : at + length]))
        at = (at + length) % len(words)
    return Workload("Passages", texts)


def questions(count: int) -> Workload:
    lines = (SAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["question"] for line in lines]
    return Workload("Questions", (texts * -(-count // len(texts)))[:count])


def measure(workload: Workload, running: Sequence[Contender], args: Any) -> dict[str, Any]:
    """Interleave the contenders over one workload, round by round."""
    cells: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in running}
    vectors: dict[str, Vectors] = {}
    for contender in running:
        for _ in range(WARM_UPS):
            _, vectors[contender.name] = contender.encode(workload.texts)
    lengths = count_tokens(workload.texts, args.store)
    for number in range(args.rounds):
        turn = number % len(running)
        for contender in [*running[turn:], *running[:turn]]:
            cell, vectors[contender.name] = contender.encode(workload.texts)
            cells[contender.name].append(cell)
            print(
                f"{workload.title} {number + 1}/{args.rounds}  {contender.name:<27}"
                f" {sum(lengths) / cell['seconds']:10,.0f} tokens/s"
                f"  foreign {cell['foreign_cores']:.2f} cores",
                flush=True,
            )
    rows = [summarise(name, cells[name], vectors, lengths) for name in cells]
    add_ratios(rows)
    for row in rows:
        least = LEAST_COSINE.get(row["name"], -1.0)  # a peer's is told
        if not row["cosine_least"] >= least:
            sys.exit(f"{row['name']}: cosine {row['cosine_least']} to {REFERENCE}")
        print(
            f"{workload.title}  {row['name']:<27} {row['to_default']:.2f} times {REFERENCE},"
            f" {OURS} {row['ours_to_it']:.2f} times it; cosine {row['cosine_least']:.6f} at least",
            flush=True,
        )
    return {
        "title": workload.title,
        "texts": len(lengths),
        "mean": statistics.fmean(lengths),
        "shortest": min(lengths),
        "longest": max(lengths),
        "results": rows,
    }


def add_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """Add to each row its ratio to the reference, and ours to it in the same dtype."""
    rates = {row["name"]: row["tokens_per_second"] for row in rows}
    for row in rows:
        short = row["name"].rpartition(" ")[2]
        row["to_default"] = row["tokens_per_second"] / rates[REFERENCE]
        row["ours_to_it"] = rates[f"{OURS} {short}"] / row["tokens_per_second"]


def count_tokens(texts: Sequence[str], store: Path) -> list[int]:
    from condensery.runtime.tokenizing import TextTokenizer

    stored = ModelStore(None, store).open(MODEL)
    tokenizer = TextTokenizer.load(stored.path, stored.manifest.max_tokens)
    return [tokens.count for tokens in tokenizer.encode(texts)]


def summarise(
    name: str,
    rounds: list[dict[str, float]],
    vectors: dict[str, Vectors],
    lengths: Sequence[int],
) -> dict[str, Any]:
    seconds = [cell["seconds"] for cell in rounds]
    got, wanted = vectors[name], vectors[REFERENCE]
    cosine = (got * wanted).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(wanted, axis=1)
    return {
        "name": name,
        "tokens_per_second": sum(lengths) / statistics.median(seconds),
        "lowest": sum(lengths) / max(seconds),
        "highest": sum(lengths) / min(seconds),
        "texts_per_second": len(lengths) / statistics.median(seconds),
        "cosine_least": float(cosine.min()),
        "cosine_mean": float(cosine.mean()),
        "cores": statistics.median(cell["cores"] for cell in rounds),
        "foreign_cores": statistics.median(cell["foreign_cores"] for cell in rounds),
        "rounds": rounds,
    }


def render(report: dict[str, Any]) -> str:
    tables = []
    for table in report["tables"]:
        rows = [
            f"| {row['name']} | {row['tokens_per_second']:,.0f} "
            f"({row['lowest']:,.0f} to {row['highest']:,.0f}) | {row['texts_per_second']:,.0f} "
            f"| {row['to_default']:.2f} | {row['ours_to_it']:.2f} "
            f"| {row['cosine_least']:.5f} / {row['cosine_mean']:.5f} "
            f"| {row['cores']:.2f} | {row['foreign_cores']:.2f} |"
            for row in table["results"]
        ]
        tables.append(TABLE.format(**{**table, "rows": "\n".join(rows)}))
    ours = report["contenders"][f"{OURS} fp32"]
    return PAGE.format(
        machine=tell_machine(report),
        bf16=BF16 if f"{OURS} bf16" in report["contenders"] else NO_BF16,
        chosen={whole: short for short, whole in DTYPES.items()}[ours["chosen"]],
        workers=ours["workers"],
        threads=report["contenders"][REFERENCE]["threads"],
        streams=tell_streams(report["contenders"]),
        missing=f" Not installed here: {', '.join(report['missing'])}."
        if report["missing"]
        else "",
        rounds=report["rounds"],
        tables="\n\n".join(tables),
        others=tell_others(report),
        versions=tell_versions(report),
        date=report["date"],
        command=report["command"],
    )


def tell_streams(about: dict[str, dict[str, Any]]) -> str:
    """Return how many streams OpenVINO chose."""
    streams = sorted({cell["streams"] for cell in about.values() if "streams" in cell})
    return f"{', '.join(map(str, streams))} streams" if streams else "not run"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--texts", type=int, default=256, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=["passages", "questions"])
    parser.add_argument("--peers", nargs="*", choices=[OPENVINO, ONNX, COMPILED], default=None)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    recording = Recording("benchmarks/encode.py", *PACKAGES)
    workloads = {"passages": passages, "questions": questions}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        args.store = Path(folder)
        import_minilm(ModelStore(None, args.store))
        names, missing = contenders(args.peers)
        running = []
        for name in names:
            running.append(Contender(name, args.store))
            stack.callback(running[-1].stop)
        tables = [
            measure(workloads[name](args.texts), running, args) for name in args.only or workloads
        ]
        report = {
            **recording.about(),
            "rounds": args.rounds,
            "contenders": {contender.name: contender.about for contender in running},
            "missing": missing,
            "tables": tables,
        }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "encode.json").write_text(raw(report))
    (args.out / "encode.md").write_text(render(report))
    print(render(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
