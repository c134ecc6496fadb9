"""Train a small Llama-architecture causal language model from plain text."""

import hashlib
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from condensery.atomic_files import write_atomically
from condensery.errors import InputError, shorten
from condensery.methods.lm.card import figures, make_card
from condensery.methods.lm.model import (
    LmShape,
    LmTokenizer,
    lm_loss,
    new_model,
    open_lm_tokenizer,
    perplexity,
    read_table,
    save_model,
    train_lm_tokenizer,
)
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.lm.text import Packed, Texts, Windows, split_documents, tokenise
from condensery.methods.trainer.arguments import add_fields, add_machine, open_setup, read_fields
from condensery.methods.trainer.method import Draw, Loss, Method, TrainingSetup
from condensery.methods.trainer.optimizer import Group, split_groups
from condensery.methods.trainer.publishing import MODEL, model_folder, recipe_identity
from condensery.methods.trainer.trainer import run_training
from condensery.networks.dtypes import dtype_name
from condensery.networks.weight_files import ModelFolder
from condensery.parsers import Parser
from condensery.store.store import ModelStore, shipped_store
from condensery.store.weights import open_folder

log = logging.getLogger(__name__)
TOKENIZER = "tokenizer.json"
WHILE_TRAINING = 64  # held-out windows measured at each checkpoint; all of them at the end


class LmTraining(Method[LlamaForCausalLM, Packed]):
    """The training of a language model on one text, measured on another; see ``train``."""

    def __init__(
        self,
        texts: Texts,
        documents: tuple[Sequence[str], Sequence[str]],
        words: LmTokenizer,
        shape: LmShape,
        recipe: LmRecipe,
        setup: TrainingSetup,
        table: torch.Tensor | None = None,
    ) -> None:
        self._texts, self._words, self._shape, self._setup = texts, words, shape, setup
        self._counts = (len(documents[0]), len(documents[1]))
        self._stream, self._held_out = (
            tokenise(some, words.tokenizer, words.start, words.end) for some in documents
        )
        log.info(
            "%d documents, %d tokens; held out: %d",
            self._counts[0], len(self._stream.ids), self._counts[1],
        )  # fmt: skip
        torch.manual_seed(recipe.seed)
        self.module = new_model(shape, words, table)
        setup.place(self.module)
        self._own_recipe, self.recipe = recipe, recipe.trainer(setup.every)
        self._windows = Windows(self._stream, recipe.rows, shape.length)
        self.identity = {
            "shape": asdict(shape),
            "recipe": recipe_identity(recipe),
            "text": self._stream.sha256,
            "tokenizer": hashlib.sha256(words.tokenizer.to_str().encode()).hexdigest(),
            "dtype": dtype_name(setup.dtype),
            **({"words": _digest(table)} if table is not None else {}),
        }

    def batch(self, draw: Draw) -> Packed:
        """Return windows of the text."""
        return self._windows(draw)

    def loss(self, batch: Packed) -> Loss:
        """Return the negative log-likelihood of a token."""
        return lm_loss(self.module, batch)

    def groups(self) -> list[Group]:
        """Return all weights but a shared word table's."""
        return split_groups(self.module, self._own_recipe.rate, self._own_recipe.weight_decay)

    def names(self, batch: Packed) -> list[str]:
        """Return how each window begins."""
        texts = self._words.tokenizer.decode_batch(batch.ids[:, :24].tolist())
        return [
            f"token {at}, {shorten(text)}" for at, text in zip(batch.firsts, texts, strict=True)
        ]

    def evaluate(self) -> dict[str, object]:
        """Return perplexity and bits a byte on the first held-out windows."""
        measured = self._measure(WHILE_TRAINING)
        return {name: measured[name] for name in ("perplexity", "bits_per_byte")}

    def write(self, out: Path) -> None:
        """Write the model as transformers reads it, with figures on all held-out text."""
        card = {
            **self.identity,
            **make_card(
                self._texts, self._own_recipe, self._shape, self._stream, self._counts, self._setup
            ),
            "parameters": sum(p.numel() for p in self.module.parameters()),
            "figures": figures(out, self._measure()),
        }
        with model_folder(out, card) as folder:
            save_model(folder, self.module, self._words)

    def _measure(self, most: int | None = None) -> dict[str, float]:
        rows = self._own_recipe.rows
        return perplexity(self.module, self._held_out, self._shape.length, rows, most)


def train(
    texts: Texts,
    out: Path,
    shape: LmShape,
    recipe: LmRecipe,
    *,
    tokenizer: Path | None = None,
    table: torch.Tensor | None = None,
    setup: TrainingSetup | None = None,
) -> Path:
    """Train, and write the model as transformers reads it; resumes from ``out``.

    Args:
        texts: What to train and measure on.
        out: Folder for checkpoints, log, and the model in ``model/``.
        shape: The model's dimensions.
        recipe: How to train.
        tokenizer: A ``tokenizer.json`` or its folder; None trains one on the text.
        table: Word embeddings to share and keep, (vocabulary, width); see ``new_model``.
        setup: Where, and how often it saves; default: the CPU.

    Returns:
        The model's folder.

    Raises:
        InputError: The text, the tokenizer or the shape is of no use; names field and value.
        TrainingStopped: As ``run_training`` says.
    """
    setup = setup or TrainingSetup()
    out.mkdir(parents=True, exist_ok=True)
    documents = split_documents(texts, recipe)
    words = read_or_train_tokenizer(out, documents[0], tokenizer, recipe.vocabulary, setup)
    method = LmTraining(texts, documents, words, shape, recipe, setup, table)
    run_training(method, out, setup.processes)
    return out / MODEL


def _digest(table: torch.Tensor) -> str:
    return hashlib.sha256(table.float().contiguous().numpy().tobytes()).hexdigest()


def read_or_train_tokenizer(
    out: Path,
    documents: Sequence[str],
    existing: Path | None,
    vocabulary: int,
    setup: TrainingSetup,
) -> LmTokenizer:
    """Read the tokenizer, or train it on the text; a resumed run reads the one it trained."""
    if existing is not None:
        return open_lm_tokenizer(existing)
    path = out / TOKENIZER
    if setup.is_first and not path.exists():
        write_atomically(path, train_lm_tokenizer(documents, vocabulary).tokenizer.to_str())
    setup.processes.agree(True, setup.device)  # the others wait for the first
    return open_lm_tokenizer(path)


def find_source(name: str, store: Path | None) -> ModelFolder:
    """Return the folder of that name (a tokenizer's file too), or the stored model's.

    Raises:
        InputError: There is neither.
        ModelNotFound: The stores hold no such model.
    """
    if Path(name).exists():
        return ModelFolder.of(Path(name))
    if store is None:
        raise InputError(
            f"tokenizer: {name!r} is no file or folder; for a stored model's, give --store",
            field="tokenizer",
            value=name,
        )
    return open_folder(ModelStore(shipped_store(), store).open(name))


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train lm``."""
    parser = Parser(prog="condensery train lm", description=__doc__)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text, JSONL, datasets")
    parser.add_argument("--held-out-text", type=Path, nargs="+", default=(), help="to measure on")
    parser.add_argument(
        "--without", nargs="+", default=(), metavar="FIELD=VALUE", help="rows of --text left out"
    )
    parser.add_argument(
        "--not-like", type=Path, nargs="+", default=(), help="what others are measured on"
    )
    parser.add_argument("--licence", default="not stated", help="the text's, for the card")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and model")
    parser.add_argument("--tokenizer", help="tokenizer.json, its folder, or a stored model's name")
    parser.add_argument(
        "--words", help="folder or stored encoder whose tokenizer and word embeddings are shared"
    )
    parser.add_argument("--store", type=Path, help="root of the stored models")
    add_machine(parser, every=500)
    for part in (LmShape(), LmRecipe()):
        add_fields(parser, part)
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    named = args.words or args.tokenizer
    if args.words and args.tokenizer:
        parser.error("--words brings its own --tokenizer")
    if wrong := [text for text in args.without if "=" not in text]:
        parser.error(f"--without {wrong[0]}: must be FIELD=VALUE")
    with open_setup(args, f"{parser.prog} {shlex.join(argv)}") as setup:
        source = find_source(named, args.store) if named else None
        folder = train(
            Texts(
                args.text,
                args.held_out_text,
                args.licence,
                without=[tuple(text.split("=", 1)) for text in args.without],
                not_like=args.not_like,
            ),
            args.out,
            read_fields(args, LmShape),
            read_fields(args, LmRecipe),
            tokenizer=source.path if source else None,
            table=read_table(source) if args.words and source else None,
            setup=setup,
        )
    log.info("the model is in %s", folder)


if __name__ == "__main__":
    main()
