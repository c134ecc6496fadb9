"""Tiny random models of every family, and text."""

from pathlib import Path

import pytest
from tests.unit.methods.conftest import SIZES
from tiny_pair import text_of, tiny_config, tiny_tokenizer
from transformers import AutoModel, LlamaConfig, ModernBertConfig, PretrainedConfig

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, eos_token_id=3),
    "modernbert": ModernBertConfig(
        **SIZES, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3
    ),
    "bert": tiny_config(num_hidden_layers=4),
}


@pytest.fixture(scope="session", params=CONFIGS)
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model's directory; its layers differ, for each weight is as random as another."""
    import torch

    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIGS[request.param])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    return folder


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(text_of(23, seed) for seed in range(12)) + "\n")
    return path
