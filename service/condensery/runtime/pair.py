"""Load an OSCAR pair as it runs here, whatever its halves are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertConfig

from condensery.errors import CorruptModel
from condensery.networks.accounting import ReadingCosts
from condensery.networks.attention import PACKED
from condensery.networks.bert import fuse_layers
from condensery.networks.last_layer import trim_last
from condensery.networks.linear import prepack_linears
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_bert import BertCompressor
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_interface import CompressorNetwork, PairTexts
from condensery.networks.oscar_opening import cost_of, open_networks, open_texts, read_shape
from condensery.networks.oscar_packing import Specials
from condensery.networks.oscar_shape import BertShape, OscarShape
from condensery.networks.stepping import Network
from condensery.runtime.deltas import DecodedDeltas, Deltas, PieceDeltas

if TYPE_CHECKING:
    from condensery.store.manifest import StoredModel

# What a file that is not a pair's makes the libraries raise.
NO_PAIR = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RuntimeError),
    *(SafetensorError, StrictDataclassError),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair that is ready to run.

    Attributes:
        texts: Its tokenizers and prompts.
        compressor: One half.
        generator: The other.
        cost: Its FLOPs.
        window: Tokens of a passage in a full window; 0 is what the question leaves of a text.
        separators: Positions that the generator puts between two parts of a prompt.
        deltas: Makes one answer's text of its tokens.
        token: Text of one token.
        devices: Of the compressor, and of the generator.
    """

    texts: PairTexts
    compressor: CompressorNetwork
    generator: Network
    cost: ReadingCosts
    window: int
    separators: int
    deltas: Callable[[], Deltas]
    token: Callable[[int], str]
    devices: tuple[torch.device, torch.device]


def open_pair(
    stored: "StoredModel",
    base: "StoredModel | None",
    *,
    compressor: torch.device,
    generator: torch.device,
    dtype: torch.dtype,
) -> Pair:
    """Load a stored pair of any kind, each half onto its device.

    Args:
        stored: Its files checked by the store.
        base: The encoder whose word embeddings it shares, if it names one.
        compressor: Where that half is to run.
        generator: Where the other is.
        dtype: What to compute in.

    Raises:
        CorruptModel: The files don't make a pair.
    """
    # Late: the store needs pydantic, absent where only forward passes run.
    from condensery.store.weights import each_tensor

    values = stored.manifest.shape
    try:
        if isinstance(read_shape(values), OscarShape):
            if base is None:
                raise ValueError("it names no base, whose word embeddings it would share")
            whole = load_pair(stored, base, device=generator, dtype=dtype, compressor=compressor)
            return bert_pair(whole, stored.path)
        texts = open_texts(stored.path, values)
        devices = {"compressor": compressor, "generator": generator}
        network = open_networks(stored.path, values, each_tensor(stored), dtype=dtype, **devices)
        return causal_pair(network, texts)
    except NO_PAIR as error:
        raise CorruptModel(f"{stored.name}: not an OSCAR pair: {error}") from error


def bert_pair(pair: OscarPair, directory: Path) -> Pair:
    """Run networks that are ready for packed inference; ``directory`` has their tokenizer.

    Raises:
        CorruptModel: The tokenizer can't be read, or is not the pair's.
    """
    try:
        texts = open_texts(directory, pair.shape.to_dict())
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        specials = Specials.of(tokenizer)
    except NO_PAIR as error:
        raise CorruptModel(f"{directory.name}: {error}") from error

    def piece(token: int) -> str:
        return tokenizer.id_to_token(token) or ""

    return Pair(
        texts=texts,
        compressor=BertCompressor(pair, specials),
        generator=pair.generator,
        cost=cost_of(pair),
        window=pair.shape.passage_tokens,
        separators=1,
        deltas=lambda: PieceDeltas(piece),
        token=piece,
        devices=(pair.compressor.slots.weight.device, pair.generator.device),
    )


def causal_pair(pair: CausalPair, texts: PairTexts) -> Pair:
    """Run networks whose generator is a causal language model."""
    own = pair.compressor.shape
    return Pair(
        texts=texts,
        compressor=pair.compressor,
        generator=pair.generator,
        cost=cost_of(pair),
        window=own.passage_tokens if isinstance(own, BertShape) else 0,
        separators=0,
        deltas=lambda: DecodedDeltas(texts.decode),
        token=_token_of(texts),
        devices=(pair.compressor.slots.weight.device, pair.generator.device),
    )


def _token_of(texts: PairTexts) -> Callable[[int], str]:
    """Return a function from a token to its text within an answer, leading blank and all."""
    # Decoders drop a text's leading blank: so each token is decoded behind another one.
    ids = [
        token for part in texts.prompt("a", []) if not isinstance(part, Tensor) for token in part
    ]
    before = next(([token] for token in ids if texts.decode([token]).strip()), [])
    skipped = len(texts.decode(before))
    return lambda token: texts.decode([*before, token])[skipped:]


def word_embeddings(base: Path) -> Tensor:
    """Read a BERT encoder's word embeddings, (vocabulary, hidden).

    Raises:
        CorruptModel: There is no such tensor in the directory's weights.
    """
    for file in sorted(base.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (safe_open has no iterator)
                if name.endswith("embeddings.word_embeddings.weight"):
                    found: Tensor = weights.get_tensor(name)
                    return found
    raise CorruptModel(f"{base.parent.name}: no word embeddings in its weights")


def load_pair(
    stored: "StoredModel",
    base: "StoredModel",
    *,
    device: torch.device,
    dtype: torch.dtype,
    compressor: torch.device | None = None,
) -> OscarPair:
    """Load ``stored`` with the word embeddings of ``base``, ready for packed inference.

    Args:
        stored: Its files checked by the store.
        base: The encoder.
        device: Where to run it.
        dtype: What to compute in.
        compressor: Where to run the compressor, if elsewhere.

    Raises:
        CorruptModel: The files don't make a pair.
    """
    # Late: the store needs pydantic, absent where only forward passes run.
    from condensery.store.weights import load_state

    try:
        shape = OscarShape.from_dict(stored.manifest.shape)
        config = BertConfig.from_json_file(stored.path / "config.json")
        pair = OscarPair(config, shape, word_embeddings(base.path))
        pair.load_own_state(load_state(stored))
    except NO_PAIR as error:
        raise CorruptModel(f"{stored.name}: not an OSCAR pair: {error}") from error
    pair.generator.to(device=device, dtype=dtype)
    pair.compressor.to(device=compressor or device, dtype=dtype)
    return make_ready(pair.eval())


def make_ready(pair: OscarPair) -> OscarPair:
    """Replace a pair's parts by those that infer fast, on packed input; it can't train then."""
    pair.compressor.backbone.set_attn_implementation(PACKED)
    fuse_layers(pair.compressor.backbone)
    trim_last(pair.compressor.backbone)
    pair.generator.backbone.set_attn_implementation("sdpa")
    prepack_linears(pair)
    return pair
