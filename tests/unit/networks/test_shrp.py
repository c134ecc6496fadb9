"""Expert layers against the paper's formula, and as they run packed."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, LlamaModel, PreTrainedModel

from condensery.networks.attention import PACKED
from condensery.networks.packing import Packing
from condensery.networks.shrp import (
    ExpertLayer,
    Experts,
    FusedExpertLayer,
    build_experts,
    convert_layer,
)
from condensery.networks.shrp_paper import BertShape

LENGTHS = (9, 9, 6, 9, 2, 7)
CONVERTED = 1


def batch(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return padded sequences of ``LENGTHS``."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(
        5, model.config.vocab_size, (len(LENGTHS), max(LENGTHS)), generator=generator
    )
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids.where(mask.bool(), model.config.pad_token_id), "attention_mask": mask}


def converted(model: PreTrainedModel, layer: int = CONVERTED) -> ExpertLayer:
    """Convert a layer, whose fresh parts get values that matter."""
    made = convert_layer(model, layer)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def by_formula(layer: ExpertLayer, hidden: Tensor, expert: int) -> Tensor:
    """Return section 3's output of one sequence (length, hidden), written out."""
    rows = slice(expert * layer.head_size, (expert + 1) * layer.head_size)
    attention = layer.attention
    query, key, value = (
        hidden @ linear.weight[rows].T + linear.bias[rows]
        for linear in (attention.query, attention.key, attention.value)
    )
    head = torch.softmax(query @ key.T / layer.head_size**0.5, -1) @ value
    widened = head @ layer.expander.dense.weight.T + layer.expander.dense.bias
    widened = 0.5 * widened * (1 + torch.erf(widened / 2**0.5))
    for norm, source in ((layer.expander.norm, None), (layer.norm, hidden)):
        widened = widened if source is None else widened + source
        centred = widened - widened.mean(-1, keepdim=True)
        deviation = (centred.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()
        widened = centred / deviation * norm.weight + norm.bias
    return widened


@torch.inference_mode()
def test_a_routed_layer_is_the_formula_of_the_expert_that_the_first_token_takes(
    bert: PreTrainedModel,
) -> None:
    layer = converted(bert)
    hidden = torch.randn(8, 11, bert.config.hidden_size)
    got = layer(hidden)
    assert layer.gate is not None
    chosen = (hidden[:, 0] @ layer.gate.weight.T + layer.gate.bias).argmax(-1)
    assert len(set(chosen.tolist())) > 1  # else nothing is routed
    for row, expert in enumerate(chosen.tolist()):
        torch.testing.assert_close(
            got[row], by_formula(layer, hidden[row], expert), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("family", ["bert", "roberta"])
@torch.inference_mode()
def test_a_forced_expert_is_the_layer_pruned_to_that_head(
    family: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(family)
    layer, inputs = converted(model), batch(model)
    for expert in range(layer.experts):
        layer.forced = expert
        routed = model(**inputs).last_hidden_state
        pruned_model = copy.deepcopy(model)
        pruned: Any = pruned_model.encoder.layer[CONVERTED]
        pruned.forced = None
        pruned.keep([expert])
        assert pruned.gate is None
        torch.testing.assert_close(
            pruned_model(**inputs).last_hidden_state, routed, rtol=0, atol=1e-6
        )


@torch.inference_mode()
def test_of_several_survivors_the_gates_own_scores_choose(bert: PreTrainedModel) -> None:
    layer = converted(bert)
    hidden = torch.randn(16, 5, bert.config.hidden_size)
    layer(hidden)
    assert layer.logits is not None
    kept = [1, 3]
    wanted = [kept[place] for place in layer.logits[:, kept].argmax(-1).tolist()]
    assert len(set(wanted)) == 2
    rows = [by_formula(layer, hidden[row], expert) for row, expert in enumerate(wanted)]
    layer.keep(kept)
    torch.testing.assert_close(layer(hidden), torch.stack(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept", [None, (0, 2), (2,)])
@pytest.mark.parametrize("family", ["bert", "roberta"])
@torch.inference_mode()
def test_fused_and_packed_gives_what_the_padded_layer_gives(
    family: str, kept: tuple[int, ...] | None, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(family)
    for number in range(2):
        layer = converted(model, number)
        if kept is not None:
            layer.keep(kept)
    inputs = batch(model)
    states = model(**inputs).last_hidden_state
    wanted = torch.cat([states[row, :length] for row, length in enumerate(LENGTHS)])
    model.set_attn_implementation(PACKED)
    model.encoder.layer = nn.ModuleList(FusedExpertLayer(layer) for layer in model.encoder.layer)
    packing = Packing.of(LENGTHS, dtype=torch.float32, total_multiple=16)
    ids = inputs["input_ids"]
    row = [token for place, size in enumerate(LENGTHS) for token in ids[place, :size].tolist()]
    offset = 2 if family == "roberta" else 0

    def read() -> Tensor:
        states: Tensor = model(
            input_ids=packing.row(row),
            position_ids=packing.position_ids + offset,
            packing=packing,
        ).last_hidden_state
        return states[0]

    torch.testing.assert_close(read()[: sum(LENGTHS)], wanted, rtol=1e-4, atol=1e-5)
    model.encoder.layer[-1].last = True
    packing.wanted = packing.starts
    torch.testing.assert_close(read()[packing.starts], wanted[packing.starts], rtol=1e-4, atol=1e-5)


def test_the_gate_learns_from_the_task_only_straight_through(bert: PreTrainedModel) -> None:
    layer = converted(bert).train()
    hidden = torch.randn(4, 6, bert.config.hidden_size)
    for module in layer.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    layer.attention_dropout = 0.0
    gate = layer.gate
    assert gate is not None
    outputs = []
    for straight_through in (False, True):
        layer.straight_through = straight_through
        out = layer(hidden)
        outputs.append(out.detach())
        layer.zero_grad()
        out.pow(3).sum().backward()
        learns = gate.weight.grad is not None and bool(gate.weight.grad.abs().sum() > 0)
        assert learns is straight_through
    torch.testing.assert_close(outputs[0], outputs[1])  # what comes out is the same
    used = set(layer.logits.argmax(-1).tolist()) if layer.logits is not None else set()
    gradient = layer.attention.query.weight.grad
    assert gradient is not None
    by_head = gradient.view(layer.experts, layer.head_size, -1).abs().sum((1, 2))
    assert {expert for expert in range(layer.experts) if by_head[expert] > 0} == used


def test_a_converted_classifier_has_the_parameters_that_the_paper_counts() -> None:
    config = BertConfig(
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        vocab_size=50,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    shape = BertShape(48, 3, 4, 80, labels=2)
    embeddings = sum(weight.numel() for weight in model.bert.embeddings.parameters())

    def others() -> int:
        return sum(weight.numel() for weight in model.parameters()) - embeddings

    assert others() == shape.parameters
    for layer in (0, 2):
        convert_layer(model.bert, layer).keep([1])
    saved = shape.layer_parameters - shape.expert_parameters
    assert others() == shape.parameters - 2 * saved


def test_weights_fit_the_network_that_the_configuration_describes(bert: PreTrainedModel) -> None:
    converted(bert).keep([3])
    experts = Experts((None, (3,)))
    config = {**bert.config.to_dict(), **experts.to_config()}
    assert Experts.from_config(config) == experts
    fresh = copy.deepcopy(bert)
    build_experts(fresh, experts)
    fresh.load_state_dict(bert.state_dict())
    with torch.inference_mode():
        inputs = batch(bert)
        torch.testing.assert_close(
            fresh.eval()(**inputs).last_hidden_state, bert(**inputs).last_hidden_state
        )


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("none", "shrp_heads: 'none' is no list of 2 layers"),
        ([None], "shrp_heads: [None] is no list of 2 layers"),
        ([None, 3], "layer 1 has 3"),
        ([None, []], "layer 1 has []"),
        ([None, [4]], "layer 1 names 4, no head of 4"),
        ([None, [True]], "layer 1 names True"),
        ([None, [2, 1]], "layer 1 does not ascend"),
        ([None, [1, 1]], "layer 1 does not ascend"),
    ],
)
def test_a_wrong_list_of_heads_is_refused(listed: object, message: str) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "shrp_heads": listed}
    with pytest.raises(ValueError, match=re.escape(message)):
        Experts.from_config(config)


def test_what_can_not_be_converted_is_refused(bert: PreTrainedModel, llama: LlamaModel) -> None:
    with pytest.raises(ValueError, match="layer: 2 is none of 2"):
        convert_layer(bert, 2)
    layer = convert_layer(bert, 1)
    with pytest.raises(ValueError, match="layer: 1 is converted already"):
        convert_layer(bert, 1)
    with pytest.raises(ValueError, match="model_type: 'llama' can't be converted"):
        convert_layer(llama, 0)
    for experts in ([], [4], [-1]):
        with pytest.raises(ValueError, match="experts"):
            layer.keep(experts)
    bert.config.num_attention_heads = 5
    with pytest.raises(ValueError, match="5 heads don't divide hidden_size 64"):
        convert_layer(bert, 0)
