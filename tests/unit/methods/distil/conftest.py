"""A tiny running encoder that remembers what it was asked."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tiny_pair import sharpen, tiny_config, tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertModel

from condensery.runtime.encoder import Encoder
from condensery.runtime.workers import Workers


class Watched:
    """An encoder whose texts are kept; it fails at a text, as a kill would end the process."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.info = encoder.info
        self.prompts = encoder.prompts
        self.asked: list[str] = []
        self.fails_at: str | None = None

    async def embed(self, texts: Sequence[str], *, prompt: str = "") -> Any:
        if self.fails_at in texts:
            raise RuntimeError("killed")
        self.asked += [prompt + text for text in texts]
        return await self.encoder.embed(texts, prompt=prompt)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    model = BertModel(tiny_config())
    sharpen(model, 4)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    manifest = SimpleNamespace(
        name="tiny",
        kind="encoder",
        method="none",
        pooling="mean",
        normalize=True,
        max_tokens=64,
        fingerprint="sha256:" + "0" * 64,
        licence="",
        created=0,
        prompts={"query": "who ", "passage": "the "},
    )
    workers = Workers(1)
    stored = cast(Any, SimpleNamespace(manifest=manifest, path=Path(folder)))
    encoder = Encoder.load(stored, workers)
    yield encoder
    encoder.close()
    workers.close()


@pytest.fixture
def encoder(running: Encoder) -> Watched:
    return Watched(running)
