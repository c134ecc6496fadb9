"""Train an extractive reader, what a pair is measured against: an encoder with a span head."""

import json
import logging
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForQuestionAnswering

from condensery.agreement import exact_match, f1_score
from condensery.errors import InputError, shorten
from condensery.methods.reader.batches import FORMS, Batch, PairForm, collate, draw_rows
from condensery.methods.reader.data import ReaderData, load_data
from condensery.methods.reader.recipe import ReaderRecipe
from condensery.methods.reader.span_reader import SpanReader, is_reader
from condensery.methods.trainer.arguments import add_fields, add_machine, open_setup, read_fields
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.publishing import (
    MODEL,
    model_folder,
    recipe_identity,
    training_facts,
)
from condensery.methods.trainer.reports import command_line
from condensery.methods.trainer.texts import open_tokenizer
from condensery.methods.trainer.trainer import run_training
from condensery.networks.dtypes import dtype_name
from condensery.parsers import Parser
from condensery.store.layouts import text_positions

log = logging.getLogger(__name__)
VALIDATED = 200  # questions asked at each checkpoint


def new_reader(base: Path, recipe: ReaderRecipe) -> Any:
    """Put a fresh span head on the encoder at ``base``; a reader that is there keeps its own.

    Raises:
        InputError: There is no BERT or MPNet, or it has too few positions.
    """
    torch.manual_seed(recipe.seed)
    try:
        config: Any = AutoConfig.from_pretrained(
            base, local_files_only=True, trust_remote_code=False
        )
        if config.model_type not in FORMS:
            raise ValueError(f"a {config.model_type}, and read are {', '.join(FORMS)}")
        model: Any = AutoModelForQuestionAnswering.from_pretrained(
            base,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",  # SDPA's backward pass is slow in bf16 on a CPU
            attention_probs_dropout_prob=0.0,  # crops vary enough
            hidden_dropout_prob=0.0,
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{base}: no encoder ({error})", field="base", value=str(base)) from error
    needed = recipe.query_tokens + recipe.passage_tokens + 3
    positions = text_positions(
        config.model_type, config.max_position_embeddings, config.pad_token_id
    )
    if needed > positions:
        raise InputError(
            f"passage_tokens={recipe.passage_tokens}: with the question that is {needed} "
            f"positions, and the encoder has {positions}",
            field="passage_tokens",
            value=recipe.passage_tokens,
        )
    if not is_reader(config):
        nn.init.normal_(model.qa_outputs.weight, std=config.initializer_range)
        nn.init.zeros_(model.qa_outputs.bias)
    for name in ("passage_tokens", "query_tokens", "answer_tokens"):
        setattr(model.config, name, getattr(recipe, name))
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


def span_loss(model: Any, batch: Batch) -> Loss:
    """Return the mean cross-entropy of first and last token, over the passage and "none"."""
    device = model.device
    out = model(**{name: values.to(device) for name, values in batch.inputs.items()})
    spans, rows = batch.spans.to(device), len(batch.first)
    terms = {}
    for name, logits, wanted in (
        ("start", out.start_logits, batch.start),
        ("end", out.end_logits, batch.end),
    ):
        terms[name] = F.cross_entropy(
            logits.float().masked_fill(~spans, -torch.inf), wanted.to(device)
        )
    return Loss((terms["start"] + terms["end"]) / 2, weight=rows, items=rows, terms=terms)


class ReaderTraining(Method[Any, Batch]):
    """The training of a span head and its encoder, measured on held-out articles; see ``train``."""

    def __init__(
        self,
        base: Path,
        data: ReaderData,
        shares: Sequence[float] | None,
        not_like: Sequence[Path],
        model: Any,
        recipe: ReaderRecipe,
        setup: TrainingSetup,
    ) -> None:
        self._base, self._data, self._not_like, self._setup = base, data, not_like, setup
        self._shares = list(shares or [len(source.examples) for source in data.sources])
        self._own_recipe, self.recipe = recipe, recipe.trainer(setup.every)
        self._tokenizer = open_tokenizer(base)
        self._form = PairForm.of(self._tokenizer, model.config.model_type)
        answerable = [row for row in data.validation if row.answerable]
        self._validated = random.Random(recipe.seed).sample(
            answerable, min(VALIDATED, len(answerable))
        )
        self.module = model
        setup.place(model)
        self.identity = {
            "recipe": recipe_identity(recipe),
            "shares": self._shares,
            "data": data.report,
            "data_sha256": data.sha256,
            "dtype": dtype_name(setup.dtype),
        }

    def batch(self, draw: Draw) -> Batch:
        """Return questions of one source with cropped passages."""
        recipe = self._own_recipe
        rows = draw_rows(
            self._data.sources,
            self._shares,
            draw.rng(),
            tokens=recipe.tokens,
            sizes=(recipe.smallest, recipe.passage_tokens),
            question=recipe.query_tokens,
            others=recipe.others,
        )
        return collate(rows, self._form)

    def loss(self, batch: Batch) -> Loss:
        """Return the cross-entropy of where answers begin and end."""
        return span_loss(self.module, batch)

    def groups(self) -> list[Group]:
        """Return the encoder's parameters and the head's."""
        recipe = self._own_recipe

        def rate(name: str) -> float:
            return recipe.new_rate if name.startswith("qa_outputs.") else recipe.backbone_rate

        return split_groups(self.module, rate, recipe.weight_decay)

    def names(self, batch: Batch) -> list[str]:
        """Return the questions."""
        rows = zip(batch.inputs["input_ids"].tolist(), batch.first, strict=True)
        return [shorten(self._tokenizer.decode(ids[1 : first - 1])) for ids, first in rows]

    def evaluate(self) -> dict[str, object]:
        """Return EM and F1 in percent on questions of held-out articles; nothing without any."""
        rows = self._validated
        if not rows:
            return {}
        spans = SpanReader(self.module, self._tokenizer).read(
            [row.question for row in rows], [row.passages for row in rows]
        )
        pairs = [(span.text, row.answers) for span, row in zip(spans, rows, strict=True)]
        return {
            name: 100 * sum(measure(*pair) for pair in pairs) / len(pairs)
            for name, measure in (("em", exact_match), ("f1", f1_score))
        }

    def write(self, out: Path) -> None:
        """Write the reader as transformers reads it."""
        card = {
            **self.identity,
            **training_facts(self._own_recipe, self._setup),
            "not_like": ["/".join(path.parts[-2:]) for path in self._not_like],
        }
        with model_folder(out, card) as folder:
            self.module.save_pretrained(folder)
            shutil.copy(self._base / "tokenizer.json", folder)


def train(
    base: Path,
    questions: Sequence[Path],
    out: Path,
    recipe: ReaderRecipe,
    *,
    shares: Sequence[float] | None = None,
    not_like: Sequence[Path] = (),
    setup: TrainingSetup | None = None,
) -> Path:
    """Train, and write the reader as transformers reads it; resumes from ``out``.

    Args:
        base: Directory of the encoder (BERT or MPNet), or of a reader to go on from.
        questions: Files or folders with passages that hold the answers.
        out: Folder for checkpoints, log, and the reader in ``model/``.
        recipe: How to train.
        shares: How often each of ``questions`` is drawn from; default: by its questions.
        not_like: Questions that are evaluated on: nothing like them is trained on.
        setup: Where, and how often it saves; default: the CPU.

    Returns:
        The reader's folder.

    Raises:
        InputError: Data, encoder or recipe are of no use; names field and value.
        TrainingStopped: As ``run_training`` says.
    """
    setup = setup or TrainingSetup()
    if shares is not None and (len(shares) != len(questions) or not all(s > 0 for s in shares)):
        raise InputError(
            f"shares={list(shares)}: must be a positive number for each of {len(questions)} "
            "questions",
            field="shares",
            value=list(shares),
        )
    tokenizer = open_tokenizer(base)
    model = new_reader(base, recipe)
    data = load_data(
        questions,
        tokenizer,
        not_like=not_like,
        held_articles=recipe.held_articles,
        seed=recipe.seed,
    )
    log.info("data %s", json.dumps(data.report))
    method = ReaderTraining(base, data, shares, not_like, model, recipe, setup)
    run_training(method, out, setup.processes)
    return out / MODEL


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train extractive-reader``."""
    parser = Parser(prog="condensery train extractive-reader", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="encoder (BERT, MPNet) or reader")
    parser.add_argument("--questions", type=Path, nargs="+", required=True, help="to train on")
    parser.add_argument("--shares", type=float, nargs="+", help="of each of them, in the draws")
    parser.add_argument(
        "--not-like", type=Path, nargs="+", default=(), help="questions that are evaluated on"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and model")
    add_machine(parser, every=200)
    add_fields(parser, ReaderRecipe())
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    with open_setup(args, command_line("train extractive-reader", argv)) as setup:
        folder = train(
            args.base,
            args.questions,
            args.out,
            read_fields(args, ReaderRecipe),
            shares=args.shares,
            not_like=args.not_like,
            setup=setup,
        )
    log.info("the reader is in %s", folder)


if __name__ == "__main__":
    main()
