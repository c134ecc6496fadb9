"""LLM-Drop's directories and LoRA directories, against transformers and PEFT themselves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_causal import bpe, decoder_config
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from condensery.errors import CorruptModel, StoreError
from condensery.networks.backbone import load_backbone
from condensery.networks.pooling import normalise, pool
from condensery.runtime.tokenizing import TextTokenizer
from condensery.store.importing import import_model
from condensery.store.importing_retrievers import QUERY_PROMPT
from condensery.store.language_models import end_texts
from condensery.store.manifest import StoredModel
from condensery.store.refusals import MisshapenTensors, MissingTensors, PickledCode
from condensery.store.retriever_options import RetrieverOptions
from condensery.store.store import ModelStore

LAYERS = 4
TEXTS = ["who built the stone bridge", "The mill stands by the river.", "delta"]
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
END = {"mistral": "</s>", "llama": "<|eot_id|>", "qwen2": "<|im_end|>"}

# PEFT asks transformers by a name that it gives up.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def tell(path: Path, **keys: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def language_model(folder: Path, kind: str = "mistral", **lists: object) -> PreTrainedModel:
    """Write a random language model as its publisher would; returns it, whole."""
    tokenizer = bpe(kind)
    torch.manual_seed(0)
    config = decoder_config(kind, tokenizer.get_vocab_size())
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END[kind]}))
    tell(folder / "config.json", **lists)
    return model


@torch.inference_mode()
def reference(model: nn.Module, texts: list[str], tokenizer: Callable[[str], list[int]]) -> Tensor:
    """Embed as the published code does: the last hidden state of the last token, scaled."""
    rows = []
    for text in texts:
        output: Any = model(input_ids=torch.tensor([tokenizer(text)]), output_hidden_states=True)
        rows.append(output.hidden_states[-1][0, -1])
    return F.normalize(torch.stack(rows).float(), dim=1)


def ended(kind: str) -> Callable[[str], list[int]]:
    """Return a tokenizer that ends each text with the end token."""
    tokenizer = bpe(kind)
    return lambda text: [*tokenizer.encode(text).ids, tokenizer.token_to_id(END[kind])]


def published(folder: Path) -> Callable[[str], list[int]]:
    """Return the tokenizer that EffiR's own evaluation reads with: the base model's, as it is."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: list(tokenizer(text)["input_ids"])


@torch.inference_mode()
def embed(stored: StoredModel, texts: list[str]) -> Tensor:
    backbone = load_backbone(stored.path)
    tokenizer = TextTokenizer.load(stored.path, stored.manifest.max_tokens)
    hidden, packing = backbone.read([encoding.ids for encoding in tokenizer.encode(texts)])
    assert stored.manifest.pooling is not None
    return normalise(pool(hidden, packing, stored.manifest.pooling))


def zero(model: PreTrainedModel, attention: list[int], mlp: list[int]) -> None:
    layers: Any = model.get_submodule("model.layers")
    for layer in attention:
        nn.init.zeros_(layers[layer].self_attn.o_proj.weight)
    for layer in mlp:
        nn.init.zeros_(layers[layer].mlp.down_proj.weight)


@pytest.mark.parametrize("kind", ["mistral", "llama", "qwen2"])
@pytest.mark.parametrize(
    "lists",
    [
        {"drop_mlp_list": [2, 0], "drop_attn_list": None},
        {"drop_mlp_list": [True, False, True, False], "drop_attn_list": [False] * 4},
    ],
    ids=["numbers", "booleans"],
)
def test_an_llm_drop_directory_becomes_an_encoder_without_what_is_dropped(
    kind: str, lists: dict[str, object], tmp_path: Path, store: ModelStore
) -> None:
    folder = tmp_path / "published"
    model = language_model(folder, kind, **lists)
    stored = import_model(store, folder, "drop")
    about = stored.manifest
    assert (about.kind, about.method, about.pooling, about.normalize) == (
        *("encoder", "effir", "last", True),
    )
    assert about.shape["drop_mlp_list"] == [0, 2]
    assert about.prompts == {}
    zero(model, [], [0, 2])
    assert (embed(stored, TEXTS) - reference(model, TEXTS, ended(kind))).abs().max() < 5e-5
    names = load_file(stored.path / "model.safetensors").keys()
    assert not [name for name in names if ".0.mlp" in name or "lm_head" in name]
    assert "layers.0.self_attn.q_proj.weight" in names
    assert "auto_map" not in json.loads((stored.path / "config.json").read_text())


def test_a_whole_language_model_s_last_token_is_its_vector(
    tmp_path: Path, store: ModelStore
) -> None:
    model = language_model(tmp_path / "lm", "llama")
    stored = import_model(
        store, tmp_path / "lm", "lm", retriever=RetrieverOptions(query_prompt="query: ")
    )
    assert stored.manifest.method == "none"
    assert stored.manifest.prompts == {"query": "query: ", "document": ""}
    assert any("its end token was added" in note for note in stored.manifest.provenance.notes)
    wanted = reference(model, TEXTS, ended("llama"))
    assert (embed(stored, TEXTS) - wanted).abs().max() < 5e-5


def adapter(folder: Path, base: Path, layers: list[int] | None = None, **changes: Any) -> None:
    """Train nothing, but write a LoRA directory as PEFT does, its products far from zero."""
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=LINEAR, layers_to_transform=layers, **changes
    )
    tuned = get_peft_model(model, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    tuned.save_pretrained(folder)


def new_embedding(folder: Path, rows: int, width: int = 32) -> nn.Embedding:
    """Pickle whole modules beside an adapter, as the published retrievers do."""
    torch.manual_seed(2)
    table = nn.Embedding(rows, width)
    (folder / "embedding").mkdir()
    torch.save(table, folder / "embedding/input_emb.pth")
    torch.save(nn.Linear(width, rows, bias=False), folder / "embedding/lm_head.pth")
    return table


@pytest.mark.parametrize("rslora", [False, True])
def test_a_lora_directory_with_pickled_embeddings_is_merged_as_peft_merges_it(
    rslora: bool, tmp_path: Path, store: ModelStore
) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base)
    adapter(folder, base, use_rslora=rslora)
    table = new_embedding(folder, 423)
    whole: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    whole = whole.merge_and_unload()
    whole.set_input_embeddings(table)
    stored = import_model(store, folder, "tuned", retriever=RetrieverOptions(base=base))
    wanted = reference(whole, TEXTS, published(base))
    assert (embed(stored, TEXTS) - wanted).abs().max() < 5e-5
    assert stored.manifest.prompts == {"query": QUERY_PROMPT, "document": ""}
    assert stored.manifest.max_tokens == 512
    assert json.loads((stored.path / "config.json").read_text())["vocab_size"] == 423


def test_a_lora_directory_on_a_base_with_dropped_layers_leaves_them_dropped(
    tmp_path: Path, store: ModelStore
) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    model = language_model(base, drop_attn_list=[3])
    adapter(folder, base, layers=[0, 1, 2])
    stored = import_model(store, folder, "tuned")  # which finds its base by itself
    zero(model, [3], [])
    model.save_pretrained(tmp_path / "zeroed")
    whole: Any = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "zeroed"), folder
    )
    wanted = reference(whole.merge_and_unload(), TEXTS, published(base))
    assert (embed(stored, TEXTS) - wanted).abs().max() < 5e-5


@pytest.mark.parametrize("kind", ["mistral", "llama", "qwen2"])
def test_a_lora_directory_reads_texts_as_its_base_s_tokenizer_does_unless_told(
    kind: str, tmp_path: Path, store: ModelStore
) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base, kind)
    adapter(folder, base)
    whole: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    whole = whole.merge_and_unload()
    plain, with_end = reference(whole, TEXTS, published(base)), reference(whole, TEXTS, ended(kind))
    assert (plain - with_end).abs().max() > 0.1

    def run(**options: Any) -> tuple[Tensor, str | None]:
        stored = import_model(store, folder, "tuned", retriever=RetrieverOptions(**options))
        return embed(store.open("tuned"), TEXTS), stored.manifest.end_token

    for options, wanted, end_token in (
        ({}, plain, "none"),
        ({"add_eos": False}, plain, "none"),
        ({"add_eos": True}, with_end, "added"),
    ):
        vectors, end = run(**options)
        assert (vectors - wanted).abs().max() < 5e-5
        assert end == end_token
    # Said beside a tokenizer that does not do it, transformers ignores it; the import tells.
    tell(base / "tokenizer_config.json", add_eos_token=True)
    assert published(base)("delta") != ended(kind)("delta")
    notes = import_model(store, folder, "tuned").manifest.provenance.notes
    assert any("add_eos_token true" in note for note in notes)
    # A base whose tokenizer ends texts is read so, whatever the flag.
    tokenizer = bpe(kind)
    end_texts(tokenizer, END[kind])
    tokenizer.save(str(base / "tokenizer.json"))
    assert published(base)("delta") == ended(kind)("delta")
    for options in ({}, {"add_eos": False}, {"add_eos": True}):
        vectors, end = run(**options)
        assert (vectors - with_end).abs().max() < 5e-5
        assert end == "tokenizer"


def test_a_retriever_of_an_earlier_release_reads_as_it_was_imported(
    tmp_path: Path, store: ModelStore
) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base)
    adapter(folder, base)
    there = import_model(store, folder, "tuned", retriever=RetrieverOptions(add_eos=True))
    manifest = json.loads((there.path / "model.json").read_text())
    del manifest["end_token"]  # which earlier releases did not write; their tokenizer ends texts
    (there.path / "model.json").write_text(json.dumps(manifest))
    old = store.verify("tuned")
    assert isinstance(old, StoredModel)
    assert (old.manifest.end_token, old.manifest.fingerprint) == (None, there.manifest.fingerprint)
    again = import_model(store, old.path, "again")  # a stored model keeps what it is
    assert again.manifest.end_token is None
    for stored in (old, again):
        ids = TextTokenizer.load(stored.path, 512).encode(["delta"])[0].ids
        assert list(ids) == ended("mistral")("delta")


def test_an_end_token_that_is_to_be_added_and_is_not_there_is_named(
    tmp_path: Path, store: ModelStore
) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base)
    adapter(folder, base)
    tell(base / "tokenizer_config.json", eos_token="<stop>")
    assert import_model(store, folder, "tuned").manifest.end_token == "none"
    with pytest.raises(StoreError, match="'<stop>' is not among the tokens"):
        import_model(store, folder, "tuned", retriever=RetrieverOptions(add_eos=True))


def test_a_base_is_looked_for_in_the_directory_that_names_it_first(
    tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = tmp_path / "published" / "lora", tmp_path / "here"
    language_model(tmp_path / "base")
    adapter(folder, tmp_path / "base")
    tell(folder / "adapter_config.json", base_model_name_or_path="bases/mistral")
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(StoreError, match=r"lora/adapter_config\.json: .*'bases/mistral'.* --base"):
        import_model(store, folder, "tuned")
    # Each is found once there is none nearer; all but the nearest hold no model.
    for place in (folder.parent, here, folder):
        for other in (folder.parent, here, folder):
            shutil.rmtree(other / "bases", ignore_errors=True)
        shutil.copytree(tmp_path / "base", place / "bases/mistral")
        if place != folder.parent:
            (folder.parent / "bases/mistral").mkdir(parents=True)
        if place == folder:
            (here / "bases/mistral").mkdir(parents=True)
        notes = import_model(store, folder, "tuned").manifest.provenance.notes
        assert f"The adapter was merged into {place.resolve() / 'bases/mistral'}." in notes
    for nothing in ("", "x" * 5000, None):
        tell(folder / "adapter_config.json", base_model_name_or_path=nothing)
        with pytest.raises(StoreError, match="name its own directory by --base"):
            import_model(store, folder, "tuned")


def test_more_tokens_than_the_network_has_positions_are_refused(
    tmp_path: Path, store: ModelStore
) -> None:
    language_model(tmp_path / "lm")
    assert (
        import_model(
            store, tmp_path / "lm", "lm", retriever=RetrieverOptions(max_tokens=4096)
        ).manifest.max_tokens
        == 4096
    )
    with pytest.raises(StoreError, match=r"--max-tokens 4097 is too long: .* allow 4096"):
        import_model(store, tmp_path / "lm", "lm", retriever=RetrieverOptions(max_tokens=4097))


def test_a_message_names_the_file_that_is_at_fault(tmp_path: Path, store: ModelStore) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base)
    adapter(folder, base)
    new_embedding(folder, 430)
    wrong = nn.Embedding(430, 16)
    torch.save(wrong, tmp_path / "narrow.pth")
    broken: list[tuple[str, bytes, str]] = [
        ("base/config.json", b"{", "base/config.json"),
        ("base/config.json", b'{"model_type": "none"}', "base/config.json"),
        ("base/tokenizer.json", b"{", "base/tokenizer.json"),
        ("base/model.safetensors", b"{", "base/model.safetensors"),
        ("lora/adapter_config.json", b'{"r": 0', "lora/adapter_config.json"),
        ("lora/adapter_model.safetensors", b"", "lora/adapter_model.safetensors"),
        ("lora/config.json", b'{"drop_mlp_list": [9]}', "lora/config.json"),
        ("lora/embedding/input_emb.pth", b"", "embedding/input_emb.pth"),
        (
            "lora/embedding/input_emb.pth",
            (tmp_path / "narrow.pth").read_bytes(),
            "lora/embedding/input_emb.pth",
        ),
    ]
    for place, content, named in broken:
        path = tmp_path / place
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(content)
        with pytest.raises(StoreError) as caught:
            import_model(store, folder, "tuned", retriever=RetrieverOptions(base=base))
        assert named in str(caught.value), (place, str(caught.value))
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
    tell(folder / "adapter_config.json", r=0)
    with pytest.raises(StoreError, match=r"lora/adapter_config\.json: r 0 is no positive"):
        import_model(store, folder, "tuned")


def test_an_adapter_for_a_sub_layer_that_is_gone_is_refused(
    tmp_path: Path, store: ModelStore
) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base)
    adapter(folder, base)
    tell(base / "config.json", drop_mlp_list=[1])
    with pytest.raises(MisshapenTensors, match=r"layers\.1\.mlp\.down_proj: there is no such"):
        import_model(store, folder, "tuned")


def test_half_of_an_embedding_is_left_aside_as_the_published_code_does(
    tmp_path: Path, store: ModelStore
) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base)
    adapter(folder, base)
    new_embedding(folder, 430)
    (folder / "embedding/lm_head.pth").unlink()
    stored = import_model(store, folder, "tuned")
    notes = " ".join(stored.manifest.provenance.notes)
    assert "only one is there" in notes
    table = load_file(stored.path / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(table, load_file(base / "model.safetensors")["model.embed_tokens.weight"])


class Evil(nn.Embedding):
    """What a pickle could bring along."""


def test_a_pickle_of_anything_else_is_never_run(tmp_path: Path, store: ModelStore) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base)
    adapter(folder, base)
    new_embedding(folder, 430)
    for module, error in ((Evil(3, 3), PickledCode), (nn.Dropout(), PickledCode), (3, StoreError)):
        torch.save(module, folder / "embedding/input_emb.pth")
        with pytest.raises(error, match=r"embedding/input_emb\.pth"):
            import_model(store, folder, "tuned")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"use_dora": True}, "use_dora True"),
        ({"bias": "all"}, "bias 'all'"),
        ({"r": 0}, "r 0 is no positive"),
        ({"lora_alpha": "x"}, "lora_alpha 'x'"),
        ({"base_model_name_or_path": "nobody/nothing"}, "name its own directory by --base"),
    ],
)
def test_adapters_that_are_more_than_lora_are_refused(
    keys: dict[str, object], message: str, tmp_path: Path, store: ModelStore
) -> None:
    base, folder = tmp_path / "base", tmp_path / "lora"
    language_model(base)
    adapter(folder, base)
    tell(folder / "adapter_config.json", **keys)
    with pytest.raises(StoreError, match=message):
        import_model(store, folder, "tuned")


def test_more_tokens_than_rows_are_refused(tmp_path: Path, store: ModelStore) -> None:
    language_model(tmp_path / "lm")
    tokenizer = bpe("mistral")
    tokenizer.add_tokens(["<instruct>", "<query>"])
    tokenizer.save(str(tmp_path / "lm/tokenizer.json"))
    rows = tokenizer.get_vocab_size() - 2
    with pytest.raises(StoreError, match=f"tokens, but the embedding {rows} rows"):
        import_model(store, tmp_path / "lm", "lm")


def test_a_missing_and_a_broken_weight_are_named(tmp_path: Path, store: ModelStore) -> None:
    folder = tmp_path / "lm"
    language_model(folder, drop_mlp_list=[0])
    weights = load_file(folder / "model.safetensors")
    spoilt = {**weights, "model.layers.2.mlp.up_proj.weight": torch.full((48, 32), torch.nan)}
    save_file(spoilt, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel, match=r"model\.layers\.2\.mlp\.up_proj\.weight: holds"):
        import_model(store, folder, "lm")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(MissingTensors, match=r"layers\.2\.mlp\.up_proj\.weight missing"):
        import_model(store, folder, "lm")
    assert not list(store.own.glob("*"))  # nothing half-written is left


def test_a_large_model_is_written_in_several_files_with_an_index(
    tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = language_model(tmp_path / "lm", "llama")
    monkeypatch.setattr("condensery.store.sharding.SHARD_BYTES", 40_000)
    stored = import_model(store, tmp_path / "lm", "lm")
    assert len(stored.weights) > 3
    wanted = reference(model, TEXTS, ended("llama"))
    assert (embed(stored, TEXTS) - wanted).abs().max() < 5e-5
