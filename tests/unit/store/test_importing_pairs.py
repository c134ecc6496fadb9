"""Published pairs compute here what their own code would."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.store.conftest import import_as
from tiny_published import Cocom, Pisco
from torch import Tensor
from transformers import DynamicCache

from condensery.errors import StoreError
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape
from condensery.networks.oscar_interface import PairTexts
from condensery.networks.oscar_loading import open_networks, open_texts
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import each_tensor

QUESTION = "How long is the river?"


PASSAGES = ["The mill stands by the river.", "", "It is 1,200 kilometres long; the bread market."]


Opened = tuple[CausalPair, PairTexts]


def open_pair(stored: StoredModel) -> Opened:
    shape = stored.manifest.shape
    pair = open_networks(stored.path, shape, each_tensor(stored))
    return pair, open_texts(stored.path, shape)


@torch.inference_mode()
def compress(opened: Opened, question: str, passages: list[str]) -> list[Tensor]:
    """Compress all passages in one packed batch, each of them one window."""
    pair, texts = opened
    readings = [reading for (reading,) in texts.make_windows(question, passages)]
    return list(pair.compressor.compress(readings).split())


@torch.inference_mode()
def answer(opened: Opened, embeds: Tensor, tokens: int) -> list[int]:
    pair, texts = opened
    ids: list[int] = []
    cache = DynamicCache()
    while len(ids) < tokens and not (ids and ids[-1] in texts.stop):
        out = pair.generator(embeds, past_key_values=cache, use_cache=True)
        ids.append(int(pair.generator.logits(out.last_hidden_state[:, -1]).argmax()))
        embeds = pair.generator.embed([[ids[-1]]])
    return ids


def close(got: Tensor, wanted: Tensor) -> bool:
    scale = max(1.0, float(wanted.abs().max()))
    return got.shape == wanted.shape and torch.allclose(got, wanted, rtol=0, atol=5e-5 * scale)


KINDS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "a small model for Mistral": ("wide", "llama", "small", {}),
    "a small model for Qwen2, whose table shrinks": ("qwen2", "llama", "small", {}),
    "a small model for a tied Llama": ("llama", "qwen2", "small", {}),
    "a small model with adapters": ("wide", "llama", "small", {"lora_compressor": True}),
    "the first two layers": ("mistral", "mistral", "trimmed", {}),
    "every second layer, padded on the right": (
        *("qwen2", "qwen2", "trimmed"),
        {"compr_n_layers": None, "compr_every_n_layer": 2},
    ),
    "the first layers with their norm": ("mistral", "mistral", "trimmed", {"compr_rms_norm": True}),
    "the first layers with adapters": (
        *("mistral", "mistral", "trimmed"),
        {"lora_compressor": True, "compr_n_layers": 3},
    ),
    "the decoder itself": ("mistral", "mistral", "shared", {}),
    "without separators": ("mistral", "mistral", "trimmed", {"sep": False}),
    "one memory token for all": ("wide", "llama", "small", {"different_mem_tokens": False}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", [True, False], ids=["with the question", "without it"])
def test_a_published_pair_computes_what_its_own_code_would(
    bases: dict[str, Path], store: ModelStore, tmp_path: Path, kind: str, asked: bool
) -> None:
    decoder, compressor, form, changes = KINDS[kind]
    published = Cocom(tmp_path / "naver", (bases[decoder], bases[compressor]), form, **changes)
    stored = import_as(store, published.path, questions=asked, max_length=None)
    opened = open_pair(store.open(stored.name))
    length = 192 if asked else 128
    wanted = published.compress(QUESTION if asked else None, PASSAGES, length)
    compressed = compress(opened, QUESTION, PASSAGES)
    assert close(torch.stack(compressed), wanted)
    assert (wanted[0] - wanted[2]).abs().max() > 0.1

    pair, texts = opened
    with torch.inference_mode():
        embeds = pair.generator.embed(texts.prompt(QUESTION, compressed))
    theirs = published.embed(QUESTION, wanted)
    assert close(embeds, theirs)
    answer_of_theirs = published.answer(theirs, 16)
    assert answer(opened, embeds, 16) == answer_of_theirs
    assert len(set(answer_of_theirs)) > 1
    skip = published.tokenizer.decode(answer_of_theirs, skip_special_tokens=True)
    assert texts.decode(answer_of_theirs) == skip


def test_a_pair_of_the_rewritten_code_computes_what_that_would(
    bases: dict[str, Path], store: ModelStore, tmp_path: Path
) -> None:
    published = Pisco(tmp_path / "pisco", bases["wide"], bases["llama"])
    stored = import_as(store, published.path)
    opened = open_pair(stored)
    wanted = published.compress(QUESTION, PASSAGES)
    compressed = compress(opened, QUESTION, PASSAGES)
    assert len({len(vectors) for vectors in compressed}) > 1
    assert all(close(vectors, other) for vectors, other in zip(compressed, wanted, strict=True))
    pair, texts = opened
    with torch.inference_mode():
        embeds = pair.generator.embed(texts.prompt(QUESTION, compressed))
    theirs = published.embed(QUESTION, wanted)
    assert close(embeds, theirs)
    assert answer(opened, embeds, 16) == published.answer(theirs, 16)
    assert stored.manifest.licence == "unknown"
    assert any("No licence is stated" in note for note in stored.manifest.provenance.notes)


def test_the_card_and_its_licence_are_kept_and_no_code_is(
    store: ModelStore, published: Path
) -> None:
    stored = import_as(store, published)
    manifest = store.verify(stored.name).manifest
    assert (manifest.kind, manifest.method) == ("oscar-pair", "oscar")
    assert manifest.licence == "cc-by-nc-4.0"
    assert "license: cc-by-nc-4.0" in (stored.path / "card.md").read_text()
    assert set(manifest.files) == {
        "card.md",
        *(f"{half}/config.json" for half in ("compressor", "generator")),
        *(f"{half}/tokenizer.json" for half in ("compressor", "generator")),
        "model-00001.safetensors",
    }
    assert manifest.max_tokens == 195
    assert manifest.cost == {"parameters": sum(t.numel() for _, t in each_tensor(stored))}
    assert manifest.shape["family"] == "causal"
    assert [p for p in store.own.iterdir() if p.name.startswith(".")] == []


def test_weights_keep_the_type_they_are_published_in(store: ModelStore, published: Path) -> None:
    tensors = dict(each_tensor(import_as(store, published)))
    for name in ("compressor.mapping.0.weight", "generator.network.model.embed_tokens.weight"):
        assert tensors[name].dtype == torch.bfloat16


def test_a_base_model_is_taken_from_where_an_option_says(
    bases: dict[str, Path], store: ModelStore, published: Path, change_json: Callable[..., None]
) -> None:
    change_json(
        published / "config.json",
        decoder_model_name="mistralai/Mistral-7B-Instruct-v0.2",
        compr_model_name="meta-llama/Llama-3.2-1B-Instruct",
    )
    with pytest.raises(StoreError, match=r"Mistral-7B-Instruct-v0.2.* --generator-base"):
        import_as(store, published)
    with pytest.raises(StoreError, match=r"Llama-3.2-1B-Instruct.* --compressor-base"):
        import_as(store, published, generator_base=bases["wide"])
    stored = import_as(
        store, published, generator_base=bases["wide"], compressor_base=bases["llama"]
    )
    assert stored.version == "1"


def test_a_base_is_looked_for_in_the_directory_that_names_it_first(
    bases: dict[str, Path],
    store: ModelStore,
    published: Path,
    change_json: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"decoder_model_name": "bases/wide", "compr_model_name": "bases/llama"}
    change_json(published / "config.json", **names)
    for name in ("wide", "llama"):
        shutil.copytree(bases[name], published / "bases" / name)
        (tmp_path / "bases" / name).mkdir(parents=True)  # beside it, and from here: no models
    monkeypatch.chdir(tmp_path)
    notes = import_as(store, published).manifest.provenance.notes
    for name in ("wide", "llama"):
        assert any(note.endswith(f"{published / 'bases' / name}.") for note in notes)
    pisco = Pisco(tmp_path / "pisco", bases["wide"], bases["llama"]).path
    change_json(pisco / "config.json", decoder_model_name="bases/wide")
    shutil.copytree(bases["wide"], pisco / "bases/wide")
    (note, *_) = import_as(store, pisco).manifest.provenance.notes
    assert note.endswith(f"{pisco / 'bases/wide'}.")


def test_max_length_means_the_same_for_every_pair(
    bases: dict[str, Path], store: ModelStore, tmp_path: Path
) -> None:
    def of(path: Path, **options: Any) -> tuple[int, int]:
        shape = CausalShape.from_dict(import_as(store, path, **options).manifest.shape).compressor
        assert isinstance(shape, CompressorShape)
        return shape.text_tokens - shape.specials, shape.query_tokens

    paths = [
        Cocom(tmp_path / form, (bases[decoder], bases[compressor]), form).path
        for decoder, compressor, form in (
            ("wide", "llama", "small"),
            ("mistral", "mistral", "trimmed"),
            ("mistral", "mistral", "shared"),
        )
    ]
    paths.append(Pisco(tmp_path / "rewritten", bases["wide"], bases["llama"]).path)
    for options, wanted in (
        ({}, (192, 64)),
        ({"questions": False}, (128, 42)),
        ({"max_length": 300}, (300, 64)),
        ({"max_length": 90, "questions": False}, (90, 30)),
    ):
        assert {of(path, **options) for path in paths} == {wanted}
    for path in paths:
        with pytest.raises(StoreError, match="--max-length 4096 is too long") as caught:
            import_as(store, path, max_length=4096)
        assert caught.value.field == "max_length"


def test_a_base_in_shards_or_in_pickles_is_read_too(
    bases: dict[str, Path], store: ModelStore, published: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    whole = dict(each_tensor(import_as(store, published)))
    model = AutoModelForCausalLM.from_pretrained(bases["wide"])
    for name in ("shards", "pickles"):
        base = tmp_path / name
        shutil.copytree(bases["wide"], base)
        (base / "model.safetensors").unlink()
        if name == "shards":
            model.save_pretrained(base, max_shard_size="60KB")
            assert len(list(base.glob("*.safetensors"))) > 2
        else:
            torch.save(model.state_dict(), base / "pytorch_model.bin")
        again = dict(each_tensor(import_as(store, published, generator_base=base)))
        assert whole.keys() == again.keys()
        assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_a_large_pair_is_written_in_several_files(
    store: ModelStore, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dict(each_tensor(import_as(store, published)))
    monkeypatch.setattr("condensery.store.sharding.SHARD_BYTES", 40_000)
    stored = import_as(store, published)
    assert len(stored.weights) > 3
    again = dict(each_tensor(stored))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_tensors_saved_on_a_gpu_are_read_where_there_is_none(
    store: ModelStore, published: Path, tmp_path: Path
) -> None:
    path = published / "compressor" / "mlp.pth"
    moved = tmp_path / "moved.pth"
    cpu, cuda = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(moved, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl"):
                assert cpu in content
                content = content.replace(cpu, cuda)
            new.writestr(name, content)
    shutil.move(moved, path)
    assert import_as(store, published).version == "1"


def test_both_ends_may_stand_among_the_adapters(
    small: Cocom, store: ModelStore, published: Path
) -> None:
    whole = dict(each_tensor(import_as(store, published)))
    ends = torch.load(published / "decoder_first_last_layers.pth", weights_only=True)
    adapters = torch.load(published / "adapters.pth", weights_only=True)
    adapters["decoder_adapter"] |= ends
    torch.save(adapters, published / "adapters.pth")
    both = dict(each_tensor(import_as(store, published)))
    (published / "decoder_first_last_layers.pth").unlink()
    alone = dict(each_tensor(import_as(store, published)))
    for again in (both, alone):
        assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_a_rerank_head_beside_the_compressor_is_taken(
    bases: dict[str, Path], store: ModelStore, tmp_path: Path
) -> None:
    pair = Cocom(tmp_path / "plain", (bases["wide"], bases["llama"]), "small")
    path = Path(shutil.copytree(pair.path, tmp_path / "ranking"))
    config = json.loads((path / "config.json").read_text()) | {"joint_reranking": True}
    (path / "config.json").write_text(json.dumps(config))
    state = torch.load(path / "compressor" / "compressor.pth", weights_only=True)
    row = torch.randn(1, 32).bfloat16()
    state["embed_tokens.weight"] = torch.cat([state["embed_tokens.weight"], row])
    torch.save(state, path / "compressor" / "compressor.pth")
    head = {"weight": torch.randn(1, 32).bfloat16(), "bias": torch.randn(1).bfloat16()}
    torch.save(head, path / "compressor" / "ranking_head.pth")
    opened, without = (open_pair(import_as(store, p)) for p in (path, pair.path))
    readings = [r for (r,) in opened[1].make_windows(QUESTION, PASSAGES)]
    with torch.inference_mode():
        compressed = opened[0].compressor.compress(readings)
        plain = without[0].compressor.compress(readings)
    assert close(compressed.vectors, plain.vectors)
    assert plain.relevance is None
    assert compressed.relevance is not None
    # The token follows the memory tokens, the head reads its last state, before the mapping.
    tokens = opened[1].make_windows(QUESTION, PASSAGES)[0][0].ids
    table = pair.compressor.get_input_embeddings().weight
    slots = pair.reader.convert_tokens_to_ids(pair.names)
    embeds = torch.cat([table[[*tokens, *slots]], row.float()])[None]
    with torch.inference_mode():
        last = pair.compressor(inputs_embeds=embeds).last_hidden_state[0, -1]
    wanted = last @ head["weight"][0].float() + head["bias"].float()
    assert compressed.relevance[0].item() == pytest.approx(wanted.item(), abs=2e-4)


@pytest.mark.parametrize("asked", [True, False], ids=["with the question", "without it"])
@pytest.mark.parametrize(
    "kind",
    [
        "a small model for Mistral",
        "the first two layers",
        "every second layer, padded on the right",
    ],
)
def test_a_long_passages_first_window_is_what_the_published_code_reads_of_it(
    bases: dict[str, Path], store: ModelStore, tmp_path: Path, kind: str, asked: bool
) -> None:
    decoder, compressor, form, changes = KINDS[kind]
    published = Cocom(tmp_path / "naver", (bases[decoder], bases[compressor]), form, **changes)
    long = " ".join(PASSAGES * 20)
    opened = open_pair(import_as(store, published.path, questions=asked, max_length=128))
    (windows,) = opened[1].make_windows(QUESTION, [long])
    assert len(windows) > 2
    with torch.inference_mode():
        values = opened[0].compressor.compress(windows).split()
    wanted = published.compress(QUESTION if asked else None, [long], 128)[0]
    assert close(values[0], wanted)


def test_frequencies_are_rounded_only_where_that_is_asked_for(
    bases: dict[str, Path], store: ModelStore, tmp_path: Path
) -> None:
    pair = Cocom(tmp_path / "naver", (bases["mistral"], bases["mistral"]), "trimmed")
    rotary = pair.compressor.rotary_emb
    rotary.inv_freq = rotary.inv_freq.bfloat16().float()  # as .bfloat16() on the whole leaves it
    wanted = pair.compress(QUESTION, PASSAGES, 192)
    for rounded in (True, False):
        stored = import_as(store, pair.path, rounded_rope=rounded)
        vectors = torch.stack(compress(open_pair(stored), QUESTION, PASSAGES))
        assert close(vectors, wanted) == rounded
        shape = CausalShape.from_dict(stored.manifest.shape)
        assert shape.compressor.rounded_rope == rounded
