"""Classifiers on packed texts against transformers' own, one text at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    CamembertConfig,
    DistilBertConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    XLMRobertaConfig,
)

from condensery.errors import CorruptModel
from condensery.networks.backbone import load_classifier
from condensery.networks.classifier import run_classifier

WORDS = 60
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ROBERTA = {**SIZES, "pad_token_id": 1, "type_vocab_size": 1}
GROUPED = {**SIZES, "num_key_value_heads": 2}
SHORT = {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS: dict[str, PretrainedConfig] = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**ROBERTA),
    "xlm-roberta": XLMRobertaConfig(**ROBERTA),
    "camembert": CamembertConfig(**ROBERTA),
    "modernbert": ModernBertConfig(**SIZES, **SHORT, local_attention=8, classifier_pooling="cls"),
    "modernbert, mean": ModernBertConfig(**SIZES, **SHORT, classifier_pooling="mean"),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=8),
    "llama": LlamaConfig(**GROUPED),
    "mistral": MistralConfig(**GROUPED, head_dim=8),
}
GENERATOR = torch.Generator().manual_seed(0)
TEXTS = [
    torch.randint(3, WORDS, (length,), generator=GENERATOR).tolist() for length in (5, 30, 1, 17)
]
TYPES = [[0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2) for ids in TEXTS]


def saved(path: Path, kind: str, labels: int) -> Path:
    """Write a random classifier whose every weight matters."""
    torch.manual_seed(0)
    config = CONFIGS[kind]
    config.num_labels = labels
    model: Any = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_are_transformers_own(kind: str, labels: int, tmp_path: Path) -> None:
    path = saved(tmp_path, kind, labels)
    reference = AutoModelForSequenceClassification.from_pretrained(
        path, attn_implementation="eager"
    ).eval()
    network = run_classifier(load_classifier(path))
    rows = network.read(TEXTS, TYPES)
    assert rows.shape == (len(TEXTS), labels)
    assert network.typed == (kind == "bert")
    for ids, types, logits in zip(TEXTS, TYPES, rows, strict=True):
        inputs = {"input_ids": torch.tensor([ids])}
        if network.typed:
            inputs["token_type_ids"] = torch.tensor([types])
        with torch.inference_mode():
            wanted = reference(**inputs).logits[0]
        assert (logits - wanted).abs().max() < 2e-5
    assert rows.std(0).min() > 1e-3


def test_in_bf16_the_head_still_computes_in_float32(tmp_path: Path) -> None:
    path = saved(tmp_path, "bert", 2)
    exact = run_classifier(load_classifier(path)).read(TEXTS, TYPES)
    logits = run_classifier(load_classifier(path, dtype=torch.bfloat16)).read(TEXTS, TYPES)
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().max() < 0.05 * exact.abs().max()


def test_what_is_missing_is_named_and_not_made_up(tmp_path: Path) -> None:
    path = saved(tmp_path, "roberta", 1)
    weights = load_file(path / "model.safetensors")
    del weights["classifier.out_proj.weight"]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel, match=r"classifier\.out_proj\.weight"):
        load_classifier(path)


def test_a_head_that_is_not_known_is_refused_by_name() -> None:
    config = DistilBertConfig(vocab_size=9, dim=8, hidden_dim=8, n_layers=1, n_heads=2)
    with pytest.raises(ValueError, match="model_type: the head of a 'distilbert' classifier"):
        run_classifier(AutoModelForSequenceClassification.from_config(config))
