"""The causal language model that a memory encoder is made of: stored, or a directory."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from condensery.errors import InputError
from condensery.methods.llm2comp.data import Words, open_words
from condensery.methods.llm2comp.recipe import NetworkShape
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.decoders import read_config
from condensery.networks.weight_files import ModelFolder, weight_files

if TYPE_CHECKING:  # the store needs pydantic, which is absent where runs are only trained
    from condensery.store.manifest import StoredModel

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
BLOCK = 1 << 24  # bytes hashed at a time
UNBOUNDED = 1 << 30


@dataclass(frozen=True, slots=True)
class Base:
    """A causal language model.

    Attributes:
        name: For messages.
        folder: Where its weights are.
        tokenizer: As its file has it.
        positions: Most tokens that it reads.
        fingerprint: Of all that changes its numbers.
    """

    name: str
    folder: ModelFolder
    tokenizer: Tokenizer
    positions: int
    fingerprint: str

    def words(self, shape: NetworkShape) -> Words:
        """Return its tokenizer as a network of this shape reads with it.

        Raises:
            InputError: It is not said what texts begin with.
        """
        return open_words(self.tokenizer, shape, self.positions, self.name)


def stored_base(stored: "StoredModel") -> Base:
    """Take a stored language model, or an encoder made of one, whose base may hold parts of it.

    Raises:
        InputError: It is no causal language model.
        ModelNotFound: Its base is not in the store.
    """
    from condensery.store.weights import open_folder  # late: see above

    positions = min(_positions(stored.file(CONFIG), stored.name), stored.manifest.max_tokens)
    tokenizer = open_tokenizer(stored.file(TOKENIZER))
    folder = open_folder(stored)
    return Base(stored.name, folder, tokenizer, positions, stored.manifest.fingerprint)


def directory_base(path: Path) -> Base:
    """Take a directory in transformers' layout: ``config.json``, ``*.safetensors``, a tokenizer.

    Raises:
        InputError: A file is missing, or it is no causal language model.
        CorruptModel: It has no weights.
    """
    tokenizer = open_tokenizer(path)
    positions = _positions(path / CONFIG, path.name)
    digest = hashlib.sha256()
    for file in (path / CONFIG, path / TOKENIZER, *weight_files(path)):
        with file.open("rb") as content:
            while block := content.read(BLOCK):
                digest.update(block)
    fingerprint = f"sha256:{digest.hexdigest()}"
    return Base(path.name, ModelFolder.of(path), tokenizer, positions, fingerprint)


def _positions(config: Path, name: str) -> int:
    try:
        known = read_config(json.loads(config.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"model: {name}: {CONFIG}: {error}", field="model", value=name) from error
    return int(getattr(known, "max_position_embeddings", None) or UNBOUNDED)
