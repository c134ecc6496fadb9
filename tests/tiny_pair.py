"""A random OSCAR pair of 2 layers, 32 wide, and the files it is made from.

Imports no more than torch, transformers and tokenizers: GPU machines may have nothing else.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_compressor import TEXT, CompressorInput
from condensery.networks.oscar_packing import Pairing, Specials
from condensery.networks.oscar_shape import OscarShape

POSITIONS = 128
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = "the a of in on is and mill river town bread stone old new market who what where how long"
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *".,;:!?'\"-()$%",
    *(word for word in WORDS.split() if len(word) > 1),
]
SPECIALS = Specials(start=2, end=3)


def tiny_tokenizer() -> Tokenizer:
    """Read any ASCII text: words of the list are one piece, others a piece a letter."""
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def tiny_config(**changes: Any) -> BertConfig:
    sizes = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": POSITIONS,
    }
    return BertConfig(**{**sizes, **changes})


def tiny_shape(**changes: Any) -> OscarShape:
    sizes = {
        "memory_tokens": 3,
        "query_tokens": 12,
        "passage_tokens": 24,
        "mapping_size": 40,
        "generator_layers": 2,
        "generator_heads": 2,
        "generator_mlp_size": 48,
        "generator_positions": 96,
    }
    return OscarShape(**{**sizes, **changes})


def sharpen(module: nn.Module, factor: float) -> None:
    """Scale the matrices up: with the usual small ones attention is uniform and hides mistakes."""
    with torch.no_grad():
        for weights in module.parameters():
            if weights.dim() > 1:
                weights.mul_(factor)


def tiny_pair(seed: int = 0, **shape: Any) -> OscarPair:
    """Make a pair whose every weight is random, biases too, for inference in fp32."""
    torch.manual_seed(seed)
    words = torch.randn(len(VOCABULARY), 32)
    pair = OscarPair(tiny_config(), tiny_shape(**shape), words)
    sharpen(pair.compressor.backbone.encoder, 5)
    sharpen(pair.generator.backbone, 15)  # else the last token alone decides the next
    with torch.no_grad():
        for name, parameter in pair.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
        # The identity that training starts from says the same word over and over.
        nn.init.orthogonal_(pair.generator.output.weight)
    return pair.eval()


def write_base(directory: Path, words: Tensor | None = None, seed: int = 0) -> Path:
    """Write the encoder that a pair starts from, as transformers saves one, with its tokenizer."""
    torch.manual_seed(seed)
    model = BertModel(tiny_config(), add_pooling_layer=False)
    if words is not None:
        model.embeddings.word_embeddings.weight.data.copy_(words)
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    return directory


def pair_files(directory: Path, pair: OscarPair) -> Path:
    """Write a pair's own files but its weights."""
    directory.mkdir(parents=True, exist_ok=True)
    config = pair.compressor.backbone.config.to_dict()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    return directory


def text_of(tokens: int, seed: int = 0) -> str:
    """Make up a text of exactly so many word pieces."""
    generator = torch.Generator().manual_seed(seed)
    known = [word for word in WORDS.split() if len(word) > 1]
    picks = torch.randint(len(known), (tokens,), generator=generator).tolist()
    return " ".join(known[pick] for pick in picks)


def padded(pairings: Sequence[Pairing], shape: OscarShape) -> CompressorInput:
    """Lay pairings out a row each, padded, the slots first: as the pair neither trains nor serves.

    Where slots stand does not matter, since their positions are their own. A reference for the
    packed layout, with transformers' own mask and attention.
    """
    count, slots = len(pairings), shape.slots
    texts = [len(p.question) + len(p.passage) + 3 for p in pairings]
    width = -(-(slots + max(texts)) // 32) * 32
    longest = max(len(p.passage) for p in pairings) + 1
    ids, types, places, mask = (torch.zeros(count, width, dtype=torch.long) for _ in range(4))
    slot = torch.full((count, width), TEXT)
    at = torch.full((count, longest), -1)
    slot[:, :slots] = torch.arange(slots)
    places[:, :slots] = torch.arange(POSITIONS - slots, POSITIONS)
    for i, (p, text) in enumerate(zip(pairings, texts, strict=True)):
        first = slots + len(p.question) + 2
        ids[i, slots : slots + text] = torch.tensor([2, *p.question, 3, *p.passage, 3])
        types[i, first : slots + text] = 1
        places[i, slots : slots + text] = torch.arange(text)
        mask[i, : slots + text] = 1
        at[i, : len(p.passage) + 1] = i * width + first + torch.arange(len(p.passage) + 1)
    slots_at = torch.arange(count)[:, None] * width + torch.arange(slots)
    return CompressorInput(ids, types, places, slot, at, slots_at, {"attention_mask": mask})
