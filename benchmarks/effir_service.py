"""How much faster pruned retrievers are in the service itself, over REST, beside their parent.

One server holds all models, and is asked as OpenAI's client asks (base64 vectors): single queries,
and lists of passages. Each round loads every model once, in an order that turns; medians over the
rounds. In process the same models are compared by `benchmarks/effir.py`.

    python benchmarks/effir_service.py --store STORE --models minilm-l6 minilm-l6-2-mlp-dropped
        --set DIR --out docs/benchmarks/effir-service-minilm-l6

Writes OUT.json and OUT.md.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recording import Recording, raw, tell_command, tell_machine, tell_others, tell_versions
from service import Server, find_port, load, serve

from condensery.methods.ranking.retrieval import titled_text
from condensery.methods.ranking.sets import parse_set, read_set

TEXTS = 512
PAGE = """# Pruned retrievers over REST

On {machine}. Texts a second, medians of {rounds} rounds of {seconds:g} s;
in brackets the ratio to the parent. Meanwhile {others}.
Made on {date} by `{command}`;
{versions}.

| model | queries | passages, in lists of {list} |
| --- | ---: | ---: |
{lines}
"""


@dataclass(frozen=True, slots=True)
class Asking:
    """How texts of a kind are asked for.

    Attributes:
        texts: Of one request.
        connections: At once.
    """

    texts: int
    connections: int


ASKING = {"queries": Asking(1, 32), "passages": Asking(16, 8)}


def write_bodies(
    folder: Path, model: str, texts: Mapping[str, list[str]], asking: Mapping[str, Asking]
) -> dict[str, Path]:
    """Write the requests for one model."""
    bodies = {}
    for kind, some in texts.items():
        size = asking[kind].texts
        lists = [some[first : first + size] for first in range(0, len(some), size)]
        bodies[kind] = folder / f"{model}-{kind}.jsonl"
        bodies[kind].write_text(
            "".join(
                json.dumps({"model": model, "input": block, "encoding_format": "base64"}) + "\n"
                for block in lists
            )
        )
    return bodies


@contextlib.contextmanager
def run_server(store: Path, folder: Path) -> Iterator[Server]:
    """Serve a store's models, as on any machine, until the block ends."""
    port = find_port()
    command = [str(Path(sys.executable).with_name("condensery")), "serve", "--port", str(port)]
    command += ["--grpc-port", "0", "--data-dir", str(folder / "data"), "--no-samples"]
    command += ["--store", str(store), "--log-level", "warning"]
    with serve("condensery", command, port, folder / "log") as server:
        yield server


def rounds(
    server: Server,
    bodies: Mapping[str, dict[str, Path]],
    asking: Mapping[str, Asking],
    count: int,
    seconds: float,
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield kind, model and what ``load`` found, ``texts_per_second`` beside it.

    The first round is for warmth alone.
    """
    models = list(bodies)
    for number in range(count + 1):
        for kind, how in asking.items():
            turn = number % len(models)
            for model in models[turn:] + models[:turn]:
                path = bodies[model][kind]
                figures = load(server, path, how.connections, seconds, "/v1/embeddings")
                figures["texts_per_second"] = figures["requests_per_second"] * how.texts
                if number:
                    rate = figures["texts_per_second"]
                    print(f"round {number}/{count} {kind} {model} {rate:.0f}/s", flush=True)
                    yield kind, model, figures


def table(report: dict[str, Any]) -> str:
    """Write the page."""
    parent, *_ = report["models"]
    lines = []
    for model, rates in report["models"].items():
        cells = [
            f"{rates[kind]['median']:,.0f} "
            f"({rates[kind]['median'] / report['models'][parent][kind]['median']:.2f}x)"
            for kind in ASKING
        ]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    context = {
        "machine": tell_machine(report),
        "others": tell_others(report),
        "versions": tell_versions(report),
    }
    return PAGE.format(**(report | context), list=ASKING["passages"].texts, lines="\n".join(lines))


def main(argv: Sequence[str] | None = None) -> None:
    """Load all, and write both files."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--models", nargs="+", required=True, help="the parent first")
    parser.add_argument("--set", required=True, metavar="DIR[:SPLIT]", help="texts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, required=True, help="without its ending")
    args = parser.parse_args(words)
    recording = Recording(
        "benchmarks/effir_service.py",
        *("condensery", "torch", "transformers"),
        command=f"python benchmarks/effir_service.py {tell_command(words)}",
    )
    texts = read_set(*parse_set(args.set, split="test"))
    sample = {
        "queries": list(texts.queries.values())[:TEXTS],
        "passages": [titled_text(passage) for passage in texts.passages[:TEXTS]],
    }
    rates: dict[str, dict[str, list[float]]] = {
        model: {kind: [] for kind in ASKING} for model in args.models
    }
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        bodies = {model: write_bodies(folder, model, sample, ASKING) for model in args.models}
        server = stack.enter_context(run_server(args.store, folder))
        for kind, model, figures in rounds(server, bodies, ASKING, args.rounds, args.seconds):
            rates[model][kind].append(figures["texts_per_second"])
        about = recording.about()
    report = {
        **about,
        "rounds": args.rounds,
        "seconds": args.seconds,
        "models": {
            model: {
                kind: {"median": statistics.median(some), "rounds": some}
                for kind, some in by_kind.items()
            }
            for model, by_kind in rates.items()
        },
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(raw(report))
    page = table(report)
    args.out.with_suffix(".md").write_text(page)
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
