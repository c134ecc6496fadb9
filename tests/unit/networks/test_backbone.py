import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MPNetConfig, MPNetModel, PreTrainedModel

from condensery.errors import CorruptModel
from condensery.networks import native
from condensery.networks.backbone import load_backbone, load_classifier, run_packed
from condensery.networks.bert import FusedLayer
from condensery.networks.linear import Dense
from condensery.networks.quantised import Int8, Int16, can_quantise, product_of, watching

rounds = pytest.mark.skipif(
    not can_quantise("int8", torch.device("cpu")), reason="no VNNI, AMX or kernels for AVX2"
)
SEQUENCES = [[5, 6, 7], list(range(2, 60)), [9] * 16, [4]]


def products(model: torch.nn.Module) -> list[type]:
    return [type(part) for part in model.modules() if isinstance(part, Dense | Int8 | Int16)]


def alone(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return torch.cat(
            [model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in SEQUENCES]
        )


@pytest.mark.parametrize("family", ["bert", "roberta", "llama"])
def test_a_loaded_backbone_gives_what_transformers_gives_alone(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model: PreTrainedModel = request.getfixturevalue(family)
    model.save_pretrained(tmp_path)
    wanted = alone(model)
    hidden, packing = load_backbone(tmp_path).read(SEQUENCES)
    assert packing.lengths == (3, 58, 16, 1)
    torch.testing.assert_close(hidden[:78], wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_a_bert_s_layers_are_fused_whatever_its_activation(
    bert: PreTrainedModel, activation: str, tmp_path: Path
) -> None:
    bert.config.hidden_act = activation
    bert.save_pretrained(tmp_path)
    reference = type(bert).from_pretrained(tmp_path).eval()
    wanted = alone(reference)
    backbone = load_backbone(tmp_path)
    assert all(isinstance(layer, FusedLayer) for layer in backbone.model.encoder.layer)
    torch.testing.assert_close(backbone.read(SEQUENCES)[0][:78], wanted, atol=2e-5, rtol=1e-5)


def test_rows_are_rounded_up_only_where_products_are_prepared_for_their_number(
    bert: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = torch.float32 if native.has_panels(torch.float32) else torch.bfloat16
    ours = native.has_panels(dtype)
    backbone = run_packed(copy.deepcopy(bert).to(dtype))
    assert [backbone.pack([n]).total for n in (3, 129)] == ([3, 129] if ours else [16, 160])
    monkeypatch.setattr(native, "has_panels", lambda _: False)
    backbone = run_packed(bert)
    assert [backbone.pack([n]).total for n in (3, 129)] == [16, 160]


def test_an_architecture_that_bypasses_our_attention_is_refused(tmp_path: Path) -> None:
    config = MPNetConfig(
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=300,
    )
    with pytest.raises(CorruptModel, match="mpnet"):
        run_packed(MPNetModel(config, add_pooling_layer=False).eval())


def test_missing_weights_are_refused_not_made_up(bert: PreTrainedModel, tmp_path: Path) -> None:
    bert.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        load_backbone(tmp_path)


def test_weights_of_another_shape_are_refused(bert: PreTrainedModel, tmp_path: Path) -> None:
    bert.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["embeddings.LayerNorm.weight"] = torch.ones(7)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel, match=r"can't load|another shape"):
        load_backbone(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_a_corrupt_model(
    bert: PreTrainedModel, tmp_path: Path, name: str
) -> None:
    bert.save_pretrained(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CorruptModel, match=tmp_path.name):
        load_backbone(tmp_path)


def test_no_code_of_a_model_runs_though_its_user_says_yes(
    bert: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert.save_pretrained(tmp_path)
    own = {
        "AutoConfig": "own.C",
        "AutoModel": "own.M",
        "AutoModelForSequenceClassification": "own.M",
    }
    config = json.loads((tmp_path / "config.json").read_text())
    changed = config | {"model_type": "its-own", "auto_map": own}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    (tmp_path / "own.py").write_text("raise SystemExit('code of the model has run')\n")
    monkeypatch.setattr("builtins.input", lambda question: "y")
    for load in (load_backbone, load_classifier):
        with pytest.raises(CorruptModel, match="trust_remote_code"):
            load(tmp_path)


def test_half_a_weights_file_is_a_corrupt_model(bert: PreTrainedModel, tmp_path: Path) -> None:
    bert.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CorruptModel):
        load_backbone(tmp_path)


def test_nan_weights_are_refused(bert: PreTrainedModel) -> None:
    with torch.no_grad():
        bert.get_input_embeddings().weight.fill_(torch.nan)
    with pytest.raises(CorruptModel, match="nan"):
        run_packed(bert)


@rounds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_with_weights_of_8_bits_it_is_near_to_transformers_and_alone_as_beside_others(
    family: str, dtype: torch.dtype, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model: PreTrainedModel = request.getfixturevalue(family)
    model.save_pretrained(tmp_path)
    wanted = alone(model)
    backbone = load_backbone(tmp_path, dtype=dtype, weights="int8")
    assert products(backbone.model) == 8 * [product_of("int8")]  # four a layer
    together = backbone.read(SEQUENCES)[0][:78]
    assert torch.cosine_similarity(together.float(), wanted).min() > 0.99
    assert not torch.equal(together.float(), wanted)
    each = torch.cat([backbone.read([ids])[0][: len(ids)] for ids in SEQUENCES])
    close = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(together, each, atol=close, rtol=close)


@pytest.mark.skipif(not native.has_words(), reason="no products of words")
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_with_weights_of_16_bits_it_is_as_near_to_transformers_as_floats_nearly_are(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model: PreTrainedModel = request.getfixturevalue(family)
    model.save_pretrained(tmp_path)
    wanted = alone(model)
    backbone = load_backbone(tmp_path, weights="int16")
    assert products(backbone.model) == 8 * [Int16]  # four a layer
    assert backbone.rounded
    together = backbone.read(SEQUENCES)[0][:78]
    assert torch.cosine_similarity(together, wanted).min() > 0.99999
    assert not torch.equal(together, wanted)
    each = torch.cat([backbone.read([ids])[0][: len(ids)] for ids in SEQUENCES])
    torch.testing.assert_close(together, each, atol=1e-5, rtol=1e-5)


@rounds
def test_of_other_families_the_larger_matrices_are_rounded(
    llama: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama.save_pretrained(tmp_path)
    wanted = alone(llama)
    monkeypatch.setattr("condensery.networks.quantised.SMALLEST", 64)
    backbone = load_backbone(tmp_path, weights="int8")
    assert set(products(backbone.model)) == {product_of("int8")}
    got = backbone.read(SEQUENCES)[0][:78]
    assert torch.cosine_similarity(got, wanted).min() > 0.99


@rounds
def test_a_model_that_8_bits_are_too_few_for_is_refused(
    bert: PreTrainedModel, tmp_path: Path
) -> None:
    with torch.no_grad():  # beside such a weight the others of an output are rounded to 0
        for layer in bert.encoder.layer:
            for linear in (layer.intermediate.dense, layer.output.dense):
                linear.weight[:, 0] = 0.0
                linear.weight.mul_(5)
            layer.output.dense.weight[:, 1] = 1e4
            layer.intermediate.dense.weight[1] = 0.0
            layer.intermediate.dense.bias[1] = -30.0
    bert.save_pretrained(tmp_path)
    load_backbone(tmp_path)
    with pytest.raises(CorruptModel, match="its weights in int8, gives other numbers"):
        load_backbone(tmp_path, weights="int8")


@rounds
def test_what_reaches_far_behind_a_norm_leaves_the_rest_of_a_row_its_steps(
    bert: PreTrainedModel, tmp_path: Path
) -> None:
    if native.has_words():
        pytest.skip("inputs have steps enough there")
    with torch.no_grad():
        for norm in (
            bert.embeddings.LayerNorm,
            *(layer.attention.output.LayerNorm for layer in bert.encoder.layer),
            *(layer.output.LayerNorm for layer in bert.encoder.layer),
        ):
            norm.bias[3] = 60.0
        for layer in bert.encoder.layer:
            for linear in (
                *(layer.attention.self.query, layer.attention.self.key),
                *(layer.attention.self.value, layer.intermediate.dense),
            ):
                linear.weight[:, 3] *= 0.01
    bert.save_pretrained(tmp_path)
    wanted = alone(bert).clone()
    wanted[:, 3] = 0  # which is nearly the same everywhere, and most of the cosine
    nearest = {}
    for name, reach in (("known", watching), ("not known", lambda _: watching({}))):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("condensery.networks.backbone.watching", reach)
            got = load_backbone(tmp_path, weights="int8").read(SEQUENCES)[0][:78].clone()
        got[:, 3] = 0
        nearest[name] = torch.cosine_similarity(got, wanted).min().item()
    assert 1 - nearest["known"] < 0.2 * (1 - nearest["not known"])
