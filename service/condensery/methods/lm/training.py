"""Train a small Llama-architecture causal language model from plain text."""

import argparse
import hashlib
import logging
import math
import random
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import LlamaForCausalLM

from condensery.errors import InputError
from condensery.methods.lm.model import (
    LmShape,
    Words,
    lm_loss,
    new_model,
    open_words,
    perplexity,
    save_model,
    train_words,
)
from condensery.methods.lm.text import Packed, Windows, read_documents, tokenise
from condensery.methods.trainer.checkpoints import sync
from condensery.methods.trainer.optimizer import Group
from condensery.methods.trainer.plots import plot
from condensery.methods.trainer.processes import Processes, joined
from condensery.methods.trainer.progress import read_log
from condensery.methods.trainer.recipe import Schedule, TrainerRecipe
from condensery.methods.trainer.trainer import Trainer
from condensery.runtime.device import choose_device, choose_dtype, tune_allocator
from condensery.store.store import ModelStore, shipped_store

log = logging.getLogger(__name__)
MODEL, TOKENIZER = "model", "tokenizer.json"
WHILE_TRAINING = 64  # held-out windows measured at each checkpoint; all of them at the end


@dataclass(frozen=True, slots=True)
class LmRecipe:
    """How a language model is trained.

    Attributes:
        steps: Optimizer steps in all.
        rows: Windows a batch.
        accumulate: Batches a step, in each process.
        rate: Learning rate.
        warmup: Steps of linear warm-up.
        schedule: ``cosine`` or ``linear``, how the rate falls.
        floor: Share of the rate at the end.
        weight_decay: AdamW's, on matrices.
        clip: Largest gradient norm.
        vocabulary: Tokens of a tokenizer that is trained; one that is given has its own.
        held_out: Share of the documents to measure on, where no text is given for it.
        seed: All chance comes from it.
    """

    steps: int = 4000
    rows: int = 16
    accumulate: int = 1
    rate: float = 1e-3
    warmup: int = 200
    schedule: str = "cosine"
    floor: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    vocabulary: int = 16_000
    held_out: float = 0.02
    seed: int = 13

    def trainer(self, every: int) -> TrainerRecipe:
        """Return what the trainer needs of it, with a checkpoint every so many steps."""
        return TrainerRecipe(
            steps=self.steps,
            accumulate=self.accumulate,
            warmup=self.warmup,
            schedule=cast(Schedule, self.schedule),
            floor=self.floor,
            clip=self.clip,
            betas=(0.9, 0.95),
            seed=self.seed,
            every=every,
        )


@dataclass(frozen=True, slots=True)
class Texts:
    """What a model is trained and measured on.

    Attributes:
        train: Files or folders, see ``read_documents``.
        held_out: The same; if there are none, a share of the training documents.
        licence: The text's, for the card.
    """

    train: Sequence[Path]
    held_out: Sequence[Path] = ()
    licence: str = "not stated"


def split_documents(texts: Texts, recipe: LmRecipe) -> tuple[list[str], list[str]]:
    """Read the documents to train on, and those to measure on, which are none of the first.

    Raises:
        InputError: There is nothing for one of the two.
    """
    train = list(read_documents(texts.train))
    held = list(read_documents(texts.held_out))
    if not texts.held_out:
        order = list(range(len(train)))
        random.Random(recipe.seed).shuffle(order)
        count = math.ceil(recipe.held_out * len(train))
        chosen = set(order[:count])
        held = [train[i] for i in sorted(chosen)]
        train = [text for i, text in enumerate(train) if i not in chosen]
    known = set(held)
    kept = [text for text in train if text not in known]  # a copy would be measured as learnt
    if len(kept) < len(train):
        log.warning("%d training documents are held out too: left out", len(train) - len(kept))
    for name, some in (("text", kept), ("held-out", held)):
        if not some:
            raise InputError(f"{name}: holds no document", field=name)
    return kept, held


def train(
    texts: Texts,
    out: Path,
    shape: LmShape,
    recipe: LmRecipe,
    *,
    tokenizer: Path | None = None,
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
    words = find_words(out, documents, tokenizer, recipe.vocabulary, processes, device)
    stream, measured = (
        tokenise(some, words.tokenizer, words.start, words.end) for some in (documents, held)
    )
    log.info("%d documents, %d tokens; held out: %d", len(documents), len(stream.ids), len(held))
    torch.manual_seed(recipe.seed)
    model = new_model(shape, words)
    nn.Module.to(model, device=device, dtype=dtype)
    if device.type == "cpu":
        model.set_attn_implementation("eager")  # SDPA's backward pass is slow in bf16 on a CPU
    about = {
        "shape": asdict(shape),
        "recipe": {k: v for k, v in asdict(recipe).items() if k != "accumulate"},
        "text": stream.sha256,
        "tokenizer": hashlib.sha256(words.tokenizer.to_str().encode()).hexdigest(),
        "dtype": str(dtype).removeprefix("torch."),
    }

    def measure(module: nn.Module, most: int | None = WHILE_TRAINING) -> dict[str, float]:
        return perplexity(module, measured, shape.length, recipe.rows, most)

    Trainer[LlamaForCausalLM, Packed](
        model,
        lm_loss,
        Windows(stream, recipe.rows, shape.length),
        recipe.trainer(every),
        out,
        groups=groups(model, recipe),
        names=lambda batch: [f"tokens {at} to {at + shape.length}" for at in batch.firsts],
        about=about,
        validate=measure,
        processes=processes,
    ).run()
    if processes.rank == 0:
        plot(out)
        card = {
            "architecture": "Llama, causal language model",
            "parameters": sum(p.numel() for p in model.parameters()),
            **about,
            "recipe": asdict(recipe),
            "batches_a_step": recipe.accumulate * processes.count,
            "data": {
                "train": [path.name for path in texts.train],
                "held_out": [path.name for path in texts.held_out]
                or f"{recipe.held_out:.1%} of the documents, by seed",
                "licence": texts.licence,
                "documents": len(documents),
                "held_out_documents": len(held),
                "bytes": stream.size,
                "tokens": len(stream.ids),
                "tokens_seen": recipe.steps
                * recipe.rows
                * recipe.accumulate
                * processes.count
                * shape.length,
            },
            "command": command,
            "seed": recipe.seed,
            "figures": {
                "held_out": measure(model, None),
                "while_training": [
                    {"step": row["step"], **row["validation"]}
                    for row in read_log(out)
                    if "validation" in row
                ],
            },
            "versions": {name: version(name) for name in ("condensery", "torch", "transformers")},
        }
        write_model(out, model, words, card)
    return out / MODEL


def find_words(
    out: Path,
    documents: Sequence[str],
    given: Path | None,
    vocabulary: int,
    processes: Processes,
    device: torch.device,
) -> Words:
    """Read the tokenizer, or train it on the text; a resumed run reads the one it trained."""
    if given is not None:
        return open_words(given)
    path = out / TOKENIZER
    if processes.rank == 0 and not path.exists():
        aside = path.with_name(f"{TOKENIZER}.partial")
        aside.write_text(train_words(documents, vocabulary).tokenizer.to_str())
        sync(aside)
        aside.replace(path)
    processes.agree(True, device)  # the others wait for the first
    return open_words(path)


def groups(model: nn.Module, recipe: LmRecipe) -> list[Group]:
    """Split the parameters: matrices (decayed) or not."""
    trained = list(model.parameters())  # tied embeddings once
    matrices = [p for p in trained if p.ndim > 1]
    return [
        Group(matrices, recipe.rate, recipe.weight_decay),
        Group([p for p in trained if p.ndim == 1], recipe.rate, 0.0),
    ]


def write_model(out: Path, model: LlamaForCausalLM, words: Words, card: dict[str, Any]) -> None:
    """Write the model's folder aside and put it in place of one that is there."""
    aside, old = out / f"{MODEL}.partial", out / f"{MODEL}.removed"
    for folder in (aside, old):
        shutil.rmtree(folder, ignore_errors=True)
    save_model(aside, model, words, card)
    for path in (*aside.iterdir(), aside):
        sync(path)
    if (out / MODEL).exists():
        (out / MODEL).rename(old)
    aside.rename(out / MODEL)
    shutil.rmtree(old, ignore_errors=True)


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
    parser.add_argument("--licence", default="not stated", help="the text's, for the card")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and model")
    parser.add_argument("--tokenizer", help="tokenizer.json, its folder, or a stored model's name")
    parser.add_argument("--store", type=Path, help="root of the stored models")
    parser.add_argument("--device", default="auto", help="cpu, cuda (auto)")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16 (auto)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    for part in (LmShape(), LmRecipe()):
        for name, default in asdict(part).items():
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, type=type(default), default=default, help=f"({default})")
    given = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    tune_allocator()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    device = choose_device(args.device)
    shape, recipe = (
        kind(**{field.name: getattr(args, field.name) for field in fields(kind)})
        for kind in (LmShape, LmRecipe)
    )
    with joined(device) as processes:
        folder = train(
            Texts(args.text, args.held_out_text, args.licence),
            args.out,
            cast(LmShape, shape),
            cast(LmRecipe, recipe),
            tokenizer=find_tokenizer(args.tokenizer, args.store) if args.tokenizer else None,
            device=device,
            dtype=choose_dtype(device, args.dtype),
            every=args.every,
            command=f"condensery train lm {shlex.join(given)}",
            processes=processes,
        )
    log.info("the model is in %s", folder)


if __name__ == "__main__":
    main()
