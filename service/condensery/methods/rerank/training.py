"""Train a cross-encoder from a BERT: queries with passages that answer them and some that don't."""

import argparse
import json
import logging
import shlex
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import torch
from torch import nn
from transformers import BertForSequenceClassification

from condensery.atomic_files import write_atomically
from condensery.errors import CondenseryError
from condensery.methods.ranking.sets import parse_set
from condensery.methods.rerank.batches import Batch, Batches, RankLoss
from condensery.methods.rerank.card import curve, make_card
from condensery.methods.rerank.evaluation import measure
from condensery.methods.rerank.model import fingerprint, open_base, write_model
from condensery.methods.rerank.negatives import Mined, load_or_mine, open_encoder
from condensery.methods.rerank.recipe import RerankRecipe
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.methods.rerank.sets import RankingSets, load_sets
from condensery.methods.rerank.sources import Sources
from condensery.methods.trainer.arguments import add_fields, add_machine, begin, read_fields
from condensery.methods.trainer.failures import TrainingStopped
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes, joined
from condensery.methods.trainer.questions import Wrong
from condensery.methods.trainer.trainer import Trainer
from condensery.networks.dtypes import dtype_name
from condensery.runtime.device import choose_dtype

log = logging.getLogger(__name__)
MODEL, DATA = "model", "data.json"
WHILE_TRAINING = 40  # held-out queries measured at each checkpoint; all of them at the end


def train(
    sources: Sources,
    base: Path,
    out: Path,
    recipe: RerankRecipe,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    every: int = 500,
    command: str = "",
    processes: Processes | None = None,
) -> Path:
    """Train, and write the model as transformers reads it; resumes from ``out``.

    Args:
        sources: What to train and measure on.
        base: A BERT's directory; it also finds negatives by its vectors, so it should be a
            sentence encoder, unless the recipe searches by words only.
        out: Folder for negatives, checkpoints, log, and the model in ``model/``.
        recipe: How to train.
        device: Where; default: the CPU.
        dtype: Of the weights in the forward pass; default: what the device multiplies best.
        every: Steps between checkpoints.
        command: For the card.
        processes: Those that train together.

    Returns:
        The model's folder.

    Raises:
        InputError: The data, the base or the recipe is of no use; names field and value.
        StoreError: The base is no encoder.
        TrainingStopped: As the trainer says.
    """
    processes = processes or Processes()
    device = device or torch.device("cpu")
    dtype = dtype or choose_dtype(device)
    model, reader = open_base(base, recipe.length, recipe.seed)
    batches_a_step = recipe.accumulate * processes.count
    sets = load_sets(sources, recipe, most=recipe.steps * batches_a_step * recipe.queries)
    out.mkdir(parents=True, exist_ok=True)
    mined = find_negatives(out, sets, recipe, base, device, dtype, processes)
    rows = [row for row, some in enumerate(mined.negatives) if some]
    report = {**sets.report, "left out: too few negatives": len(sets.train) - len(rows)}
    if processes.rank == 0:
        about = {**report, "sha256": sets.fingerprint()}
        write_atomically(out / DATA, json.dumps(about, indent=1) + "\n")
    nn.Module.to(model, device=device, dtype=dtype)
    if device.type == "cpu":
        model.set_attn_implementation("eager")  # SDPA's backward pass is slow in bf16 on a CPU
    about = {
        "base": fingerprint(base),
        "recipe": {k: v for k, v in asdict(recipe).items() if k != "accumulate"},
        "data": sets.fingerprint(),
        "dtype": dtype_name(dtype),
    }

    def figures(module: nn.Module, most: int | None = None) -> dict[str, object]:
        module.eval()
        return measure(CrossEncoder(module, reader).scores, sets, mined, most)

    def validate(module: nn.Module) -> dict[str, object]:
        found = figures(module, WHILE_TRAINING)
        return {name: found[name] for name in ("bm25", "encoder", "cross_encoder") if name in found}

    Trainer[BertForSequenceClassification, Batch](
        model,
        RankLoss(reader, recipe.objective),
        Batches(
            sets.passages,
            [sets.train[row] for row in rows],
            [mined.negatives[row] for row in rows],
            reader,
            recipe,
        ),
        recipe.trainer(every),
        out,
        groups=groups(model, recipe),
        names=lambda batch: batch.names,
        about=about,
        validate=validate,
        processes=processes,
    ).run()
    if processes.rank == 0:
        plot(out)
        card = make_card(sources, base, recipe, batches_a_step, command)
        card["data"] |= {"sha256": about["data"], **report}
        card["dtype"] = about["dtype"]
        card["base"]["sha256"] = about["base"]
        card["figures"] = {"held_out": figures(model), "while_training": curve(out)}
        write_model(out / MODEL, model, reader.tokenizer, card)
    return out / MODEL


def find_negatives(
    out: Path,
    sets: RankingSets,
    recipe: RerankRecipe,
    base: Path,
    device: torch.device,
    dtype: torch.dtype,
    processes: Processes,
) -> Mined:
    """Let the first process mine, or read what was mined; then all read the same.

    Raises:
        InputError: As ``load_or_mine`` does.
        TrainingStopped: In other processes, when the first could not.
    """

    def load() -> Mined:
        with ExitStack() as stack:
            words_only = recipe.search == "bm25"
            encoder = None if words_only else stack.enter_context(open_encoder(base, device, dtype))
            return load_or_mine(out, sets, recipe, encoder)

    failed: CondenseryError | None = None
    mined: Mined | None = None
    if processes.rank == 0:
        try:
            mined = load()
        except CondenseryError as error:
            failed = error
    if not processes.agree(failed is None, device):
        raise failed or TrainingStopped("the first process could not find negatives")
    return mined or load()


def groups(model: nn.Module, recipe: RerankRecipe) -> list[Group]:
    """Split the parameters: the base's and the head's, each matrices (decayed) or not."""
    split: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        rate = recipe.head_rate if name.startswith("classifier.") else recipe.rate
        decay = recipe.weight_decay if parameter.ndim > 1 else 0.0
        split.setdefault((rate, decay), []).append(parameter)
    return [Group(some, rate, decay) for (rate, decay), some in split.items()]


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train cross-encoder``."""
    parser = argparse.ArgumentParser(prog="condensery train cross-encoder", description=__doc__)
    parser.add_argument(
        "--base", type=Path, required=True, help="a BERT's directory, e.g. MiniLM's"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and model")
    parser.add_argument(
        "--data", type=Path, nargs="+", default=(), help="questions: JSONL, datasets"
    )
    parser.add_argument(
        "--retrieval-set",
        nargs="+",
        default=(),
        metavar="DIR:SPLIT",
        help="corpora with judgements",
    )
    parser.add_argument("--corpus", type=Path, nargs="+", default=(), help="more passages: JSONL")
    parser.add_argument("--not-like", type=Path, nargs="+", default=(), help="text kept out: JSONL")
    parser.add_argument("--wrong", choices=get_args(Wrong), default="refuse", help="rows (refuse)")
    parser.add_argument("--licence", default="not stated", help="the data's, for the card")
    add_machine(parser, every=500)
    add_fields(parser, RerankRecipe())
    given = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(given)
    recipe = read_fields(args, RerankRecipe)
    sources = Sources(
        args.data,
        [parse_set(text) for text in args.retrieval_set],
        args.corpus,
        args.not_like,
        args.wrong,
        args.licence,
    )
    device = begin(args)
    with joined(device) as processes:
        folder = train(
            sources,
            args.base,
            args.out,
            recipe,
            device=device,
            dtype=choose_dtype(device, args.dtype),
            every=args.every,
            command=f"condensery train cross-encoder {shlex.join(given)}",
            processes=processes,
        )
    log.info("the model is in %s", folder)


if __name__ == "__main__":
    main()
