"""Train a small Llama-architecture causal language model from plain text."""

import argparse
import hashlib
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaForCausalLM

from condensery.atomic_files import atomic_folder, write_atomically
from condensery.errors import InputError, shorten
from condensery.methods.lm.card import figures, make_card
from condensery.methods.lm.documents import Texts, split_documents
from condensery.methods.lm.embedding_table import read_table
from condensery.methods.lm.model import (
    MODEL,
    LmShape,
    LmTokenizer,
    lm_loss,
    new_model,
    open_lm_tokenizer,
    perplexity,
    save_model,
    train_lm_tokenizer,
)
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.lm.text import Packed, Windows, tokenise
from condensery.methods.trainer.arguments import add_fields, add_machine, begin, read_fields
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes, joined
from condensery.methods.trainer.trainer import Trainer
from condensery.networks.dtypes import dtype_name
from condensery.runtime.device import choose_dtype
from condensery.store.store import ModelStore, shipped_store

log = logging.getLogger(__name__)
TOKENIZER = "tokenizer.json"
WHILE_TRAINING = 64  # held-out windows measured at each checkpoint; all of them at the end


def train(
    texts: Texts,
    out: Path,
    shape: LmShape,
    recipe: LmRecipe,
    *,
    tokenizer: Path | None = None,
    table: torch.Tensor | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    every: int = 500,
    command: str = "",
    processes: Processes | None = None,
) -> Path:
    """Train, and write the model as transformers reads it; resumes from ``out``.

    Args:
        texts: What to train and measure on.
        out: Folder for checkpoints, log, and the model in ``model/``.
        shape: The model's dimensions.
        recipe: How to train.
        tokenizer: A ``tokenizer.json`` or its folder; None trains one on the text.
        table: Word embeddings to share and keep, (vocabulary, width); see ``new_model``.
        device: Where; default: the CPU.
        dtype: Of the weights in the forward pass; default: what the device multiplies best.
        every: Steps between checkpoints.
        command: For the card.
        processes: Those that train together.

    Returns:
        The model's folder.

    Raises:
        InputError: The text, the tokenizer or the shape is of no use; names field and value.
        TrainingStopped: As the trainer says.
    """
    processes = processes or Processes()
    device = device or torch.device("cpu")
    dtype = dtype or choose_dtype(device)
    out.mkdir(parents=True, exist_ok=True)
    documents, held = split_documents(texts, recipe)
    words = read_or_train_tokenizer(out, documents, tokenizer, recipe.vocabulary, processes, device)
    stream, measured = (
        tokenise(some, words.tokenizer, words.start, words.end) for some in (documents, held)
    )
    log.info("%d documents, %d tokens; held out: %d", len(documents), len(stream.ids), len(held))
    torch.manual_seed(recipe.seed)
    model = new_model(shape, words, table)
    nn.Module.to(model, device=device, dtype=dtype)
    if device.type == "cpu":
        model.set_attn_implementation("eager")  # SDPA's backward pass is slow in bf16 on a CPU
    about = {
        "shape": asdict(shape),
        "recipe": {k: v for k, v in asdict(recipe).items() if k != "accumulate"},
        "text": stream.sha256,
        "tokenizer": hashlib.sha256(words.tokenizer.to_str().encode()).hexdigest(),
        "dtype": dtype_name(dtype),
        **({"words": _digest(table)} if table is not None else {}),
    }

    def measure(module: nn.Module, most: int | None = None) -> dict[str, float]:
        return perplexity(module, measured, shape.length, recipe.rows, most)

    def validate(module: nn.Module) -> dict[str, float]:
        found = measure(module, WHILE_TRAINING)
        return {name: found[name] for name in ("perplexity", "bits_per_byte")}

    def name(batch: Packed) -> list[str]:
        texts = words.tokenizer.decode_batch(batch.ids[:, :24].tolist())
        return [
            f"token {at}, {shorten(text)}" for at, text in zip(batch.firsts, texts, strict=True)
        ]

    Trainer[LlamaForCausalLM, Packed](
        model,
        lm_loss,
        Windows(stream, recipe.rows, shape.length),
        recipe.trainer(every),
        out,
        groups=groups(model, recipe),
        names=name,
        about=about,
        validate=validate,
        processes=processes,
    ).run()
    if processes.rank == 0:
        plot(out)
        counts = (len(documents), len(held))
        card = {
            **about,
            **make_card(texts, recipe, shape, stream, counts, processes.count, command),
            "parameters": sum(p.numel() for p in model.parameters()),
            "figures": figures(out, measure(model)),
        }
        with atomic_folder(out / MODEL) as folder:
            save_model(folder, model, words, card)
    return out / MODEL


def _digest(table: torch.Tensor) -> str:
    return hashlib.sha256(table.float().contiguous().numpy().tobytes()).hexdigest()


def read_or_train_tokenizer(
    out: Path,
    documents: Sequence[str],
    given: Path | None,
    vocabulary: int,
    processes: Processes,
    device: torch.device,
) -> LmTokenizer:
    """Read the tokenizer, or train it on the text; a resumed run reads the one it trained."""
    if given is not None:
        return open_lm_tokenizer(given)
    path = out / TOKENIZER
    if processes.rank == 0 and not path.exists():
        write_atomically(path, train_lm_tokenizer(documents, vocabulary).tokenizer.to_str())
    processes.agree(True, device)  # the others wait for the first
    return open_lm_tokenizer(path)


def groups(model: nn.Module, recipe: LmRecipe) -> list[Group]:
    """Split the parameters: matrices (decayed) or not."""
    trained = [p for p in model.parameters() if p.requires_grad]  # tied embeddings once
    matrices = [p for p in trained if p.ndim > 1]
    return [
        Group(matrices, recipe.rate, recipe.weight_decay),
        Group([p for p in trained if p.ndim == 1], recipe.rate, 0.0),
    ]


def find_tokenizer(name: str, store: Path | None) -> Path:
    """Return the file or folder of that name, or the stored model's.

    Raises:
        InputError: There is neither.
        ModelNotFound: The stores hold no such model.
    """
    if Path(name).exists():
        return Path(name)
    if store is None:
        raise InputError(
            f"tokenizer: {name!r} is no file or folder; for a stored model's, give --store",
            field="tokenizer",
            value=name,
        )
    return ModelStore(shipped_store(), store).open(name).path


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery train lm``."""
    parser = argparse.ArgumentParser(prog="condensery train lm", description=__doc__)
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
    given = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(given)
    device = begin(args)
    named = args.words or args.tokenizer
    if args.words and args.tokenizer:
        parser.error("--words brings its own --tokenizer")
    if wrong := [one for one in args.without if "=" not in one]:
        parser.error(f"--without {wrong[0]}: must be FIELD=VALUE")
    tokenizer = find_tokenizer(named, args.store) if named else None
    with joined(device) as processes:
        folder = train(
            Texts(
                args.text,
                args.held_out_text,
                args.licence,
                without=[tuple(one.split("=", 1)) for one in args.without],
                not_like=args.not_like,
            ),
            args.out,
            read_fields(args, LmShape),
            read_fields(args, LmRecipe),
            tokenizer=tokenizer,
            table=read_table(tokenizer) if args.words and tokenizer else None,
            device=device,
            dtype=choose_dtype(device, args.dtype),
            every=args.every,
            command=f"condensery train lm {shlex.join(given)}",
            processes=processes,
        )
    log.info("the model is in %s", folder)


if __name__ == "__main__":
    main()
