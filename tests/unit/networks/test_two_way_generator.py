"""A generator that reads prompts from both sides, beside transformers' own BERT and a mask."""

import numpy as np
import pytest
import torch
from tiny_pair import POSITIONS, VOCABULARY, tiny_config, tiny_pair, tiny_shape
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from condensery.errors import CorruptModel
from condensery.networks.cached_attention import attend, cached_attention
from condensery.networks.caching import Cache, Span, Step
from condensery.networks.decoding import Decoder
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_generator import Placing, TwoWayGenerator
from condensery.networks.oscar_interface import PromptPart
from condensery.networks.quantised import Weights, can_quantise, product_of
from condensery.networks.step_layers import StepEncoderLayer
from condensery.networks.stepping import Stepper
from condensery.runtime.oscar_pair import prepare_for_inference

QUESTION = [2, 40, 41, 42, 3]
PASSAGE, OTHER = [50, 51, 52, 53, 54], [60, 61]
ANSWER = [52, 53, 70]
MEMORY = torch.randn(3, 32, generator=torch.Generator().manual_seed(4))
PROMPTS: list[list[PromptPart]] = [[PASSAGE, QUESTION], [MEMORY, OTHER, QUESTION], [QUESTION]]


def generator() -> TwoWayGenerator:
    made = tiny_pair(seed=2, two_way=True).generator
    assert isinstance(made, TwoWayGenerator)
    with torch.no_grad():
        made.word_mean.normal_()
        made.answered.normal_()
        made.ranks.weight.normal_()
        made.word_scale.fill_(0.7)
    return made


def as_transformers_reads(
    own: TwoWayGenerator, prompt: list[PromptPart], said: list[int]
) -> Tensor:
    """Return the last hidden states by a BERT of transformers, which sees an answer by a mask."""
    config = own.backbone.config
    bert = BertModel(
        BertConfig(**{**config.to_dict(), "max_position_embeddings": POSITIONS}),
        add_pooling_layer=False,
    ).eval()
    bert.set_attn_implementation("eager")
    bert.encoder.load_state_dict(own.backbone.encoder.state_dict())
    bert.embeddings.position_embeddings.load_state_dict(own.positions.state_dict())
    bert.embeddings.token_type_embeddings.load_state_dict(own.kinds.state_dict())
    bert.embeddings.LayerNorm.load_state_dict(own.norm.state_dict())
    rows: list[Tensor] = []
    places: list[int] = []
    kinds: list[int] = []
    ranks: list[int] = []
    *passages, question = prompt
    for number, part in enumerate(passages):
        ranks += [number + 1] * (len(part) + 1)
        rows += [part if isinstance(part, Tensor) else own.words[part], own.separator[None]]
        places += range(len(question), len(question) + len(part) + 1)
        kinds += [1] * (len(part) + 1)
    rows += [own.words[question], own.words[said]]
    places += [*range(len(question)), *range(112, 112 + len(said))]  # 128 less an eighth
    kinds += [0] * (len(question) + len(said))
    ranks += [0] * (len(question) + len(said))
    embeds = torch.cat(rows) * own.word_scale + own.word_mean + own.ranks.weight[ranks]
    embeds[len(embeds) - len(said) :] += own.answered
    prompted = len(embeds) - len(said)
    seen = torch.ones(len(embeds), len(embeds), dtype=torch.bool).tril()
    seen[:prompted, :prompted] = True
    hidden: Tensor = bert(
        inputs_embeds=embeds[None],
        position_ids=torch.tensor([places]),
        token_type_ids=torch.tensor([kinds]),
        attention_mask=torch.zeros(1, 1, *seen.shape).masked_fill(~seen, -1e9),
    ).last_hidden_state[0]
    return hidden[prompted - 1 :]


@pytest.mark.usefixtures("kernels")
@torch.inference_mode()
def test_prompts_and_answers_are_read_in_steps_as_transformers_reads_them_at_once() -> None:
    wanted = [as_transformers_reads(generator(), prompt, ANSWER) for prompt in PROMPTS]
    pair = tiny_pair(seed=2, two_way=True)
    pair.generator.load_state_dict(generator().state_dict())
    stepper = Stepper(prepare_for_inference(pair).generator)
    assert stepper.whole_prompts
    cache = stepper.cache(96)
    order = np.random.default_rng(0).permutation(96)
    for places, prompt, states in zip(order.reshape(3, 32), PROMPTS, wanted, strict=True):
        embeds = stepper.embed(prompt)
        size = len(embeds)
        actual = [stepper.run(embeds, Step(cache, [Span(places, 0, size)]))[-1:]]
        # A token, and then two at once, as where an answer can go on in one way only.
        for first, last in ((0, 1), (1, 3)):
            said = stepper.said(ANSWER[first:last], range(first, last))
            step = Step(cache, [Span(places, size + first, last - first)])
            actual.append(stepper.run(said, step))
        torch.testing.assert_close(torch.cat(actual), states, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_passage_is_told_by_its_place_alone_and_a_word_is_seen_by_those_before_it() -> None:
    own = generator()
    first, second = own.ranks.weight[1].clone(), own.ranks.weight[2].clone()
    one = as_transformers_reads(own, [PASSAGE, OTHER, QUESTION], [])
    pair = tiny_pair(seed=2, two_way=True)
    pair.generator.load_state_dict(own.state_dict())
    stepper = Stepper(prepare_for_inference(pair).generator)

    def read(*prompt: PromptPart) -> Tensor:
        embeds = stepper.embed(prompt)
        return stepper.run(embeds, Step(stepper.cache(48), [Span(np.arange(48), 0, len(embeds))]))

    # The best first: another order is another prompt, and nothing but their ranks tells it.
    assert (read(OTHER, PASSAGE, QUESTION)[-1] - one[0]).abs().max() > 1e-2
    pair.generator.ranks.weight[1].copy_(second)
    pair.generator.ranks.weight[2].copy_(first)
    torch.testing.assert_close(read(OTHER, PASSAGE, QUESTION)[-1:], one, atol=1e-4, rtol=1e-4)
    states = [read([*PASSAGE[:-1], last], QUESTION)[0] for last in (54, 55)]
    assert (states[0] - states[1]).abs().max() > 1e-2


def test_parts_of_a_prompt_stand_where_the_compressor_has_them_and_answers_apart() -> None:
    placing = Placing(128)
    assert placing.question(5) == [0, 1, 2, 3, 4]
    assert placing.passage(4, question=5) == [5, 6, 7, 8]
    assert placing.answer([0, 1, 2]) == [112, 113, 114]
    # Whatever its length, none stands where an answer does, or where there is no position.
    assert placing.question(200)[-1] == 111
    long = placing.passage(300, question=5)
    assert (min(long), max(long)) == (5, 111)
    assert long[107:109] == [5, 6]
    assert min(placing.passage(300, question=500)) == 56
    assert placing.answer([15, 16, 400]) == [127, 127, 127]
    assert [placing.rank(passage) for passage in (0, 1, 14, 15, 200)] == [1, 2, 15, 15, 15]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.usefixtures("kernels")
def test_rows_of_a_prompt_see_all_of_it_and_those_after_it_what_came(device: str) -> None:
    heads, size, lengths = 4, 32, [7, 20, 3]  # of a size that our own kernel takes
    bf16 = device == "cuda"
    dtype = torch.bfloat16 if bf16 else torch.float32
    cache = Cache(1, 96, heads, size, dtype=dtype, device=torch.device(device))
    order = np.random.default_rng(1).permutation(96)
    places = [order[:12], order[12:40], order[40:60]]
    source = torch.Generator().manual_seed(0)
    whole = [torch.randn(3, n + 3, heads, size, generator=source) for n in lengths]
    # Prompts of two sequences; then a token of one, three of another and the third's prompt.
    steps = [[(0, 0, 7), (1, 0, 20)], [(0, 7, 8), (1, 20, 23), (2, 0, 3)], [(0, 8, 10), (2, 3, 6)]]
    actual = [torch.full((n + 3, heads, size), torch.nan) for n in lengths]
    for parts in steps:
        step = Step(cache, [Span(places[i], a, b - a) for i, a, b in parts])
        rows = torch.cat([whole[i][:, a:b] for i, a, b in parts], dim=1).to(device, dtype)
        filled = nn.functional.pad(rows, (0, 0, 0, 0, 0, step.padded - step.total))
        out = attend(step, 0, *filled, scale=0.3, two_way=True)[: step.total].float().cpu()
        for (i, a, b), part in zip(parts, out.split([b - a for _, a, b in parts]), strict=True):
            actual[i][a:b] = part
    for got, (query, key, value), length in zip(actual, whole, lengths, strict=True):
        seen = torch.ones(length + 3, length + 3, dtype=torch.bool).tril()
        seen[:length, :length] = True
        scores = torch.einsum("qhd,khd->hqk", query, key) * 0.3
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        wanted = torch.einsum("hqk,khd->qhd", weights, value)
        close = {"atol": 3e-2, "rtol": 3e-2} if bf16 else {"atol": 1e-5, "rtol": 1e-5}
        torch.testing.assert_close(got, wanted, **close)


@torch.inference_mode()
def test_single_tokens_in_fixed_shapes_are_those_of_steps_as_they_are() -> None:
    stepper = Stepper(prepare_for_inference(tiny_pair(seed=2, two_way=True)).generator)
    cache, places = stepper.cache(64), np.arange(64)
    decoder = Decoder(stepper, cache, 4)
    decoder.prepare()  # which checks that they are
    embeds = stepper.embed([PASSAGE, QUESTION])
    stepper.run(embeds, Step(cache, [Span(places, 0, len(embeds))]))
    token, span = stepper.said(ANSWER[:1], [0]), Span(places, len(embeds), 1)
    wanted = stepper.logits(stepper.run(token, Step(cache, [span])))
    actual = decoder.run(token, [span])
    assert actual is not None
    torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


def test_one_that_reads_prompts_otherwise_in_steps_is_refused() -> None:
    own = prepare_for_inference(tiny_pair(seed=2, two_way=True)).generator
    for layer in own.backbone.get_submodule("encoder.layer"):
        layer.attention.self.layer_idx = 0  # each overwrites what the one before has cached
    with pytest.raises(CorruptModel, match="'bert' backbone gives other numbers in steps"):
        Stepper(own)


def test_a_window_and_both_sides_are_too_much() -> None:
    module = nn.Module()
    module.is_causal = False
    cache = Cache(1, 16, 2, 4, dtype=torch.float32, device=torch.device("cpu"))
    step = Step(cache, [Span(np.arange(16), 0, 3)])
    rows = torch.randn(1, 2, 3, 4)
    module.layer_idx = 0
    with pytest.raises(ValueError, match="window"):
        cached_attention(module, rows, rows, rows, None, step=step, sliding_window=2)


@torch.inference_mode()
def test_a_network_can_be_taken_again_and_what_nobody_reads_is_not_computed() -> None:
    network = prepare_for_inference(tiny_pair(seed=2, two_way=True)).generator
    outs = []
    for wanted in (None, torch.tensor([10, 3])):
        stepper = Stepper(network)
        embeds = stepper.embed([PASSAGE, QUESTION])
        step = Step(stepper.cache(32), [Span(np.arange(32), 0, len(embeds))])
        step.wanted = wanted
        outs.append(stepper.run(embeds, step))
    torch.testing.assert_close(outs[1][[10, 3]], outs[0][[10, 3]])
    assert not torch.allclose(outs[1][5], outs[0][5])


def test_its_layers_are_of_the_encoders_kind() -> None:
    config = tiny_config(hidden_act="relu", layer_norm_eps=1e-5)
    made = OscarPair(config, tiny_shape(two_way=True), torch.randn(len(VOCABULARY), 32)).generator
    assert (made.backbone.config.hidden_act, made.norm.eps) == ("relu", 1e-5)
    layer = made.backbone.get_submodule("encoder.layer")[0]
    assert layer.output.LayerNorm.eps == 1e-5
    assert layer.intermediate.intermediate_act_fn(torch.tensor(-1.0)) == 0


def test_what_prompts_begin_with_cannot_be_read_by_itself() -> None:
    stepper = Stepper(prepare_for_inference(tiny_pair(two_way=True)).generator)
    with pytest.raises(ValueError, match="no beginning by itself"):
        stepper.prefix([5, 6])


@pytest.mark.parametrize("weights", ["int8", "int4"])
@torch.inference_mode()
def test_it_runs_with_fewer_bits_a_weight(weights: Weights) -> None:
    if not can_quantise(weights, torch.device("cpu")):
        pytest.skip("not on this CPU")
    config = tiny_config(hidden_size=256, num_attention_heads=8, intermediate_size=1024)
    shape = tiny_shape(two_way=True, generator_heads=8, generator_mlp_size=1024)
    torch.manual_seed(0)
    states = []
    words = torch.randn(len(VOCABULARY), 256)
    state = OscarPair(config, shape, words).own_state()
    for held in ("float", weights):
        pair = OscarPair.of_state(config, shape, words, state).eval()
        stepper = Stepper(prepare_for_inference(pair, held).generator)
        embeds = stepper.embed([PASSAGE, QUESTION])
        step = Step(stepper.cache(32), [Span(np.arange(32), 0, len(embeds))])
        states.append(stepper.run(embeds, step)[-1])
    assert 0.99 < torch.cosine_similarity(*states, dim=0) < 1 - 1e-6


def test_its_words_are_the_vocabulary_of_all() -> None:
    assert generator().logits(torch.randn(2, 32)).shape == (2, len(VOCABULARY))


@pytest.mark.parametrize("weights", ["float", "int8"])
def test_steps_of_rounded_layers_have_their_gelu(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The activation goes into the product before it, whichever product this CPU has."""
    if not can_quantise(weights, torch.device("cpu")):
        pytest.skip("not on this CPU")
    monkeypatch.setattr("condensery.networks.quantised.SMALLEST", 1)
    network = prepare_for_inference(tiny_pair(seed=2, two_way=True), weights).generator
    kinds = {type(part) for part in network.modules()}
    assert (weights == "int8") == (product_of("int8") in kinds)
    stepper = Stepper(network)  # which refuses a network that says something else at once
    ups = [part.up for part in network.modules() if isinstance(part, StepEncoderLayer)]
    assert [up.activation for up in ups] == len(ups) * ["gelu"]
    assert stepper.embed([QUESTION]).shape == (len(QUESTION), 32)
