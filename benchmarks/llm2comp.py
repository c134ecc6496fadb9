"""The paper's table in small: what memory tokens, their objectives and contrast are worth.

    python benchmarks/llm2comp.py --store STORE --data DATA --seeds 13 14 15 16 17
        --rows rows.jsonl --out docs/benchmarks/llm2comp

A language model as an encoder without memory tokens (last token, weighted mean, echo), untrained
and after contrast; and with them (LLM2Comp), by each objective of the pretext stage and several
numbers of memory tokens, after that stage and after the same contrast; with `--rows` (see
`benchmarks/llm2comp_rows.py`) after supervised contrast too. Measured on STS-B, SICK (Spearman),
SciFact (nDCG@10), Banking77 (accuracy of a logistic probe on 8 examples a class), StackOverflow's
titles (V-measure of k-means), and by the effective dimension of held-out texts. Every row is
written as it is made, and rows of OUT.json stay: run again to go on. Needs the extra `bench`.
"""

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from recording import Recording
from result_table import ResultTable
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score

from condensery.methods.llm2comp.analysis import analyse
from condensery.methods.llm2comp.data import hold_out, read_tokens
from condensery.methods.llm2comp.measuring import (
    Embed,
    measure_pairs,
    measure_set,
    network_embedder,
    untrained,
)
from condensery.methods.llm2comp.network import MemoryNetwork
from condensery.methods.llm2comp.recipe import (
    NetworkShape,
    PretextRecipe,
    StageRecipe,
    SupervisedRecipe,
    UnsupervisedRecipe,
)
from condensery.methods.llm2comp.sources import Base
from condensery.methods.llm2comp.train_command import open_source, read_rows_flag
from condensery.methods.llm2comp.training import StageData, train
from condensery.methods.ranking.sets import RankingSet, read_sets
from condensery.methods.ranking.similarities import Similarities, read_similarities
from condensery.methods.trainer.method import TrainingSetup
from condensery.methods.trainer.reports import table
from condensery.methods.trainer.rows import read_rows
from condensery.methods.trainer.texts import read_texts
from condensery.runtime.device import choose_device, choose_dtype, tune_allocator

TEXTS = ("wikipedia_passages/passages.jsonl.gz", "openstax/train.txt.xz")
# Contexts that questions of evaluation sets are about.
WITHOUT = [("source", name) for name in ("squad_dev", "nq_gold", "qed", "clapnq")]
BASELINES = {"last": "last token", "weighted": "weighted mean", "echo": "echo"}
OBJECTIVES = ("ctkd", "nll", "reconstruction")
SHOTS, DRAWS, HELD = 8, 3, 256
PRETEXT, CONTRAST, LABELS, NOTHING = "pretext", "contrast", "contrast, then rows", "untrained"


@dataclass(frozen=True, slots=True)
class Way:
    """A way of making a text's vector.

    Attributes:
        name: In rows.
        shape: Of the network.
        objective: Of the pretext stage; empty: there is none.
    """

    name: str
    shape: NetworkShape
    objective: str = ""


def ways(args: argparse.Namespace) -> Iterator[Way]:
    """Yield what is compared."""
    for pooling in args.baselines:
        yield Way(BASELINES[pooling], NetworkShape(pooling=pooling))
    most = max(args.counts)
    for objective in args.objectives:
        shape = NetworkShape(memory_tokens=most)
        yield Way(f"LLM2Comp, {objective}, k {most}", shape, objective)
    if args.contrast_alone:
        yield Way(f"memory tokens, k {most}", NetworkShape(memory_tokens=most))
    for count in args.counts:
        if count != most:
            shape = NetworkShape(memory_tokens=count)
            yield Way(f"LLM2Comp, ctkd, k {count}", shape, "ctkd")


@dataclass(frozen=True, slots=True)
class Labelled:
    """Texts with their classes."""

    texts: Sequence[str]
    labels: Sequence[str]

    @classmethod
    def read(cls, path: Path, most: int = 0) -> "Labelled":
        rows = [(row.value["text"], row.value["label"]) for row in read_rows(path)]
        if 0 < most < len(rows):
            rows = random.Random(0).sample(rows, most)
        return cls([text for text, _ in rows], [label for _, label in rows])

    def shots(self, count: int, seed: int) -> "Labelled":
        """Return so many examples of each class."""
        by_label: dict[str, list[str]] = {}
        for text, label in zip(self.texts, self.labels, strict=True):
            by_label.setdefault(label, []).append(text)
        source = random.Random(seed)
        chosen = [
            (text, label)
            for label, texts in sorted(by_label.items())
            for text in source.sample(texts, min(count, len(texts)))
        ]
        return Labelled([text for text, _ in chosen], [label for _, label in chosen])


def each_once(embedder: Embed) -> Embed:
    """Return what embeds no text twice: SICK has every sentence in several pairs."""
    known: dict[tuple[str, str], NDArray[np.float32]] = {}

    def embed(texts: Sequence[str], prompt: str = "") -> NDArray[np.float32]:
        new = list(dict.fromkeys(text for text in texts if (prompt, text) not in known))
        if new:
            keys = [(prompt, text) for text in new]
            known.update(zip(keys, embedder(new, prompt), strict=True))
        return np.stack([known[prompt, text] for text in texts])

    return embed


@dataclass(frozen=True, slots=True)
class Trials:
    """What every encoder is measured on.

    Attributes:
        pairs: Scored pairs.
        sets: Retrieval sets.
        training: Of the classifier.
        test: The same.
        clusters: Texts of known classes.
    """

    pairs: Sequence[Similarities]
    sets: Sequence[RankingSet]
    training: Labelled
    test: Labelled
    clusters: Labelled

    def measure(self, embedder: Embed) -> dict[str, float]:
        """Return a figure a set."""
        embed = each_once(embedder)
        figures = {item.name: measure_pairs(embed, item)["spearman"] for item in self.pairs}
        for ranking in self.sets:
            figures[ranking.name] = fmean(measure_set(embed, ranking)["by"].values())
        figures["banking77"] = self._probe(embed)
        figures["stackoverflow"] = self._clusters(embed)
        return figures

    def _probe(self, embed: Embed) -> float:
        """Return the accuracy of a logistic regression on few examples, a mean over draws."""
        test = embed(self.test.texts)
        scores = []
        for draw in range(DRAWS):
            few = self.training.shots(SHOTS, draw)
            probe = LogisticRegression(C=10.0, max_iter=200).fit(embed(few.texts), few.labels)
            scores.append(float(probe.score(test, self.test.labels)))
        return fmean(scores)

    def _clusters(self, embed: Embed) -> float:
        """Return the V-measure of as many clusters as there are classes."""
        count = len(set(self.clusters.labels))
        vectors = embed(self.clusters.texts)
        found = MiniBatchKMeans(count, batch_size=1024, n_init=3, random_state=0).fit(vectors)
        return float(v_measure_score(self.clusters.labels, found.labels_))


def read_trials(args: argparse.Namespace) -> Trials:
    data = args.data
    return Trials(
        [sample_pairs(read_similarities(data / name), args.most_tested) for name in args.pairs],
        read_sets(
            [str(data / name) for name in args.sets],
            queries=args.set_queries,
            others=args.set_others,
        ),
        Labelled.read(data / "banking77" / "train.jsonl.gz"),
        Labelled.read(data / "banking77" / "test.jsonl.gz", args.most_tested),
        Labelled.read(data / "stackoverflow_titles" / "all.jsonl.gz", args.most_clustered),
    )


def sample_pairs(pairs: Similarities, most: int) -> Similarities:
    """Return so many of scored pairs, the same ones each time; 0: all of them."""
    if not 0 < most < len(pairs.pairs):
        return pairs
    chosen = sorted(random.Random(0).sample(range(len(pairs.pairs)), most))
    return Similarities(pairs.name, [pairs.pairs[at] for at in chosen], pairs.scores[chosen])


def stages_of(args: argparse.Namespace, way: Way, seed: int) -> list[tuple[str, StageRecipe]]:
    """Return a way's stages, each by what rows call it; contrast is the same for all."""
    stages: list[tuple[str, StageRecipe]] = []
    if way.objective:
        pretext = PretextRecipe(
            steps=args.pretext_steps, batch=args.pretext_batch, rate=args.pretext_rate,
            length=args.length, embeddings="memory", objective=way.objective, seed=seed,
        )  # fmt: skip
        stages.append((PRETEXT, pretext))
    # Memory tokens that no stage before has taught learn here.
    embeddings = "memory" if way.shape.k and not way.objective else "none"
    contrast = UnsupervisedRecipe(
        steps=args.contrast_steps, batch=args.contrast_batch, rate=args.contrast_rate,
        length=args.contrast_length, embeddings=embeddings, seed=seed,
    )  # fmt: skip
    stages.append((CONTRAST, contrast))
    if args.rows:
        rows = SupervisedRecipe(
            steps=args.rows_steps, batch=args.rows_batch, rate=args.rows_rate, negatives=0,
            length=args.contrast_length, passage_length=args.length, seed=seed,
        )  # fmt: skip
        stages.append((LABELS, rows))
    return stages


@dataclass(frozen=True, slots=True)
class Bench:
    """All that a row needs."""

    base: Base
    data: Mapping[str, StageData]
    held: Sequence[str]
    trials: Trials
    setup: TrainingSetup
    work: Path
    length: int

    def row(self, network: MemoryNetwork, began: float) -> dict[str, Any]:
        """Measure a network."""
        embed = network_embedder(network, self.base, self.base.positions)
        trained = time.perf_counter() - began
        words = self.base.words(network.shape)
        rows = read_tokens(self.held, words, least=words.begins + 1, most=self.length)
        analysis = analyse(network, rows.ids(range(len(rows)))).figures()
        figures = self.trials.measure(embed)
        return {"figures": figures, "embeddings": analysis, "seconds": trained}

    def stages(
        self, way: Way, stages: Sequence[tuple[str, StageRecipe]], seed: int
    ) -> Iterator[tuple[str, MemoryNetwork]]:
        """Train a way's stages one after the other, or read back those that are done."""
        folder = self.work / way.name.replace(", ", "-").replace(" ", "-") / str(seed)
        start: Path | None = None
        for name, recipe in stages:
            out = folder / name.replace(", ", "-").replace(" ", "-")
            data = self.data[recipe.stage]
            network = train(self.base, way.shape, recipe, data, out, start=start, setup=self.setup)
            start = out
            yield name, network


def page(results: ResultTable) -> str:
    """Return a row a way and stage: means over seeds, with the deviation of the mean figure."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for key, row in results.rows.items():
        grouped.setdefault(key.rpartition(" | ")[0], []).append(row)
    measures = list(next(iter(results.rows.values()))["figures"])
    rows = []
    for name, of_it in grouped.items():
        means = [fmean(row["figures"].values()) for row in of_it]
        rows.append(
            [
                name,
                str(len(of_it)),
                *(f"{fmean(row['figures'][m] for row in of_it):.3f}" for m in measures),
                f"{fmean(means):.3f}",
                f"{stdev(means):.3f}" if len(means) > 1 else "",
                f"{fmean(row['embeddings']['effective dimension'] for row in of_it):.1f}",
                f"{fmean(row['seconds'] for row in of_it):.0f}",
            ]
        )
    head = ["", "seeds", *measures, "mean", "deviation over seeds", "effective dimension", "s"]
    lines = ["# Memory tokens as an encoder: the paper's table in small", "", *table(head, rows)]
    lines += ["## Differences of the mean, seed by seed", "", *claims(results.rows, measures)]
    return "\n".join(lines)


def claims(rows: Mapping[str, Mapping[str, Any]], measures: Sequence[str]) -> list[str]:
    """Return what the paper claims as differences between rows of one seed."""
    means = {key: fmean(row["figures"][m] for m in measures) for key, row in rows.items()}
    names = dict.fromkeys(key.rpartition(" | ")[0] for key in rows)
    after = [name for name in names if name.endswith(f": {CONTRAST}")]
    ctkd = next((name for name in after if "ctkd" in name), None)
    lines = []
    for other in after if ctkd else ():
        seeds = [k.rpartition(" | ")[2] for k in rows if k.startswith(f"{other} | ")]
        pairs = [
            (means[f"{ctkd} | {seed}"], means[f"{other} | {seed}"])
            for seed in seeds
            if f"{ctkd} | {seed}" in means
        ]
        if other != ctkd and pairs:
            more = [one - two for one, two in pairs]
            deviation = f"{stdev(more):.3f}" if len(more) > 1 else ""
            lines.append(
                [f"{ctkd}, over {other}", str(len(more)), f"{fmean(more):+.3f}", deviation]
            )
    return table(["", "seeds", "mean", "deviation"], lines)


def run(args: argparse.Namespace, bench: Bench, results: ResultTable) -> None:
    """Make every row that is not there yet."""
    for way in ways(args):
        key = f"{way.name}: {NOTHING} | any"
        if not way.objective and not way.shape.k and key not in results.rows:
            began = time.perf_counter()
            network = untrained(bench.base, way.shape, way.shape.pooling, bench.setup)
            results.add(key, bench.row(network, began))
    for seed in args.seeds:
        for way in ways(args):
            stages = stages_of(args, way, seed)
            keys = {name: f"{way.name}: {name} | {seed}" for name, _ in stages}
            if all(key in results.rows for key in keys.values()):
                continue
            began = time.perf_counter()
            for name, network in bench.stages(way, stages, seed):
                if keys[name] not in results.rows:
                    results.add(keys[name], bench.row(network, began))
                began = time.perf_counter()


def add_sets(parser: argparse.ArgumentParser) -> None:
    """Add the flags of what networks are measured on, and how."""
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of the sets")
    add("--most-texts", type=int, default=40_000)
    add("--pairs", nargs="+", default=["stsb/test.jsonl.gz", "sick/test.jsonl.gz"])
    add("--sets", nargs="+", default=["scifact"])
    add("--set-queries", type=int, default=300)
    add("--set-others", type=int, default=1000)
    add("--most-clustered", type=int, default=4000)
    add("--most-tested", type=int, default=0, help="pairs of a set, questions of Banking77; 0: all")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--device", default="auto")
    add("--dtype", default="auto")


def prepare(args: argparse.Namespace, every: int) -> TrainingSetup:
    """Set threads and the allocator as the flags say; returns where and in what to compute."""
    torch.set_num_threads(args.threads)
    tune_allocator()
    device = choose_device(args.device)
    return TrainingSetup(device, choose_dtype(device, args.dtype), every=every)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", default="mini-lm", help="the language model")
    add("--store", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--work", type=Path, default=Path("runs/llm2comp"), help="checkpoints")
    add("--seeds", type=int, nargs="+", default=[13])
    add("--baselines", nargs="*", choices=list(BASELINES), default=list(BASELINES))
    add("--objectives", nargs="*", choices=OBJECTIVES, default=list(OBJECTIVES))
    add("--counts", type=int, nargs="+", default=[1, 2, 4, 8], help="memory tokens; the "
        "objectives are compared with the most")  # fmt: skip
    add("--contrast-alone", action="store_true", help="memory tokens without a pretext stage too")
    add("--texts", nargs="+", default=list(TEXTS), help="of the first two stages, in DATA")
    add("--rows", nargs="+", default=(), metavar="FILE[=INSTRUCTION]")
    for name, value in (("pretext", 1e-3), ("contrast", 3e-4), ("rows", 5e-4)):
        add(f"--{name}-rate", type=float, default=value)
    for name, steps, batch in (("pretext", 100, 8), ("contrast", 60, 64), ("rows", 40, 48)):
        add(f"--{name}-steps", type=int, default=steps)
        add(f"--{name}-batch", type=int, default=batch)
    add("--length", type=int, default=128, help="of texts, tokens, and of passages")
    add("--contrast-length", type=int, default=48)
    add_sets(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    setup = prepare(args, every=1_000_000)
    paths = [args.data / name for name in args.texts]
    texts, held = hold_out(read_texts(paths, most=args.most_texts, without=WITHOUT), HELD, seed=0)
    views = read_texts(paths, sentences=True, most=args.most_texts, without=WITHOUT)
    data = {
        "pretext": StageData(texts, held_out=held, held=HELD),
        "unsupervised": StageData(views, held_out=held, held=HELD),
        "supervised": StageData(examples=read_rows_flag(args.rows), held_out=held, held=HELD),
    }
    base = open_source(args.model, args.store)
    bench = Bench(base, data, held, read_trials(args), setup, args.work, args.length)
    recording = Recording("benchmarks/llm2comp.py", "torch", "transformers", "scikit-learn")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    run(args, bench, ResultTable(args.out, recording, page))


if __name__ == "__main__":
    main()
