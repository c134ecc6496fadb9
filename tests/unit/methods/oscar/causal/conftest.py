"""Tiny bases in transformers' layout, and rows to train on."""

from pathlib import Path
from typing import Any

import pytest
from tiny_causal_training import some_rows, write_rows
from tiny_pair import write_base as write_bert
from tiny_published import write_base

from condensery.methods.oscar.causal.building import PairSources


@pytest.fixture(autouse=True)
def on_one_thread(one_thread: None) -> None:
    """Every test here compares bits."""


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bases")
    return {
        "mistral": write_base(root / "mistral", "mistral", seed=1),
        "llama": write_base(root / "llama", "llama", seed=3),
        "qwen2": write_base(root / "qwen2", "qwen2", seed=2),
        "tied": write_base(root / "tied", "qwen2", seed=5, tie_word_embeddings=True),
        "wide": write_base(root / "wide", "mistral", seed=4, hidden_size=64),
        "small": write_base(
            root / "small",
            "qwen2",
            seed=2,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
        ),
        "bert": write_bert(root / "bert"),
    }


@pytest.fixture(scope="session")
def kinds(bases: dict[str, Path]) -> dict[str, PairSources]:
    """Pairs of every kind that can be built."""
    sizes: dict[str, Any] = {"memory_tokens": 4, "query_tokens": 12, "passage_tokens": 24}
    mapped = {**sizes, "mapping_size": 40}
    return {
        "first layers": PairSources(bases["mistral"], layers=2, **sizes),
        "every second layer": PairSources(bases["qwen2"], every_nth=2, **sizes),
        "tied, no head": PairSources(
            bases["tied"], layers=3, rerank=False, separator=False, **sizes
        ),
        "another model": PairSources(bases["wide"], compressor=bases["llama"], **mapped),
        "a BERT": PairSources(
            bases["llama"], bert=bases["bert"], **{**mapped, "passage_tokens": 12}
        ),
    }


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", some_rows(20))
