"""What an encoder is worth beside its parent, as both are served: nDCG@10, size and work."""

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.ranking.measures import measure
from condensery.methods.ranking.retrieval import running
from condensery.methods.ranking.sets import RankingSet, read_sets
from condensery.methods.retriever.timing import ROUNDS
from condensery.methods.trainer.reports import paired_bootstrap
from condensery.networks.backbone import load_transformer
from condensery.networks.sublayers import family_of, layers_of
from condensery.runtime.device import choose_dtype
from condensery.store.manifest import StoredModel
from condensery.store.weights import open_folder

SEED = 17


@dataclass(frozen=True, slots=True)
class MeasuringSetup:
    """What is measured on.

    Attributes:
        device: That models run on.
        dtype: What they compute in.
        workers: Threads of one each, on a CPU.
        rounds: Of each model and kind of text, when it is timed; 0: it is not.
    """

    device: torch.device
    dtype: torch.dtype
    workers: int
    rounds: int = ROUNDS


def add_measuring(group: "argparse._ArgumentGroup") -> None:
    """Add the flags of what a build is measured on: sets, and a ``MeasuringSetup``'s."""
    add = group.add_argument
    add(
        "--set",
        dest="sets",
        nargs="+",
        default=(),
        metavar="DIR[:SPLIT]",
        help="for retrievers: corpus.jsonl.gz, queries.jsonl.gz, qrels.SPLIT.tsv (test)",
    )
    add("--set-queries", type=int, default=0, help="of each set, at random (0: all)")
    add(
        "--set-others",
        type=int,
        help="passages of each corpus, at random, beside the relevant ones (all)",
    )
    add("--workers", type=int, help="threads of one each on a CPU (a core each)")
    add(
        "--measure-dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16"),
        help="what it computes in when measured (auto: as it would serve here)",
    )
    add("--rounds", type=int, default=ROUNDS, help=f"of timing, medians; 0: untimed ({ROUNDS})")


def read_measuring(
    args: argparse.Namespace, device: torch.device
) -> tuple[list[RankingSet], MeasuringSetup]:
    """Return what ``add_measuring``'s flags say.

    Raises:
        InputError: A set is of no use, or there are fewer than 0 rounds.
        SettingError: There is no such dtype.
    """
    if args.rounds < 0:
        raise InputError(
            f"rounds: {args.rounds}: must be at least 0", field="rounds", value=args.rounds
        )
    sets = read_sets(args.sets, queries=args.set_queries, others=args.set_others)
    dtype = choose_dtype(device, args.measure_dtype)
    return sets, MeasuringSetup(device, dtype, args.workers or torch.get_num_threads(), args.rounds)


def quality(
    models: Mapping[str, StoredModel],
    sets: Sequence[RankingSet],
    where: MeasuringSetup,
    work: Path | None = None,
) -> dict[str, Any]:
    """Search every set's whole corpus with every model, as the service runs it.

    Args:
        models: By what they are called; the first is what others are compared with.
        sets: To search.
        where: They run.
        work: Folder in which a model's figures on a set are kept, and found by the next run.

    Returns:
        By set: queries, each model's ``ndcg@10`` and, of all but the first, ``minus_parent``
        with a 95% interval (paired bootstrap over queries).
    """
    by_set: dict[str, dict[str, Any]] = {item.name: {} for item in sets}
    for name, stored in models.items():
        for item, figures in _each_set(stored, sets, where, work):
            by_set[item.name][name] = figures
    first, *others = models
    for by_model in by_set.values():
        base = by_model[first].pop("by")
        for name in others:
            own = by_model[name].pop("by")
            mean, low, high = paired_bootstrap([own[q] for q in base], [*base.values()], seed=SEED)
            by_model[name] |= {"minus_parent": mean, "interval": [low, high]}
    return by_set


def _each_set(
    stored: StoredModel, sets: Sequence[RankingSet], where: MeasuringSetup, work: Path | None
) -> Iterator[tuple[RankingSet, dict[str, Any]]]:
    """Yield each set with a model's figures, those that are kept first."""
    missing: list[RankingSet] = []
    paths: dict[str, Path] = {}
    for item in sets:
        about = f"{stored.manifest.fingerprint} {item.content} {sorted(item.queries)} {where.dtype}"
        name = hashlib.sha256(about.encode()).hexdigest()[:24]
        path = None if work is None else work / f"{name}.json"
        if path is not None and path.is_file():
            yield item, json.loads(path.read_text())
            continue
        missing.append(item)
        if path is not None:
            paths[item.name] = path
    if not missing:
        return
    with running(stored, where.workers, where.device, where.dtype) as encoder:
        for item in missing:
            figures = measure(encoder, item)
            if item.name in paths:
                paths[item.name].parent.mkdir(parents=True, exist_ok=True)
                write_atomically(paths[item.name], json.dumps(figures) + "\n")
            yield item, figures


def cost(stored: StoredModel, tokens: int = 128) -> dict[str, int]:
    """Return a model's parameters, word table included, and the work of a text of so many tokens.

    Raises:
        CorruptModel: It can't be loaded.
    """
    model = load_transformer(open_folder(stored))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, f"flops_{tokens}_tokens": flops(model, tokens)}


def flops(model: Any, tokens: int) -> int:
    """Return the floating-point operations of a text: products and attention, two a weight.

    Args:
        model: A base model, parts gone or not.
        tokens: Of the text.
    """
    family = family_of(model)
    hidden = model.config.hidden_size
    total = 0
    for layer in layers_of(model, family):
        total += (
            2
            * tokens
            * sum(part.weight.numel() for part in layer.modules() if isinstance(part, nn.Linear))
        )
        if family.attention_output in dict(layer.named_modules()):
            total += 4 * tokens * tokens * hidden
    return total
