"""Small real models: directories to publish or import, and a store with one in it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from condensery.store.importing import import_model
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.pair_options import PairOptions
from condensery.store.store import ModelStore

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat"]


def write_files(directory: Path, seed: int = 0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    weight = np.random.default_rng(seed).standard_normal((4, 8)).astype(np.float32)
    save_file({"weight": weight}, directory / "model.safetensors")
    (directory / "config.json").write_text('{"model_type": "bert"}')
    (directory / "tokenizer.json").write_text('{"version": "1.0"}')
    (directory / "card.md").write_text("# A tiny model\n")
    return directory


def make_manifest(name: str = "tiny", **changes: Any) -> Manifest:
    return Manifest(
        **{"name": name, "kind": "encoder", "pooling": "mean", "max_tokens": 16, **changes}
    )


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(None, tmp_path / "own")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_files(tmp_path / "files")


@pytest.fixture
def manifest() -> Callable[..., Manifest]:
    return make_manifest


@pytest.fixture
def publish(tmp_path: Path, files: Path) -> Callable[..., StoredModel]:
    """Publish the small model, under any name, into any store."""

    def run(store: ModelStore, name: str = "tiny", **changes: Any) -> StoredModel:
        return store.publish(files, make_manifest(name, **changes))

    return run


@pytest.fixture(scope="session")
def trained_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random BertModel with its tokenizer, as transformers saves them."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    directory = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(directory)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    ).save_pretrained(directory)
    return directory


@pytest.fixture
def bert(trained_bert: Path, tmp_path: Path) -> Path:
    """Return a copy of the plain encoder directory, free to be changed."""
    return Path(shutil.copytree(trained_bert, tmp_path / "published"))


@pytest.fixture
def sentence_bert(bert: Path) -> Path:
    """Return the encoder as a sentence-transformers directory, free to be changed."""
    write = write_json
    kinds = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write(bert / "modules.json", modules)
    write(bert / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": False})
    flags = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    write(bert / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, **flags})
    prompts = {"query": "query: ", "document": ""}
    write(bert / "config_sentence_transformers.json", {"prompts": prompts})
    (bert / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# A model\n")
    return bert


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny causal models that published pairs are made of."""
    from tiny_published import write_base

    root = tmp_path_factory.mktemp("bases")
    return {
        "mistral": write_base(root / "mistral", "mistral", seed=1),
        "qwen2": write_base(root / "qwen2", "qwen2", seed=2),
        "llama": write_base(root / "llama", "llama", seed=3, tie_word_embeddings=True),
        "wide": write_base(root / "wide", "mistral", seed=4, hidden_size=64),
    }


@pytest.fixture(scope="session")
def small(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Write a pair whose compressor is a small model."""
    from tiny_published import Cocom

    path = tmp_path_factory.mktemp("small") / "naver"
    return Cocom(path, (bases["wide"], bases["llama"]), "small")


@pytest.fixture
def published(small: Any, tmp_path: Path) -> Path:
    """Return a copy of the small directory, free to be changed."""
    return Path(shutil.copytree(small.path, tmp_path / "published"))


def import_as(store: ModelStore, path: Path, **options: Any) -> StoredModel:
    """Import a published pair with the options of `condensery import`."""
    return import_model(store, path, "pair", pair=PairOptions(**options))


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def change_json() -> Callable[..., None]:
    """Set keys of a JSON object's file; None removes one."""

    def run(path: Path, **changes: Any) -> None:
        content = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
        write_json(path, {key: value for key, value in content.items() if value is not None})

    return run
