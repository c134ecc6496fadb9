"""Train an extractive reader, what a pair is measured against: an encoder with a span head."""

import argparse
import json
import logging
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from transformers import BertForQuestionAnswering

from condensery.errors import InputError, shorten
from condensery.methods.ranking.parts import command_line
from condensery.methods.reader.batches import Batch, Row, collate, draw_rows
from condensery.methods.reader.data import load_data
from condensery.methods.reader.model import groups, new_reader, span_loss, write_model
from condensery.methods.reader.recipe import ReaderRecipe
from condensery.methods.reader.span_reader import MODEL, SpanReader
from condensery.methods.trainer.arguments import add_fields, add_machine, begin, read_fields
from condensery.methods.trainer.draws import Draw
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes, joined
from condensery.methods.trainer.tokenizing import open_tokenizer
from condensery.methods.trainer.trainer import Trainer
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar_packing import Specials
from condensery.question import exact_match, f1_score
from condensery.runtime.device import choose_dtype

log = logging.getLogger(__name__)
VALIDATED = 200  # questions asked at each checkpoint


def train(
    base: Path,
    questions: Sequence[Path],
    out: Path,
    recipe: ReaderRecipe,
    *,
    shares: Sequence[float] | None = None,
    not_like: Sequence[Path] = (),
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    every: int = 200,
    command: str = "",
    processes: Processes | None = None,
) -> Path:
    """Train, and write the reader as transformers reads it; resumes from ``out``.

    Args:
        base: Directory of the encoder (BERT).
        questions: Files or folders with passages that hold the answers.
        out: Folder for checkpoints, log, and the reader in ``model/``.
        recipe: How to train.
        shares: How often each of ``questions`` is drawn from; default: by its questions.
        not_like: Questions that are evaluated on: nothing like them is trained on.
        device: Where; default: the CPU.
        dtype: Of the weights in the forward pass; default: what the device multiplies best.
        every: Steps between checkpoints.
        command: For ``card.json``.
        processes: Those that train together.

    Returns:
        The reader's folder.

    Raises:
        InputError: Data, encoder or recipe are of no use; names field and value.
        TrainingStopped: As the trainer says.
    """
    processes = processes or Processes()
    device = device or torch.device("cpu")
    dtype = dtype or choose_dtype(device)
    if shares is not None and (len(shares) != len(questions) or not all(s > 0 for s in shares)):
        raise InputError(
            f"shares={list(shares)}: must be a positive number for each of {len(questions)} "
            "questions",
            field="shares",
            value=list(shares),
        )
    tokenizer = open_tokenizer(base)
    specials = Specials.of(tokenizer)
    model = new_reader(base, recipe)
    data = load_data(
        questions,
        tokenizer,
        not_like=not_like,
        held_articles=recipe.held_articles,
        seed=recipe.seed,
    )
    log.info("data %s", json.dumps(data.report))
    some = random.Random(recipe.seed)
    validated = some.sample(data.validation, min(VALIDATED, len(data.validation)))
    weights = list(shares or [len(source.examples) for source in data.sources])
    nn.Module.to(model, device=device, dtype=dtype)
    fixed = asdict(recipe)
    accumulate = fixed.pop("accumulate")
    about = {
        "recipe": fixed,
        "shares": weights,
        "data": data.report,
        "data_sha256": data.sha256,
        "dtype": dtype_name(dtype),
    }

    def draw(at: Draw) -> list[Row]:
        return draw_rows(
            data.sources,
            weights,
            at.rng(),
            tokens=recipe.tokens,
            sizes=(recipe.smallest, recipe.passage_tokens),
            question=recipe.query_tokens,
            others=recipe.others,
        )

    def names(batch: Batch) -> list[str]:
        rows = zip(batch.given["input_ids"].tolist(), batch.first, strict=True)
        return [shorten(tokenizer.decode(ids[1 : first - 1])) for ids, first in rows]

    def validate(module: BertForQuestionAnswering) -> dict[str, float]:
        if not validated:
            return {}
        found = SpanReader(module, tokenizer).read(
            [row.question for row in validated], [row.passages for row in validated]
        )
        pairs = [(one.text, row.answers) for one, row in zip(found, validated, strict=True)]
        return {
            name: 100 * sum(measure(*pair) for pair in pairs) / len(pairs)
            for name, measure in (("em", exact_match), ("f1", f1_score))
        }

    Trainer[BertForQuestionAnswering, Batch](
        model,
        span_loss,
        lambda at: collate(draw(at), specials),
        recipe.trainer(every),
        out,
        groups=groups(model, recipe),
        names=names,
        about=about,
        validate=validate,
        processes=processes,
    ).run()
    if processes.rank == 0:
        plot(out)
        card = {
            **about,
            "accumulate": accumulate,
            "processes": processes.count,
            "command": command,
            "torch": torch.__version__,
            "not_like": ["/".join(path.parts[-2:]) for path in not_like],
        }
        write_model(out, model, base / "tokenizer.json", card)
    return out / MODEL


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train extractive-reader``."""
    parser = argparse.ArgumentParser(prog="condensery train extractive-reader", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="encoder directory (BERT)")
    parser.add_argument("--questions", type=Path, nargs="+", required=True, help="to train on")
    parser.add_argument("--shares", type=float, nargs="+", help="of each of them, in the draws")
    parser.add_argument(
        "--not-like", type=Path, nargs="+", default=(), help="questions that are evaluated on"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and model")
    add_machine(parser, every=200)
    add_fields(parser, ReaderRecipe())
    given = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(given)
    device = begin(args)
    with joined(device) as processes:
        folder = train(
            args.base,
            args.questions,
            args.out,
            read_fields(args, ReaderRecipe),
            shares=args.shares,
            not_like=args.not_like,
            device=device,
            dtype=choose_dtype(device, args.dtype),
            every=args.every,
            command=command_line("train extractive-reader", given),
            processes=processes,
        )
    log.info("the reader is in %s", folder)


if __name__ == "__main__":
    main()
