"""Tiny stored encoders, rows to tune them on, and a small set in BEIR's form."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_pair import VOCABULARY, tiny_config, tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from condensery.methods.trainer.checkpoints import latest
from condensery.store.importing import import_model
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore

PASSAGES = {
    "p0": ("Mills", "the old mill stands beside the river in town"),
    "p1": ("Bread", "new bread is baked of stone ground corn"),
    "p2": ("", "the market in town is old"),
    "p3": ("Rivers", "how long the river is nobody knows"),
    "p4": ("Bread", "bread and stone and river and market and mill"),
    "p5": ("Other", "words that no query asks for"),
}
QUERIES = {
    "q0": "where is the old mill",
    "q1": "how long is the river",
    "q2": "what bread is new",
    "q3": "old market in town",
    "q4": "zeppelin",
}
JUDGED = [("q0", "p0", 2), ("q0", "p4", 1), ("q1", "p3", 1), ("q2", "p1", 1), ("q2", "p5", 0),
          ("q3", "p2", 1)]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    corpus = [{"_id": i, "title": title, "text": text} for i, (title, text) in PASSAGES.items()]
    write(folder / "corpus.jsonl.gz", corpus)
    write(folder / "queries.jsonl.gz", [{"_id": i, "text": text} for i, text in QUERIES.items()])
    lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{p}\t{grade}" for q, p, grade in JUDGED)]
    (folder / "qrels.test.tsv").write_text("\n".join(lines) + "\n")
    return folder


SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
TOPICS = ["mill", "river", "town", "bread", "stone", "market"]

Stored = Callable[[str], StoredModel]

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves to `make test-methods`: all here that is no tiny run."""
    for item in items:
        if FOLDER in item.path.parents and not item.get_closest_marker("tiny_run"):
            item.add_marker("methods")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sum in one order: the same steps then give the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def interrupted(out: Path, step: int) -> Iterator[None]:
    """Press Ctrl-C in a run between a step's checkpoint and the line of its figures."""

    def record(_: Path, row: dict[str, object]) -> None:
        if row["step"] == step and "validation" in row:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("condensery.methods.trainer.trainer.record", record)
        with pytest.raises(KeyboardInterrupt):
            yield
    checkpoint = latest(out)
    assert checkpoint is not None
    assert checkpoint.step == step


def write_encoder(folder: Path, kind: str) -> None:
    """Write a random model as its publisher would; each weight matters."""
    torch.manual_seed(0)
    model: PreTrainedModel = (
        LlamaForCausalLM(LlamaConfig(**SIZES, eos_token_id=3))
        if kind == "llama"
        else AutoModel.from_config(tiny_config(num_hidden_layers=4), add_pooling_layer=False)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "[SEP]"}')


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    """Import a random model of a kind, "llama" or "bert"."""

    def run(kind: str) -> StoredModel:
        write_encoder(tmp_path / kind, kind)
        return import_model(ModelStore(None, tmp_path / "store"), tmp_path / kind, kind)

    return run


@pytest.fixture
def tuning_rows(tmp_path: Path) -> Path:
    """Write rows whose positives share a word with their query that stands at another place."""
    rng = random.Random(0)
    lines = []
    for number in range(24):
        topic = TOPICS[number % len(TOPICS)]
        others = [other_topic for other_topic in TOPICS if other_topic != topic]
        line: dict[str, Any] = {
            "query": f"where is the {topic} {number}",
            "positive": f"{topic} is old {rng.randrange(100)}",
            "negatives": [f"{other} is old {rng.randrange(100)}" for other in others],
        }
        if number % 3 == 0:
            line["scores"] = [4.0, *(-2.0 - n for n in range(5))]
        lines.append(line)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
