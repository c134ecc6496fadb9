"""Directories of models of which parts are gone, as published and as ours."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.networks.test_effir import CONFIGS, IDS, LAYERS, NEURONS, model_of, read
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from condensery.errors import CorruptModel
from condensery.networks.backbone import load_backbone, load_transformer
from condensery.networks.effir import prune, slice_mlps
from condensery.networks.effir_shape import Pruning
from condensery.networks.weight_files import check_finite

CAUSAL = ["llama", "mistral", "qwen2", "qwen3"]
DROPPED: dict[str, Any] = {"drop_attn_list": [1, 2], "drop_mlp_list": [0, 2]}


def tell(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def packed(folder: Path) -> Tensor:
    """Return what the model reads packed, laid out as ``read`` has it."""
    rows, _ = load_backbone(folder).read(IDS.tolist())
    return rows[: IDS.numel()].view(*IDS.shape, -1)


def pruned_to(kind: str, pruning: Pruning) -> Tensor:
    model = model_of(kind)
    prune(model, pruning)
    return read(model)


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_a_configuration_drops_is_not_read_though_the_file_holds_it(
    kind: str, tmp_path: Path
) -> None:
    model: Any = model_of(kind)
    model.save_pretrained(tmp_path)
    tell(tmp_path, **DROPPED)
    loaded = load_transformer(tmp_path)
    wanted = pruned_to(kind, Pruning(LAYERS, (1, 2), (0, 2)))
    assert (read(loaded) - wanted).abs().max() < 1e-5
    assert (packed(tmp_path) - wanted).abs().max() < 2e-5
    assert loaded.num_parameters() < model.num_parameters()


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_file_without_the_dropped_weights_and_with_narrow_mlps_is_read(
    kind: str, tmp_path: Path
) -> None:
    model: Any = model_of(kind)
    kept = [None, torch.arange(0, NEURONS, 2), torch.tensor([3]), None]
    pruning = Pruning(LAYERS, (3,), (0,), (0, 12, 1, NEURONS))
    prune(model, Pruning(LAYERS, (3,), (0,)))
    slice_mlps(model, kept)
    wanted = read(model)
    save_file(model.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(tmp_path)
    tell(tmp_path, **pruning.to_config())
    assert (packed(tmp_path) - wanted).abs().max() < 2e-5


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("booleans", [False, True])
def test_a_language_model_s_directory_is_read_as_its_backbone(
    kind: str, booleans: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    whole: PreTrainedModel = AutoModelForCausalLM.from_config(
        CONFIGS[kind], attn_implementation="eager"
    ).eval()
    whole.save_pretrained(tmp_path, max_shard_size="20KB")  # which takes several
    lists = {
        key: [layer in gone for layer in range(LAYERS)] if booleans else gone[::-1]
        for key, gone in DROPPED.items()
    }
    code = {"AutoConfig": "configuration_dropped.Config", "AutoModel": "modeling_dropped.Model"}
    tell(tmp_path, **lists, auto_map=code)
    backbone: Any = whole.base_model
    prune(backbone, Pruning(LAYERS, (1, 2), (0, 2)))
    assert (packed(tmp_path) - read(backbone)).abs().max() < 2e-5


def test_a_weight_that_is_left_must_be_there(tmp_path: Path) -> None:
    model: Any = model_of("llama")
    model.save_pretrained(tmp_path)
    tell(tmp_path, **DROPPED)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["layers.1.mlp.down_proj.weight"], weights["layers.0.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel, match=r": layers\.1\.mlp\.down_proj\.weight is missing$"):
        load_transformer(tmp_path)


def test_widths_other_than_the_file_s_are_refused(tmp_path: Path) -> None:
    model: Any = model_of("llama")
    model.save_pretrained(tmp_path)
    tell(tmp_path, mlp_intermediate_sizes=[NEURONS, NEURONS, 5, NEURONS])
    with pytest.raises(
        CorruptModel, match=rf"layers\.2\.mlp.* is \({NEURONS}, 32\), not \(5, 32\)"
    ):
        load_transformer(tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"drop_mlp_list": [LAYERS]}, f"drop_mlp_list: {LAYERS} is no layer of {LAYERS}"),
        ({"drop_mlp_list": [True]}, "drop_mlp_list: has 1 booleans"),
        ({"drop_mlp_list": list(range(LAYERS))}, "drop_mlp_list: every MLP is dropped"),
        ({"mlp_intermediate_sizes": [0] * LAYERS}, "every MLP is dropped"),
        ({"drop_attn_list": "all"}, "drop_attn_list: 'all' is no list"),
    ],
)
def test_lists_that_say_nothing_possible_are_refused(
    keys: dict[str, object], message: str, tmp_path: Path
) -> None:
    model: Any = model_of("llama")
    model.save_pretrained(tmp_path)
    tell(tmp_path, **keys)
    with pytest.raises(CorruptModel, match=message):
        load_transformer(tmp_path)


def test_nan_in_weights_is_found_and_named(tmp_path: Path) -> None:
    model: Any = model_of("bert")
    model.save_pretrained(tmp_path)
    check_finite(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"][3] = torch.nan
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel, match=r"encoder\.layer\.1\.output\.dense\.bias"):
        check_finite(tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_reads_what_is_left_as_a_cpu_does(
    kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model: Any = model_of(kind)
    model.save_pretrained(tmp_path)
    tell(tmp_path, **DROPPED)
    wanted = packed(tmp_path)
    rows, _ = load_backbone(tmp_path, device="cuda", dtype=dtype).read(IDS.tolist())
    got = rows[: IDS.numel()].view(*IDS.shape, -1).float().cpu()
    if dtype == torch.float32:
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    alike = torch.nn.functional.cosine_similarity(got, wanted, dim=-1)
    assert alike.min() > 0.995
