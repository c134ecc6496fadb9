"""Published pairs that are cut short, misshapen or hold code are refused by name."""

import io
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.store.conftest import import_as
from tiny_published import Cocom, Pisco
from torch import Tensor

from condensery.errors import CorruptModel, StoreError
from condensery.store.refusals import (
    HalvesMismatch,
    MisshapenTensors,
    MissingTensors,
    PickledCode,
    UnknownTensors,
)
from condensery.store.store import ModelStore


def test_a_compressor_s_base_is_refused_where_the_directory_has_no_use_for_one(
    bases: dict[str, Path], store: ModelStore, tmp_path: Path
) -> None:
    shared = Cocom(tmp_path / "shared", (bases["mistral"], bases["mistral"]), "shared").path
    rewritten = Pisco(tmp_path / "rewritten", bases["wide"], bases["llama"]).path
    for path, why in ((shared, "its own compressor"), (rewritten, "rewritten/compressor")):
        says = f"^--compressor-base .*llama does not apply: .*{why}"
        with pytest.raises(StoreError, match=says) as caught:
            import_as(store, path, compressor_base=bases["llama"])
        assert caught.value.field == "compressor_base"


def test_a_message_names_the_file_that_is_at_fault(
    bases: dict[str, Path], store: ModelStore, tmp_path: Path
) -> None:
    """Each file of each layout, empty, and those of tensors without one and with a wrong one."""
    mistral, wide = bases["mistral"], bases["wide"]
    adapted = {"lora_compressor": True}
    layouts = {
        "small": Cocom(tmp_path / "small", (wide, bases["llama"]), "small").path,
        "adapted": Cocom(tmp_path / "adapted", (mistral, mistral), "trimmed", **adapted).path,
        "shared": Cocom(tmp_path / "shared", (mistral, mistral), "shared").path,
        "rewritten": Pisco(tmp_path / "rewritten", wide, bases["llama"]).path,
    }
    unread = {"README.md", "modelling_pisco.py", "generation_config.json", "chat_template.jinja"}

    def refused(folder: Path) -> str:
        try:
            import_as(store, folder)
        except StoreError as error:
            return str(error)
        return "nothing was wrong"

    for name, folder in layouts.items():
        assert refused(folder) == "nothing was wrong"
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if path.name in unread or path.name.startswith("special_tokens"):
                continue
            before, inside = path.read_bytes(), path.relative_to(folder).as_posix()
            named = inside if "/" in inside else f"{name}/{inside}"
            path.write_bytes(b"")
            if path.name != "tokenizer_config.json" or "decoder" in inside:
                assert named in refused(folder), inside
            if path.suffix in (".pt", ".pth"):
                torch.save({}, path)
                assert inside in refused(folder), inside
                content = torch.load(io.BytesIO(before), weights_only=True)
                tensors = next((v for v in content.values() if isinstance(v, dict)), content)
                last = list(tensors)[-1]
                for tensor in (torch.zeros(7, 7), torch.full_like(tensors[last], torch.nan)):
                    tensors[last] = tensor
                    torch.save(content, path)
                    assert inside in refused(folder), inside
            path.write_bytes(before)


class Evil:
    """Who unpickles it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._folder),)


@pytest.mark.parametrize("file", ["adapters.pth", "compressor/mlp.pth"])
def test_a_pickle_that_names_code_is_refused_and_not_run(
    store: ModelStore, published: Path, file: str, tmp_path: Path
) -> None:
    evil = Evil(tmp_path / "was_run")
    content = torch.load(published / file, weights_only=True)
    torch.save(content | {"extra": evil}, published / file)
    with pytest.raises(PickledCode, match=f"{Path(file).name}: names code"):
        import_as(store, published)
    (published / file).write_bytes(pickle.dumps(evil))
    with pytest.raises(PickledCode, match=f"{Path(file).name}: names code"):
        import_as(store, published)
    assert not (tmp_path / "was_run").exists()
    assert store.list() == []
    pickle.loads(pickle.dumps(evil))
    assert (tmp_path / "was_run").exists(), "it would have been seen"


@pytest.mark.parametrize("cut", [0, 1, 100, -50])
def test_a_file_that_is_cut_short_is_refused_by_name(
    store: ModelStore, published: Path, cut: int
) -> None:
    path = published / "compressor" / "compressor.pth"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptModel, match=r"compressor/compressor.pth: can't be read"):
        import_as(store, published)


def change(path: Path, name: str, tensor: Tensor | None, inside: str | None = None) -> None:
    content = torch.load(path, weights_only=True)
    tensors = content[inside] if inside else content
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    torch.save(content, path)


DOWN = "model.layers.1.mlp.up_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("file", "name", "tensor", "error", "says"),
    [
        (
            *("compressor/compressor.pth", "layers.0.mlp.up_proj.weight", None),
            *(MissingTensors, r"compressor.backbone.layers.0.mlp.up_proj.weight is missing"),
        ),
        (
            *("compressor/compressor.pth", "norm.bias", torch.zeros(32)),
            *(UnknownTensors, "compressor.backbone.norm.bias: the network has no place"),
        ),
        (
            *("compressor/compressor.pth", "norm.weight", torch.zeros(33)),
            *(MisshapenTensors, r"norm.weight is \(33,\), not \(32,\)"),
        ),
        (
            *("compressor/compressor.pth", "norm.weight", torch.full((32,), torch.nan)),
            *(StoreError, "compressor.backbone.norm.weight: holds values that are not finite"),
        ),
        (
            *("compressor/mlp.pth", "2.bias", None),
            *(MissingTensors, "compressor.mapping.2.bias is missing"),
        ),
        (
            *("decoder_first_last_layers.pth", "lm_head.weight", None),
            *(MissingTensors, "lm_head.weight is missing"),
        ),
        (
            *("decoder_first_last_layers.pth", "model.embed_tokens.weight", torch.zeros(9, 64)),
            *(MisshapenTensors, "has 9 rows, and its tokenizer 264 tokens"),
        ),
        (
            *("adapters.pth", DOWN, None),
            *(MisshapenTensors, r"layers.1.mlp.up_proj: .lora_A is missing"),
        ),
        (
            *("adapters.pth", DOWN, torch.zeros(5, 64)),
            *(MisshapenTensors, r"layers.1.mlp.up_proj: \(5, 64\) and \(48, 4\) don't adapt"),
        ),
        (
            *("adapters.pth", "model.layers.9.mlp.up_proj.lora_A.weight", torch.zeros(4, 64)),
            *(MisshapenTensors, "layers.9.mlp.up_proj: there is no such linear layer"),
        ),
        (
            *("adapters.pth", "model.layers.0.mlp.up_proj.bias", torch.zeros(4)),
            *(UnknownTensors, "model.layers.0.mlp.up_proj.bias: is no adapter's"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_that_do_not_fit_are_each_their_own_error(
    store: ModelStore,
    published: Path,
    file: str,
    name: str,
    tensor: Tensor | None,
    error: type[StoreError],
    says: str,
) -> None:
    inside = "decoder_adapter" if file == "adapters.pth" else None
    change(published / file, name, tensor, inside)
    with pytest.raises(error, match=says) as caught:
        import_as(store, published)
    assert type(caught.value) is error
    assert not store.own.exists() or list(store.own.iterdir()) == []


def test_a_layer_without_its_adapter_is_missing(store: ModelStore, published: Path) -> None:
    for half in "AB":
        name = f"model.layers.1.mlp.up_proj.lora_{half}.weight"
        change(published / "adapters.pth", name, None, "decoder_adapter")
    with pytest.raises(MissingTensors, match=r"layers.1.mlp.up_proj.lora_\* is missing"):
        import_as(store, published)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"compr_use_mlp": False}, HalvesMismatch, "gives 32 features, the generator reads 64"),
        ({"compr_mlp_hidden_dim": 47}, MisshapenTensors, "mapping.0.weight is .* not .47, 32."),
        ({"compr_rate": 0}, StoreError, "compr_rate 0 is no positive integer"),
        ({"compr_rate": 129}, StoreError, "compr_rate is larger than doc_max_length"),
        ({"compr_rate": 32}, MisshapenTensors, r"embed_tokens.*|decoder_first_last_layers"),
        ({"compr_bidirectional": True}, StoreError, "compr_bidirectional True is not supported"),
        ({"lora": False}, StoreError, "lora False is not supported"),
        ({"lora_r": 8}, MisshapenTensors, "lora_A has rank 4, not 8"),
        ({"doc_max_length": "128"}, StoreError, "doc_max_length '128' is no positive integer"),
        ({"compr_model_name": "mistral_trimmed"}, StoreError, "one of compr_n_layers and compr_ev"),
        (
            {"compr_model_name": "mistral_trimmed", "compr_n_layers": 5},
            *(StoreError, "of a model that has 4"),
        ),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_the_checkpoints_is_refused_by_name(
    bases: dict[str, Path],
    store: ModelStore,
    published: Path,
    changes: dict[str, Any],
    error: type[StoreError],
    says: str,
) -> None:
    path = published / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(error, match=says) as caught:
        import_as(store, published)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("remove", "says"),
    [
        ("adapters.pth", "adapters.pth: there is no such file"),
        ("compressor/mlp.pth", "compressor/mlp.pth: there is no such file"),
        ("base/tokenizer.json", "generator_base: base holds no tokenizer.json"),
        ("base/model.safetensors", "generator_base: base holds no weights"),
        ("base/chat_template.jinja", "generator_base: base holds no chat template"),
    ],
)
def test_a_file_that_is_missing_is_named(
    bases: dict[str, Path], store: ModelStore, published: Path, remove: str, says: str
) -> None:
    shutil.copytree(bases["wide"], published / "base")
    (published / remove).unlink()
    with pytest.raises(StoreError, match=says):
        import_as(store, published, generator_base=published / "base")


def test_an_encoder_where_a_generators_base_should_be_is_refused(
    store: ModelStore, published: Path, trained_bert: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(trained_bert, tmp_path / "base"))
    content = json.loads((base / "config.json").read_text()) | {"model_type": "t5"}
    (base / "config.json").write_text(json.dumps(content))
    with pytest.raises(StoreError, match="'t5' is no causal language model"):
        import_as(store, published, compressor_base=base)
