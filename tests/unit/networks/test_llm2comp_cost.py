"""What a memory encoder costs is what torch counts, and its weights are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_memory import K, grown, write_language_model, write_merged
from torch.utils.flop_counter import FlopCounterMode

from condensery.networks.effir_paper import LLAMA2_7B
from condensery.networks.llm2comp import load_memory_backbone
from condensery.networks.llm2comp_cost import MemoryCost, paper_costs
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.networks.weight_files import ModelFolder


@pytest.mark.usefixtures("plain_fp32")
@pytest.mark.parametrize("kept", [(), (1,)])
def test_figures_are_those_of_the_network_that_runs(kept: tuple[int, ...], tmp_path: Path) -> None:
    model = grown(write_language_model(tmp_path / "lm"), torch.randn(K, 32))
    folder = write_merged(tmp_path / "merged", model)
    shape = MemoryShape(K, effective_tokens=kept)
    backbone = load_memory_backbone(ModelFolder.of(folder), shape)
    rows = len(model.get_input_embeddings().weight)
    cost = MemoryCost.of(model.config.to_dict() | {"vocab_size": rows}, shape)
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())
    tokens = 32 - K  # keys are padded to a multiple of 16: here none is
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone.read([[5] * tokens], pooling="mean")
    # The counter sees no fused attention: scores, and their use, of 2 layers 32 wide.
    scores = 2 * 4 * 32 * 32 * 32
    assert counter.get_total_flops() + scores == cost.read(tokens)


def test_more_memory_tokens_cost_more_and_text_alone_the_most_of_it() -> None:
    costs = list(paper_costs())
    for tokens in (16, 128, 512):
        read = [cost.read(tokens) for cost in costs]
        assert read == sorted(read)
    eight = next(cost for cost in costs if cost.memory.memory_tokens == 8)
    dense = LLAMA2_7B.layers * LLAMA2_7B.layer_weights
    scores = 32 * 4 * 4096
    assert eight.read_alone(128) == 2 * 128 * dense + scores * 128**2
    unread = 2 * 128 * 3 * 4096 * 11008
    assert eight.read(128) == 2 * 136 * dense + scores * 136**2 - unread
    assert eight.parameters == 6_607_343_616 + 8 * 4096
    assert replace(eight, memory=MemoryShape(8, effective_tokens=(0,))).read(128) < eight.read(128)


def test_a_network_of_which_parts_are_gone_is_not_counted() -> None:
    config = {"num_hidden_layers": 4, "drop_mlp_list": [1], "vocab_size": 9}
    with pytest.raises(ValueError, match=r"config\.json: parts of the network are dropped"):
        MemoryCost.of(config, MemoryShape(2))
    with pytest.raises(ValueError, match="num_attention_heads must be a positive integer"):
        MemoryCost.of({"vocab_size": 9}, MemoryShape(2))
