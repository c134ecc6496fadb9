"""Generating answers in process: this engine against transformers' own generate.

The same weights, prompts (embeddings) and counts of tokens for all. So many callers ask, each its
next question once it has its answer: this engine serves them as they come; transformers either
one after another, or all that wait as one padded batch. Each contender lives in a process of its
own and only one works at a time; rounds are interleaved, in an order that turns. Medians.

    python benchmarks/generate.py [--rounds 5] [--models random oscar-mini] [--tiny]

Writes docs/benchmarks/generate.json and generate.md.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from service import describe_machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
OURS, LOOP, BATCHES = "condensery", "transformers, one by one", "transformers, padded batches"
CONTENDERS = (OURS, LOOP, BATCHES)
CONCURRENCY = (1, 8, 32)
PASSAGES, MEMORY, PASSAGE_TOKENS = 10, 8, 128
PAGE = """# Generating answers in process

On {cores} cores of {cpu}, {dtype}; transformers with {threads} threads. Medians of {rounds} rounds,
the contenders interleaved.
{passages} passages, {memory} memory vectors each (plain: {tokens} tokens each), a question of 8 to
48 tokens, answers of {least} to {most} tokens.

{tables}

- "First" is the time from asking to the answer's first token, "whole" to its last; medians.
- Ratios are to `condensery`'s own questions/s: how many times as many it does.
- "Same": answers that are the same, token for token, as those of `transformers, one by one`.
- Random: a Llama of {parameters:.0f} million parameters, 8 times a compressor of MiniLM's size.
- {versions}, Python {python}. Made on {date} by `{command}`; all rounds are in `generate.json`.
"""


@dataclass(frozen=True)
class Question:
    """The lengths of a prompt's parts, and of its answer."""

    seed: int
    vectors: int
    words: int
    tokens: int


@dataclass(frozen=True)
class Task:
    """A round of one contender."""

    model: str
    concurrency: int
    questions: list[Question]


@dataclass
class Timed:
    first: float = 0.0
    whole: float = 0.0
    ids: tuple[int, ...] = ()


def questions(count: int, *, plain: bool, most: int) -> list[Question]:
    """Make questions; half of the answers are as long as can be, the others shorter."""
    draws = random.Random(13)
    context = PASSAGES * (PASSAGE_TOKENS if plain else MEMORY)
    return [
        Question(seed, context, draws.randint(8, 48), draws.choice([most, draws.randint(4, most)]))
        for seed in range(count)
    ]


def networks(store: Path, tiny: bool, dtype: str) -> dict[str, tuple[Any, Any]]:
    """Make each model twice: as the engine runs it, and as transformers does."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from condensery.networks.linear import prepack_linears
    from condensery.networks.oscar_causal import CausalGenerator
    from condensery.runtime.pair import load_pair
    from condensery.store.store import ModelStore

    kind = getattr(torch, dtype)
    config = LlamaConfig(
        vocab_size=500 if tiny else 32_000,
        hidden_size=64 if tiny else 1024,
        intermediate_size=96 if tiny else 2816,
        num_hidden_layers=2 if tiny else 12,
        num_attention_heads=4 if tiny else 16,
        num_key_value_heads=2 if tiny else 8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    pair: list[Any] = []
    for _ in range(2):
        torch.manual_seed(0)
        pair.append(LlamaForCausalLM(config).eval().to(kind))
    found: dict[str, tuple[Any, Any]] = {"random": (CausalGenerator(pair[0]), pair[1])}
    prepack_linears(pair[0])
    shelf = ModelStore(ROOT / "model_store", store)
    stored = shelf.open("oscar-mini")
    base = shelf.open_base(stored)
    plain = load_pair(stored, base, device=torch.device("cpu"), dtype=torch.float32).generator
    words = plain.words
    theirs = LlamaConfig(**{**plain.backbone.config.to_dict(), "vocab_size": len(words)})
    theirs.use_cache = True
    model = LlamaForCausalLM(theirs).eval()
    model.model.load_state_dict({**plain.backbone.state_dict(), "embed_tokens.weight": words})
    head = torch.nn.Linear(words.shape[1], len(words))
    with torch.no_grad():
        head.weight.copy_(plain.output_scale * words @ plain.output.weight)
        head.bias.copy_(plain.output_bias)
    model.lm_head = head
    ours = load_pair(stored, base, device=torch.device("cpu"), dtype=kind).generator
    found["oscar-mini"] = ours, model.to(kind)
    return found


def contend(name: str, store: Path, tiny: bool, dtype: str, threads: int, pipe: Connection) -> None:
    """Serve rounds until told to end; runs in a process of its own."""
    import torch

    from condensery.runtime.device import prepare_process

    if name == OURS:
        prepare_process()
    else:
        torch.set_num_threads(threads)
    models = networks(store, tiny, dtype)
    pipe.send(sum(p.numel() for p in models["random"][1].parameters()) / 1e6)
    serving: dict[str, Any] = {}
    while (task := pipe.recv()) is not None:
        ours, theirs = models[task.model]
        prompts = [prompt_of(theirs, one) for one in task.questions]
        if name == OURS:
            run = asyncio.run(serve(ours, task, prompts, serving))
        else:
            run = generate(theirs, task, prompts, batched=name == BATCHES)
        pipe.send(run)


def prompt_of(model: Any, question: Question) -> Any:
    """Return a prompt's embeddings (positions, hidden): random vectors, then random words."""
    import torch

    source = torch.Generator().manual_seed(question.seed)
    table = model.get_input_embeddings().weight.detach()
    picks = torch.randint(len(table), (question.vectors + question.words,), generator=source)
    return table[picks]


async def serve(
    network: Any, task: Task, prompts: list[Any], serving: dict[str, Any]
) -> tuple[float, list[Timed]]:
    """Answer with the engine; returns the round's seconds, and each question's."""
    from condensery.networks.stepping import Stepper
    from condensery.runtime.engine import Engine
    from condensery.runtime.sequences import Chosen, Order
    from condensery.runtime.workers import Workers

    if task.model not in serving:
        serving[task.model] = Engine(Stepper(network), Workers(), model=task.model)
    engine = serving[task.model]
    results = [Timed() for _ in prompts]
    waiting = deque(range(len(prompts)))

    async def caller() -> None:
        while waiting:
            place = waiting.popleft()
            asked, ids = time.perf_counter(), []
            generation = engine.begin(Order([prompts[place]], task.questions[place].tokens))
            finish = None
            while finish is None:
                told = await generation.news.get()
                assert isinstance(told, Chosen), told
                if not ids:
                    results[place].first = time.perf_counter() - asked
                ids.append(told.choice.id)
                finish = told.finish
            results[place].whole = time.perf_counter() - asked
            results[place].ids = tuple(ids)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(task.concurrency)))
    return time.perf_counter() - started, results


def generate(
    model: Any, task: Task, prompts: list[Any], *, batched: bool
) -> tuple[float, list[Timed]]:
    """Answer with transformers, the callers' turns played by hand."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Clock(StoppingCriteria):
        """Notes when the first token is there; stops nothing."""

        first = 0.0

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            self.first = self.first or time.perf_counter()
            return torch.zeros(len(input_ids), dtype=torch.bool)

    results = [Timed() for _ in prompts]
    started = time.perf_counter()
    coming = deque(range(len(prompts)))
    waiting = deque((coming.popleft(), started) for _ in range(min(task.concurrency, len(coming))))
    while waiting:
        turn = [waiting.popleft() for _ in range(len(waiting) if batched else 1)]
        longest = max(len(prompts[place]) for place, _ in turn)
        embeds = torch.zeros(len(turn), longest, prompts[0].shape[1], dtype=prompts[0].dtype)
        mask = torch.zeros(len(turn), longest, dtype=torch.long)
        for row, (place, _) in enumerate(turn):
            embeds[row, longest - len(prompts[place]) :] = prompts[place]
            mask[row, longest - len(prompts[place]) :] = 1
        clock = Clock()
        with torch.inference_mode():
            found = model.generate(
                inputs_embeds=embeds,
                attention_mask=mask,
                max_new_tokens=max(task.questions[place].tokens for place, _ in turn),
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        now = time.perf_counter()
        for (place, asked), ids in zip(turn, found.tolist(), strict=True):
            answer = tuple(ids[: task.questions[place].tokens])
            results[place] = Timed(clock.first - asked, now - asked, answer)
            if coming:
                waiting.append((coming.popleft(), now))
    return time.perf_counter() - started, results


def measure(args: argparse.Namespace, pipes: dict[str, Connection]) -> list[dict[str, Any]]:
    """Run all rounds; returns a table for each model, prompt and concurrency."""
    tables = []
    prompts = ("compressed", "plain") if args.plain else ("compressed",)
    for model, prompt, concurrency in (
        (model, prompt, concurrency)
        for model in args.models
        for prompt in prompts
        for concurrency in args.concurrency
    ):
        count = max(args.questions, 2 * concurrency)
        asked = questions(count, plain=prompt == "plain", most=args.tokens)
        task = Task(model, concurrency, asked)
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
        answers: dict[str, list[tuple[int, ...]]] = {}
        for number in range(args.rounds + 1):  # the first one warms up
            turn = number % len(CONTENDERS)
            for name in CONTENDERS[turn:] + CONTENDERS[:turn]:
                pipes[name].send(task)
                seconds, timed = pipes[name].recv()
                answers[name] = [one.ids for one in timed]
                cell = {
                    "questions_per_second": len(timed) / seconds,
                    "first_ms": 1000 * statistics.median(one.first for one in timed),
                    "whole_ms": 1000 * statistics.median(one.whole for one in timed),
                }
                if number:
                    rounds[name].append(cell)
        rows = {
            name: {key: statistics.median(cell[key] for cell in cells) for key in cells[0]}
            | {"same": sum(a == b for a, b in zip(answers[name], answers[LOOP], strict=True))}
            for name, cells in rounds.items()
        }
        title = f"{model}, {prompt}, concurrency {concurrency}"
        tables.append({"title": title, "questions": count, "rows": rows, "rounds": rounds})
        print(render_table(tables[-1]), flush=True)
    return tables


def render_table(table: dict[str, Any]) -> str:
    """Write one table."""
    ours = table["rows"][OURS]["questions_per_second"]
    lines = [f"## {table['title']}", "", "| | questions/s | ratio | first ms | whole ms | same |"]
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| {name} | {row['questions_per_second']:.2f} | {ours / row['questions_per_second']:.2f} "
        f"| {row['first_ms']:.0f} | {row['whole_ms']:.0f} | {row['same']} of {table['questions']} |"
        for name, row in table["rows"].items()
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=16, help="a round, at least")
    parser.add_argument("--tokens", type=int, default=32, help="of the longest answers")
    parser.add_argument("--models", nargs="+", default=["random", "oscar-mini"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=list(CONCURRENCY))
    parser.add_argument("--plain", action="store_true", help="measure plain prompts as well")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of transformers' contenders")
    parser.add_argument("--tiny", action="store_true", help="a small random model: a trial")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    from condensery.store.importing import import_minilm
    from condensery.store.store import ModelStore

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        import_minilm(ModelStore(None, Path(folder)))
        context = multiprocessing.get_context("spawn")
        pipes: dict[str, Connection] = {}
        parameters = 0.0
        for name in CONTENDERS:
            pipes[name], theirs = context.Pipe()
            given = (name, Path(folder), args.tiny, args.dtype, args.threads, theirs)
            process = context.Process(target=contend, args=given, daemon=True)
            process.start()
            stack.callback(process.join, 20)
            stack.callback(pipes[name].send, None)
            parameters = pipes[name].recv()
        tables = measure(args, pipes)
    report = {
        **describe_machine(),
        "dtype": args.dtype,
        "threads": args.threads,
        "rounds": args.rounds,
        "passages": PASSAGES,
        "memory": MEMORY,
        "tokens": PASSAGE_TOKENS,
        "least": 4,
        "most": args.tokens,
        "parameters": parameters,
        "versions": ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers")),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", "benchmarks/generate.py", *sys.argv[1:]]),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    whole = json.dumps({**report, "results": tables}, indent=1)
    (args.out / "generate.json").write_text(whole + "\n")
    page = PAGE.format(**report, tables="\n\n".join(render_table(one) for one in tables))
    (args.out / "generate.md").write_text(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
