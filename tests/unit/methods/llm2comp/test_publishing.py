"""Memory encoders in a store: beside their base or merged, as they are stored and served."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving import embed as embed_served
from tiny_causal import decoder_config, random_state
from tiny_memory import (
    K,
    grown,
    memory_states,
    put_language_model,
    random_adapters,
    tokenizer_of,
    write_language_model,
)
from tiny_memory import cut as cut_texts
from tiny_pair import tiny_tokenizer, write_base
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import AutoModelForCausalLM

from condensery.errors import CondenseryError, CorruptModel, InputError, ModelNotFound
from condensery.methods.llm2comp.publishing import publish_memory_encoder
from condensery.methods.llm2comp.weights import MemoryWeights
from condensery.methods.retriever.network import open_retriever
from condensery.networks.adapters import Adapters
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.networks.oscar_generator import standardised
from condensery.networks.weight_files import dequantise, quantise
from condensery.store.importing import import_model
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore

TEXTS = ["Who built the stone bridge?", "", "The mill stands by the river. " * 40]
ADAPTED = ("q_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj")
TOKENS = 20


def embed(stored: StoredModel, texts: list[str] = TEXTS) -> np.ndarray[Any, Any]:
    return embed_served(stored, texts)


def cut(tokenizer: Tokenizer, start: int | None, texts: list[str] = TEXTS) -> list[list[int]]:
    return cut_texts(tokenizer, start, texts, TOKENS - K)


def memory() -> Tensor:
    return torch.randn(K, 32, generator=torch.Generator().manual_seed(8))


class Made:
    """A tiny language model in a store, and what was trained on it."""

    def __init__(self, root: Path, kind: str = "llama") -> None:
        self.folder = write_language_model(root / kind, kind)
        self.store = ModelStore(None, root / "store")
        self.base = put_language_model(self.store, self.folder)
        self.tokenizer = tokenizer_of(kind)
        self.adapters = random_adapters(grown(self.folder, memory()), ADAPTED)
        first = self.tokenizer.encode("a")
        self.start = first.ids[0] if first.special_tokens_mask[0] else None
        self.shape = MemoryShape(K, start_token=self.start, adapter_scale=2.0)

    def publish(self, **how: Any) -> StoredModel:
        shape = how.pop("shape", self.shape)
        weights = how.pop("weights", MemoryWeights(memory(), self.adapters))
        manifest = Manifest(
            name=how.pop("name", "comp"),
            kind="encoder",
            max_tokens=how.pop("max_tokens", TOKENS),
            prompts={"query": "Query: "},
        )
        publish_memory_encoder(self.store, self.base, manifest, shape, weights, **how)
        return self.store.open(manifest.name)

    def wanted(self, adapters: Adapters | None = None) -> np.ndarray[Any, Any]:
        model = grown(self.folder, memory(), adapters or self.adapters)
        states: np.ndarray[Any, Any] = (
            memory_states(model, cut(self.tokenizer, self.start)).mean(1).numpy()
        )
        return states


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2"])
@pytest.mark.parametrize("merge", [False, True])
def test_what_is_served_is_what_was_trained(kind: str, merge: bool, tmp_path: Path) -> None:
    made = Made(tmp_path, kind)
    assert (made.start is None) == (kind == "qwen2")
    stored = made.publish(merge=merge, dtype="float32")
    texts = TEXTS if made.start is not None else [TEXTS[0], "a", TEXTS[2]]
    model = grown(made.folder, memory(), made.adapters)
    wanted = memory_states(model, cut(made.tokenizer, made.start, texts)).mean(1)
    np.testing.assert_allclose(embed(stored, texts), wanted, atol=1e-5)
    assert (stored.manifest.base is None) == merge
    assert stored.manifest.method == "llm2comp"
    assert stored.manifest.pooling == "mean"


def test_beside_its_base_it_holds_only_what_was_trained(made: Made) -> None:
    own = load_file(made.publish().path / "model.safetensors")
    names = {f"{layer}.lora_{end}" for layer in made.adapters.layers for end in "AB"}
    assert set(own) == names | {"memory_tokens.weight"}
    assert {tensor.dtype for tensor in own.values()} == {torch.bfloat16}
    # The tiny Llama's tokenizer begins texts, and does no more: the base's file serves.
    assert "tokenizer.json" not in made.store.open("comp").manifest.files


def test_int8_factors_serve_as_their_dequantised_values(made: Made) -> None:
    rounded = Adapters(
        {layer: dequantise(*quantise(factor)) for layer, factor in made.adapters.down.items()},
        {layer: dequantise(*quantise(factor)) for layer, factor in made.adapters.up.items()},
    )
    stored = made.publish(dtype="int8")
    np.testing.assert_allclose(embed(stored), made.wanted(rounded), atol=1e-5)
    assert np.abs(embed(stored) - made.wanted()).max() > 1e-4
    own = load_file(stored.path / "model.safetensors")
    assert own["layers.0.mlp.up_proj.lora_A"].dtype == torch.int8
    assert own["memory_tokens.weight"].dtype == torch.float32


def test_a_trained_table_is_stored_too(made: Made) -> None:
    words = torch.randn(made.tokenizer.get_vocab_size(), 32) + 1
    weights = MemoryWeights(memory(), made.adapters, words)
    model = grown(made.folder, memory(), made.adapters)
    model.get_input_embeddings().weight.data[: len(words)] = words
    wanted = memory_states(model, cut(made.tokenizer, made.start)).mean(1)
    for merge in (False, True):
        stored = made.publish(merge=merge, weights=weights, dtype="float32")
        np.testing.assert_allclose(embed(stored), wanted, atol=1e-5)


def test_the_base_may_itself_be_int8_and_share_an_encoder_s_words(tmp_path: Path) -> None:
    """As mini-lm is: its matrices are int8, its word table the encoder's, standardised."""
    tokenizer = tiny_tokenizer()
    start, end = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", start), ("[SEP]", end)]
    )
    store = ModelStore(None, tmp_path / "store")
    words = import_model(store, write_base(tmp_path / "encoder"), "words")
    table = standardised(
        load_file(words.path / "model.safetensors")["embeddings.word_embeddings.weight"]
    )
    folder = tmp_path / "lm"
    config = decoder_config("llama", len(table), num_hidden_layers=2, hidden_size=table.shape[1])
    config.tie_word_embeddings = True
    model: Any = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state = {
        name: dequantise(*quantise(tensor)) if tensor.ndim == 2 else tensor
        for name, tensor in random_state(shapes).items()
    }
    state["model.embed_tokens.weight"] = state["lm_head.weight"] = table
    model.load_state_dict(state)
    model.save_pretrained(folder)
    own: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            continue
        if tensor.ndim == 2:
            own[name], own[f"{name}.scale"] = quantise(tensor)
        else:
            own[name] = tensor
    own_folder = tmp_path / "own"
    own_folder.mkdir()
    save_file(own, own_folder / "model.safetensors")
    (own_folder / "config.json").write_text((folder / "config.json").read_text())
    tokenizer.save(str(own_folder / "tokenizer.json"))
    base = store.publish(
        own_folder, Manifest(name="lm", kind="language-model", base="words", max_tokens=64)
    )
    shape = MemoryShape(K, start_token=start, adapter_scale=0.5)
    rows = torch.randn(K, table.shape[1])
    adapters = random_adapters(grown(folder, rows), ("v_proj",))
    manifest = Manifest(name="comp", kind="encoder", max_tokens=TOKENS, normalize=True)
    weights = MemoryWeights(rows, adapters)
    publish_memory_encoder(store, base, manifest, shape, weights, dtype="float32")
    stored = store.open("comp")
    wanted = memory_states(grown(folder, rows, adapters, 0.5), cut(tokenizer, start)).mean(1)
    wanted = torch.nn.functional.normalize(wanted)
    np.testing.assert_allclose(embed(stored), wanted, atol=1e-5)
    # No end token: the tokenizer is its own, and adds the start alone.
    added = Tokenizer.from_file(str(stored.file("tokenizer.json"))).encode("river")
    assert added.ids[0] == start
    assert sum(added.special_tokens_mask) == 1


def test_effective_tokens_alone_make_the_vector(made: Made) -> None:
    shape = MemoryShape(K, made.start, 2.0, effective_tokens=(1,))
    stored = made.publish(shape=shape, dtype="float32")
    model = grown(made.folder, memory(), made.adapters)
    wanted = memory_states(model, cut(made.tokenizer, made.start))[:, 1]
    np.testing.assert_allclose(embed(stored), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_tokens": K + 1}, "memory_tokens 3 leave no room for a text in max_tokens 4"),
        ({"shape": MemoryShape(K + 1, 0, 2.0)}, r"memory_tokens\.weight .* is \(3, 32\), not"),
        ({"shape": MemoryShape(K, 9999, 2.0)}, "start_token 9999 is no token"),
        ({"weights": MemoryWeights(torch.full((K, 32), torch.nan))},
         r"memory_tokens\.weight: holds values that are not finite"),
        ({"weights": MemoryWeights(torch.ones(K, 32), Adapters({"layers.0.mlp.x": torch.ones(2, 2)}
         ))}, r"layers\.0\.mlp\.x: there is no such linear layer"),
        ({"weights": MemoryWeights(torch.ones(K, 32), table=torch.ones(5, 32))},
         r"embed_tokens\.weight is \(5, 32\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_written(
    how: dict[str, Any], message: str, made: Made
) -> None:
    with pytest.raises(InputError, match=message):
        made.publish(**how)
    assert made.store.names() == ("tiny-lm",)


def test_a_vocabulary_over_the_table_collides_with_the_memory_tokens(tmp_path: Path) -> None:
    made = Made(tmp_path)
    tokenizer = Tokenizer.from_file(str(made.folder / "tokenizer.json"))
    tokenizer.add_tokens(["extraword"])
    tokenizer.save(str(made.folder / "tokenizer.json"))
    made.base = put_language_model(made.store, made.folder, "other")
    with pytest.raises(InputError, match=r"tokenizer\.json: 'extraword' has the id \d+, but from"):
        made.publish()


def edit(stored: StoredModel, change: dict[str, Any]) -> None:
    """Change a stored model's shape, and its fingerprint with it."""
    path = stored.path / "model.json"
    content = json.loads(path.read_text())
    del content["fingerprint"]
    content["shape"] |= change
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_tokens": 0}, "shape.memory_tokens must be a positive integer, not 0"),
        ({"memory_tokens": TOKENS}, "is .*, not"),
        (
            {"start_token": 1},
            "puts the special tokens .[0-9]+. round a text, but shape.start_token is",
        ),
        ({"effective_tokens": [0, 3]}, "shape.effective_tokens must be numbers under"),
        ({"effective_tokens": "x"}, "shape.effective_tokens: 'x' is no list"),
        ({"adapter_scale": 0}, "shape.adapter_scale is 0, but there are adapters"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_by_its_key(
    change: dict[str, Any], message: str, made: Made
) -> None:
    edit(made.publish(), change)
    with pytest.raises(CorruptModel, match=f"^comp: .*{message}"):
        embed(made.store.open("comp"))


def test_a_base_that_is_missing_or_of_another_fingerprint_is_named(made: Made) -> None:
    made.publish()
    put_language_model(made.store, write_language_model(made.folder, vocab_size=500))
    embed(made.store.open("comp"))  # the version it was made with is still there
    (made.store.own / "tiny-lm" / "1").rename(made.folder / "gone")
    with pytest.raises(ModelNotFound, match="needs 'tiny-lm' with fingerprint sha256:"):
        embed(made.store.open("comp"))


def test_a_weight_that_is_gone_is_named(made: Made) -> None:
    stored = made.publish()
    file = stored.path / "model.safetensors"
    weights = load_file(file)
    del weights["layers.1.mlp.up_proj.lora_B"]
    save_file(weights, file)
    with pytest.raises(CondenseryError, match=r"layers\.1\.mlp\.up_proj: \.lora_B is missing"):
        embed(made.store.open("comp", check=False))


def test_it_is_not_taken_for_a_causal_retriever_to_tune(made: Made) -> None:
    with pytest.raises(CorruptModel, match="comp: memory encoders are not trained as retrievers"):
        open_retriever(made.publish(merge=True))


def test_what_it_costs_is_in_its_manifest(made: Made) -> None:
    cost = made.publish().manifest.cost
    model = grown(made.folder, memory())
    assert cost["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert {"flops_128_tokens", "flops_128_tokens_without_memory"} < set(cost)
