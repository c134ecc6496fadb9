"""Tiny random models of several families, made on the spot; and both ways that kernels may go."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from condensery.networks import linear, native

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 300,
}


def sharpen(model: PreTrainedModel) -> PreTrainedModel:
    """Scale the weights up: with the usual small ones attention is uniform and hides mistakes."""
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(6)
    return model.eval()


@pytest.fixture
def bert() -> PreTrainedModel:
    torch.manual_seed(0)
    return sharpen(BertModel(BertConfig(**SIZES), add_pooling_layer=False))


@pytest.fixture
def roberta() -> PreTrainedModel:
    torch.manual_seed(0)
    config = XLMRobertaConfig(**SIZES, pad_token_id=1, max_position_embeddings=130)
    return sharpen(XLMRobertaModel(config, add_pooling_layer=False))


@pytest.fixture
def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return sharpen(LlamaModel(LlamaConfig(**SIZES, num_key_value_heads=2)))


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(native, "kernels", lambda: None)
    elif native.kernels() is None:
        pytest.skip("no compiler when it was installed")
    return str(request.param)


@pytest.fixture
def plain_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where torch's own products in fp32 are as fast: they stay as they are."""
    monkeypatch.setattr(native, "has_panels", lambda _: False)
    monkeypatch.setattr(linear, "fp32_gains", lambda: False)
