"""Tiny random causal language models, their tokenizers, and pairs of them.

Imports no more than torch, transformers and tokenizers: GPU machines may have nothing else.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tiny_pair import tiny_config
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config

from condensery.networks.decoders import resized, with_layers
from condensery.networks.oscar_causal import HALVES, CausalPair
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape, GeneratorShape
from condensery.networks.oscar_shape import BertShape

TEXT = """The mill stands by the river, where the old bread market was. Query: Document: Question:
Background: You are a helpful assistant. Your task is to extract relevant information from provided
documents and to answer to questions as briefly as possible. Who built the stone bridge? How long
is the river? It is 1,200 kilometres long and ends in a delta; nobody knows who named it."""
MEMORY = tuple(f"<MEM{i}>" for i in range(8))
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 4096,
}


def bpe(kind: str) -> Tokenizer:
    """Make a tokenizer as Llama 3 ("llama"), Mistral 7B ("mistral") or Qwen2 ("qwen2") has it."""
    specials = {
        "llama": ["<|begin_of_text|>", "<|eot_id|>"],
        "mistral": ["<unk>", "<s>", "</s>"],
        "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    }[kind]
    tokenizer = Tokenizer(BPE(unk_token="<unk>" if kind == "mistral" else None))
    if kind == "mistral":  # SentencePiece's way: no pre-tokenizer, a space before every text
        marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(marks)
        alphabet = sorted(set(TEXT.replace("\n", "") + "▁\n?!'()-"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("never there", "isolated")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1)]
        )
        corpus = TEXT.split()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        corpus = [TEXT]
    # Mistral's special tokens are the first of its vocabulary, the others' the last.
    first = specials if kind == "mistral" else []
    trainer = BpeTrainer(
        vocab_size=420, special_tokens=first, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    if kind != "qwen2":
        start = "<s>" if kind == "mistral" else "<|begin_of_text|>"
        tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A",
            pair=f"{start} $A {start} $B",
            special_tokens=[(start, tokenizer.token_to_id(start))],
        )
    return tokenizer


def decoder_config(kind: str, vocabulary: int, **changes: Any) -> PretrainedConfig:
    sizes = {**SIZES, "vocab_size": vocabulary, **changes}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    if kind == "mistral":
        return MistralConfig(**{"sliding_window": None, **sizes}, **ids)
    return {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind](**sizes, **ids)


def random_weight(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Make weights that leave nothing uniform: with small ones, attention hides mistakes."""
    value = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 1 + 0.2 * value if "norm" in name.lower() else 0.3 * value
    return value * (1.0 if "embed" in name or "slots" in name else 2.5 * shape[1] ** -0.5)


def random_state(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: random_weight(name, shape, generator) for name, shape in shapes.items()}


def generator_shape(**changes: Any) -> GeneratorShape:
    texts = {"before": "<s>[INST] Background:\n", "between": "\n\nQuestion:", "after": " [/INST]"}
    return GeneratorShape(
        **{**texts, "memory": MEMORY, "stop": (1,), "passage_after": "<SEP>", **changes}
    )


def causal_shape(layout: str = "pair", text_tokens: int = 64, **changes: Any) -> CausalShape:
    compressor = CompressorShape(layout=layout, text_tokens=text_tokens, query_tokens=16, **changes)
    names = MEMORY if compressor.memory_rows == 8 else ("<MEM>",)
    return CausalShape(compressor, generator_shape(memory=names))


def with_specials(tokenizer: Tokenizer, names: tuple[str, ...] = (*MEMORY, "<SEP>")) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return copy


def tiny_causal(
    compressor: str = "llama",
    generator: str = "mistral",
    *,
    layers: int = 4,
    wide: bool = False,
    seed: int = 0,
    **shape: Any,
) -> tuple[CausalPair, dict[str, Tensor]]:
    """Make a pair, and the state that it was loaded from."""
    size = len(with_specials(bpe(generator)).get_vocab())
    written = decoder_config(generator, size, hidden_size=64 if wide else 32)
    read = with_layers(decoder_config(compressor, len(bpe(compressor).get_vocab())), range(layers))
    pair = CausalPair(causal_shape(**shape), resized(read, read.vocab_size), written)
    state = random_state(pair.expected(), seed)
    return pair.load(state.items()), state


def bert_causal_shape(**changes: Any) -> CausalShape:
    sizes = {"memory_tokens": 3, "query_tokens": 12, "passage_tokens": 24, "mapping_size": 40}
    compressor = BertShape(**{**sizes, **changes})
    return CausalShape(compressor, generator_shape(memory=MEMORY[: compressor.memory_tokens]))


def tiny_bert_causal(
    generator: str = "mistral", *, seed: int = 0, **shape: Any
) -> tuple[CausalPair, dict[str, Tensor]]:
    """Make a pair with a BERT-size compressor, and the state that it was loaded from."""
    size = len(with_specials(bpe(generator)).get_vocab())
    config = decoder_config(generator, size, hidden_size=64)
    pair = CausalPair(bert_causal_shape(**shape), tiny_config(), config)
    state = random_state(pair.expected(), seed)
    return pair.load(state.items()), state


def write_halves(directory: Path, pair: CausalPair, *tokenizers: Tokenizer) -> Path:
    """Write a pair's own files but its weights, as they are stored."""
    configs = pair.compressor.backbone.config, pair.generator.network.config
    for half, config, tokenizer in zip(HALVES, configs, tokenizers, strict=True):
        (directory / half).mkdir(parents=True, exist_ok=True)
        (directory / half / "config.json").write_text(json.dumps(config.to_dict()))
        (directory / half / "tokenizer.json").write_text(tokenizer.to_str())
    return directory
