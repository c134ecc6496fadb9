import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_pair
import torch
from safetensors.torch import save_file
from tiny_published import Cocom, write_base
from torch import Tensor

from condensery.errors import CorruptModel
from condensery.networks import backbone, quantised
from condensery.networks.quantised import Int4, Int8, Int16, Weights, can_quantise
from condensery.runtime.oscar_pair import open_pair, pair_info, word_embeddings
from condensery.store import weights
from condensery.store.importing import import_model
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.pair_options import PairOptions
from condensery.store.store import ModelStore

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["small", "shared"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """An imported pair; with a compressor of its own, or one that it shares."""
    root = tmp_path_factory.mktemp(request.param)
    bases = (
        write_base(root / "generator", "mistral", seed=4),
        write_base(root / "compressor", "llama", seed=3),
    )
    published = Cocom(root / "naver", bases, request.param)
    store = ModelStore(None, root / "store")
    return import_model(store, published.path, "pair", pair=PairOptions())


def test_loading_holds_one_stored_tensor_at_a_time(
    stored: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load never holds two copies of a model; only the small adapters wait to be merged."""
    alive: set[int] = set()
    most: list[int] = []

    def counted(model: StoredModel) -> Iterator[tuple[str, Tensor]]:
        for number, (name, tensor) in enumerate(each_tensor(model)):
            if ".lora_" not in name:
                alive.add(number)
                weakref.finalize(tensor, alive.discard, number)
            yield name, tensor
            del tensor
            most.append(len(alive))

    each_tensor = weights.each_tensor
    monkeypatch.setattr(weights, "each_tensor", counted)
    # In no type that a tensor is stored in: each is converted, and what it was is let go.
    pair = open_pair(stored, None, compressor=CPU, generator=CPU, dtype=torch.float64)
    assert len(most) > 40
    assert max(most) <= 2
    assert not alive
    assert pair.generator.dtype == torch.float64


def test_what_the_halves_share_is_in_memory_once(stored: StoredModel) -> None:
    pair = open_pair(stored, None, compressor=CPU, generator=CPU, dtype=torch.bfloat16)
    halves = [pair.compressor, pair.generator]
    tables = [
        {p.data_ptr() for p in half.parameters() if p.dim() == 2 and p.shape[0] > 200}
        for half in halves
        if isinstance(half, torch.nn.Module)
    ]
    shared = tables[0] & tables[1]
    assert bool(shared) == (stored.manifest.shape["compressor"].get("shared", False))  # type: ignore[union-attr, call-overload, index]


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_only_the_generators_weights_are_rounded(
    stored: StoredModel, monkeypatch: pytest.MonkeyPatch, weights: Weights
) -> None:
    if not can_quantise(weights, CPU):
        pytest.skip("not on this CPU")
    monkeypatch.setattr(quantised, "SMALLEST", 1)
    exact, rounded = (
        open_pair(stored, None, compressor=CPU, generator=CPU, dtype=torch.float32, weights=kind)
        for kind in ("float", weights)
    )
    assert isinstance(exact.compressor, torch.nn.Module)
    assert isinstance(rounded.compressor, torch.nn.Module)
    assert not any(isinstance(part, Int16 | Int8 | Int4) for part in rounded.compressor.modules())
    mine, theirs = exact.compressor.state_dict(), rounded.compressor.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    rows = exact.generator.embed([[5, 6, 7, 8]])
    with torch.inference_mode():
        hidden = [pair.generator(rows).last_hidden_state for pair in (exact, rounded)]
        scores = [
            pair.generator.logits(h) for pair, h in zip((exact, rounded), hidden, strict=True)
        ]
    assert not torch.equal(*scores)
    # Random weights of 32 rows know nothing of rounding: 4 bits change much, and not everything.
    assert torch.cosine_similarity(*scores, dim=-1).mean() > (0.99 if weights == "int8" else 0.7)
    assert pair_info(rounded, name="m", weights=weights).dtype == f"float32, generator {weights}"


@pytest.mark.skipif(not can_quantise("int8", CPU), reason="no products of 8 bits")
def test_only_the_compressors_weights_are_rounded(
    stored: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "SMALLEST", 1)
    # Random weights of 32 rows know nothing of rounding, and would be refused for what they give.
    monkeypatch.setattr(backbone, "AGREEMENT_ROUNDED", 0.5)
    how: dict[str, Any] = {"compressor": CPU, "generator": CPU, "dtype": torch.float32}
    exact = open_pair(stored, None, **how)
    rounded = open_pair(stored, None, compressor_weights="int8", **how)
    rows = exact.generator.embed([[5, 6, 7, 8]])
    with torch.inference_mode():
        hidden = [pair.generator(rows).last_hidden_state for pair in (exact, rounded)]
        windows = [w for each in exact.texts.make_windows("who?", ["in the mill"]) for w in each]
        memories = [pair.compressor.compress(windows) for pair in (exact, rounded)]
    assert torch.equal(*hidden)
    one, other = (memory.vectors for memory in memories)
    assert not torch.equal(one, other)
    assert torch.cosine_similarity(one, other, dim=-1).mean() > 0.98
    assert pair_info(rounded, name="m", compressor_weights="int8").dtype == (
        "float32, compressor int8"
    )


def test_a_token_s_text_has_its_blank(stored: StoredModel) -> None:
    """Decoders drop a leading blank; a report of tokens must not."""
    pair = open_pair(stored, None, compressor=CPU, generator=CPU, dtype=torch.float32)
    ids = [t for part in pair.texts.prompt("the old mill", []) for t in part]  # type: ignore[union-attr]
    text = "".join(pair.token(token) for token in ids)
    assert "the old mill" in text
    assert pair.token(next(iter(pair.texts.stop))) == "", "special tokens are no text"


def test_a_tokenizer_of_another_model_is_refused(stored: StoredModel, tmp_path: Path) -> None:
    files = tmp_path / "files"
    shutil.copytree(stored.path, files, ignore=shutil.ignore_patterns("model.json"))
    write_base(tmp_path / "other", "qwen2", seed=1)
    shutil.copy(tmp_path / "other" / "tokenizer.json", files / "generator" / "tokenizer.json")
    store = ModelStore(None, tmp_path / "store")
    swapped = store.publish(files, stored.manifest)
    with pytest.raises(CorruptModel, match="tokenizer"):
        open_pair(swapped, None, compressor=CPU, generator=CPU, dtype=torch.float32)


@pytest.mark.parametrize("name", ["LICENSE.safetensors", ".a.safetensors"])
def test_a_bases_words_are_of_the_files_that_its_manifest_lists(tmp_path: Path, name: str) -> None:
    files = tiny_pair.write_base(tmp_path / "files")
    store = ModelStore(None, tmp_path / "store")
    base = store.publish(
        files, Manifest(name="base", kind="encoder", pooling="mean", max_tokens=64)
    )
    words = word_embeddings(files)
    other = {"embeddings.word_embeddings.weight": torch.zeros_like(words)}
    save_file(other, base.path / name)  # both names sort before the one that it has
    assert torch.equal(word_embeddings(weights.open_folder(base)), words)
