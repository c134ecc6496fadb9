"""Models that were made from a stored one: how they are stored, and what they share with it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving import embed as embed_served
from tests.unit.methods.conftest import Stored
from torch import Tensor

from condensery.cli import main
from condensery.errors import CondenseryError, CorruptModel, InputError, ModelNotFound
from condensery.methods.retriever.network import open_retriever
from condensery.methods.retriever.publishing import SHORTEST_INT8, Candidate, Storing, publish
from condensery.networks.effir import prune
from condensery.networks.effir_shape import Pruning
from condensery.networks.shrp import Experts, convert_layer
from condensery.networks.weight_files import dequantise, quantise
from condensery.store.importing import import_model
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import load_state, open_folder

TEXTS = ["where is the old mill", "the river", ""]
PRUNING = Pruning(4, (1,), (0, 3))
EXPERTS = Experts((None, (1,), (0, 1), None))
WORDS = "embeddings.word_embeddings.weight"


def embed(stored: StoredModel) -> np.ndarray[Any, Any]:
    return embed_served(stored, TEXTS)


def child_of(
    parent: StoredModel, method: str
) -> tuple[Manifest, dict[str, Tensor], dict[str, Any]]:
    """Return a child's manifest, weights and configuration; embeddings and last layer stay."""
    model: Any = open_retriever(parent).model
    torch.manual_seed(3)
    if method == "effir":
        prune(model, PRUNING)
        config = PRUNING.to_config()
    else:
        convert_layer(model, 1).keep([1])
        convert_layer(model, 2)
        config = EXPERTS.to_config()
    with torch.no_grad():
        for layer in model.encoder.layer[:3]:
            for parameter in layer.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    manifest = parent.manifest.model_copy(
        update={"name": "child", "method": method, "shape": parent.manifest.shape | config}
    )
    return manifest, dict(model.state_dict()), config


@pytest.fixture(params=["effir", "shrp"])
def method(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def put(parent: StoredModel, method: str, **how: Any) -> StoredModel:
    manifest, weights, config = child_of(parent, method)
    store = ModelStore(None, parent.root)
    publish(store, parent, manifest, weights, config=config, **how)
    return store.open("child")


def tensors_of(stored: StoredModel) -> dict[str, Tensor]:
    return load_file(stored.path / "model.safetensors")


def test_what_is_shared_is_not_stored_and_serves_alike(method: str, stored: Stored) -> None:
    parent = stored("bert")
    alone, sharing = put(parent, method), put(parent, method, share=True)
    own, left = tensors_of(alone), tensors_of(sharing)
    shared = {n for n in own if n.startswith(("embeddings.", "encoder.layer.3."))}
    assert len(shared) > 5
    assert set(own) - set(left) == shared
    assert sharing.manifest.base == "bert"
    assert sharing.manifest.base_fingerprint == parent.manifest.fingerprint
    assert {"tokenizer.json", "tokenizer_config.json"}.isdisjoint(sharing.manifest.files)
    assert sharing.file("tokenizer.json") == parent.path / "tokenizer.json"
    assert alone.manifest.base is None
    assert "from_base" not in alone.manifest.shape
    np.testing.assert_array_equal(embed(sharing), embed(alone))
    assert set(load_state(sharing)) == set(own)


def test_int8_is_served_as_its_dequantised_weights(method: str, stored: Stored) -> None:
    parent = stored("bert")
    manifest, weights, config = child_of(parent, method)
    rounded = {
        name: dequantise(*quantise(tensor))
        if tensor.ndim == 2 and min(tensor.shape) >= SHORTEST_INT8
        else tensor
        for name, tensor in weights.items()
    }
    store = ModelStore(None, parent.root)
    plain = publish(store, parent, manifest, rounded, config=config)
    small = publish(store, parent, manifest, weights, config=config, dtype="int8")
    assert small.manifest.dtype == "int8"
    assert tensors_of(small)[WORDS].dtype == torch.int8
    assert tensors_of(small)["embeddings.token_type_embeddings.weight"].dtype == torch.float32
    np.testing.assert_array_equal(embed(small), embed(plain))
    assert not np.allclose(embed(small), embed(put(parent, method)), atol=1e-5)


def test_int8_that_shares_takes_the_base_s_own_numbers(method: str, stored: Stored) -> None:
    parent = stored("bert")
    sharing = put(parent, method, dtype="int8", share=True)
    assert WORDS not in tensors_of(sharing)
    state = dict(open_retriever(sharing).model.state_dict())
    assert torch.equal(state[WORDS], load_file(parent.path / "model.safetensors")[WORDS])
    size = sum(file.stat().st_size for file in sharing.path.iterdir())
    assert size < sum(file.stat().st_size for file in put(parent, method).path.iterdir()) / 2


def test_a_child_is_set_aside_though_its_parent_and_that_one_s_base_are_in_two_roots(
    stored: Stored, tmp_path: Path
) -> None:
    put(stored("bert"), "effir", share=True)
    own, shipped = tmp_path / "store", tmp_path / "shipped"
    shipped.mkdir()
    (own / "child").rename(shipped / "child")
    middle = ModelStore(shipped, own).open("child")
    candidate = Candidate(middle, load_state(middle), PRUNING.to_config(), Storing("float32", True))
    for name in ("grandchild", "bert"):  # a name that the base has too
        about = middle.manifest.model_copy(update={"name": name})
        aside = candidate.set_aside(tmp_path / "aside", about)
        assert aside.root == tmp_path / "aside"
        np.testing.assert_array_equal(embed(aside), embed(middle))
    assert [entry.version for entry in ModelStore(None, own).list()] == ["1"]


def test_a_child_of_what_shares_shares_or_has_all_itself(stored: Stored) -> None:
    parent = stored("bert")
    middle = put(parent, "effir", dtype="int8", share=True)
    weights, config = load_state(middle), PRUNING.to_config()
    store = ModelStore(None, parent.root)
    about = middle.manifest.model_copy(update={"name": "grandchild"})
    whole = publish(store, middle, about, weights, config=config)
    assert "from_base" not in whole.manifest.shape
    assert "tokenizer.json" in whole.manifest.files
    again = publish(store, middle, about, weights, config=config, share=True)
    assert again.manifest.base == "child"
    np.testing.assert_array_equal(embed(store.open("grandchild")), embed(middle))
    np.testing.assert_array_equal(embed(whole), embed(middle))


def test_bfloat16_is_stored_as_such(stored: Stored) -> None:
    small = put(stored("bert"), "shrp", dtype="bfloat16")
    assert small.manifest.dtype == "bfloat16"
    assert {tensor.dtype for tensor in tensors_of(small).values()} == {torch.bfloat16}
    assert np.isfinite(embed(small)).all()


def test_without_its_base_a_model_does_not_load(stored: Stored, tmp_path: Path) -> None:
    parent = stored("bert")
    sharing = put(parent, "shrp", share=True)
    elsewhere = ModelStore(None, tmp_path / "elsewhere")
    shutil.copytree(sharing.path, elsewhere.own / "child" / sharing.version)
    moved = elsewhere.open("child")  # what it is can be read
    assert not elsewhere.has_base(moved)
    wanted = f"model 'child' needs 'bert' with fingerprint {parent.manifest.fingerprint}"
    for use in (embed, open_folder, lambda stored_model: stored_model.file("tokenizer.json")):
        with pytest.raises(ModelNotFound, match=wanted):
            use(moved)
    # Another version of the base is not the base.
    other = parent.manifest.model_copy(update={"max_tokens": 7})
    elsewhere.publish({n: parent.path / n for n in parent.manifest.files}, other)
    assert not elsewhere.has_base(moved)
    elsewhere.publish({n: parent.path / n for n in parent.manifest.files}, parent.manifest)
    elsewhere.publish({n: parent.path / n for n in parent.manifest.files}, other)
    assert elsewhere.has_base(moved)
    np.testing.assert_array_equal(embed(elsewhere.open("child")), embed(sharing))


def test_an_import_of_what_shares_needs_its_base_and_keeps_it(
    stored: Stored, tmp_path: Path
) -> None:
    parent = stored("bert")
    sharing = put(parent, "shrp", share=True)
    elsewhere = ModelStore(None, tmp_path / "elsewhere")
    with pytest.raises(ModelNotFound, match="needs 'bert'"):
        import_model(elsewhere, sharing.path, "copy")
    import_model(elsewhere, parent.path, "bert")
    copy = import_model(elsewhere, sharing.path, "copy")
    assert copy.manifest.fingerprint == sharing.manifest.fingerprint
    np.testing.assert_array_equal(embed(copy), embed(sharing))


def test_a_base_that_is_not_whole_is_named(stored: Stored) -> None:
    parent = stored("bert")
    put(parent, "shrp", share=True)
    (parent.path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptModel, match=r"model 'bert' version 1: tokenizer\.json: sha256"):
        ModelStore(None, parent.root).open("child")


def test_a_store_without_the_parent_gets_no_child_that_shares(
    stored: Stored, tmp_path: Path
) -> None:
    parent = stored("bert")
    manifest, weights, config = child_of(parent, "shrp")
    store = ModelStore(None, tmp_path / "elsewhere")
    with pytest.raises(ModelNotFound, match="needs 'bert'"):
        publish(store, parent, manifest, weights, config=config, share=True)
    assert store.list() == []


def test_where_nothing_is_equal_nothing_can_be_shared(stored: Stored) -> None:
    parent = stored("bert")
    manifest, weights, config = child_of(parent, "shrp")
    store = ModelStore(None, parent.root)
    other = {name: tensor + 1 for name, tensor in weights.items()}
    with pytest.raises(InputError, match="share: no weight is still as 'bert' has it"):
        publish(store, parent, manifest, other, config=config, share=True)
    other[WORDS] = other[WORDS] * torch.nan
    with pytest.raises(InputError, match=rf"{WORDS}: holds values that are not finite"):
        publish(store, parent, manifest, other, config=config)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"weights": {}}, "shape.from_base: holds other keys"),
        ({"weights": [WORDS], "files": []}, "shape.from_base.weights: "),
        ({"weights": {"a": WORDS, "b": WORDS}, "files": []}, "names a tensor of the base twice"),
        ({"weights": {}, "files": "tokenizer.json"}, "shape.from_base.files: "),
        ({"weights": {}, "files": ["../tokenizer.json"]}, "points outside"),
        ({"weights": {}, "files": ["config.json"]}, "config.json is among the model's own files"),
    ],
)
def test_a_manifest_that_says_it_wrong_is_refused(
    parts: dict[str, Any], message: str, stored: Stored
) -> None:
    sharing = put(stored("bert"), "shrp", share=True)
    path = sharing.path / "model.json"
    content = json.loads(path.read_text())
    del content["fingerprint"]
    path.write_text(json.dumps({**content, "shape": {**content["shape"], "from_base": parts}}))
    with pytest.raises(CorruptModel, match=message):
        ModelStore(None, sharing.root).open("child")


def test_weights_that_the_base_has_not_or_that_are_there_twice_are_named(stored: Stored) -> None:
    parent = stored("bert")
    sharing = put(parent, "shrp", share=True)

    def fails(message: str, weights: dict[str, str]) -> None:
        path = sharing.path / "model.json"
        content = json.loads(path.read_text())
        content.pop("fingerprint", None)
        content["shape"]["from_base"]["weights"] = weights
        path.write_text(json.dumps(content))
        with pytest.raises(CondenseryError, match=message):
            embed(ModelStore(None, sharing.root).open("child"))

    parts = sharing.manifest.base_parts
    assert parts is not None
    names = dict(parts.weights)
    fails("child: its base bert has no elsewhere", {**names, WORDS: "elsewhere"})
    twice = next(iter(tensors_of(sharing)))
    fails(f"{twice} is there, and said to be its base's", {**names, twice: "any"})
    names.pop(WORDS)
    fails(f"child: {WORDS} is missing", names)


def test_int8_whose_scale_does_not_fit_is_named(stored: Stored) -> None:
    small = put(stored("bert"), "shrp", dtype="int8")
    tensors = tensors_of(small)
    tensors[f"{WORDS}.scale"] = tensors[f"{WORDS}.scale"][:-1].clone()
    save_file(tensors, small.path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel, match=rf"{WORDS}\.scale: float32 .* is no scale for int8"):
        embed(ModelStore(None, small.root).open("child", check=False))


def test_commands_tell_that_a_base_is_not_there(
    stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = stored("bert")
    sharing = put(parent, "shrp", share=True)
    store = ["--store", str(parent.root)]
    for action in ("verify", "show"):
        assert main(["models", action, "child", *store]) == 0
        assert "base" not in capsys.readouterr().err
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(sharing.path, elsewhere / "child" / sharing.version)
    for action in ("verify", "show"):
        assert main(["models", action, "child", "--store", str(elsewhere)]) == 0
        note = (
            f"child can't be loaded: its base bert with fingerprint {parent.manifest.fingerprint}"
        )
        assert note in capsys.readouterr().err
