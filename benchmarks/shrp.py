"""What converting layers costs, by task and by size, beside other ways to make a network smaller.

    python benchmarks/shrp.py tasks --data DATA --tasks sst2 mrpc rte cola qnli --seeds 13 14 15
        --out docs/benchmarks/shrp-tasks
    python benchmarks/shrp.py embeddings --data DATA --out docs/benchmarks/shrp-embeddings

`tasks` tunes the encoder on each task once a seed, converts 1 to 5 of its layers from there, and
measures before and after experts go; then the variants of the recipe. `embeddings` teaches networks
their parent's vectors, all by the same steps on the same texts: with layers converted (SHRP), with
MLPs dropped (EffiR), with whole layers dropped. Every row is written as it is made, and rows of
OUT.json stay: run again to go on. Data is in folders of DATA (GLUE's, STS-B, SICK, SciFact).
Writes OUT.json and OUT.md.
"""

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from recording import Recording
from result_table import ResultTable
from torch import nn

from condensery.methods.effir.analysis import analyse
from condensery.methods.effir.importance import Depth, choose
from condensery.methods.ranking.sets import read_sets
from condensery.methods.ranking.similarities import read_similarities
from condensery.methods.retriever.batches import read_examples as read_rows
from condensery.methods.retriever.measuring import MeasuringSetup, quality
from condensery.methods.retriever.publishing import publish
from condensery.methods.shrp.classification import ClassificationTask, label_names, read_examples
from condensery.methods.shrp.conversion import choose_layers
from condensery.methods.shrp.embedding import EmbeddingTask
from condensery.methods.shrp.networks import (
    base_of,
    freeze_embeddings,
    open_network,
    stored_weights,
)
from condensery.methods.shrp.recipe import ShrpRecipe
from condensery.methods.shrp.training import convert_network, tune_network
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.reports import table
from condensery.methods.trainer.texts import read_texts
from condensery.networks.effir import prune
from condensery.runtime.device import choose_device, choose_dtype
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore, shipped_store

FILES = {
    "sst2": ("train", "dev"),
    "mrpc": ("train", "test"),
    "rte": ("train", "dev"),
    "cola": ("train", "dev"),
    "qnli": ("train_derived", "dev"),
}
LONGER = "parent, tuned as long"
HEADLINE = {"cola": "matthews"}  # the measure that GLUE has; accuracy otherwise
TEXTS = (
    "wikipedia_passages/passages.jsonl.gz",
    "qamr/train.jsonl.gz",
    "nq_open/train_ambigqa.jsonl.gz",
    "nq_open/train_dpr_dev.jsonl.gz",
    "stackoverflow_titles/all.jsonl.gz",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A row: so many layers converted, and what differs from the recipe."""

    converted: int
    order: str = "last"
    keep: int = 1
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        parts = [f"{self.converted} converted"]
        parts += [self.order] if self.order != "last" else []
        parts += [f"{name} {value}" for name, value in self.changes]
        return ", ".join(parts)


def variants(args: argparse.Namespace) -> Iterator[Variant]:
    """Yield the curve, then what the ablations change, at a middle size."""
    for count in args.converted:
        yield Variant(count)
    if args.ablate:
        yield Variant(args.ablate, "first")
        yield Variant(args.ablate, "spread")
        yield Variant(args.ablate, changes=(("straight_through", False),))
        yield Variant(args.ablate, changes=(("balance", 0.0),))
        yield Variant(args.ablate, changes=(("expander_scale", 1.0),))
        yield Variant(args.ablate, changes=(("settle_epochs", 1),))
        for count in (3, 5):
            yield Variant(args.ablate, changes=(("top_k", count),))


def run_tasks(args: argparse.Namespace, parent: StoredModel, setup: TrainingSetup) -> None:
    """Tune, convert and measure, task by task and seed by seed."""
    recording = Recording("benchmarks/shrp.py", "torch", "transformers")
    results = ResultTable(args.out, recording, tasks_page)
    for name in args.tasks:
        train_file, test_file = FILES[name]
        train = read_examples([args.data / name / f"{train_file}.jsonl.gz"])
        labels = label_names(train)
        test = read_examples([args.data / name / f"{test_file}.jsonl.gz"], labels)
        for seed in args.seeds:
            recipe = recipe_of(args, seed)
            task = ClassificationTask(
                parent, train, test, labels,
                length=recipe.length, batch=recipe.batch, epoch_steps=recipe.epoch_steps,
            )  # fmt: skip
            wanted = [v for v in variants(args) if f"{name} {seed} {v.name}" not in results.rows]
            if not wanted:
                continue
            with TemporaryDirectory() as folder:
                tuned = open_network(parent, labels=labels, seed=seed)
                began = time.perf_counter()
                tune_network(
                    tuned, task, recipe, recipe.tune_epochs, Path(folder) / "tuning",
                    identity={}, setup=setup,
                )  # fmt: skip
                figures = {"figures": task.evaluate(tuned), "seconds": time.perf_counter() - began}
                results.add(f"{name} {seed} parent", figures)
                if f"{name} {seed} {LONGER}" not in results.rows:
                    # What converted networks are compared with: tuned for as many epochs in all.
                    longer = copy.deepcopy(tuned).train()
                    epochs = max(args.converted) + recipe.extra_epochs
                    tune_network(
                        longer, task, recipe, epochs, Path(folder) / "longer",
                        identity={}, setup=setup,
                    )  # fmt: skip
                    seconds = time.perf_counter() - began
                    results.add(
                        f"{name} {seed} {LONGER}",
                        {"figures": task.evaluate(longer), "seconds": seconds},
                    )
                for variant in wanted:
                    row = one_conversion(tuned, task, recipe, variant, Path(folder), setup)
                    results.add(f"{name} {seed} {variant.name}", row)


def recipe_of(args: argparse.Namespace, seed: int) -> ShrpRecipe:
    return ShrpRecipe(
        seed=seed,
        rate=args.rate,
        new_rate=args.new_rate,
        expander_scale=args.expander_scale,
        epoch_steps=args.epoch_steps,
        tune_epochs=args.tune_epochs,
        relation=args.relation,
        hidden=args.hidden,
        length=args.length,
    )


def one_conversion(
    tuned: nn.Module,
    task: Any,
    recipe: ShrpRecipe,
    variant: Variant,
    folder: Path,
    setup: TrainingSetup,
) -> dict[str, Any]:
    """Convert a copy of a tuned network; returns figures before and after experts go."""
    network = copy.deepcopy(tuned).train()
    base = base_of(network)
    own = replace(recipe, **dict(variant.changes))
    layers = int(base.config.num_hidden_layers)
    order = choose_layers(variant.converted, layers, variant.order)  # type: ignore[arg-type]
    began = time.perf_counter()
    run = folder / variant.name.replace(" ", "-")
    made = convert_network(
        network, base, task, own, order, variant.keep, run, identity={}, setup=setup
    )
    row: dict[str, Any] = {
        "heads": made.experts.to_config()["shrp_heads"],
        "usage": {str(number): counts.tolist() for number, counts in made.usage.items()},
        "routed": dict(made.routed),
        "figures": dict(made.pruned),
    }
    if own.settle_epochs:
        tune_network(
            network, task, own, own.settle_epochs, folder / f"{run.name}-settled",
            identity={}, setup=setup,
        )  # fmt: skip
        row["figures"] = task.evaluate(network)
    return {**row, "seconds": time.perf_counter() - began}


def tasks_page(results: ResultTable) -> str:
    """Return a table a task: means over seeds, with the least and the most.

    What is kept is of the parents of the same seeds.
    """
    grouped: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for key, row in results.rows.items():
        task, seed, variant = key.split(" ", 2)
        grouped.setdefault(task, {}).setdefault(variant, {})[seed] = row
    lines = ["# SHRP by task", ""]
    for task, by_variant in grouped.items():
        measure = HEADLINE.get(task, "accuracy")
        lines += [f"## {task}: {measure}", ""]
        parents = by_variant.get(LONGER, by_variant["parent"])
        rows = []
        for variant, by_seed in by_variant.items():
            of_it = list(by_seed.values())
            values = [row["figures"][measure] for row in of_it]
            parent = fmean(parents[seed]["figures"][measure] for seed in by_seed if seed in parents)
            routed = [row["routed"][measure] for row in of_it if "routed" in row]
            rows.append(
                [
                    variant,
                    str(len(of_it)),
                    f"{fmean(routed):.4f}" if routed else "",
                    f"{fmean(values):.4f}",
                    f"{min(values):.4f} to {max(values):.4f}" if len(values) > 1 else "",
                    f"{100 * fmean(values) / parent:.1f} %",
                    f"{fmean(row['seconds'] for row in of_it):.0f}",
                ]
            )
        head = [
            "",
            "seeds",
            "all experts",
            "static",
            "least to most",
            "of the parent tuned as long",
            "seconds",
        ]
        lines += table(head, rows)
    return "\n".join(lines)


def run_embeddings(args: argparse.Namespace, parent: StoredModel, setup: TrainingSetup) -> None:
    """Teach every network the parent's vectors by the same steps, and measure all."""
    recording = Recording("benchmarks/shrp.py", "torch", "transformers")
    results = ResultTable(args.out, recording, embeddings_page)
    recipe = recipe_of(args, args.seeds[0])
    texts = read_texts(
        [args.data / name for name in TEXTS], sentences=True, most=args.most_texts, seed=recipe.seed
    )
    where = {"work": args.work, "device": setup.device, "dtype": setup.dtype}
    tasks = [EmbeddingTask(parent, texts, recipe, **where)]
    if args.rows:
        contrasted = replace(recipe, contrast=args.contrast)
        tasks += [EmbeddingTask(parent, texts, contrasted, rows=read_rows(args.rows), **where)]
    alike = [read_similarities(args.data / name) for name in args.pairs]
    sets = read_sets(
        [str(args.data / name) for name in args.sets], queries=args.set_queries,
        others=args.set_others,
    )  # fmt: skip
    measuring = MeasuringSetup(setup.device, choose_dtype(setup.device), args.workers, 0)
    total = max(args.converted) + 2  # epochs of the longest conversion: all get its steps
    for name, make in shapes(args, parent, tasks, recipe, setup):
        if name in results.rows:
            continue
        began = time.perf_counter()
        with TemporaryDirectory() as folder:
            network, config = make(Path(folder), total)
            made_by = "shrp" if "shrp_heads" in config else "effir"
            fields = {"name": "child", "method": made_by, "shape": config}
            stored = publish(
                ModelStore(parent.root, Path(folder) / "store"),
                parent,
                parent.manifest.model_copy(update=fields),
                stored_weights(network),
                config=config,
            )
            ranked = quality({"model": stored}, sets, measuring, args.work / "quality")
        for by_model in ranked.values():
            by_model["model"].pop("by", None)
        figures = tasks[0].measure(network, alike)
        results.add(
            name,
            {
                "parameters": sum(p.numel() for p in network.parameters()),
                "ndcg@10": {item: f["model"]["ndcg@10"] for item, f in ranked.items()},
                "cosine": figures.pop("cosine"),
                "spearman": {k.removeprefix("spearman "): v for k, v in figures.items()},
                "seconds": time.perf_counter() - began,
            },
        )


Make = Callable[[Path, int], tuple[nn.Module, dict[str, Any]]]


def shapes(
    args: argparse.Namespace,
    parent: StoredModel,
    tasks: Sequence[EmbeddingTask],
    recipe: ShrpRecipe,
    setup: TrainingSetup,
) -> Iterator[tuple[str, Make]]:
    """Yield what is compared, each with how it is made in so many epochs."""

    def whole() -> nn.Module:
        network = open_network(parent, labels=None, seed=recipe.seed)
        freeze_embeddings(network)
        return network

    def as_it_is(folder: Path, epochs: int) -> tuple[nn.Module, dict[str, Any]]:
        network = whole()
        setup.place(network)
        return network.eval(), {}

    yield "parent", as_it_is
    importance = analyse(
        parent.path, [args.data / args.calibration], samples=args.samples, length=128,
        device=setup.device, dtype=setup.dtype,
    )  # fmt: skip
    task = tasks[0]
    curve = [(f"SHRP, {count} layers", count, task) for count in args.converted]
    curve += [(f"SHRP, {args.ablate} layers, contrast too", args.ablate, t) for t in tasks[1:]]
    for name, count, learnt in curve:

        def experts(
            folder: Path, epochs: int, count: int = count, task: EmbeddingTask = learnt
        ) -> Any:
            network = whole()
            layers = int(base_of(network).config.num_hidden_layers)
            own = replace(recipe, extra_epochs=epochs - count)
            made = convert_network(
                network, base_of(network), task, own, choose_layers(count, layers, "last"), 1,
                folder / "run", identity={}, setup=setup,
            )  # fmt: skip
            return network, made.experts.to_config()

        yield name, experts
    for count in args.converted:
        for kind, depth in (
            ("EffiR, {} MLPs dropped", Depth(mlp=count)),
            ("{} layers dropped", Depth(blocks=count)),
            ("the last {} layers dropped", Depth(last=count)),
        ):

            def dropped(folder: Path, epochs: int, depth: Depth = depth) -> Any:
                network = whole()
                pruning = choose(importance, depth)
                prune(base_of(network), pruning)
                tune_network(
                    network, task, recipe, epochs, folder / "run", identity={}, setup=setup
                )
                return network, pruning.to_config()

            yield kind.format(count), dropped


def embeddings_page(results: ResultTable) -> str:
    """Return all rows by their size."""
    rows = []
    for name, row in sorted(results.rows.items(), key=lambda item: -item[1]["parameters"]):
        measured = {**row["ndcg@10"], **row["spearman"]}
        rows.append(
            [
                name,
                f"{row['parameters'] / 1e6:.1f} M",
                *(f"{value:.3f}" for value in measured.values()),
                f"{fmean(measured.values()):.3f}",
                f"{row['cosine']:.3f}",
            ]
        )
    first = next(iter(results.rows.values()))
    head = ["", "parameters", *first["ndcg@10"], *first["spearman"], "mean", "cosine to parent"]
    return "\n".join(["# Encoders taught their parent's vectors", "", *table(head, rows)])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("tasks", "embeddings"))
    parser.add_argument("--model", default="minilm-l6")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/shrp"))
    parser.add_argument("--tasks", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[13])
    parser.add_argument("--converted", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument(
        "--ablate", type=int, default=0, help="layers converted in the ablations (0: none)"
    )
    parser.add_argument("--rate", type=float, default=2e-5)
    parser.add_argument("--new-rate", type=float, default=0.0)
    parser.add_argument("--expander-scale", type=float, default=1.0)
    parser.add_argument("--relation", type=float, default=1.0)
    parser.add_argument("--hidden", type=float, default=0.0)
    parser.add_argument(
        "--rows", type=Path, nargs="+", default=(), help="queries with passages, to contrast too"
    )
    parser.add_argument("--contrast", type=float, default=0.1)
    parser.add_argument("--epoch-steps", type=int, default=0)
    parser.add_argument("--tune-epochs", type=int, default=3)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--most-texts", type=int, default=0)
    parser.add_argument("--pairs", nargs="+", default=["stsb/test.jsonl.gz", "sick/test.jsonl.gz"])
    parser.add_argument("--sets", nargs="+", default=["scifact"])
    parser.add_argument("--set-queries", type=int, default=0)
    parser.add_argument("--set-others", type=int)
    parser.add_argument("--calibration", default="wikipedia_passages/passages.jsonl.gz")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--workers", type=int, default=torch.get_num_threads())
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    device = choose_device(args.device)
    setup = TrainingSetup(device, choose_dtype(device, args.dtype), every=0)
    parent = ModelStore(shipped_store(), args.store).open(args.model)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    (run_tasks if args.what == "tasks" else run_embeddings)(args, parent, setup)


if __name__ == "__main__":
    main()
