"""Which documents a language model is trained on, and which it is measured on."""

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from condensery.errors import InputError
from condensery.methods.lm.recipe import LmRecipe
from condensery.methods.lm.text import read_documents

log = logging.getLogger(__name__)


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
