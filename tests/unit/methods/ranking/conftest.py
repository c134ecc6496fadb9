"""A tiny encoder that remembers what it was asked."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.unit.methods.distil.conftest import write_encoder

from condensery.runtime.encoder import Encoder
from condensery.runtime.workers import Workers
from condensery.store.manifest import Manifest, StoredModel


class Watched:
    """An encoder whose texts are kept; it fails at a text, as a kill would end the process."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.info = encoder.info
        self.prompts = encoder.prompts
        self.default_prompt = encoder.default_prompt
        self.asked: list[str] = []
        self.fails_at: str | None = None

    async def embed(self, texts: Sequence[str], *, prompt: str = "") -> Any:
        if self.fails_at in texts:
            raise RuntimeError("killed")
        self.asked += [prompt + text for text in texts]
        return await self.encoder.embed(texts, prompt=prompt)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    folder = write_encoder(tmp_path_factory.mktemp("encoder"))
    manifest = Manifest(
        name="tiny",
        kind="encoder",
        method="none",
        pooling="mean",
        max_tokens=64,
        prompts={"query": "who ", "passage": "the "},
        files={"model.safetensors": "0" * 64},
    )
    workers = Workers(1)
    encoder = Encoder.load(StoredModel(manifest, folder), workers)
    yield encoder
    encoder.close()
    workers.close()


@pytest.fixture
def encoder(running: Encoder) -> Watched:
    return Watched(running)
