"""Encoders that are judged: as they are stored, as others serve them, and what is kept of them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripted_server import head, refuse, scripted
from tests.unit.methods.conftest import Stored

from condensery.errors import InputError, ModelFault
from condensery.methods.judging.encoders import (
    BLOCK,
    EmbeddingServer,
    KeptVectors,
    ServedEncoder,
    StoredEncoder,
)
from condensery.methods.ranking.retrieval import embed, running
from condensery.store.manifest import StoredModel
from condensery.values import Floats

CPU = torch.device("cpu")


def open_encoder(stored: StoredModel, **prompts: Any) -> StoredEncoder:
    changed = stored.manifest.model_copy(update=prompts)
    return StoredEncoder(StoredModel(changed, stored.path), 1, CPU, torch.float32)


def test_a_stored_encoder_gives_the_vectors_that_it_serves(stored: Stored) -> None:
    model = stored("bert")
    texts = ["the old mill", "bread of stone ground corn " * 40, ""]
    encoder = open_encoder(model)
    judged = encoder.embed(texts, "river ")
    encoder.close()
    with running(model, 1, CPU, torch.float32) as served:
        assert np.array_equal(judged, embed(served, texts, "river "))
    assert encoder.about["fingerprint"] == model.manifest.fingerprint
    facts = encoder.facts()
    assert facts["parameters"] > 0
    assert facts["flops_128_tokens"] > 0


@pytest.mark.parametrize(
    ("purpose", "prompts", "default", "wanted"),
    [
        ("search_query", {"query": "q: ", "document": "d: "}, None, "q: "),
        ("search_document", {"query": "q: ", "document": "d: "}, None, "d: "),
        ("clustering", {"query": "q: "}, None, ""),
        (None, {"query": "q: ", "sts": "s: "}, "sts", "s: "),
        (None, {"instruction": "{instruction}: {text}"}, None, "Do it: {text}"),
        ("clustering", {"instruction": "{instruction}: {text}"}, None, "Do it: {text}"),
        ("search_query", {"instruction": "{instruction}: ", "query": "q: "}, None, "q: "),
    ],
)
def test_texts_get_the_prompt_of_what_they_are_for(
    purpose: str | None,
    prompts: dict[str, str],
    default: str | None,
    wanted: str,
    stored: Stored,
) -> None:
    encoder = open_encoder(stored("bert"), prompts=prompts, default_prompt=default)
    assert encoder.prompt(purpose, "Do it") == wanted


def reply(vectors: Sequence[Sequence[float]], *, turned: bool = False) -> list[bytes]:
    data = [{"index": n, "embedding": row} for n, row in enumerate(vectors)]
    content = json.dumps({"data": data[::-1] if turned else data}).encode()
    return [head(media="application/json"), content]


async def ask(scripts: Sequence[Sequence[Any]], texts: Sequence[str], **how: Any) -> Any:
    async with scripted(*scripts) as server:
        encoder = ServedEncoder(EmbeddingServer("m", server.url, pause=0.0, **how))
        prompt = encoder.prompt("search_query", "")
        vectors = await asyncio.to_thread(encoder.embed, texts, prompt)
        return vectors, server.asked


async def test_a_server_is_asked_as_openai_is_again_when_it_is_busy() -> None:
    prompts = {"search_query": "q: "}
    vectors, asked = await ask(
        [refuse("429 Too Many Requests"), refuse("503 Busy"), reply([[1, 0], [0, 1]], turned=True)],
        ["long text", "b"],
        key="secret",
        prompts=prompts,
        characters=4,
    )
    assert vectors.tolist() == [[1, 0], [0, 1]]
    assert len(asked) == 3
    assert asked[-1].path == "/v1/embeddings"
    assert asked[-1].headers["authorization"] == "Bearer secret"
    assert asked[-1].body["model"] == "m"
    assert asked[-1].body["input"] == ["q: long", "q: b"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (refuse("400 Bad Request", {"error": "too long"}), "replied 400.*too long"),
        (refuse("401 Unauthorized", {"error": "no key sk-1"}), "replied 401: it wants another key"),
        (refuse("500 Oops"), "replied 500"),
        (reply([[1.0, 0.0]]), "sent 1 vectors for 2 texts"),
        (reply([[1.0, 0.0], [float("nan"), 0.0]]), "what is no vector"),
        ([head(media="application/json"), b"[]"], "sent no list of embeddings"),
    ],
)
async def test_what_a_server_says_wrong_is_told(script: list[Any], message: str) -> None:
    with pytest.raises(ModelFault, match=message):
        await ask([script], ["a", "b"])


@pytest.mark.parametrize("url", ["ftp://host/v1", "host:8080/v1", "http://me:secret@host/v1"])
def test_urls_that_are_none_or_hold_a_password_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="url: ") as refused:
        EmbeddingServer("m", url)
    assert "me:secret" not in refused.value.message


class Counting:
    """An encoder that counts, and dies once when it is told to."""

    name, about = "counting", {"fingerprint": "sha256:1"}

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.dies_after = 10**9

    def embed(self, texts: Sequence[str], prompt: str) -> Floats:
        if len(self.seen) + len(texts) > self.dies_after:
            raise KeyboardInterrupt
        self.seen += texts
        return np.array([[len(prompt), int(text)] for text in texts], dtype=np.float32)

    def prompt(self, purpose: str | None, instruction: str) -> str:
        return ""

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def test_vectors_are_kept_block_by_block_and_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    texts = [str(number) for number in range(3 * BLOCK + 7)]
    encoder = Counting()
    encoder.dies_after = 2 * BLOCK
    with pytest.raises(KeyboardInterrupt):
        KeptVectors(encoder, tmp_path).embed(texts, "p")
    assert encoder.seen == texts[: 2 * BLOCK]
    (tmp_path / "half.partial").write_bytes(b"a kill left this")
    encoder.dies_after = 10**9
    vectors = KeptVectors(encoder, tmp_path).embed(texts, "p")
    assert encoder.seen == texts
    assert vectors.tolist() == [[1, number] for number in range(len(texts))]
    other = KeptVectors(encoder, tmp_path).embed(texts[:BLOCK], "another")
    assert other.tolist() == [[7, number] for number in range(BLOCK)]
