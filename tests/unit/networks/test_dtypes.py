"""Models of another dtype are built beside forward passes without their noticing."""

import threading
from pathlib import Path

import pytest
import torch
from tiny_pair import write_base
from transformers import AutoModel, BertConfig, LlamaConfig, PreTrainedModel, modeling_utils

from condensery.networks import decoders
from condensery.networks.backbone import load_backbone
from condensery.networks.dtypes import thread_dtypes


@pytest.fixture
def seen() -> set[torch.dtype]:
    return set()


def test_a_model_is_loaded_in_its_dtype_and_no_other_thread_sees_that(
    tmp_path: Path, seen: set[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_base(tmp_path)
    set_default = torch.set_default_dtype
    monkeypatch.setattr(torch, "set_default_dtype", lambda to: (seen.add(to), set_default(to)))
    # Only what some other thread could see counts: that the process's default was ever changed.
    backbone = load_backbone(tmp_path, dtype=torch.bfloat16)
    assert seen == set()
    kinds = {parameter.dtype for parameter in backbone.model.parameters()}
    assert kinds <= {torch.bfloat16}
    assert backbone.dtype == torch.bfloat16


def test_what_is_built_is_what_transformers_builds(tmp_path: Path) -> None:
    write_base(tmp_path)
    options = {"dtype": torch.bfloat16, "add_pooling_layer": False}
    usual = AutoModel.from_pretrained(tmp_path, **options)
    with thread_dtypes():
        ours = AutoModel.from_pretrained(tmp_path, **options)
    wanted = usual.state_dict() | dict(usual.named_buffers())
    state = ours.state_dict() | dict(ours.named_buffers())
    assert list(state) == list(wanted)
    for name, tensor in wanted.items():
        assert state[name].dtype == tensor.dtype, name
        assert torch.equal(state[name], tensor), name


def test_a_language_model_is_built_in_its_configs_dtype_and_no_thread_sees_that(
    seen: set[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        dtype="bfloat16",
    )
    monkeypatch.setattr(torch, "set_default_dtype", seen.add)
    model = decoders.build(config)
    assert seen == set()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_what_is_nowhere_is_what_it_would_be_elsewhere() -> None:
    def facts(model: PreTrainedModel) -> dict[str, tuple[torch.Size, torch.dtype, bool]]:
        tensors = [*model.named_parameters(), *model.named_buffers()]
        return {name: (one.shape, one.dtype, one.is_meta) for name, one in tensors}

    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    for config in (LlamaConfig(**sizes), BertConfig(**sizes)):
        with torch.device("meta"):
            usual = AutoModel.from_config(config)
        with thread_dtypes(), torch.device("meta"):
            ours = AutoModel.from_config(config)
            counted = torch.arange(3, dtype=torch.int32), torch.arange(6.0).view(2, 3) / 2
            spread = counted[1] / torch.arange(12.0).view(4, 1, 3)
        assert facts(ours) == facts(usual)
        assert {one.is_meta for one in (*counted, spread)} == {True}
        assert (counted[0].dtype, counted[1].shape) == (torch.int32, (2, 3))
        assert spread.shape == (4, 2, 3)


def test_while_one_thread_builds_another_makes_tensors_of_the_usual_dtype() -> None:
    building, done = threading.Event(), threading.Event()

    def build() -> None:
        with thread_dtypes(), modeling_utils.local_torch_dtype(torch.bfloat16):
            assert torch.empty(1).dtype == torch.bfloat16
            assert torch.zeros(1, dtype=torch.float64).dtype == torch.float64
            building.set()
            done.wait(30)

    thread = threading.Thread(target=build)
    thread.start()
    assert building.wait(30)
    try:
        assert torch.empty(1).dtype == torch.get_default_dtype() == torch.float32
        assert torch.ones(2).sum().dtype == torch.float32
    finally:
        done.set()
        thread.join()
