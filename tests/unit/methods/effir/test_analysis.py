import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_pair import text_of, tiny_tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel

from condensery.cli import main
from condensery.errors import CorruptModel, InputError
from condensery.methods.effir.analysis import NAME, PICTURE, analyse, as_table, blocks
from condensery.methods.effir.importance import Depth, Importance, choose, measure
from condensery.networks.effir_shape import Pruning

SCORES = Importance((0.4, 0.1, 0.3, 0.2), (0.2, 0.5, 0.2, 0.1), (0.9, 0.1, 0.3, 0.2), tokens=9)


def reference(model: nn.Module, ids: Tensor) -> dict[str, list[float]]:
    """Score sub-layers as LLM-Drop does: what each one's norm reads, and what it adds itself."""
    kind = model.config.model_type  # type: ignore[union-attr]
    names = {
        "llama": ("layers", "self_attn", "input_layernorm", "mlp", "post_attention_layernorm"),
        "modernbert": ("layers", "attn", "attn_norm", "mlp", "mlp_norm"),
        "bert": ("encoder.layer", "attention.output.dense", "", "output.dense", ""),
    }[str(kind)]
    sums: dict[str, list[float]] = {"attention": [], "mlp": []}
    for layer in model.get_submodule(names[0]).children():
        for group, module, norm in (("attention", *names[1:3]), ("mlp", *names[3:5])):
            seen: dict[str, Tensor] = {}

            def out(_m: object, _i: object, o: object, seen: dict[str, Tensor] = seen) -> None:
                seen["out"] = o[0] if isinstance(o, tuple) else o  # type: ignore[assignment]

            def read(_m: object, i: tuple[Tensor, ...], seen: dict[str, Tensor] = seen) -> None:
                seen["x"] = i[0]

            handles = [layer.get_submodule(module).register_forward_hook(out)]
            if (
                kind == "bert"
            ):  # norm(x + F(x)): the sum is what the norm reads, less what was added
                last = layer.get_submodule(module.replace("dense", "LayerNorm"))
                handles.append(last.register_forward_pre_hook(read))
            else:
                handles.append(layer.get_submodule(norm).register_forward_pre_hook(read))
            with torch.inference_mode():
                for row in ids:
                    model(input_ids=row[None])
                    x, y = seen["x"], seen["x"] + seen["out"]
                    if kind == "bert":
                        x, y = (
                            F.layer_norm(z, z.shape[-1:], last.weight, last.bias, last.eps)
                            for z in (x - seen["out"], x)
                        )
                    similar = F.cosine_similarity(x.double(), y.double(), dim=-1)
                    sums.setdefault(f"{group} tokens", []).extend(similar.flatten().tolist())
            for handle in handles:
                handle.remove()
            values = sums.pop(f"{group} tokens")
            sums[group].append(1 - sum(values) / len(values))
    return sums


def test_importance_equals_an_independent_computation(model_folder: Path, text_file: Path) -> None:
    importance = analyse(model_folder, [text_file], samples=5, length=40)
    ids = blocks([text_file], tiny_tokenizer(), 3, length=40, count=5)
    model = AutoModel.from_pretrained(model_folder, attn_implementation="eager").eval()
    wanted = reference(model, ids)
    assert importance.tokens == 200
    assert importance.attention == pytest.approx(wanted["attention"], abs=1e-6)
    assert importance.mlp == pytest.approx(wanted["mlp"], abs=1e-6)
    with torch.inference_mode():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
        if model.config.model_type == "bert":  # without the layer its two norms are left
            without = [
                layer.output.LayerNorm(layer.attention.output.LayerNorm(before))
                for layer, before in zip(model.encoder.layer, states, strict=False)
            ]
        else:
            without = states[:-1]
    blocks_ = [
        1 - F.cosine_similarity(a, b, dim=-1).mean().item()
        for a, b in zip(without, states[1:], strict=True)
    ]
    last = -1 if model.config.model_type != "bert" else None  # others' last is behind the norm
    assert importance.block[:last] == pytest.approx(blocks_[:last], abs=1e-6)
    assert len(set(importance.attention)) == 4


def test_text_is_one_stream_with_an_end_after_each_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    texts = [text_of(5, 0), text_of(4, 1)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = tiny_tokenizer()
    first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    cut = blocks([path], tokenizer, 3, length=3, count=3)
    assert cut.flatten().tolist() == [*first, 3, *second, 3][:9]
    with pytest.raises(InputError, match="text: holds 11 tokens, fewer than 2 blocks of 6"):
        blocks([path], tokenizer, 3, length=6, count=2)


def test_the_command_writes_figures_a_picture_and_a_table(
    model_folder: Path, text_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ["--samples", "3", "--length", "40", "--text", str(text_file), "--out", str(tmp_path)]
    with caplog.at_level("INFO"):
        assert main(["effir", "analyse", str(model_folder), *flags]) == 0
    content = json.loads((tmp_path / NAME).read_text())
    assert content["tokens"] == 120
    assert len(content["mlp"]) == 4
    assert sorted(content["dropped_first"]["block"]) == [0, 1, 2, 3]
    with Image.open(tmp_path / PICTURE) as picture:
        assert picture.width > 800
        assert len(set(picture.convert("RGB").resize((60, 30)).get_flattened_data())) > 20
    assert f"{content['mlp'][0]:.6f}" in caplog.text


def test_a_table_has_each_layers_place() -> None:
    lines = as_table(SCORES).splitlines()
    assert lines[0].split() == [
        "layer",
        "attention",
        "dropped",
        "mlp",
        "dropped",
        "block",
        "dropped",
    ]
    assert lines[1].split() == ["0", "0.400000", "4", "0.200000", "2", "0.900000", "4"]
    assert len(lines) == 5


def test_the_least_important_go_first_and_of_equal_ones_the_lower() -> None:
    assert SCORES.order("mlp") == [3, 0, 2, 1]
    assert choose(SCORES, Depth(mlp=2, attention=1)) == Pruning(4, (1,), (0, 3))
    assert choose(SCORES, Depth(blocks=2)) == Pruning(4, (1, 3), (1, 3))
    assert choose(SCORES, Depth(last=2)) == Pruning(4, (2, 3), (2, 3))
    assert choose(SCORES, Depth()).dense


@pytest.mark.parametrize(
    ("depth", "says"),
    [
        (Depth(mlp=4), "mlp=4: must be from 0 to 3"),
        (Depth(attention=-1), "attention=-1: must be"),
        (Depth(blocks=1, mlp=1), "can't be dropped together"),
        (Depth(blocks=1, last=1), "can't be dropped together"),
    ],
)
def test_what_leaves_nothing_is_refused(depth: Depth, says: str) -> None:
    with pytest.raises(InputError, match=says):
        choose(SCORES, depth)


def test_what_can_not_be_measured_is_refused_by_name(
    model_folder: Path, text_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="samples=0: must be at least 1"):
        analyse(model_folder, [text_file], samples=0)
    with pytest.raises(
        InputError, match=r"length=2000: must be from 1 to \d+, the model's positions"
    ):
        analyse(model_folder, [text_file], length=2000)
    with pytest.raises(InputError, match="end='</s>': is no token of the model"):
        analyse(model_folder, [text_file], end="</s>")
    with pytest.raises(CorruptModel, match="transformers can't load it"):
        analyse(tmp_path, [text_file])


def test_nan_in_weights_names_the_layer(
    model_folder: Path, text_file: Path, tmp_path: Path
) -> None:
    for path in model_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    (name,) = (
        n
        for n in weights
        if (".2." in n and n.endswith(("down_proj.weight", "mlp.Wo.weight")))
        or n.endswith("layer.2.output.dense.weight")
    )
    weights[name][0, 0] = torch.nan
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="layer 2: gives values that are not finite"):
        analyse(tmp_path, [text_file], samples=2, length=30)


def test_no_text_measures_nothing(model_folder: Path) -> None:
    with pytest.raises(InputError, match="nothing to measure with"):
        measure(AutoModel.from_pretrained(model_folder), [])
