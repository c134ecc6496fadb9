"""SHRP's speed-ups (its Table 1), beside what true FLOPs allow: in process and over REST.

Networks of random weights whose last layers are converted and pruned to one head; batches of 64
texts of 128 tokens, and single texts. All networks take turns, round by round; what each serves is
compared with the padded layers that are trained. The networks' files share what they have in
common, so that the store is small.

    python benchmarks/shrp_service.py --size minilm-l6 [--converted 1 3 5] [--rounds 5]
    python benchmarks/shrp_service.py --size bert-base --device cuda --no-service --compiled

Writes docs/benchmarks/shrp-SIZE.json and .md (shrp-SIZE-cuda on a GPU).
"""

import argparse
import base64
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recording import Recording, raw, tell_command, tell_machine, tell_others, tell_versions
from shrp_networks import (
    BATCH,
    COMPARED,
    FULL,
    KINDS,
    PAPER,
    SIZES,
    TOKENS,
    agreement,
    allowed,
    experts_of,
    make,
    measure,
    random_texts,
    reference,
)
from tokenizers import Tokenizer

from condensery.networks.dtypes import dtype_name
from condensery.networks.shrp_paper import BertShape
from condensery.runtime.device import choose_device, choose_dtype, prepare_process

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
WORDS = 30_522  # of minilm-l6's tokenizer
FIGURES = ("rate", "p50_ms", "cpu_ms")  # of a round over REST
DISTINCT = 8  # requests of a kind
PAGE = """# SHRP's speed-ups: {size}

On {machine}{device}, {dtype}. {layers} layers of {hidden}, random weights; the last
ones converted and pruned to one head. Batches of {batch} texts of {tokens} tokens; medians of
{rounds} rounds in turns. Meanwhile {others}. Made on {date} by
`{command}`;
{versions}.

"May" is the speed-up that the layers' true FLOPs allow; "of it" is what is reached. One text has
{tokens} tokens, a query 16. In process a CPU's seconds are those that it computed; over REST the
clock's, with the server's CPU time a text beside it, and how much less that is. Vectors are those
of the padded layers that are trained, to a cosine of {agreement:.4f} or more.

{tables}"""


def open_tokenizer(folder: Path) -> Tokenizer:
    """Open a tokenizer that neither cuts nor pads."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def sentences(folder: Path, count: int, tokens: int) -> list[str]:
    """Return texts of so many tokens, special ones included, of words as frequent as in English."""
    tokenizer = open_tokenizer(folder)
    # BERT's vocabulary has them by frequency, which falls as their rank grows (Zipf).
    ids = sorted((number, word) for word, number in tokenizer.get_vocab().items())
    words = [word for _, word in ids if word.isascii() and word.isalpha() and len(word) > 1]
    shares = [1 / rank for rank in range(1, len(words) + 1)]
    source = random.Random(tokens)
    texts = [" ".join(source.choices(words, shares, k=tokens - 2)) for _ in range(count)]
    assert all(len(tokenizer.encode(text).ids) == tokens for text in texts)
    return texts


def publish_all(shape: BertShape, converted: Sequence[int], folder: Path) -> tuple[Path, Path]:
    """Publish the networks, and return the store's root and the folder of the tokenizer."""
    from condensery.methods.retriever.publishing import publish
    from condensery.store.importing import import_minilm
    from condensery.store.manifest import Manifest
    from condensery.store.store import ModelStore

    store = ModelStore(None, folder / "models")
    minilm = import_minilm(store)
    files = folder / "files"
    plain = make(shape, 0, WORDS)
    plain.save_pretrained(files)
    (files / "tokenizer.json").write_bytes((minilm.path / "tokenizer.json").read_bytes())
    manifest = Manifest(
        name="z0", kind="encoder", pooling="mean", normalize=True, max_tokens=TOKENS
    )
    parent = store.publish(files, manifest)
    for count in converted:
        if count:
            about = manifest.model_copy(update={"name": f"z{count}", "method": "shrp"})
            weights = make(shape, count, WORDS).state_dict()
            config = experts_of(shape, count).to_config()
            publish(store, parent, about, weights, config=config, share=True)
    return store.own, minilm.path


def serve_all(
    shape: BertShape, converted: Sequence[int], rounds: int, seconds: float
) -> dict[str, Any]:
    """Load a real server over REST; returns by kind and network what each round found."""
    from effir_service import Asking, run_server, write_bodies
    from effir_service import rounds as loads

    asking = {kind: Asking(count, 2 if count > 1 else 1) for kind, (count, _) in KINDS.items()}
    result: dict[str, Any] = {kind: {} for kind in asking}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store, own = publish_all(shape, converted, folder)
        texts = {
            kind: sentences(own, asking[kind].texts * DISTINCT, tokens)
            for kind, (_, tokens) in KINDS.items()
        }
        bodies = {
            f"z{count}": write_bodies(folder, f"z{count}", texts, asking) for count in converted
        }
        first: dict[str, list[str]] = {}
        with run_server(store, folder) as server:
            for kind, model, load in loads(server, bodies, asking, rounds, seconds):
                by = result[kind].setdefault(
                    model.removeprefix("z"), {name: [] for name in FIGURES}
                )
                by["rate"].append(load["texts_per_second"])
                by["cpu_ms"].append(1000 * load["server_cores"] / load["texts_per_second"])
                by["p50_ms"].append(load["p50_ms"])
                if kind == "batch":
                    first.setdefault(model, load["replies"])
        result["agreement"] = {
            str(count): compare(shape, count, first[f"z{count}"], texts["batch"], own)
            for count in converted
        }
    return result


def compare(
    shape: BertShape, count: int, replies: Sequence[str | None], texts: Sequence[str], own: Path
) -> float:
    """Return how well the first vectors that were served agree with the trained layers'."""
    rows = json.loads(next(reply for reply in replies if reply))["data"][:COMPARED]
    vectors = [np.frombuffer(base64.b64decode(row["embedding"]), np.float32) for row in rows]
    tokenizer = open_tokenizer(own)
    ids = [tokenizer.encode(text).ids for text in texts[:COMPARED]]
    return agreement(torch.tensor(np.stack(vectors)), reference(make(shape, count, WORDS), ids))


Column = dict[str, float]


def table(shape: BertShape, rates: Column, columns: dict[str, tuple[str, Column]]) -> str:
    """Write one table.

    Args:
        shape: Of the plain network.
        rates: Texts a second, by layers converted.
        columns: What else to show: the form of a number, and numbers by layers converted.
    """
    paper = shape == SIZES["bert-base"]
    heads = ["converted", "texts/s", "speed-up", "may", "of it", *columns]
    heads += ["paper"] if paper else []
    lines = [f"| {' | '.join(heads)} |", f"|{' ---: |' * len(heads)}"]
    for name in sorted(rates, key=int):
        faster, may = rates[name] / rates["0"], allowed(shape, int(name))
        cells = [f"{name} of {shape.layers}", f"{rates[name]:,.0f}", f"{faster:.2f}x"]
        cells += [f"{may:.2f}x", f"{faster / may:.2f}"]
        cells += [form.format(by[name]) for form, by in columns.values()]
        if paper:
            cells.append(f"{PAPER[int(name)]:.2f}x" if int(name) in PAPER else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def medians(by: dict[str, Any], what: str | None = None, *, times: float = 1.0) -> Column:
    """Return each network's median over the rounds."""
    return {
        name: times * statistics.median(some if what is None else some[what])
        for name, some in by.items()
    }


def page(result: dict[str, Any], shape: BertShape) -> str:
    """Write the page."""
    tables = []
    agreements = []
    single = {"one": "{:.2f} ms", "query": "{:.2f} ms"}
    for way, measured in result["in_process"].items():
        seconds = measured["seconds"]
        columns = {
            kind: (form, medians(seconds[kind], times=1000)) for kind, form in single.items()
        }
        about = f"{result['threads']} thread" if result["device"] == "cpu" else result["gpu"]
        for kind, texts in {"batch": BATCH, "full": FULL}.items():
            if kind in seconds:
                rates = {name: texts / taken for name, taken in medians(seconds[kind]).items()}
                tables.append(f"## In process, {way}, batches of {texts}, {about}\n")
                tables.append(table(shape, rates, columns))
        agreements += measured["agreement"].values()
    if served := result.get("service"):
        used = medians(served["batch"], "cpu_ms")
        columns = {
            "CPU a text": ("{:.2f} ms", used),
            "less": ("{:.2f}x", {name: used["0"] / some for name, some in used.items()}),
            **{kind: (form, medians(served[kind], "p50_ms")) for kind, form in single.items()},
        }
        tables += ["## Over REST\n", table(shape, medians(served["batch"], "rate"), columns)]
        agreements += served["agreement"].values()
    context = {
        "machine": tell_machine(result),
        "others": tell_others(result),
        "versions": tell_versions(result),
        "device": f" beside {result['gpu']}" if result["gpu"] else "",
    }
    return PAGE.format(
        **(result | context),
        layers=shape.layers,
        hidden=shape.hidden_size,
        batch=BATCH,
        tokens=TOKENS,
        agreement=min(agreements),
        tables="\n".join(tables),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write both files."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="minilm-l6")
    parser.add_argument("--converted", type=int, nargs="+", help="layers (0 to all but one)")
    parser.add_argument("--device", default="auto", help="cpu, cuda (auto)")
    parser.add_argument("--threads", type=int, default=1, help="in process, on a CPU (1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load over REST (5)")
    parser.add_argument("--no-service", action="store_true", help="in process alone")
    parser.add_argument("--compiled", action="store_true", help="padded by torch.compile as well")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    prepare_process()
    torch.set_num_threads(args.threads)
    recording = Recording(
        "benchmarks/shrp_service.py",
        *("torch", "transformers"),
        command=f"python benchmarks/shrp_service.py {tell_command(words)}".strip(),
    )
    shape, device = SIZES[args.size], choose_device(args.device)
    converted = sorted({0, *(args.converted or range(shape.layers))})
    dtype = choose_dtype(device)
    kinds = KINDS | ({"full": (FULL, TOKENS)} if device.type == "cuda" else {})
    texts = {kind: random_texts(count, tokens, WORDS) for kind, (count, tokens) in kinds.items()}
    result: dict[str, Any] = {
        "size": args.size,
        "rounds": args.rounds,
        "threads": args.threads,
        "device": device.type,
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else "",
        "dtype": dtype_name(dtype),
        "may": {str(count): allowed(shape, count) for count in converted},
        "in_process": {},
    }
    for way, measured in measure(
        shape, converted, texts, vocabulary=WORDS, device=device, dtype=dtype,
        rounds=args.rounds, compiled=args.compiled,
    ):  # fmt: skip
        result["in_process"][way] = measured
        written = write(args.out, result | recording.about(), shape)
    if not args.no_service:
        result["service"] = serve_all(shape, converted, args.rounds, args.seconds)
        written = write(args.out, result | recording.about(), shape)
    sys.stdout.write(written)


def write(out: Path, result: dict[str, Any], shape: BertShape) -> str:
    """Write what there is so far: a run that is cut short leaves it; returns the page."""
    out.mkdir(parents=True, exist_ok=True)
    name = f"shrp-{result['size']}{'-cuda' if result['device'] == 'cuda' else ''}"
    written = page(result, shape)
    (out / f"{name}.json").write_text(raw(result))
    (out / f"{name}.md").write_text(written)
    return written


if __name__ == "__main__":
    main()
