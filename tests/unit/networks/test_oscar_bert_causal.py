"""A BERT-size compressor for a causal generator: OSCAR, appendix J."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_causal import (
    MEMORY,
    bert_causal_shape,
    bpe,
    causal_shape,
    decoder_config,
    tiny_bert_causal,
    with_specials,
    write_halves,
)
from tiny_pair import POSITIONS, VOCABULARY, pair_files, text_of, tiny_config, tiny_pair
from tiny_pair import tiny_tokenizer as word_pieces
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, BertModel, DynamicCache

from condensery.networks.accounting import CausalPairCost, DecoderShape, LayerCost
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_causal_shape import CausalShape
from condensery.networks.oscar_interface import CompressorNetwork, PairTexts, PassageWindow
from condensery.networks.oscar_loading import cost_of, open_networks, open_texts, read_shape
from condensery.networks.quantised import can_quantise

FAMILIES = ["mistral", "llama", "qwen2"]
QUESTION = text_of(5)
PASSAGES = [text_of(9, seed=1), "", text_of(24, seed=2), text_of(60, seed=3)]
State = dict[str, Tensor]


def tokenizer_of(family: str) -> Tokenizer:
    return with_specials(bpe(family))


def stored(directory: Path, family: str = "mistral") -> tuple[Path, dict[str, Any], State]:
    """Write a pair as the store has it; returns its directory, its shape and its weights."""
    pair, state = tiny_bert_causal(family)
    write_halves(directory, pair, word_pieces(), tokenizer_of(family))
    shape: dict[str, Any] = json.loads(json.dumps(pair.shape.to_dict()))
    return directory, shape, state


def inner(state: State, prefix: str) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def by_hand(state: State, readings: list[PassageWindow]) -> tuple[Tensor, Tensor]:
    """Compress through transformers' own BERT, in rows padded to the longest.

    Returns:
        Memory vectors (readings, memory tokens, generator hidden size), scores (readings,).
    """
    mine = inner(state, "compressor.")
    bert = BertModel(tiny_config(), add_pooling_layer=False).eval()
    bert.set_attn_implementation("eager")
    bert.load_state_dict(inner(mine, "backbone."))
    slots, table = mine["slots.weight"], mine["backbone.embeddings.word_embeddings.weight"]
    count, longest = len(slots), max(len(reading.ids) for reading in readings)
    shape = len(readings), longest + count
    embeds = torch.zeros(*shape, 32)
    types, places, mask = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    for row, reading in enumerate(readings):  # the slots first, then the text, then padding
        size = count + len(reading.ids)
        embeds[row, :size] = torch.cat([slots, table[list(reading.ids)]])
        places[row, :size] = torch.tensor(
            [*range(POSITIONS - count, POSITIONS), *range(len(reading.ids))]
        )
        types[row, count + reading.head : size] = 1
        mask[row, :size] = 1

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ mine[f"{name}.weight"].T + mine[f"{name}.bias"]

    with torch.inference_mode():
        hidden = bert(
            inputs_embeds=embeds, token_type_ids=types, position_ids=places, attention_mask=mask
        ).last_hidden_state
        vectors = linear("mapping.2", linear("mapping.0", hidden[:, : count - 1]).clamp(min=0))
        return vectors, linear("rerank", hidden[:, count - 1])[:, 0]


def close(got: Tensor, wanted: Tensor) -> bool:
    """Agree to 5e-5 of the values' size."""
    scale = max(1.0, float(wanted.abs().max()))
    return got.shape == wanted.shape and torch.allclose(got, wanted, rtol=0, atol=5e-5 * scale)


@pytest.mark.skipif(not can_quantise("int8", torch.device("cpu")), reason="no products of 8 bits")
@torch.inference_mode()
def test_a_compressors_layers_in_8_bits_give_nearly_the_same(tmp_path: Path) -> None:
    directory, shape, state = stored(tmp_path, FAMILIES[0])
    config = directory / "compressor" / "config.json"
    # As BERT's is where nothing is said: a network that is not for inference yet drops some.
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_dropout_prob": 0.1}))
    exact = open_networks(directory, shape, state.items())
    rounded = open_networks(directory, shape, state.items(), compressor_weights="int8")
    texts: PairTexts = open_texts(directory, shape)
    readings = [window for windows in texts.make_windows(QUESTION, PASSAGES) for window in windows]
    one, other = (pair.compressor.compress(readings).vectors for pair in (exact, rounded))
    assert not torch.equal(one, other)
    assert torch.cosine_similarity(one, other, dim=-1).min() > 0.99


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stored_pair_says_what_transformers_says_from_its_vectors(
    tmp_path: Path, family: str
) -> None:
    directory, shape, state = stored(tmp_path, family)
    pair = open_networks(directory, shape, state.items())
    texts: PairTexts = open_texts(directory, shape)
    readings = [window for windows in texts.make_windows(QUESTION, PASSAGES) for window in windows]
    assert len(readings) == 6  # the last passage has three windows
    compressor: CompressorNetwork = pair.compressor
    with torch.inference_mode():
        compressed = compressor.compress(readings)
    vectors, scores = by_hand(state, readings)
    assert close(torch.stack(compressed.split()), vectors)
    assert compressed.relevance is not None
    assert close(compressed.relevance, scores)
    assert (vectors[0] - vectors[2]).abs().max() > 0.1
    assert [compressor.cost(r) for r in readings] == [len(r.ids) + 4 for r in readings]

    # The generator's own prompt, its second passage as text.
    context = [vectors[0], "The mill stands", vectors[2]]
    tokenizer = tokenizer_of(family)
    slots = "".join(MEMORY[:3]) + "<SEP>"
    text = f"<s>[INST] Background:\n{slots}The mill stands\n{slots}\n\nQuestion:{QUESTION} [/INST]"
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    config = pair.generator.network.config
    model = AutoModelForCausalLM.from_config(config).eval()
    model.load_state_dict(inner(state, "generator.network."))
    embeds = model.get_input_embeddings()(ids).detach()
    memory = torch.isin(ids, torch.tensor([tokenizer.token_to_id(m) for m in MEMORY]))
    embeds[memory] = torch.cat([vectors[0], vectors[2]])
    with torch.inference_mode():
        mine = pair.generator.embed(texts.prompt(QUESTION, context))
        assert torch.equal(mine[0], embeds)
        wanted = model.generate(
            inputs_embeds=embeds[None],
            attention_mask=torch.ones(1, len(embeds)),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0].tolist()
        tokens: list[int] = []
        cache = DynamicCache()
        for _ in range(24):
            out = pair.generator(mine, past_key_values=cache, use_cache=True)
            tokens.append(int(pair.generator.logits(out.last_hidden_state[:, -1]).argmax()))
            mine = pair.generator.embed([[tokens[-1]]])
    assert tokens == wanted
    assert len(set(tokens)) > 4


def test_the_generator_is_asked_the_whole_question_whatever_the_compressor_reads_of_it(
    tmp_path: Path,
) -> None:
    directory, shape, _ = stored(tmp_path)
    texts = open_texts(directory, shape)
    cut, tokens = texts.cut(text_of(30))
    assert tokens == 30
    assert texts.cut(cut) == (cut, 27)
    assert texts.make_windows(cut, PASSAGES) == texts.make_windows(text_of(30), PASSAGES)
    (prompt,) = texts.prompt(text_of(30), [])
    assert f"Question:{text_of(30)} " in texts.decode(prompt)
    assert (texts.query_tokens, texts.text_tokens, texts.scores) == (27, 39, True)


def test_a_shape_survives_json_and_says_its_rates() -> None:
    shape = bert_causal_shape(memory_tokens=8, passage_tokens=128, fewer=(4, 1))
    values = json.loads(json.dumps(shape.to_dict()))
    assert values["family"] == "bert-causal"
    assert read_shape(values) == shape
    assert shape.compressor.vectors == (8, 4, 1)
    assert shape.compressor.rates == (16, 32, 128)
    for half, change, says in (
        ("compressor", {"query_tokens": 0}, "query_tokens must be a positive integer, not 0"),
        ("compressor", {"layout": "pair"}, "BertShape: .*layout"),
        ("compressor", {"fewer": [8]}, "fewer must fall"),
        ("compressor", {"memory_tokens": 7}, "compressor has 7 memory tokens, .* prompt 8"),
        ("generator", {"depth": 1}, "GeneratorShape: .*depth"),
    ):
        with pytest.raises(ValueError, match=says):
            CausalShape.from_dict(values | {half: values[half] | change})
    for family in ("bert", None, ["bert-causal"]):
        with pytest.raises(ValueError, match="not of a causal pair: family is"):
            read_shape(values | {"family": family})
    with pytest.raises(ValueError, match="CompressorShape: "):
        read_shape(values | {"family": "causal"})


def test_a_pairs_cost_is_that_of_its_own_dimensions() -> None:
    pair, _ = tiny_bert_causal()
    cost = cost_of(pair)
    bert = LayerCost(4 * 32 * 32 + 2 * 32 * 48, 2, 32, 32 * 32 + 2 * 32 * 48)
    mapping, rerank = 2 * 3 * 40 * (32 + 64), 2 * 32
    assert cost.compress(5, 9) == bert.sequence(5 + 9 + 3 + 4, unused=17) + mapping + rerank
    config = pair.generator.network.config.to_dict()
    generator = DecoderShape.from_config(config, trimmed=True)
    causal = CausalPairCost.of(generator, generator, memory_tokens=3)
    assert cost.generate(40, 7) == causal.generate(40, 7)


def test_a_pair_over_one_word_table_is_opened_in_the_same_place(tmp_path: Path) -> None:
    pair = tiny_pair()
    directory = pair_files(tmp_path / "pair", pair)
    texts = open_texts(directory, pair.shape.to_dict())
    assert (texts.stop, texts.vectors, texts.positions) == ({3}, (3,), 96)
    with pytest.raises(ValueError, match="not of a causal pair: family is None"):
        open_networks(directory, pair.shape.to_dict(), ())
    assert cost_of(pair).compress(5, 9) > 0
    with pytest.raises(ValueError, match=r"OscarShape: .*colour"):
        open_texts(directory, {"colour": 1})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"compressor.slots.weight": None}, "compressor.slots.weight: missing"),
        ({"compressor.slots.weight": torch.zeros(3, 32)}, r"slots.* \(3, 32\), expected \(4, 32\)"),
        ({"compressor.rerank.bias": None}, "compressor.rerank.bias: missing"),
        ({"compressor.mapping.2.weight": torch.zeros(32, 40)}, r"expected \(64, 40\)"),
        ({"compressor.pointer.gate.bias": torch.zeros(1)}, "pointer.gate.bias: .* unknown"),
        (
            {"compressor.backbone.embeddings.word_embeddings.weight": torch.zeros(9, 32)},
            r"word_embeddings.weight: \(9, 32\), expected",
        ),
        (
            {
                "compressor.backbone.encoder.layer.0.output.dense.lora_A": torch.zeros(2, 48),
                "compressor.backbone.encoder.layer.0.output.dense.lora_B": torch.zeros(32, 2),
            },
            "compressor: has adapters, and an adapter_scale of 0",
        ),
        ({"generator.network.lm_head.weight": None}, "generator.network.lm_head.weight: missing"),
    ],
    ids=str,
)
def test_weights_that_are_not_the_pairs_are_refused_by_name(
    tmp_path: Path, change: dict[str, Tensor | None], says: str
) -> None:
    directory, shape, state = stored(tmp_path)
    changed = {k: v for k, v in (state | change).items() if v is not None}
    with pytest.raises(ValueError, match=says):
        open_networks(directory, shape, changed.items())


@pytest.mark.parametrize(
    ("half", "change", "says"),
    [
        ("compressor", {"model_type": "llama"}, "compressor/config.json: .*'llama' is no BERT"),
        ("compressor", {"hidden_size": "32"}, "compressor/config.json: "),
        ("compressor", {"is_decoder": True}, "'bert' model is no BERT encoder"),
        (
            *("compressor", {"max_position_embeddings": 42}),
            "the shape needs 43 positions, the backbone has 42",
        ),
        ("generator", {"model_type": "t5"}, "generator/config.json: .*'t5' is no causal"),
        ("generator", {"hidden_size": 32}, r"mapping.2.weight: \(64, 40\), expected \(32, 40\)"),
    ],
)
def test_configurations_that_are_not_the_pairs_are_refused_by_name(
    tmp_path: Path, half: str, change: dict[str, Any], says: str
) -> None:
    directory, shape, state = stored(tmp_path)
    path = directory / half / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=says):
        open_networks(directory, shape, state.items())


def test_files_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    directory, shape, state = stored(tmp_path)
    config = directory / "generator" / "config.json"
    for content in ("{", "[]"):
        config.write_text(content)
        with pytest.raises(ValueError, match=r"generator/config.json: "):
            open_networks(directory, shape, state.items())
    (directory / "compressor" / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"compressor/tokenizer.json: "):
        open_texts(directory, shape)


def test_tokenizers_that_are_not_the_pairs_are_refused(tmp_path: Path) -> None:
    directory, shape, _ = stored(tmp_path)
    own, theirs = (directory / half / "tokenizer.json" for half in ("compressor", "generator"))
    theirs.write_text(bpe("mistral").to_str())
    with pytest.raises(ValueError, match=r"generator's tokenizer has no <MEM0>, <MEM1>, <MEM2>"):
        open_texts(directory, shape)
    more = tokenizer_of("mistral")
    more.add_special_tokens(["<ONE>"])
    theirs.write_text(more.to_str())
    with pytest.raises(ValueError, match=r"generator/tokenizer.json: has tokens up to \d+, and"):
        open_texts(directory, shape)
    theirs.write_text(tokenizer_of("mistral").to_str())
    never = {"generator": shape["generator"] | {"stop": [99999]}}
    with pytest.raises(ValueError, match=r"generator's tokenizer has no token \[99999\] \(stop\)"):
        open_texts(directory, shape | never)
    own.write_text(bpe("qwen2").to_str())
    config = directory / "compressor" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 9999}))
    with pytest.raises(ValueError, match=r"no \[CLS\] and \[SEP\]"):
        open_texts(directory, shape)


def test_a_half_of_another_kind_is_refused() -> None:
    llama, bert = decoder_config("llama", 300), tiny_config()
    with pytest.raises(ValueError, match="halves that don't match: a 'llama' model is no BERT"):
        CausalPair(bert_causal_shape(), llama, llama)
    with pytest.raises(ValueError, match="a 'bert' model reads in both directions"):
        CausalPair(causal_shape(), bert, llama)
    shape = bert_causal_shape()
    with pytest.raises(
        ValueError, match="compressor has 3 memory tokens, the generator's prompt 2"
    ):
        replace(shape, generator=replace(shape.generator, memory=MEMORY[:2]))


def test_bf16_gives_about_the_same_and_rounds_no_buffer() -> None:
    pair, state = tiny_bert_causal()
    configs = tiny_config(), pair.generator.network.config
    rough = CausalPair(pair.shape, *configs).load(state.items(), dtype=torch.bfloat16)
    frequencies = [p.generator.backbone.rotary_emb.inv_freq for p in (pair, rough)]
    assert torch.equal(*frequencies)
    assert rough.generator.dtype == torch.bfloat16
    ids = [2, 50, 60, 3, *range(40, 60), 3]
    batch = [PassageWindow(ids, 4, 1, 3, 0, 0)]
    with torch.inference_mode():
        exact, other = (p.compressor.compress(batch).vectors.float() for p in (pair, rough))
    assert torch.cosine_similarity(exact, other).min() > 0.98
    assert len(VOCABULARY) == configs[0].vocab_size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gpu_gives_the_cpus_numbers(tmp_path: Path, dtype: torch.dtype) -> None:
    directory, shape, state = stored(tmp_path)
    here = open_networks(directory, shape, state.items())
    cuda = torch.device("cuda")
    there, split = (
        open_networks(
            directory, shape, state.items(), compressor=device, generator=cuda, dtype=dtype
        )
        for device in (cuda, torch.device("cpu"))
    )
    texts = open_texts(directory, shape)
    readings = [window for windows in texts.make_windows(QUESTION, PASSAGES) for window in windows]
    with torch.inference_mode():
        wanted = here.compressor.compress(readings)
        prompt = texts.prompt(QUESTION, [wanted.vectors[:3], "The mill stands"])
        state_here = here.generator(here.generator.embed(prompt)).last_hidden_state
        for pair in (there, split):
            compressed = pair.compressor.compress(readings)
            assert compressed.vectors.is_cuda == (pair is there)
            # Random weights amplify rounding: a CPU's own bf16 is at 0.96 from fp32 here.
            least = 0.9999 if dtype == torch.float32 else 0.94
            alike = torch.cosine_similarity(compressed.vectors.float().cpu(), wanted.vectors)
            assert alike.min() > least
            prompt = texts.prompt(QUESTION, [compressed.vectors[:3], "The mill stands"])
            states = pair.generator(pair.generator.embed(prompt)).last_hidden_state
            alike = torch.cosine_similarity(states.float().cpu(), state_here, dim=-1)
            assert alike.min() > least
