from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_causal import (
    MEMORY,
    SIZES,
    bpe,
    causal_shape,
    decoder_config,
    random_state,
    tiny_causal,
    with_specials,
)
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache

from condensery.networks.accounting import CausalPairCost, DecoderShape
from condensery.networks.decoders import layer_name, with_layers
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_causal_shape import CausalShape
from condensery.networks.oscar_interface import (
    CompressorNetwork,
    GeneratorNetwork,
    Memories,
    PassageWindow,
    PromptPart,
)
from condensery.networks.oscar_loading import cost_of

FAMILIES = ["mistral", "llama", "qwen2"]


def reading(tokens: list[int], memory: int = 8) -> PassageWindow:
    return PassageWindow(tokens, 0, 0, memory, 0, 0)


def compress(pair: CausalPair, *batch: PassageWindow) -> Memories:
    compressor: CompressorNetwork = pair.compressor
    with torch.inference_mode():
        return compressor.compress(batch)


def inner(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def by_hand(
    pair: CausalPair, state: dict[str, Tensor], tokens: list[int], memory: int = 8
) -> tuple[Tensor, float | None]:
    """Compress one text through transformers' own model, alone, with its own attention."""
    shape, mine = pair.shape.compressor, inner(state, "compressor.")
    config = pair.compressor.backbone.config.to_dict() | {"pad_token_id": None}
    model = AutoModel.from_config(type(pair.compressor.backbone.config).from_dict(config)).eval()
    model.set_attn_implementation("eager")
    weights = inner(mine, "backbone.")
    if not shape.final_norm:
        model.norm = torch.nn.Identity()
    model.load_state_dict(weights)
    rows = [i % shape.memory_rows for i in range(memory)] + [shape.memory_rows] * shape.rerank
    embeds = torch.cat([weights["embed_tokens.weight"][tokens], mine["slots.weight"][rows]])
    with torch.inference_mode():
        hidden = model(inputs_embeds=embeds[None]).last_hidden_state[0, len(tokens) :]
        vectors = hidden[:memory]
        if shape.mapping_size:
            up, down = ((mine[f"mapping.{i}.weight"], mine[f"mapping.{i}.bias"]) for i in (0, 2))
            vectors = (vectors @ up[0].T + up[1]).clamp(min=0) @ down[0].T + down[1]
        if not shape.rerank:
            return vectors, None
        return vectors, float(hidden[-1] @ mine["rerank.weight"][0] + mine["rerank.bias"])


def close(got: Tensor, wanted: Tensor) -> bool:
    """Agree to 5e-5 of the values' size."""
    scale = max(1.0, float(wanted.abs().max()))
    return torch.allclose(got, wanted, rtol=0, atol=5e-5 * scale)


KINDS: dict[str, dict[str, Any]] = {
    "first two layers": {"layers": 2, "final_norm": False, "rerank": True},
    "small model with a mapping": {"mapping_size": 40, "wide": True, "rerank": True},
    "without a rerank head": {"mapping_size": 40, "wide": True},
    "one memory token": {"memory_tokens": 1, "memory_rows": 1, "rerank": True},
    "as many as the text asks for": {"memory_rate": 4, "memory_rows": 1},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_compressor_is_what_transformers_computes(family: str, kind: str) -> None:
    pair, state = tiny_causal(compressor=family, **KINDS[kind])
    for tokens in ([5], list(range(20, 37))):
        memory = pair.shape.compressor.memory_of(len(tokens))
        compressed = compress(pair, reading(tokens, memory))
        vectors, relevance = by_hand(pair, state, tokens, memory)
        assert close(compressed.vectors, vectors)
        assert compressed.counts == (memory,)
        if relevance is None:
            assert compressed.relevance is None
        else:
            assert compressed.relevance is not None
            assert compressed.relevance.item() == pytest.approx(relevance, abs=1e-4)


def test_memory_tokens_trained_behind_padding_keep_their_places() -> None:
    pair, state = tiny_causal(compressor="mistral", text_tokens=20, slots_at=20)
    tokens = list(range(30, 43))
    model = AutoModel.from_config(decoder_config("mistral", len(bpe("mistral").get_vocab())))
    weights = inner(state, "compressor.backbone.")
    model.load_state_dict(weights)
    text = [*tokens, *[0] * 7]  # padded on the right to 20, and memory tokens after that
    embeds = torch.cat([weights["embed_tokens.weight"][text], state["compressor.slots.weight"]])
    mask = torch.tensor([[1] * 13 + [0] * 7 + [1] * 8])
    with torch.inference_mode():
        wanted = model.eval()(inputs_embeds=embeds[None], attention_mask=mask).last_hidden_state
    vectors = compress(pair, reading(tokens)).vectors
    assert close(vectors, wanted[0, 20:])
    right_after, _ = tiny_causal(compressor="mistral", text_tokens=20)
    assert (compress(right_after, reading(tokens)).vectors - vectors).abs().max() > 0.1


def prompt(memory: Tensor) -> list[PromptPart]:
    return [[5, 6, 7], memory[:8], [9], memory[8:], [9, 11, 12]]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_says_what_transformers_generate_says(family: str, tied: bool) -> None:
    vocabulary = len(bpe(family).get_vocab())
    config = decoder_config(family, vocabulary, tie_word_embeddings=tied)
    pair = CausalPair(causal_shape(), decoder_config("llama", 300), config)
    assert ("generator.network.lm_head.weight" in pair.expected()) != tied
    state = random_state(pair.expected(), seed=3)
    pair.load(state.items())
    model = AutoModelForCausalLM.from_config(config).eval()
    model.load_state_dict(inner(state, "generator.network."), strict=not tied)
    model.tie_weights()
    table = model.get_input_embeddings().weight
    memory = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    embeds = torch.cat([table[[5, 6, 7]], memory[:8], table[[9]], memory[8:], table[[9, 11, 12]]])
    generator: GeneratorNetwork = pair.generator
    with torch.inference_mode():
        assert torch.equal(generator.embed(prompt(memory)), embeds[None])
        wanted = model.generate(
            inputs_embeds=embeds[None],
            attention_mask=torch.ones(1, len(embeds)),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0].tolist()
        answer, cache, step = [], DynamicCache(), generator.embed(prompt(memory))
        for _ in range(24):
            out = generator(step, past_key_values=cache, use_cache=True)
            answer.append(int(generator.logits(out.last_hidden_state[:, -1]).argmax()))
            step = generator.embed([[answer[-1]]])
    assert answer == wanted
    assert len(set(answer)) > 4  # else any mistake could say the same


def test_adapters_are_merged_into_the_half_they_are_of() -> None:
    pair, state = tiny_causal(layers=2)
    shape = CausalShape.from_dict(pair.shape.to_dict())
    scaled = shape.to_dict()
    scaled["compressor"]["adapter_scale"], scaled["generator"]["adapter_scale"] = 2.0, 0.5
    configs = pair.compressor.backbone.config, pair.generator.network.config
    adapted = CausalPair(CausalShape.from_dict(scaled), *configs)
    generator = torch.Generator().manual_seed(5)
    extra, merged = {}, dict(state)
    for layer, scale in (
        ("compressor.backbone.layers.1.mlp.up_proj", 2.0),
        ("generator.network.model.layers.0.self_attn.k_proj", 0.5),
    ):
        out, into = state[f"{layer}.weight"].shape
        extra[f"{layer}.lora_A"] = torch.randn(4, into, generator=generator)
        extra[f"{layer}.lora_B"] = torch.randn(out, 4, generator=generator)
        change = extra[f"{layer}.lora_B"] @ extra[f"{layer}.lora_A"]
        merged[f"{layer}.weight"] = state[f"{layer}.weight"] + scale * change
    adapted.load((state | extra).items())
    plain = CausalPair(shape, *configs).load(merged.items())
    batch = [reading(list(range(10, 31)))]
    assert close(compress(adapted, *batch).vectors, compress(plain, *batch).vectors)
    with torch.inference_mode():
        embeds = plain.generator.embed([[5, 6, 7, 8]])
        states, other = (p.generator(embeds).last_hidden_state for p in (adapted, plain))
    assert close(states, other)


@pytest.mark.usefixtures("plain_fp32")
def test_a_compressor_that_shares_the_generators_weights_adapts_its_own_copy() -> None:
    config = decoder_config("mistral", len(with_specials(bpe("mistral")).get_vocab()))
    shape = causal_shape("enclosed", shared=True, adapter_scale=2.0)
    pair = CausalPair(shape, config, config)
    assert not any(name.startswith("compressor.backbone") for name in pair.expected())
    state = random_state(pair.expected())
    layer = "layers.2.self_attn.v_proj"
    generator = torch.Generator().manual_seed(0)
    down = torch.randn(4, 32, generator=generator) / 4
    up = torch.randn(16, 4, generator=generator) / 4
    extra = {
        f"compressor.backbone.{layer}.lora_A": down,
        f"compressor.backbone.{layer}.lora_B": up,
    }
    pair.load((state | extra).items())
    base = inner(state, "generator.network.")
    mine = {"backbone." + k: v for k, v in inner(base, "model.").items()}
    mine[f"backbone.{layer}.weight"] = mine[f"backbone.{layer}.weight"] + 2.0 * up @ down
    mine["slots.weight"] = state["compressor.slots.weight"]
    tokens = list(range(10, 31))
    wanted, _ = by_hand(pair, {f"compressor.{k}": v for k, v in mine.items()}, tokens)
    assert close(compress(pair, reading(tokens)).vectors, wanted)
    with torch.inference_mode():
        assert pair.generator(pair.generator.embed([[5, 6]])).last_hidden_state.isfinite().all()
    # The generator reads with the weights as they were, and what neither adapts is held once.
    own, theirs = pair.compressor.backbone, pair.generator.backbone
    assert torch.equal(theirs.get_parameter(f"{layer}.weight"), base[f"model.{layer}.weight"])
    for name in ("embed_tokens.weight", "layers.0.mlp.up_proj.weight"):
        assert own.get_parameter(name).data_ptr() == theirs.get_parameter(name).data_ptr()
    # In whatever layout: prepacked weights are held once too.
    rough = CausalPair(shape, config, config).load((state | extra).items(), dtype=torch.bfloat16)
    own, theirs = rough.compressor.backbone, rough.generator.backbone
    assert own.get_submodule(layer) is not theirs.get_submodule(layer)
    same = "layers.0.mlp.up_proj"
    assert own.get_submodule(same) is theirs.get_submodule(same)
    there = compress(rough, reading(tokens)).vectors.float()
    assert torch.cosine_similarity(there, wanted).min() > 0.9


def test_a_pairs_cost_is_that_of_its_own_dimensions() -> None:
    pair, _ = tiny_causal(layers=2, wide=True, mapping_size=40, rerank=True)
    small, large = (
        DecoderShape(32, layers, 4, 2, size, 48, words, trimmed=True)
        for layers, size, words in ((2, 8, 422), (4, 16, 262))
    )
    large = replace(large, hidden_size=64)
    wanted = CausalPairCost.of(
        small, large, memory_tokens=8, mapping_size=40, rerank=True, specials=3
    )
    assert cost_of(pair) == wanted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_gives_the_cpus_numbers(family: str, dtype: torch.dtype) -> None:
    cuda = torch.device("cuda")
    pair, state = tiny_causal(family, family, layers=2, rerank=True)
    configs = pair.compressor.backbone.config, pair.generator.network.config
    there = CausalPair(pair.shape, *configs).load(
        state.items(), compressor=cuda, generator=cuda, dtype=dtype
    )
    batch = [reading(list(range(10, 10 + n))) for n in (31, 1, 80, 31)]
    here, on_gpu = compress(pair, *batch), compress(there, *batch)
    assert on_gpu.vectors.is_cuda
    # Random weights amplify rounding: a CPU's own bf16 is at 0.96 from fp32 here.
    least = 0.9999 if dtype == torch.float32 else 0.94
    vectors = on_gpu.vectors.float().cpu()
    assert torch.cosine_similarity(vectors, here.vectors).min() > least
    # Alone and in a batch, on the GPU too.
    alone = compress(there, batch[2]).vectors.float().cpu()
    beside = vectors[16:24]
    assert torch.cosine_similarity(alone, beside).min() > least
    with torch.inference_mode():
        embeds = [p.generator.embed(prompt(here.vectors[:16])) for p in (pair, there)]
        states = [
            p.generator(e).last_hidden_state for p, e in zip((pair, there), embeds, strict=True)
        ]
    assert torch.cosine_similarity(states[1].float().cpu(), states[0], dim=-1).min() > least


def test_every_nth_layer_keeps_its_own_weights() -> None:
    config = decoder_config("qwen2", 300)
    kept = range(0, 4, 2)
    whole = AutoModelForCausalLM.from_config(config)
    trimmed = with_layers(config, kept)
    assert (trimmed.num_hidden_layers, len(trimmed.layer_types)) == (2, 2)
    names = {layer_name(name, kept): name for name in whole.state_dict()}
    assert names["model.layers.1.mlp.up_proj.weight"] == "model.layers.2.mlp.up_proj.weight"
    assert names["model.embed_tokens.weight"] == "model.embed_tokens.weight"
    assert not any(name and "layers.3" in name for name in names)
    with pytest.raises(ValueError, match=r"layers .* of a model that has 4"):
        with_layers(config, [0, 4])


def test_rotary_frequencies_stay_exact_in_bf16_unless_rounding_is_asked_for() -> None:
    exact = AutoModel.from_config(decoder_config("llama", 300)).rotary_emb.inv_freq
    for rounded in (False, True):
        pair, state = tiny_causal(rounded_rope=rounded)
        again = CausalPair(
            pair.shape, pair.compressor.backbone.config, pair.generator.network.config
        ).load(state.items(), dtype=torch.bfloat16)
        for each in (pair, again):
            frequencies = each.compressor.backbone.rotary_emb.inv_freq
            assert torch.equal(frequencies, exact.bfloat16().float() if rounded else exact)
            assert torch.equal(each.generator.backbone.rotary_emb.inv_freq, exact)
        assert again.generator.dtype == torch.bfloat16
        # Moved and converted as a whole, too: only what the reference rounds is rounded.
        late = CausalPair(
            pair.shape, pair.compressor.backbone.config, pair.generator.network.config
        ).load(state.items())
        late = late.to(torch.bfloat16).to("cpu")
        assert {p.dtype for p in late.parameters()} == {torch.bfloat16}
        assert torch.equal(late.generator.backbone.rotary_emb.inv_freq, exact)
        kept = late.compressor.backbone.rotary_emb.inv_freq
        assert torch.equal(kept, again.compressor.backbone.rotary_emb.inv_freq)
        assert kept.dtype == torch.float32
        tokens = list(range(10, 31))
        vectors, other = (compress(each, reading(tokens)).vectors.float() for each in (pair, again))
        assert torch.cosine_similarity(vectors, other).min() > 0.9


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"compressor.slots.weight": None}, "compressor.slots.weight: missing"),
        ({"compressor.slots.weight": torch.zeros(9, 32)}, r"\(9, 32\), expected \(8, 32\)"),
        ({"compressor.pooler.weight": torch.zeros(2)}, "compressor.pooler.weight: .* unknown"),
        ({"generator.network.model.layers.9.lora_A": torch.zeros(2)}, "no such linear layer"),
        (
            {"generator.network.model.layers.0.mlp.up_proj.lora_A": torch.zeros(2, 32)},
            ".lora_B is missing",
        ),
        (
            {
                "generator.network.model.layers.0.mlp.up_proj.lora_A": torch.zeros(2, 31),
                "generator.network.model.layers.0.mlp.up_proj.lora_B": torch.zeros(48, 2),
            },
            r"\(2, 31\) and \(48, 2\) don't adapt \(48, 32\)",
        ),
        (
            {
                "generator.network.model.layers.0.mlp.up_proj.lora_A": torch.zeros(2, 32),
                "generator.network.model.layers.0.mlp.up_proj.lora_B": torch.zeros(48, 2),
            },
            "generator: has adapters, and an adapter_scale of 0",
        ),
    ],
    ids=[
        "missing",
        "misshapen",
        "unknown",
        "adapts nothing",
        "half an adapter",
        "wrong size",
        "no scale",
    ],
)
def test_weights_that_are_not_the_pairs_are_refused_by_name(
    change: dict[str, Tensor | None], says: str
) -> None:
    pair, state = tiny_causal()
    again = CausalPair(pair.shape, pair.compressor.backbone.config, pair.generator.network.config)
    changed = {k: v for k, v in (state | change).items() if v is not None}
    with pytest.raises(ValueError, match=says):
        again.load(changed.items())


def test_halves_that_do_not_match_are_refused() -> None:
    small, large = decoder_config("llama", 300), decoder_config("llama", 300, hidden_size=64)
    with pytest.raises(ValueError, match="gives 32 features, the generator reads 64"):
        CausalPair(causal_shape(), small, large)
    few = decoder_config("llama", 300, max_position_embeddings=71)
    with pytest.raises(ValueError, match="longest text takes 72 positions, its model has 71"):
        CausalPair(causal_shape(), few, small)
    with pytest.raises(ValueError, match="longest prompt takes 2048 positions, its model has 71"):
        CausalPair(causal_shape(), small, few)
    values = causal_shape().to_dict()
    values["generator"]["memory"] = list(MEMORY[:3])
    with pytest.raises(ValueError, match="compressor has 8 memory tokens, the generator's"):
        CausalShape.from_dict(values)


def test_a_shape_survives_json_and_refuses_what_it_does_not_know() -> None:
    import json

    shape = causal_shape("joined", mapping_size=40, rerank=True)
    values = json.loads(json.dumps(shape.to_dict()))
    assert CausalShape.from_dict(values) == shape
    for half, change, says in (
        ("compressor", {"layout": "upside down"}, "layout must be one of"),
        ("compressor", {"text_tokens": 0}, "text_tokens must be an integer, at least 1, not 0"),
        ("compressor", {"rerank": 1}, "rerank must be true or false, not 1"),
        ("compressor", {"memory_rows": 3}, "memory_rows must be 1 or memory_tokens"),
        ("compressor", {"slots_at": 5}, "slots_at 5 lies inside the text"),
        ("compressor", {"depth": 3}, "depth"),
        ("generator", {"stop": []}, "memory and stop must name at least one"),
        ("generator", {"stop": ["</s>"]}, "stop must be a list of int"),
        ("generator", {"adapter_scale": float("nan")}, "adapter_scale must be a number"),
        ("generator", {"before": None}, "before must be text, not None"),
    ):
        wrong = values | {half: values[half] | change}
        with pytest.raises(ValueError, match=says):
            CausalShape.from_dict(wrong)
    with pytest.raises(ValueError, match="not of a causal pair"):
        CausalShape.from_dict({"memory_tokens": 8})


def test_what_is_no_causal_language_model_is_refused() -> None:
    from condensery.networks.decoders import read_config

    for values, says in (
        ({"model_type": "t5"}, "'t5' is no causal"),
        ({"model_type": "its_own", "auto_map": {}}, "'its_own' is no causal"),
        ({"model_type": "llama", "logits_scaling": 4.0, **SIZES}, "logits_scaling 4.0"),
    ):
        with pytest.raises(ValueError, match=says):
            read_config(values)
