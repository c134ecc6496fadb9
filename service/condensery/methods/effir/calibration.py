"""Text to measure importance with, cut as LLM-Drop cuts it."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from condensery.errors import InputError
from condensery.methods.lm.text import read_documents


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
