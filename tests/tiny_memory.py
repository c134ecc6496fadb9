"""Tiny causal language models as bases of memory encoders, and what transformers makes of them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_causal import bpe, decoder_config, random_state
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, Qwen3Config

from condensery.networks.adapters import Adapters
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore

K = 3


def tokenizer_of(kind: str) -> Tokenizer:
    return bpe("qwen2" if kind == "qwen3" else kind)


def config_of(kind: str, vocabulary: int, **changes: Any) -> Any:
    if kind == "qwen3":
        return Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=48,
            max_position_embeddings=4096,
            **changes,
        )
    return decoder_config(kind, vocabulary, num_hidden_layers=2, **changes)


def write_language_model(folder: Path, kind: str = "llama", **changes: Any) -> Path:
    """Write a random language model with its tokenizer, as transformers does."""
    tokenizer = tokenizer_of(kind)
    config = config_of(kind, tokenizer.get_vocab_size(), **changes)
    model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    model.load_state_dict(random_state(shapes))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def put_language_model(store: ModelStore, folder: Path, name: str = "tiny-lm") -> StoredModel:
    """Store a directory as a language model."""
    kinds = (".json", ".safetensors")
    files = {path.name: path for path in folder.iterdir() if path.suffix in kinds}
    return store.publish(files, Manifest(name=name, kind="language-model", max_tokens=64))


def random_adapters(model: Any, names: tuple[str, ...], rank: int = 2, seed: int = 3) -> Adapters:
    """Make adapters of the base model's layers whose names end so."""
    generator = torch.Generator().manual_seed(seed)
    adapters = Adapters()
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Linear) and name.endswith(names):
            out, into = part.weight.shape
            adapters.down[name] = torch.randn(rank, into, generator=generator) * 0.2
            adapters.up[name] = torch.randn(out, rank, generator=generator) * 0.2
    return adapters


def grown(
    folder: Path, memory: Tensor, adapters: Adapters | None = None, scale: float = 2.0
) -> Any:
    """Return transformers' own base model of a directory with memory rows, adapters merged."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    table = model.get_input_embeddings().weight.data
    embedding = torch.nn.Embedding.from_pretrained(torch.cat([table, memory]))
    model.set_input_embeddings(embedding)
    for layer, down in (adapters.down if adapters else {}).items():
        weight = model.get_submodule(layer).weight
        weight.data += scale * adapters.up[layer] @ down  # type: ignore[union-attr]
    return model


@torch.inference_mode()
def memory_states(model: Any, sequences: list[list[int]], k: int = K) -> Tensor:
    """Return memory tokens' last hidden states (sequences, k, hidden) by transformers.

    All sequences in one batch, padded on the right, with an additive mask of four dimensions that
    hides padding alone.
    """
    first = model.get_input_embeddings().weight.shape[0] - k
    rows = [[*ids, *range(first, first + k)] for ids in sequences]
    longest = max(map(len, rows))
    mask = torch.zeros(len(rows), 1, longest, longest)
    for number, row in enumerate(rows):
        mask[number, :, :, len(row) :] = torch.finfo(torch.float32).min
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    hidden = model(input_ids=padded, attention_mask=mask).last_hidden_state
    return torch.stack([hidden[n, len(r) - k : len(r)] for n, r in enumerate(rows)])


def write_merged(folder: Path, model: Any, tokenizer: Tokenizer | None = None) -> Path:
    """Write a base model with memory rows as a merged directory."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    rows = len(model.get_input_embeddings().weight)
    config = model.config.to_dict() | {"vocab_size": rows}
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def cut(tokenizer: Tokenizer, start: int | None, texts: list[str], tokens: int) -> list[list[int]]:
    """Return a start token and as much of each text as gives so many tokens at most."""
    begin = [] if start is None else [start]
    room = tokens - len(begin)
    return [begin + tokenizer.encode(t, add_special_tokens=False).ids[:room] for t in texts]
