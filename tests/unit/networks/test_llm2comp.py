"""Memory encoders give the numbers of transformers' own model with an explicit mask."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_memory import (
    K,
    grown,
    memory_states,
    random_adapters,
    write_language_model,
    write_merged,
)
from torch import Tensor

from condensery.errors import CorruptModel
from condensery.networks.llm2comp import (
    ROWS,
    MemoryBackbone,
    effective_tokens,
    load_memory_backbone,
    load_memory_model,
    memory_at,
    token_clusters,
    token_similarity,
)
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.networks.packing import Packing
from condensery.networks.weight_files import ModelFolder

KINDS = ["llama", "mistral", "qwen2", "qwen3"]
SEQUENCES = [[1, 7, 9], [1], [3, *range(20, 61)], [1, 5, 250, 17, 4, 11, 12, 8], [2] * 30]
SHAPE = MemoryShape(K)


def memory_rows() -> Tensor:
    return torch.randn(K, 32, generator=torch.Generator().manual_seed(8))


def vectors(backbone: MemoryBackbone, sequences: list[list[int]] = SEQUENCES) -> Tensor:
    hidden, packing = backbone.read(sequences, pooling="mean")
    return backbone.pool(hidden, packing, "mean")


def open_merged(folder: Path, shape: MemoryShape = SHAPE, **how: Any) -> MemoryBackbone:
    return load_memory_backbone(ModelFolder.of(folder), shape, **how)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_transformers_with_an_explicit_mask(kind: str, tmp_path: Path) -> None:
    # Windows of 8 would hide most of a text: attention has to reach all of it.
    window = {} if kind == "llama" else {"sliding_window": 8}
    if kind.startswith("qwen"):
        window |= {"use_sliding_window": True, "max_window_layers": 1}
    model = grown(write_language_model(tmp_path / "lm", kind, **window), memory_rows())
    backbone = open_merged(write_merged(tmp_path / "merged", model))
    wanted = memory_states(model, SEQUENCES).mean(1)
    torch.testing.assert_close(vectors(backbone), wanted, atol=1e-5, rtol=0)
    for number, sequence in enumerate(SEQUENCES):  # alone as in a batch
        torch.testing.assert_close(
            vectors(backbone, [sequence])[0], wanted[number], atol=1e-5, rtol=0
        )


def test_every_token_s_state_can_be_read(tmp_path: Path) -> None:
    model = grown(write_language_model(tmp_path / "lm"), memory_rows())
    backbone = open_merged(write_merged(tmp_path / "merged", model))
    hidden, packing = backbone.read(SEQUENCES)
    assert packing.lengths == tuple(len(ids) + K for ids in SEQUENCES)
    states = hidden[memory_at(packing, K)]
    torch.testing.assert_close(states, memory_states(model, SEQUENCES), atol=1e-5, rtol=0)
    ids = torch.tensor([[*SEQUENCES[2], *range(backbone.first_memory, backbone.first_memory + K)]])
    mask = torch.zeros(1, 1, ids.shape[1], ids.shape[1])
    with torch.inference_mode():
        alone = model(input_ids=ids, attention_mask=mask).last_hidden_state[0]
    start = int(packing.starts[2])
    torch.testing.assert_close(hidden[start : start + ids.shape[1]], alone, atol=1e-5, rtol=0)


def test_first_last_and_effective_memory_tokens_can_be_the_vector(tmp_path: Path) -> None:
    model = grown(write_language_model(tmp_path / "lm"), memory_rows())
    folder = write_merged(tmp_path / "merged", model)
    states = memory_states(model, SEQUENCES)
    kept = open_merged(folder, MemoryShape(K, effective_tokens=(0, 2)))
    torch.testing.assert_close(vectors(kept), states[:, [0, 2]].mean(1), atol=1e-5, rtol=0)
    backbone = open_merged(folder)
    for pooling, at in (("cls", 0), ("last", -1)):
        hidden, packing = backbone.read(SEQUENCES, pooling=pooling)  # type: ignore[arg-type]
        got = backbone.pool(hidden, packing, pooling)  # type: ignore[arg-type]
        torch.testing.assert_close(got, states[:, at], atol=1e-5, rtol=0)


def adapted(folder: Path, name: str = "adapted", **extra: Tensor) -> tuple[ModelFolder, Any]:
    """Write adapters beside a base's directory; return both, and transformers' merged model."""
    base = write_language_model(folder / "lm")
    plain = grown(base, memory_rows())
    adapters = random_adapters(plain, ("q_proj", "down_proj"))
    model = grown(base, memory_rows(), adapters)
    own = folder / name
    own.mkdir()
    weights = {ROWS: memory_rows(), **extra}
    weights |= {f"{layer}.lora_A": factor for layer, factor in adapters.down.items()}
    weights |= {f"{layer}.lora_B": factor for layer, factor in adapters.up.items()}
    save_file(weights, own / "model.safetensors")
    rows = len(plain.get_input_embeddings().weight)
    (own / "config.json").write_text(json.dumps(plain.config.to_dict() | {"vocab_size": rows}))
    names = {n: f"model.{n}" for n in plain.state_dict() if n not in extra}
    return ModelFolder(own, name, base=ModelFolder.of(base), from_base=names), model


def test_adapters_beside_a_base_are_merged(tmp_path: Path) -> None:
    folder, model = adapted(tmp_path)
    backbone = load_memory_backbone(folder, MemoryShape(K, adapter_scale=2.0))
    wanted = memory_states(model, SEQUENCES).mean(1)
    torch.testing.assert_close(vectors(backbone), wanted, atol=1e-5, rtol=0)


def test_a_trained_table_takes_the_place_of_the_base_s(tmp_path: Path) -> None:
    words = torch.randn(len(load_table(tmp_path)), 32, generator=torch.Generator().manual_seed(4))
    folder, model = adapted(tmp_path, **{"embed_tokens.weight": words})
    model.get_input_embeddings().weight.data[: len(words)] = words
    backbone = load_memory_backbone(folder, MemoryShape(K, adapter_scale=2.0))
    wanted = memory_states(model, SEQUENCES).mean(1)
    torch.testing.assert_close(vectors(backbone), wanted, atol=1e-5, rtol=0)


def load_table(folder: Path) -> Tensor:
    weights = load_file(write_language_model(folder / "lm") / "model.safetensors")
    return weights["model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("shape", "change", "message"),
    [
        (MemoryShape(K, adapter_scale=2.0), {ROWS: torch.ones(K + 1, 32)},
         r"memory_tokens\.weight is \(4, 32\), not \(3, 32\)"),
        (MemoryShape(K, adapter_scale=2.0), {"layers.0.self_attn.q_proj.lora_A": torch.ones(2, 9)},
         r"layers\.0\.self_attn\.q_proj: \(2, 9\)"),
        (MemoryShape(K, adapter_scale=2.0), {"layers.7.mlp.up_proj.lora_A": torch.ones(2, 9)},
         r"layers\.7\.mlp\.up_proj: there is no such linear layer"),
        (MemoryShape(K), {}, r"shape\.adapter_scale is 0\.0, but there are adapters"),
        (MemoryShape(K + 1, adapter_scale=2.0), {}, r"memory_tokens\.weight is \(3, 32\)"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_named(
    shape: MemoryShape, change: dict[str, Tensor], message: str, tmp_path: Path
) -> None:
    folder, _ = adapted(tmp_path)
    file = folder.path / "model.safetensors"
    save_file({**load_file(file), **change}, file)
    with pytest.raises(CorruptModel, match=f"^adapted: {message}"):
        load_memory_backbone(folder, shape)


def test_rows_that_the_table_has_already_collide(tmp_path: Path) -> None:
    model = grown(write_language_model(tmp_path / "lm"), memory_rows())
    folder = write_merged(tmp_path / "merged", model)
    file = folder / "model.safetensors"
    save_file({**load_file(file), ROWS: memory_rows()}, file)
    with pytest.raises(CorruptModel, match=r"merged: memory_tokens\.weight .*: the ids collide"):
        open_merged(folder)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    model = grown(write_language_model(tmp_path / "lm"), memory_rows())
    folder = write_merged(tmp_path / "merged", model)
    weights = load_file(folder / "model.safetensors")
    table = weights["embed_tokens.weight"]
    del weights["layers.1.mlp.up_proj.weight"]
    save_file({**weights, "embed_tokens.weight": table[:-K]}, folder / "model.safetensors")
    with pytest.raises(CorruptModel, match=r"embed_tokens\.weight is .*up_proj\.weight is missing"):
        open_merged(folder)


def test_memory_rows_are_each_sequence_s_last() -> None:
    packing = Packing.of([4, 2, 5], dtype=torch.float32, total_multiple=16)
    assert memory_at(packing, 2).tolist() == [[2, 3], [4, 5], [9, 10]]


def test_the_last_layer_computes_memory_rows_alone(tmp_path: Path) -> None:
    model = grown(write_language_model(tmp_path / "lm"), memory_rows())
    backbone = open_merged(write_merged(tmp_path / "merged", model))
    some, packing = backbone.read(SEQUENCES, pooling="mean")
    every, _ = backbone.read(SEQUENCES)
    rows = memory_at(packing, K)
    assert torch.equal(some[rows], every[rows])
    other = int(packing.starts[2])
    assert not torch.allclose(some[other], every[other])


def by_formula(similarity: Tensor, above: float) -> set[frozenset[int]]:
    """Merge any two clusters while the least similarity across them is over the bound."""
    clusters = {frozenset([token]) for token in range(len(similarity))}
    while True:
        least = {
            (one, other): min(float(similarity[i, j]) for i in one for j in other)
            for one in clusters
            for other in clusters
            if one != other
        }
        best = max(least, key=lambda pair: least[pair], default=None)
        if best is None or least[best] <= above:
            return clusters
        clusters = (clusters - set(best)) | {best[0] | best[1]}


def test_alike_tokens_become_clusters() -> None:
    generator = torch.Generator().manual_seed(1)
    for spread in (0.2, 0.5, 1.0):
        middle = torch.randn(3, 16, generator=generator).repeat(3, 1)[:8]
        states = middle + spread * torch.randn(50, 8, 16, generator=generator)
        similarity = token_similarity([states[:20], states[20:]])
        unit = states.double() / states.double().norm(dim=-1, keepdim=True)
        mean = sum(row @ row.T for row in unit) / 50
        torch.testing.assert_close(similarity, mean, atol=1e-12, rtol=0)
        for above in (0.5, 0.9):
            clusters = token_clusters(similarity, above)
            assert {frozenset(cluster) for cluster in clusters} == by_formula(similarity, above)
            assert sorted(token for cluster in clusters for token in cluster) == list(range(8))
            assert effective_tokens(similarity, above) == tuple(c[0] for c in clusters)
            drawn = effective_tokens(similarity, above, torch.Generator().manual_seed(0))
            assert all(len(set(drawn) & set(cluster)) == 1 for cluster in clusters)


def test_a_chain_of_alike_tokens_is_no_cluster() -> None:
    chain = torch.tensor([[1.0, 0.95, 0.5], [0.95, 1.0, 0.92], [0.5, 0.92, 1.0]])
    assert token_clusters(chain, 0.9) == ((0, 1), (2,))
    assert token_clusters(torch.ones(4, 4), 0.9) == ((0, 1, 2, 3),)
    assert token_clusters(torch.ones(4, 4), 1.0) == ((0,), (1,), (2,), (3,))


def test_adapters_are_merged_before_weights_are_rounded(tmp_path: Path) -> None:
    folder, model = adapted(tmp_path)
    shape = MemoryShape(K, adapter_scale=2.0)
    loaded = load_memory_model(folder, shape, dtype=torch.bfloat16)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.bfloat16()), name
