"""What one memory token of those that are alike is worth (LLM2Comp, section 4.2).

    python benchmarks/llm2comp_merging.py RUN... --store STORE --data DATA
        --out docs/benchmarks/llm2comp-merging

A RUN is a finished stage of `condensery train llm2comp` or of `benchmarks/llm2comp.py`. Its memory
tokens are compared on held-out texts (equation 7); for each threshold those that are alike count as
one, the first of them, and the sets of `benchmarks/llm2comp.py` are measured. Every text is read
once: which tokens the vector is the mean of is chosen after. Needs the extra `bench`.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from llm2comp import HELD, TEXTS, WITHOUT, add_sets, prepare, read_trials
from numpy.typing import NDArray
from recording import Recording
from result_table import ResultTable

from condensery.methods.llm2comp.analysis import analyse
from condensery.methods.llm2comp.data import hold_out, read_tokens
from condensery.methods.llm2comp.measuring import network_embedder, trained
from condensery.methods.llm2comp.network import MOST_TOKENS, MemoryNetwork
from condensery.methods.llm2comp.recipe import NetworkShape
from condensery.methods.llm2comp.train_command import open_source
from condensery.methods.llm2comp.weights import load_stage
from condensery.methods.trainer.batching import in_batches
from condensery.methods.trainer.reports import table
from condensery.methods.trainer.texts import read_texts
from condensery.networks.llm2comp import effective_tokens

ALL = 1.0
Vectors = NDArray[np.float32]


class KeptStates:
    """Memory tokens' states of texts, each read once; a vector is the mean of some of them.

    Args:
        network: In evaluation mode.
        tokens: Texts, with a prompt, to token ids.
    """

    def __init__(self, network: MemoryNetwork, tokens: Callable[..., Any]) -> None:
        self._network, self._tokens = network, tokens
        self._known: dict[tuple[str, str], torch.Tensor] = {}

    def mean_of(self, kept: Sequence[int]) -> Callable[..., Vectors]:
        """Return what embeds texts by the mean of these memory tokens."""

        def embed(texts: Sequence[str], prompt: str = "") -> Vectors:
            self._read([text for text in texts if (prompt, text) not in self._known], prompt)
            states = torch.stack([self._known[prompt, text] for text in texts])
            vectors = torch.nn.functional.normalize(states[:, list(kept)].float().mean(1), dim=1)
            array: Vectors = vectors.numpy()
            return array

        return embed

    @torch.no_grad()
    def _read(self, texts: Sequence[str], prompt: str) -> None:
        if texts:
            rows = self._tokens(texts, prompt)
            states = in_batches(
                rows, MOST_TOKENS, lambda part: self._network.memory_states([r.ids for r in part])
            )
            keys = [(prompt, text) for text in texts]
            self._known.update(zip(keys, states.cpu().bfloat16(), strict=True))


def page(results: ResultTable) -> str:
    """Return a row a run and threshold."""
    measures = list(next(iter(results.rows.values()))["figures"])
    rows = []
    for key, row in results.rows.items():
        run, _, above = key.rpartition(" | ")
        figures = row["figures"]
        rows.append(
            [
                run,
                "all count" if float(above) == ALL else above,
                " ".join(map(str, row["kept"])),
                f"{row['similarity']:.3f}",
                *(f"{figures[name]:.3f}" for name in measures),
                f"{fmean(figures.values()):.3f}",
            ]
        )
    head = ["run", "alike above", "tokens that count", "mean likeness", *measures, "mean"]
    return "\n".join(["# Memory tokens that are alike, counted once", "", *table(head, rows)])


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN")
    add("--model", default="mini-lm", help="the language model")
    add("--store", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--above", type=float, nargs="+", default=[0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    add("--length", type=int, default=128, help="of held-out texts, tokens")
    add_sets(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    setup = prepare(args, every=1)
    paths = [args.data / name for name in TEXTS]
    _, held = hold_out(read_texts(paths, most=args.most_texts, without=WITHOUT), HELD, seed=0)
    base, trials = open_source(args.model, args.store), read_trials(args)
    recording = Recording("benchmarks/llm2comp_merging.py", "torch", "transformers")
    results = ResultTable(args.out, recording, page)
    for run in args.runs:
        stage = load_stage(run)
        shape = NetworkShape(memory_tokens=len(stage.weights.memory))
        network = trained(base, shape, stage, setup)
        words = base.words(shape)
        rows = read_tokens(held, words, least=words.begins + 1, most=args.length)
        similarity = analyse(network, rows.ids(range(len(rows)))).similarity
        others = similarity[~np.eye(len(similarity), dtype=bool)]
        states = KeptStates(network, network_embedder(network, base, base.positions).tokens)
        known: dict[tuple[int, ...], dict[str, float]] = {}
        for above in (ALL, *args.above):
            kept = effective_tokens(torch.tensor(similarity), above)
            if kept not in known:
                known[kept] = trials.measure(states.mean_of(kept))
            row = {"figures": known[kept], "kept": kept, "similarity": float(others.mean())}
            results.add(f"{'/'.join(run.parts[-3:])} | {above:g}", row)


if __name__ == "__main__":
    main()
