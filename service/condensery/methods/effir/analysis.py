"""``condensery effir analyse``: the importance of every attention, MLP and layer of a model."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.effir.importance import GROUPS, Importance, measure
from condensery.methods.effir.report import draw_order
from condensery.methods.lm.text import read_documents
from condensery.methods.trainer.arguments import add_machine, begin
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.backbone import load_transformer
from condensery.networks.sublayers import family_of
from condensery.networks.weight_files import ModelFolder
from condensery.parsers import Parser
from condensery.runtime.device import choose_dtype

log = logging.getLogger(__name__)
NAME, PICTURE = "importance.json", "drop-order.png"
SAMPLES, LENGTH = 256, 2048  # LLM-Drop's


def blocks(
    paths: Iterable[Path], tokenizer: Tokenizer, end: int, *, length: int, count: int
) -> Tensor:
    """Cut text into blocks of equal length.

    Documents stand one after the other without special tokens but for one at each's end; what
    is left of the last block is not used. So no token is padding, and none begins a text.

    Args:
        paths: Text, see ``read_documents``.
        tokenizer: The model's.
        end: The token that ends a document.
        length: Tokens of a block.
        count: Blocks.

    Returns:
        Token ids, (count, length), int64.

    Raises:
        InputError: A file can't be read, or there is less text than that.
    """
    ids: list[int] = []
    for tokens in _tokens(paths, tokenizer):
        ids += [*tokens, end]
        if len(ids) >= length * count:
            return torch.tensor(ids[: length * count]).view(count, length)
    raise InputError(
        f"text: holds {len(ids)} tokens, fewer than {count} blocks of {length} take", field="text"
    )


def _tokens(paths: Iterable[Path], tokenizer: Tokenizer) -> Iterator[list[int]]:
    for text, _ in read_documents(paths):
        yield tokenizer.encode(text, add_special_tokens=False).ids


def analyse(
    model: Path | ModelFolder,
    texts: Sequence[Path],
    *,
    tokenizer: Path | None = None,
    samples: int = SAMPLES,
    length: int | None = None,
    end: str | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Importance:
    """Measure the importance of a model's sub-layers over calibration text.

    Args:
        model: A directory in transformers' layout.
        tokenizer: The directory of its ``tokenizer.json``; by default the model's.
        texts: Text files, JSONL files with a field ``text``, ``datasets`` folders.
        samples: Blocks of text to read.
        length: Tokens of a block; by default 2,048, or as many positions as the model has.
        end: The token that ends a document; by default the model's own.
        device: Where to run.
        dtype: What to compute in; cosines are fp32 always.

    Raises:
        InputError: There is too little text, or a number is of no use.
        CorruptModel: The model can't be loaded.
    """
    folder = ModelFolder.of(model)
    network = load_transformer(folder, device=device or torch.device("cpu"), dtype=dtype)
    model = folder.path
    try:
        family_of(network)
    except ValueError as error:
        raise InputError(f"model: {model}: {error}", field="model", value=str(model)) from error
    config: Any = network.config
    most = int(config.max_position_embeddings)
    length = min(LENGTH, most) if length is None else length
    for name, value, top in (("samples", samples, None), ("length", length, most)):
        if value < 1 or (top is not None and value > top):
            wanted = "at least 1" if top is None else f"from 1 to {top}, the model's positions"
            raise InputError(f"{name}={value}: must be {wanted}", field=name, value=value)
    reader = open_tokenizer(tokenizer or model)
    if reader.get_vocab_size() > config.vocab_size:
        raise InputError(
            f"model: {model}: tokenizer.json has {reader.get_vocab_size()} tokens, but the "
            f"embedding {config.vocab_size} rows (vocab_size)",
            field="model",
        )
    ids = blocks(texts, reader, _end(end, reader, config), length=length, count=samples)
    return measure(network, _one_by_one(ids, network.device))


def _one_by_one(ids: Tensor, device: torch.device) -> Iterator[Tensor]:
    for done, row in enumerate(ids, start=1):
        yield row[None].to(device)
        if done % 32 == 0 or done == len(ids):
            log.info("%d of %d blocks of text are read", done, len(ids))


def _end(name: str | None, tokenizer: Tokenizer, config: Any) -> int:
    """Return the id of the token that ends a document."""
    if name is not None:
        token = tokenizer.token_to_id(name)
        if token is None:
            raise InputError(f"end={name!r}: is no token of the model", field="end", value=name)
        return int(token)
    for key in ("eos_token_id", "sep_token_id"):
        value = getattr(config, key, None)
        value = value[0] if isinstance(value, list) else value
        if value is not None:
            return int(value)
    separator = tokenizer.token_to_id("[SEP]")
    if separator is None:
        raise InputError(
            "end: the model names neither eos_token_id nor sep_token_id; name the token that ends "
            "a document",
            field="end",
        )
    return int(separator)


def as_table(importance: Importance) -> str:
    """Return the figures as text, with each layer's place in the order of dropping."""
    places = {group: importance.order(group) for group in GROUPS}
    lines = ["layer" + "".join(f"{group:>13} dropped" for group in GROUPS)]
    for layer in range(len(importance.mlp)):
        cells = (
            f"{getattr(importance, group)[layer]:>13.6f} {places[group].index(layer) + 1:>7}"
            for group in GROUPS
        )
        lines.append(f"{layer:>5}{''.join(cells)}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``condensery effir analyse``."""
    parser = Parser(prog="condensery effir analyse", description=__doc__)
    add = parser.add_argument
    add("model", type=Path, help="a model's directory, in transformers' layout")
    add("--text", type=Path, nargs="+", required=True, help="calibration text, or rows with text")
    add("--samples", type=int, default=SAMPLES, help=f"blocks of text ({SAMPLES})")
    add("--length", type=int, help=f"tokens of a block ({LENGTH}, or the model's positions)")
    add("--end", help="token that ends a document (the model's)")
    add("--out", type=Path, required=True, help=f"folder for {NAME} and {PICTURE}")
    add_machine(parser, dtype="float32")
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    device = begin(args)
    dtype = choose_dtype(device, args.dtype)
    importance = analyse(
        args.model,
        args.text,
        samples=args.samples,
        length=args.length,
        end=args.end,
        device=device,
        dtype=dtype,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    orders = {group: importance.order(group) for group in GROUPS}
    values = {"format": 1, **asdict(importance), "dropped_first": orders}
    write_atomically(args.out / NAME, json.dumps(values, indent=1) + "\n")
    draw_order(importance, args.out / PICTURE)
    log.info("importance, and which is dropped first\n%s", as_table(importance))
    return 0
