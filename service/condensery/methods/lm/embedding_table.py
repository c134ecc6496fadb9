"""An encoder's word table, for a language model that shares it."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from condensery.errors import InputError
from condensery.networks.oscar_generator import standardised

TABLE = "model.embed_tokens.weight"  # of a Llama
TABLES = ("word_embeddings.weight", TABLE.removeprefix("model."))


def read_table(folder: Path) -> Tensor:
    """Read the word embeddings of a directory's safetensors files, standardised.

    Returns:
        (vocabulary, hidden), float32.

    Raises:
        InputError: There is no such tensor, or a file can't be read.
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118  # a shard can be iterated in no other way
                    if name.endswith(TABLES):
                        table: Tensor = shard.get_tensor(name)
                        return standardised(table)
        except (OSError, SafetensorError) as error:
            raise InputError(f"words: {path}: {error}", field="words") from error
    raise InputError(f"words: {folder} holds no word embeddings in safetensors", field="words")


def check_table(table: Tensor, vocabulary: int, width: int) -> None:
    """Check that a table is one of so many tokens and features.

    Raises:
        InputError: It is not; names field and value.
    """
    if len(table) < vocabulary:
        raise InputError(
            f"words: {len(table)} rows for a tokenizer of {vocabulary} tokens",
            field="words",
            value=len(table),
        )
    if table.shape[1] != width:
        raise InputError(
            f"width={width}: the word embeddings have {table.shape[1]} features",
            field="width",
            value=width,
        )
    if not torch.isfinite(table).all():
        raise InputError("words: holds values that are not finite", field="words")
