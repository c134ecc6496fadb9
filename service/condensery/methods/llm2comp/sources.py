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
from condensery.networks.llm2comp_texts import check_ids
from condensery.networks.sublayers import family_named
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
        vocabulary: Rows of its embedding table: the first memory token's id.
        fingerprint: Of all that changes its numbers.
    """

    name: str
    folder: ModelFolder
    tokenizer: Tokenizer
    positions: int
    vocabulary: int
    fingerprint: str

    def words(self, shape: NetworkShape) -> Words:
        """Return its tokenizer as a network of this shape reads with it.

        Raises:
            InputError: It is not said what texts begin with, or a token has a memory token's id.
        """
        words = open_words(self.tokenizer, shape, self.positions, self.name)
        if shape.k:
            try:
                check_ids(self.tokenizer, shape.k, self.vocabulary)
            except ValueError as error:
                raise InputError(
                    f"model: {self.name}: {error}", field="model", value=self.name
                ) from error
        return words


def stored_base(stored: "StoredModel") -> Base:
    """Take a stored language model, or an encoder made of one, whose base may hold parts of it.

    Raises:
        InputError: It is no causal language model.
        ModelNotFound: Its base is not in the store.
    """
    from condensery.store.weights import open_folder  # late: see above

    positions, vocabulary = _sizes(stored.file(CONFIG), stored.name)
    positions = min(positions, stored.manifest.max_tokens)
    tokenizer = open_tokenizer(stored.file(TOKENIZER))
    folder = open_folder(stored)
    fingerprint = stored.manifest.fingerprint
    return Base(stored.name, folder, tokenizer, positions, vocabulary, fingerprint)


def directory_base(path: Path) -> Base:
    """Take a directory in transformers' layout: ``config.json``, ``*.safetensors``, a tokenizer.

    Raises:
        InputError: A file is missing, or it is no causal language model.
        CorruptModel: It has no weights.
    """
    tokenizer = open_tokenizer(path)
    positions, vocabulary = _sizes(path / CONFIG, path.name)
    digest = hashlib.sha256()
    for file in (path / CONFIG, path / TOKENIZER, *weight_files(path)):
        with file.open("rb") as content:
            while block := content.read(BLOCK):
                digest.update(block)
    fingerprint = f"sha256:{digest.hexdigest()}"
    folder = ModelFolder.of(path)
    return Base(path.name, folder, tokenizer, positions, vocabulary, fingerprint)


def _sizes(config: Path, name: str) -> tuple[int, int]:
    """Return how many tokens a causal language model reads at most, and its vocabulary's rows."""
    try:
        known = read_config(json.loads(config.read_text(encoding="utf-8")))
        # transformers counts BERT among causal language models too.
        if not family_named(known.model_type).norm_first:
            raise ValueError(f"model_type {known.model_type!r} is no causal language model")
    except (OSError, ValueError) as error:
        raise InputError(f"model: {name}: {CONFIG}: {error}", field="model", value=name) from error
    positions = int(getattr(known, "max_position_embeddings", None) or UNBOUNDED)
    return positions, int(known.vocab_size)
