"""Laws of every kind of pair: compressed together is compressed alone, in one forward pass."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_causal import TEXT, bpe, tiny_bert_causal, tiny_causal, with_specials
from tiny_pair import SPECIALS, WORDS, tiny_pair, tiny_tokenizer
from torch import Tensor, nn

from condensery.networks.oscar_bert import BertCompressor, BertTexts, BertWindows
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape
from condensery.networks.oscar_interface import (
    CompressorNetwork,
    Memories,
    PairTexts,
    PassageWindow,
)
from condensery.networks.oscar_shape import BertShape
from condensery.networks.oscar_texts import CausalTexts, CompressorTexts, GeneratorTexts
from condensery.runtime.oscar_pair import prepare_for_inference

ROUNDS = 6
Kind = tuple[PairTexts, CompressorNetwork, nn.Module]


def kind_of(reader: str, made: tuple[CausalPair, dict[str, Tensor]]) -> Kind:
    pair, shape = made[0], made[0].shape
    own = shape.compressor
    reads = (
        BertWindows(tiny_tokenizer(), own)
        if isinstance(own, BertShape)
        else CompressorTexts(bpe(reader), own)
    )
    names = shape.generator.memory
    writes = GeneratorTexts(with_specials(bpe("mistral"), (*names, "<SEP>")), shape.generator)
    return CausalTexts(reads, writes, shape), pair.compressor, pair.compressor.backbone


def shared_words() -> Kind:
    pair = prepare_for_inference(copy.deepcopy(tiny_pair()))
    texts = BertTexts(tiny_tokenizer(), pair.shape)
    return texts, BertCompressor(pair, SPECIALS), pair.compressor.backbone


def causal(reader: str, **shape: Any) -> Callable[[], Kind]:
    return lambda: kind_of(reader, tiny_causal(reader, **shape))


KINDS: dict[str, Callable[[], Kind]] = {
    "a BERT and a generator over its words": shared_words,
    "a BERT and a causal generator": lambda: kind_of("bert", tiny_bert_causal()),
    "first layers": causal("mistral", layout="joined", layers=2, final_norm=False, rerank=True),
    "another model": causal("llama", mapping_size=40, wide=True, rerank=True),
    "the generator's own prompt": causal("mistral", layout="enclosed", text_before="<s>"),
    "as many vectors as the text asks for": causal(
        "qwen2", layout="lines", memory_rate=4, memory_rows=1
    ),
    "behind the padding": causal("qwen2", layout="joined", slots_at=64, rerank=True),
}


@contextmanager
def counted(module: nn.Module) -> Iterator[list[int]]:
    """Count the calls of ``module``."""
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1

    hook = module.register_forward_hook(count)
    yield calls
    hook.remove()


@torch.inference_mode()
def compress(compressor: CompressorNetwork, readings: list[PassageWindow]) -> Memories:
    return compressor.compress(readings)


def close(got: Tensor, wanted: Tensor) -> bool:
    """Agree to 5e-5 of the values' size."""
    scale = max(1.0, float(wanted.abs().max()))
    return got.shape == wanted.shape and torch.allclose(got, wanted, rtol=0, atol=5e-5 * scale)


def text(rng: random.Random, longest: int) -> str:
    words = [*TEXT.split(), *WORDS.split()]
    return " ".join(rng.choices(words, k=rng.randrange(longest + 1)))


@pytest.mark.parametrize("kind", KINDS)
def test_passages_of_any_number_and_length_together_equal_each_alone(kind: str) -> None:
    texts, compressor, backbone = KINDS[kind]()
    rng = random.Random(20)
    long_passages = 0
    for _ in range(ROUNDS):
        question, _ = texts.cut(text(rng, 8))
        passages = [text(rng, rng.choice((0, 20, 250, 250))) for _ in range(rng.randrange(1, 8))]
        by_passage = texts.make_windows(question, passages)
        assert len(by_passage) == len(passages)
        long_passages += sum(len(windows) > 1 for windows in by_passage)
        windows = [window for windows in by_passage for window in windows]
        with counted(backbone) as calls:
            together = compress(compressor, windows)
        assert calls == [1]  # memory and relevance, of all of them
        assert together.counts == tuple(window.memory for window in windows)
        assert (together.relevance is not None) == texts.scores
        for i, (window, vectors) in enumerate(zip(windows, together.split(), strict=True)):
            alone = compress(compressor, [window])
            assert close(vectors, alone.vectors)
            if together.relevance is not None:
                assert alone.relevance is not None
                assert close(together.relevance[i], alone.relevance[0])
    assert long_passages > 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_passages_changes_none_of_them(kind: str) -> None:
    texts, compressor, _ = KINDS[kind]()
    rng = random.Random(5)
    passages = [text(rng, 30) for _ in range(6)]
    readings = [r for windows in texts.make_windows("How long?", passages) for r in windows]
    order = list(range(len(readings)))
    rng.shuffle(order)
    in_order, other = (compress(compressor, r) for r in (readings, [readings[i] for i in order]))
    for place, i in enumerate(order):
        assert close(other.split()[place], in_order.split()[i])


@pytest.mark.parametrize("reader", ["mistral", "llama", "qwen2"])
@pytest.mark.parametrize("slots_at", [0, 64], ids=["behind the text", "behind the padding"])
def test_the_rerank_token_leaves_the_memory_before_it_as_it_was(reader: str, slots_at: int) -> None:
    # Under the causal rule only: a BERT's memory tokens see the rerank token as well.
    pair, state = tiny_causal(reader, layers=2, rerank=True, slots_at=slots_at)
    own = pair.shape.compressor
    assert isinstance(own, CompressorShape)
    configs = pair.compressor.backbone.config, pair.generator.network.config
    without = CausalPair(CausalShape(replace(own, rerank=False), pair.shape.generator), *configs)
    rest = {name: value for name, value in state.items() if "rerank" not in name}
    rest["compressor.slots.weight"] = state["compressor.slots.weight"][:-1]
    without.load(rest.items())
    rng = random.Random(7)
    texts = CompressorTexts(bpe(reader), own)
    for _ in range(ROUNDS):
        passages = [text(rng, 40) for _ in range(rng.randrange(1, 5))]
        readings = [r for windows in texts.make_windows("How long?", passages) for r in windows]
        ranked, plain = (compress(p.compressor, readings) for p in (pair, without))
        assert close(ranked.vectors, plain.vectors)
        assert plain.relevance is None
        assert ranked.relevance is not None
