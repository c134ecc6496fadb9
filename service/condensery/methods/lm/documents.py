"""Which documents a language model is trained on, and which it is measured on."""

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.errors import InputError
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.lm.text import read_documents
from condensery.methods.oscar.leakage import HeldOutText
from condensery.methods.trainer.rows import Row, read_rows

log = logging.getLogger(__name__)


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
    held = [text for text, _ in read_documents(texts.held_out)]
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


def _unlike(documents: list[tuple[str, str]], measured: Sequence[Path]) -> list[str]:
    """Return the documents that share neither ten words in a row nor a title with ``measured``."""
    rows = [row for path in measured for row in read_rows(path)]
    for row in rows:
        if not isinstance(_text(row), str):
            raise InputError(f"{row.where}: has neither context nor text", field="context")
    held = HeldOutText({_text(row) for row in rows})
    titles = {_plain(str(title)) for row in rows if (title := row.value.get("title"))}
    kept = [
        text for text, title in documents if _plain(title) not in titles and not held.shares(text)
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
