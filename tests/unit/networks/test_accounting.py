from types import SimpleNamespace

import pytest
import torch
from tiny_pair import VOCABULARY, tiny_pair
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from condensery.networks.accounting import LayerCost, PairCost
from condensery.networks.last_layer import trim_last
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_bert import BertCompressor
from condensery.networks.oscar_interface import PassageWindow
from condensery.networks.oscar_packing import Specials
from condensery.networks.oscar_shape import OscarShape
from condensery.runtime.oscar_pair import prepare_for_inference

SMALL = OscarShape(memory_tokens=2, mapping_size=5, generator_layers=3, generator_mlp_size=7)


def cost_of(pair: OscarPair) -> PairCost:
    return PairCost.of(
        pair.shape, hidden_size=32, mlp_size=48, layers=2, vocabulary=len(VOCABULARY)
    )


def test_a_sequence_costs_its_matrices_and_all_its_scores() -> None:
    # 2 layers of 10 weights, 3 tokens: 2*(2*10*3) + scores and mix 2*(2*2*3*3*4).
    assert LayerCost(10, 2, 4).sequence(3) == 120 + 288


def test_a_causal_token_sees_itself_and_those_before() -> None:
    # Prompt of 3 and 2 generated: 4 positions read (the last one is not), 1 + 2 + 3 + 4 seen.
    assert LayerCost(10, 2, 4).causal(3, 2) == 2 * (2 * 10 * 4) + 2 * (4 * 4 * 10)
    assert LayerCost(10, 2, 4).causal(3, 1) == LayerCost(10, 2, 4).causal(3, 0)


def test_a_prompt_that_sees_all_of_itself_is_a_square_and_what_follows_sees_what_came() -> None:
    # 3 positions of a prompt see 3 each; the one token that is read again sees 4.
    assert LayerCost(10, 2, 4).prefixed(3, 2) == 2 * (2 * 10 * 4) + 2 * (4 * 4 * (9 + 4))


def test_what_nothing_reads_costs_less_in_the_last_layer() -> None:
    # 6 of the last layer's weights are not multiplied for 2 of 3 tokens.
    whole, trimmed = LayerCost(10, 2, 4), LayerCost(10, 2, 4, trimmed=6)
    assert trimmed.sequence(3) == whole.sequence(3)
    assert trimmed.sequence(3, unused=2) == whole.sequence(3) - 2 * 6 * 2
    assert trimmed.causal(3, 2, unused=2) == whole.causal(3, 2) - 2 * 6 * 2


def test_a_pair_costs_what_its_matrices_say() -> None:
    cost = PairCost.of(SMALL, hidden_size=4, mlp_size=6, layers=2, vocabulary=11)
    assert cost.compressor == LayerCost(4 * 16 + 2 * 24, 2, 4)
    assert cost.generator == LayerCost(4 * 16 + 3 * 28, 3, 4, 3 * 28)
    assert cost.token == 2 * (16 + 44)
    unread = 2 * 84 * 2  # of a prompt of 3, the last position is read
    assert cost.generate(3, 2) == 3 * (2 * 148 * 4 + 4 * 4 * 10) - unread + 2 * 120
    # A question of 1 and a passage of 2: 9 positions with 3 special tokens and 3 slots.
    layers = 2 * (2 * 112 * 9 + 4 * 4 * 81)
    mapping, rerank = 2 * 2 * (4 * 5 + 5 * 4), 2 * 4
    pointer = 2 * 2 * 16 + 3 * 2 * 16 + 2 * (2 * 2 * 3 * 4) + 2 * 2 * 4
    assert cost.compress(1, 2) == layers + mapping + rerank + pointer


def test_without_the_copy_path_no_pointer_is_counted() -> None:
    shape = OscarShape(memory_tokens=2, mapping_size=5, copy=False)
    cost = PairCost.of(shape, hidden_size=4, mlp_size=6, layers=2, vocabulary=11)
    assert cost.compressor.trimmed == 16 + 2 * 24  # all but queries, keys and values
    read = cost.compressor.sequence(9, unused=6)  # 3 slots are used
    assert cost.compress(1, 2) == read + 2 * 2 * (20 + 20) + 2 * 4


@pytest.mark.usefixtures("plain_fp32")
@pytest.mark.parametrize("shape", [{}, {"walk": True}, {"copy": False}], ids=str)
def test_the_compressors_figure_is_what_torch_counts(shape: dict[str, bool]) -> None:
    pair = tiny_pair(**shape)
    question, passage = 26, 31  # 26 + 31 + 3 and 4 slots: 64 rows; 31 + 1 to point at: no filler
    ids = list(range(5, 5 + question + passage))
    ids = [2, *ids[:question], 3, *ids[question:], 3]
    reading = PassageWindow(ids, head=question + 2, tail=1, memory=3, start=0, end=0)
    network = BertCompressor(prepare_for_inference(pair), Specials(2, 3))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.compress([reading])
    assert network.cost(reading) == 64
    # The counter sees no fused attention: scores, and their use, of 2 layers 32 wide.
    scores = 2 * 4 * 32 * 64 * 64
    assert cost_of(pair).compress(question, passage) == counter.get_total_flops() + scores


def test_the_figure_of_one_that_reads_both_ways_is_what_torch_counts() -> None:
    pair = tiny_pair(two_way=True)
    backbone = pair.generator.backbone
    backbone.set_attn_implementation("eager")
    prompt, generated = 7, 4
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        hidden = pair.generator(torch.randn(1, prompt, 32)).last_hidden_state
        pair.generator.logits(hidden[:, -1])
        for _ in range(generated - 1):  # the keys of those before it would be there already
            pair.generator(torch.randn(1, 1, 32))
            pair.generator.logits(hidden[:, -1])
    # The single tokens saw themselves alone: of 2 layers, 32 wide, those before are missing.
    before = sum(2 * 4 * 32 * (prompt + token) for token in range(generated - 1))
    # In steps the last layer's output and MLP (48 neurons) are of the row alone that is read.
    unread = 2 * (32 * 32 + 2 * 32 * 48) * (prompt - 1)
    counted = counter.get_total_flops() + before - unread
    assert cost_of(pair).generate(prompt, generated) == counted


def test_the_generators_figure_is_what_torch_counts_but_for_masked_scores() -> None:
    pair = tiny_pair()
    backbone = pair.generator.backbone
    backbone.set_attn_implementation("eager")  # its products are counted, all
    trim_last(backbone)
    prompt, generated = 7, 4
    embeds, cache = torch.randn(1, prompt, 32), DynamicCache()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for _ in range(generated):
            step = SimpleNamespace(wanted=torch.tensor([embeds.shape[1] - 1]))
            out = pair.generator(embeds, past_key_values=cache, use_cache=True, step=step)
            pair.generator.logits(out.last_hidden_state[:, -1])
            embeds = torch.randn(1, 1, 32)
    # torch computes the whole square of the prompt's scores, half of which the mask then hides.
    masked = 2 * 4 * 32 * (prompt * prompt - prompt * (prompt + 1) // 2)
    # Older versions of transformers make the rotary angles by a matrix product.
    rotations = sum(
        sum(counts.values())
        for name, counts in counter.get_flop_counts().items()
        if name.endswith("rotary_emb")
    )
    counted = counter.get_total_flops() - masked - rotations
    assert cost_of(pair).generate(prompt, generated) == counted
