"""Generating answers in process: compressed against plain, and against transformers' own generate.

So many callers ask, each its next question once it has its answer. First this engine alone:
passages that are compressed and then read, against the same passages read as text. Then the
generator alone, with the same weights, prompts (embeddings) and counts of tokens for all: this
engine serves callers as they come; transformers either one after another, or all that wait as one
padded batch; and, as what nobody can beat, the questions' products alone at the rate that one
large product reaches on all cores. Then this engine with the generator's weights in 8 and in 4
bits, where the CPU is fast in those, and llama.cpp with 32 and 8. Each contender lives in a process
of its own and only one works at a time; rounds are interleaved, in an order that turns. Medians.
About eight minutes on two cores.

    python benchmarks/generate.py [--rounds 3] [--models random oscar-mini] [--tables llama]

Writes docs/benchmarks/generate.json and generate.md.
"""

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
from contextlib import ExitStack
from itertools import chain, zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from generate_contenders import (
    BATCHES,
    INT4,
    INT8,
    LLAMA,
    LLAMA8,
    LOOP,
    MEMORY,
    OURS,
    PASSAGE_TOKENS,
    PASSAGES,
    ROOT,
    WEIGHTS,
    Question,
    Task,
    contend,
)
from llama_cpp import missing
from recording import Recording, raw, tell_machine, tell_others, tell_versions

from condensery.networks.accounting import InferenceCosts

RESULTS = ROOT / "docs" / "benchmarks"
PAIR = ("compressed", "plain")
ENGINES = (OURS, LOOP, BATCHES)
BITS = (OURS, INT8, INT4)
LLAMAS = (OURS, INT8, LLAMA, LLAMA8)
TABLES = ("pairs", "engines", "bits", "llama")
CONCURRENCY = (1, 8, 32)
WARM_UP = 2  # questions
PAGE = """# Generating answers in process

On {machine}, {dtype}; transformers with {threads} threads.
Medians of {rounds} rounds, the contenders interleaved. "First" is the time from asking to the
answer's first token, "whole" to its last, milliseconds. Meanwhile {others}.

## Compressed against plain

The same engine, the same {passages} passages of {passage} tokens, {tokens} tokens out: passages
are compressed to {memory} vectors each and then read, or read as text. Random: a Llama of
{generator:.1f} million weights in its layers{compressor}.

{pairs}

## The engine against transformers

The generator alone: prompts of {vectors} vectors and 8 to 48 tokens; half of the answers are of
{tokens} tokens, the others of 4 or more. "Ratio" is how many times as many questions a second
`condensery` answers (transformers generates with no generator that reads prompts both ways, so
that a pair of such a one is left out), "ours / theirs" how many times as long its first token
takes. "Same": answers that are, token for token, those of `transformers, one by one`, which had one
round only. "Products alone": what all cores would do if they only multiplied the questions'
matrices, at the rate of one large product ({rate:.0f} GFLOP/s, the best of ten).

{engines}

## Fewer bits a weight

The engine alone, as above, with the generator's weights as they are and rounded. "Same": answers
that are those of floats, and the share of tokens that are others, by place: once one is, what
follows may be as well.

{bits}

## llama.cpp

The same weights as its own file, the prompts' tokens by their ids, {threads} threads. "Same":
answers that are those of `condensery` in floats. Its cache of keys and values is in fp16, as it has
it by itself; ours is in {dtype}. {build}

{llama}

{versions}. Made on {date} by `{command}`; all rounds are in `generate.json`.
"""


def questions(count: int, most: int, *, varied: bool) -> list[Question]:
    """Make questions; half of the answers are as long as can be, the others so too or shorter."""
    draws = random.Random(13)
    drawn = []
    for seed in range(count):
        words, shorter = draws.randint(8, 48), draws.choice([most, draws.randint(4, most)])
        drawn.append(Question(seed, words, shorter if varied else most))
    return drawn


class Rounds:
    """What is measured of one model, at one concurrency, by contenders in turn."""

    def __init__(
        self,
        args: argparse.Namespace,
        pipes: dict[str, Connection],
        costs: dict[str, InferenceCosts],
        rate: float,
    ) -> None:
        self._args = args
        self._pipes = pipes
        self._costs = costs
        self._rate = rate

    def run(self, model: str, concurrency: int, contenders: tuple[str, ...]) -> dict[str, Any]:
        """Run all rounds of one table."""
        varied = contenders != PAIR
        contenders = tuple(name for name in contenders if not varied or name in self._pipes)
        # Two for each caller: where all ask at once, and once, no batch makes anybody wait.
        count = max(concurrency * (1 + varied), self._args.questions)
        asked = questions(count, self._args.tokens, varied=varied)
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        answers: dict[str, list[tuple[int, ...]]] = {}
        for number in range(self._args.rounds + 1):  # the first one warms up
            turn = number % len(contenders)
            for name in contenders[turn:] + contenders[:turn]:
                if name == LOOP and number > 1:
                    continue  # a minute each, and always the same
                sent = asked if number else asked[:WARM_UP]
                pipe = self._pipes[name if varied else OURS]
                pipe.send(Task(model, "vectors" if varied else name, concurrency, sent))
                seconds, timed = pipe.recv()
                answers[name] = [answer.ids for answer in timed]
                if number:
                    rounds[name].append(
                        {
                            "questions_per_second": len(timed) / seconds,
                            "first_ms": 1000 * statistics.median(answer.first for answer in timed),
                            "whole_ms": 1000 * statistics.median(answer.whole for answer in timed),
                        }
                    )
        rows: dict[str, dict[str, float]] = {
            name: {key: statistics.median(cell[key] for cell in cells) for key in cells[0]}
            for name, cells in rounds.items()
        }
        if varied:
            wanted = answers[LOOP if LOOP in contenders else OURS]
            for name, row in rows.items():
                row["same"] = sum(a == b for a, b in zip(answers[name], wanted, strict=True))
                pairs = list(chain(*map(zip_longest, answers[name], wanted)))
                row["changed"] = sum(a != b for a, b in pairs) / len(pairs)
        title = f"{model}, concurrency {concurrency}"
        table = {"title": title, "questions": count, "rows": rows, "rounds": rounds}
        if LOOP in contenders:
            cost, prompt = self._costs[model], PASSAGES * MEMORY
            flops = sum(
                cost.generate(prompt + question.words, question.tokens) for question in asked
            )
            table["products_alone"] = self._rate * count / flops
        print(render(table), flush=True)
        return table


def changed(row: dict[str, float]) -> str:
    return f", {100 * row['changed']:.1f} % of tokens" if row["changed"] else ""


def render(table: dict[str, Any]) -> str:
    """Write one table."""
    rows = table["rows"]
    if OURS not in rows:
        lines = [f"### {table['title']}", "", "| | questions/s | first | whole |"]
        lines.append("|---|---|---|---|")
        lines += [
            f"| {name} | {row['questions_per_second']:.2f} | {row['first_ms']:.0f} "
            f"| {row['whole_ms']:.0f} |"
            for name, row in rows.items()
        ]
        short, long = (rows[name] for name in PAIR)
        gain = short["questions_per_second"] / long["questions_per_second"]
        first = short["first_ms"] / long["first_ms"]
        lines.append(f"| compressed / plain | {gain:.2f} | {first:.2f} | |")
        return "\n".join(lines)
    ours = rows[OURS]
    lines = [f"### {table['title']}", ""]
    lines.append("| | questions/s | ratio | first | ours / theirs | whole | same |")
    lines.append("|---|---|---|---|---|---|---|")
    lines += [
        f"| {name} | {row['questions_per_second']:.2f} "
        f"| {ours['questions_per_second'] / row['questions_per_second']:.2f} "
        f"| {row['first_ms']:.0f} | {ours['first_ms'] / row['first_ms']:.2f} "
        f"| {row['whole_ms']:.0f} | {row['same']} of {table['questions']}{changed(row)} |"
        for name, row in rows.items()
    ]
    if "products_alone" not in table:
        return "\n".join(lines)
    most = table["products_alone"]
    share = ours["questions_per_second"] / most
    lines.append(f"| products alone | {most:.2f} | {share:.2f} | | | | |")
    return "\n".join(lines)


def tell_build() -> str:
    """Return what llama.cpp was built with."""
    import xllamacpp

    return f"It says of itself: {xllamacpp.get_system_info()}".replace("\n", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=4, help="a round, at least")
    parser.add_argument("--tokens", type=int, default=32, help="of the longest answers")
    parser.add_argument("--models", nargs="+", default=["random", "oscar-mini"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=list(CONCURRENCY))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of transformers' contenders")
    parser.add_argument("--tiny", action="store_true", help="a small random pair: a trial")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    recording = Recording("benchmarks/generate.py", "torch", "transformers", "xllamacpp")
    import torch
    from effir_gpu import matmul_rate

    from condensery.networks.quantised import can_quantise
    from condensery.store.importing import import_minilm
    from condensery.store.store import ModelStore

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        import_minilm(ModelStore(None, Path(folder)))
        context = multiprocessing.get_context("spawn")
        pipes: dict[str, Connection] = {}
        sizes, costs = (0.0, 0.0), {}
        theirs_too: set[str] = set()
        lacking = missing()
        for name in dict.fromkeys((*ENGINES, *BITS, *LLAMAS)):
            weights = WEIGHTS.get(name, "float")
            if not can_quantise(weights, torch.device("cpu")) or (
                name in (LLAMA, LLAMA8) and (lacking or "llama" not in args.tables)
            ):
                continue
            pipes[name], theirs = context.Pipe()
            arguments = (name, Path(folder), args.tiny, args.dtype, args.threads, theirs)
            process = context.Process(target=contend, args=arguments, daemon=True)
            process.start()
            stack.callback(process.join, 20)
            stack.callback(pipes[name].send, None)
            counted, costs, theirs_too = pipes[name].recv()
            sizes = max(sizes, counted)
        rate = matmul_rate(torch.device("cpu"), getattr(torch, args.dtype), 3072)
        rounds = Rounds(args, pipes, costs, rate)
        tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        for name, contenders in zip(TABLES, (PAIR, ENGINES, BITS, LLAMAS), strict=True):
            # Where the CPU is not fast in fewer bits, and llama.cpp is not there, we are alone.
            there = [other for other in contenders if other in pipes or contenders == PAIR]
            if name in args.tables and len(there) > 1 and (contenders != LLAMAS or LLAMA in pipes):
                tables[name] = [
                    rounds.run(model, concurrency, contenders)
                    for model in args.models
                    for concurrency in args.concurrency
                    if contenders != ENGINES or (concurrency > 1 and model in theirs_too)
                    if contenders != LLAMAS or model == "random"
                ]
        about = recording.about()  # while the contenders live, whose time is ours
    report = {
        **about,
        "dtype": args.dtype,
        "threads": args.threads,
        "rounds": args.rounds,
        "passages": PASSAGES,
        "passage": PASSAGE_TOKENS,
        "memory": MEMORY,
        "vectors": PASSAGES * MEMORY,
        "tokens": args.tokens,
        "compressor": sizes[0],  # 0 in bf16: prepacked weights are no parameters
        "generator": sizes[1],
        "rate": rate / 1e9,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "generate.json").write_text(raw({**report, **tables}))
    about = {
        "machine": tell_machine(report),
        "others": tell_others(report),
        "versions": tell_versions(report),
    }
    if sizes[0]:
        about["compressor"] = f", and a compressor of {sizes[0]:.1f} million"
    else:
        about["compressor"] = ""
    about["build"] = tell_build() if tables["llama"] else ""
    page = PAGE.format(
        **(report | about),
        **{key: "\n\n".join(map(render, rows)) or "Not run." for key, rows in tables.items()},
    )
    (args.out / "generate.md").write_text(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
