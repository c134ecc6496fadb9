"""Plain text for a language model: documents to train and measure on, tokens, packed windows.

Windows are cut from the stream of all documents, so that nothing is padding. Attention is
block-diagonal: a token sees its own document only, and positions begin again with each. A
generator reads one prompt at a time, so text of another document before it is something it
should not learn to expect; and the perplexity of held-out text does not depend on what it
happens to be packed beside. The mask costs nothing on a CPU, where attention is eager.
"""

import hashlib
import logging
import math
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from condensery.errors import InputError
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.trainer.method import Draw
from condensery.methods.trainer.rows import JSONL, Row, read_lines, read_rows
from condensery.methods.trainer.texts import HeldOutText

log = logging.getLogger(__name__)
Ids = NDArray[np.int32]
IGNORED = -100


def read_documents(
    paths: Iterable[Path], without: Collection[tuple[str, str]] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the documents of text files, JSONL files and ``datasets`` folders, with their titles.

    In plain text (.txt, also packed as .gz or .xz) an empty line ends a document; in the others
    each row is one, its field ``text``, its title the field ``title``, or "".

    Args:
        paths: Files and folders.
        without: Names and values of fields; rows that have one of them are passed over.

    Raises:
        InputError: A file can't be read, or a row has no text; names file and line.
    """
    for path in paths:
        if path.is_dir() or path.name.endswith(JSONL):
            for row in read_rows(path):
                text = row.value.get("text")
                if not isinstance(text, str):
                    raise InputError(f"{row.where}: text: {text!r} is no text", field="text")
                passed = any(row.value.get(name) == value for name, value in without)
                if text.strip() and not passed:
                    yield text, str(row.value.get("title") or "")
        else:
            lines: list[str] = []
            for line in read_lines(path):
                if line.strip():
                    lines.append(line)
                elif lines:
                    yield "".join(lines), ""
                    lines = []
            if lines:
                yield "".join(lines), ""


@dataclass(frozen=True, slots=True)
class Texts:
    """What a model is trained and measured on.

    Attributes:
        train: Files or folders, see ``read_documents``.
        held_out: The same; if there are none, a share of the training documents.
        licence: The text's, for the card.
        without: Names and values of fields; rows that have one of them are left out.
        not_like: Questions or texts that others are measured on: documents that share ten words
            in a row with their contexts, or the title, are left out.
    """

    train: Sequence[Path]
    held_out: Sequence[Path] = ()
    licence: str = "not stated"
    without: Sequence[tuple[str, str]] = ()
    not_like: Sequence[Path] = ()


def split_documents(texts: Texts, recipe: LmRecipe) -> tuple[list[str], list[str]]:
    """Read the documents to train on, and those to measure on, which are none of the first.

    Raises:
        InputError: There is nothing for one of the two.
    """
    train = _unlike(list(read_documents(texts.train, texts.without)), texts.not_like)
    held_out = [text for text, _ in read_documents(texts.held_out)]
    if not texts.held_out:
        order = list(range(len(train)))
        random.Random(recipe.seed).shuffle(order)
        count = math.ceil(recipe.held_out * len(train))
        chosen = set(order[:count])
        held_out = [train[i] for i in sorted(chosen)]
        train = [text for i, text in enumerate(train) if i not in chosen]
    known = set(held_out)
    kept = [text for text in train if text not in known]  # a copy would be measured as learnt
    if len(kept) < len(train):
        log.warning("%d training documents are held out too: left out", len(train) - len(kept))
    for name, documents in (("text", kept), ("held-out", held_out)):
        if not documents:
            raise InputError(f"{name}: holds no document", field=name)
    return kept, held_out


def _unlike(documents: list[tuple[str, str]], measured: Sequence[Path]) -> list[str]:
    """Return the documents that share neither ten words in a row nor a title with ``measured``."""
    rows = [row for path in measured for row in read_rows(path)]
    for row in rows:
        if not isinstance(_text(row), str):
            raise InputError(f"{row.where}: has neither context nor text", field="context")
    held_out = HeldOutText({_text(row) for row in rows})
    titles = {_plain(str(title)) for row in rows if (title := row.value.get("title"))}
    kept = [
        text
        for text, title in documents
        if _plain(title) not in titles and not held_out.shares(text)
    ]
    if len(kept) < len(documents):
        log.info(
            "%d documents are too like what is measured on: left out", len(documents) - len(kept)
        )
    return kept


def _text(row: Row) -> Any:
    return row.value.get("context", row.value.get("text"))


def _plain(title: str) -> str:
    return title.replace("_", " ").lower()


@dataclass(frozen=True, slots=True)
class Stream:
    """Documents one after the other.

    Attributes:
        ids: Their tokens, (tokens,), each document between the start and the end token.
        begins: Where each document begins, ascending, (documents,).
        size: Bytes of their text.
        sha256: Of their text, for the card.
    """

    ids: Ids
    begins: NDArray[np.int64]
    size: int
    sha256: str

    def windows(self, length: int) -> int:
        """Return how many whole windows of ``length`` tokens there are."""
        return len(self.ids) // length


def tokenise(documents: Sequence[str], tokenizer: Tokenizer, start: int, end: int) -> Stream:
    """Tokenise documents into one stream.

    Raises:
        InputError: There are none.
    """
    if not documents:
        raise InputError("text: holds no document", field="text")
    pieces, digest, size = [], hashlib.sha256(), 0
    for at in range(0, len(documents), 256):
        some = documents[at : at + 256]
        for text, encoded in zip(
            some, tokenizer.encode_batch(list(some), add_special_tokens=False), strict=True
        ):
            pieces.append(np.array([start, *encoded.ids, end], dtype=np.int32))
            data = text.encode()
            digest.update(data)
            size += len(data)
    begins = np.cumsum([0, *(len(piece) for piece in pieces[:-1])], dtype=np.int64)
    return Stream(np.concatenate(pieces), begins, size, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Packed:
    """Windows of a stream.

    Attributes:
        ids: Tokens, (rows, length).
        positions: Of each token in its document, or in what of it the window holds.
        labels: The token to be said after each; ``IGNORED`` at a document's end and a window's.
        firsts: Index of each window's first token in the stream.
    """

    ids: Tensor
    positions: Tensor
    labels: Tensor
    firsts: tuple[int, ...]


def pack(stream: Stream, firsts: Sequence[int], length: int) -> Packed:
    """Cut the windows of ``length`` tokens that begin at ``firsts``."""
    at = np.array(firsts, dtype=np.int64)[:, None] + np.arange(length)
    ids = stream.ids[at].astype(np.int64)
    begin = stream.begins[np.searchsorted(stream.begins, at, side="right") - 1]
    positions = at - np.maximum(begin, at[:, :1])
    labels = np.full_like(ids, IGNORED)
    labels[:, :-1] = np.where(positions[:, 1:] > 0, ids[:, 1:], IGNORED)
    return Packed(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        labels=torch.from_numpy(labels),
        firsts=tuple(map(int, firsts)),
    )


class Windows:
    """All windows of a stream in a new order every epoch, each epoch cut at other places.

    Args:
        stream: The text.
        rows: Windows a batch.
        length: Tokens a window.

    Raises:
        InputError: The text does not fill two windows.
    """

    def __init__(self, stream: Stream, rows: int, length: int) -> None:
        self._count = stream.windows(length) - 1  # one less: so that they can be cut elsewhere
        if self._count < 1:
            raise InputError(
                f"text: {len(stream.ids)} tokens do not fill two windows of {length}",
                field="text",
                value=len(stream.ids),
            )
        self._stream, self._rows, self._length = stream, rows, length
        self._orders: dict[int, tuple[int, NDArray[Any]]] = {}

    def __call__(self, draw: Draw) -> Packed:
        """Return the draw's batch; batches of a step follow each other in the epoch's order."""
        first = (draw.step * draw.parts + draw.part) * self._rows
        return pack(
            self._stream,
            [self._first(draw.seed, number) for number in range(first, first + self._rows)],
            self._length,
        )

    def _first(self, seed: int, number: int) -> int:
        epoch, at = divmod(number, self._count)
        if epoch not in self._orders:
            rng = np.random.default_rng((seed, epoch))
            self._orders = {k: v for k, v in self._orders.items() if k == epoch - 1}
            self._orders[epoch] = (int(rng.integers(self._length)), rng.permutation(self._count))
        shift, order = self._orders[epoch]
        return shift + int(order[at]) * self._length
