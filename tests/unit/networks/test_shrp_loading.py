"""Stored networks of experts as they serve, against the padded layers that were trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_shrp import Heads, padded, to_experts, write_experts
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    CamembertConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    XLMRobertaConfig,
)

from condensery.errors import CorruptModel
from condensery.networks.backbone import load_backbone, load_classifier, load_transformer
from condensery.networks.bert import FusedLayer
from condensery.networks.classifier import run_classifier
from condensery.networks.linear import Dense
from condensery.networks.quantised import Int8, can_quantise, product_of
from condensery.networks.shrp import ExpertLayer, FusedExpertLayer

WORDS, LAYERS = 60, 3
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ROBERTA = {**SIZES, "pad_token_id": 1, "type_vocab_size": 1}
CONFIGS: dict[str, PretrainedConfig] = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**ROBERTA),
    "xlm-roberta": XLMRobertaConfig(**ROBERTA),
    "camembert": CamembertConfig(**ROBERTA),
}
# Pruned to one head, routed between three, pruned and last; and all layers at once.
HEADS: tuple[Heads, ...] = ((None, (2,), (0, 1, 3)), ((0, 2), None, (1,)), ((3,), (0,), (1,)))
GENERATOR = torch.Generator().manual_seed(0)
TEXTS = [
    torch.randint(3, WORDS, (length,), generator=GENERATOR).tolist()
    for length in (5, 30, 1, 17, 16, 30)
]
TYPES = [[0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2) for ids in TEXTS]


def converted(kind: str, heads: Heads, *, labels: int = 0) -> PreTrainedModel:
    torch.manual_seed(0)
    config = CONFIGS[kind].__class__.from_dict(CONFIGS[kind].to_dict())
    if labels:
        config.num_labels = labels
        model: Any = AutoModelForSequenceClassification.from_config(config)
    else:
        model = AutoModel.from_config(config, add_pooling_layer=False)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(4 if weights.ndim > 1 else 1)
    return to_experts(model, heads)


def tell(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_an_encoder_gives_the_padded_layers_states(kind: str, heads: Heads, tmp_path: Path) -> None:
    model = converted(kind, heads)
    types = TYPES if kind == "bert" else None
    backbone = load_backbone(write_experts(tmp_path, model, heads))
    layers: Any = backbone.model.encoder.layer
    assert [type(layer) for layer in layers] == [
        FusedLayer if kept is None else FusedExpertLayer for kept in heads
    ]
    assert [layer.last for layer in layers] == [False, False, True]
    states = padded(model, TEXTS, types).last_hidden_state
    rows, packing = backbone.read(TEXTS, types)
    for row, (first, ids) in enumerate(zip(packing.starts.tolist(), TEXTS, strict=True)):
        got = rows[first : first + len(ids)]
        torch.testing.assert_close(got, states[row, : len(ids)], rtol=1e-5, atol=1e-5)
    firsts, packing = backbone.read(TEXTS, types, pooling="cls")  # of the last layer no more
    torch.testing.assert_close(firsts[packing.starts], states[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_classifier_gives_the_padded_layers_logits(
    kind: str, heads: Heads, labels: int, tmp_path: Path
) -> None:
    model = converted(kind, heads, labels=labels)
    wanted = padded(model, TEXTS, TYPES if kind == "bert" else None).logits
    assert wanted.std(0).min() > 1e-3  # they differ from text to text
    classifier = run_classifier(load_classifier(write_experts(tmp_path, model, heads)))
    assert classifier.labels == labels
    got = classifier.read(TEXTS, TYPES)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", HEADS)
def test_on_a_gpu_it_gives_the_same(heads: Heads, tmp_path: Path) -> None:
    model = converted("bert", heads)
    states = padded(model, TEXTS, None).last_hidden_state
    folder = write_experts(tmp_path, model, heads)
    backbone = load_backbone(folder, device="cuda", dtype=torch.bfloat16)
    rows, packing = backbone.read(TEXTS)
    for row, (first, ids) in enumerate(zip(packing.starts.tolist(), TEXTS, strict=True)):
        got = rows[first : first + len(ids)].float().cpu()
        wanted = states[row, : len(ids)]
        assert nn.functional.cosine_similarity(got, wanted).min() > 0.99


def test_an_encoder_is_read_from_a_classifier_s_weights(tmp_path: Path) -> None:
    model = converted("bert", HEADS[0], labels=2)
    folder = write_experts(tmp_path, model, HEADS[0])
    wanted = padded(model.base_model, TEXTS, None).last_hidden_state
    loaded = load_transformer(folder)
    torch.testing.assert_close(padded(loaded, TEXTS, None).last_hidden_state, wanted)
    assert not any("pooler" in name for name in loaded.state_dict())


def test_it_can_be_trained_on(tmp_path: Path) -> None:
    folder = write_experts(tmp_path, converted("bert", HEADS[0]), HEADS[0])
    model: Any = load_transformer(folder)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert isinstance(model.encoder.layer[1], ExpertLayer)
    model(input_ids=torch.tensor([TEXTS[0]])).last_hidden_state.sum().backward()
    assert model.encoder.layer[1].attention.query.weight.grad is not None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"shrp_heads": [None, [2]]}, r"shrp_heads: .* is no list of 3 layers"),
        ({"shrp_heads": [None, [2], [0, 1, 4]]}, "shrp_heads: layer 2 names 4, no head of 4"),
        ({"shrp_heads": [None, [2], []]}, r"shrp_heads: layer 2 has \[\]"),
        ({"num_attention_heads": 5}, "num_attention_heads: 5 heads don't divide hidden_size 32"),
        ({"num_hidden_layers": 2}, "shrp_heads: .* is no list of 2 layers"),
        ({"drop_mlp_list": [0]}, "shrp_heads: parts of other layers are dropped too"),
        # Lists that fit the configuration, and not the weights.
        (
            {"shrp_heads": [None, [2, 3], [0, 1, 3]]},
            r"layer\.1\.attention\.query\.weight is \(8, 32\), not \(16, 32\)",
        ),
        ({"shrp_heads": [[0], [2], [0, 1, 3]]}, r"layer\.0\.attention\.query\.weight is missing"),
        ({"shrp_heads": [None, None, [0, 1, 3]]}, r"layer\.1\.attention\.self\..* is missing"),
    ],
)
@pytest.mark.parametrize("load", [load_transformer, load_classifier])
def test_a_configuration_that_is_wrong_or_not_of_these_weights_is_refused(
    load: Any, keys: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = write_experts(tmp_path, converted("bert", HEADS[0], labels=2), HEADS[0])
    tell(folder, **keys)
    with pytest.raises(CorruptModel, match=message):
        load(folder)


def test_another_family_is_refused_by_its_name(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, num_key_value_heads=2)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    tell(tmp_path, shrp_heads=[None, None, [1]])
    with pytest.raises(CorruptModel, match="model_type: 'llama' can't be converted"):
        load_transformer(tmp_path)


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    folder = write_experts(tmp_path, converted("bert", HEADS[0]), HEADS[0])
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.expander.dense.weight"] = torch.zeros(32, 9)
    gates = [name for name in weights if ".gate." in name]
    assert len(gates) == 2  # the routed layer's alone
    for name in gates:
        del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel) as raised:
        load_transformer(folder)
    message = str(raised.value)
    assert "encoder.layer.1.expander.dense.weight is (32, 9), not (32, 8)" in message
    assert all(f"{name} is missing" in message for name in gates)


@pytest.mark.skipif(not can_quantise("int8", torch.device("cpu")), reason="no products of 8 bits")
@pytest.mark.parametrize("heads", HEADS)
def test_experts_products_are_rounded_and_what_chooses_between_them_is_not(
    heads: Heads, tmp_path: Path
) -> None:
    model = converted("bert", heads)
    states = padded(model, TEXTS, None).last_hidden_state
    backbone = load_backbone(write_experts(tmp_path, model, heads), weights="int8")
    layers: Any = backbone.model.encoder.layer
    experts = [layer for layer in layers if isinstance(layer, FusedExpertLayer)]
    assert experts
    for layer in experts:
        assert type(layer.projections) is type(layer.expander) is product_of("int8")
        if isinstance(layer.projections, Int8):
            assert layer.projections.factors is not None
            assert layer.expander.factors is None
        assert layer.gate is None or isinstance(layer.gate, Dense)
    rows, packing = backbone.read(TEXTS)
    for row, (first, ids) in enumerate(zip(packing.starts.tolist(), TEXTS, strict=True)):
        got, wanted = rows[first : first + len(ids)], states[row, : len(ids)]
        assert nn.functional.cosine_similarity(got, wanted).min() > 0.98
