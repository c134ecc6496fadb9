"""Memory encoders at a real server's doors: beside their base, and merged with it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch
from tests.conftest import serving
from tiny_memory import (
    K,
    cut,
    grown,
    memory_states,
    put_language_model,
    random_adapters,
    tokenizer_of,
    write_language_model,
)

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.methods.llm2comp.publishing import publish_memory_encoder
from condensery.methods.llm2comp.weights import MemoryWeights
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.store.manifest import Manifest
from condensery.store.store import ModelStore
from condensery.stubs import tei_v1_pb2 as tei
from condensery.stubs import tei_v1_pb2_grpc as tei_grpc

MOST = 24
TEXTS = ["the old mill", "", "Where is the river? " * 30, "a stone bridge over the river, sold"]
ADAPTED = ("q_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj")
PROMPTS = {
    "query": "Find the answer:{text}\n",
    "document": "",
    "sts": "Retrieve alike text: ",
    "instruction": "{instruction}:{text}\n",
}


class Comp:
    """The models that are served, and what transformers makes of texts with their weights."""

    def __init__(self, root: Path) -> None:
        folder = write_language_model(root / "lm")
        self.store = ModelStore(None, root / "models")
        self.tokenizer = tokenizer_of("llama")
        self.start: int = self.tokenizer.encode("a").ids[0]
        memory = torch.randn(K, 32, generator=torch.Generator().manual_seed(8))
        adapters = random_adapters(grown(folder, memory), ADAPTED)
        self.model = grown(folder, memory, adapters)
        base = put_language_model(self.store, folder)
        shape = MemoryShape(K, start_token=self.start, adapter_scale=2.0)
        for name, merge in (("comp", False), ("merged", True)):
            manifest = Manifest(
                name=name, kind="encoder", max_tokens=MOST, normalize=True, prompts=PROMPTS
            )
            weights = MemoryWeights(memory, adapters)
            publish_memory_encoder(
                self.store, base, manifest, shape, weights, merge=merge, dtype="float32"
            )

    def ids(self, texts: list[str]) -> list[list[int]]:
        return cut(self.tokenizer, self.start, texts, MOST - K)

    def vectors(self, texts: list[str]) -> np.ndarray[Any, Any]:
        means = memory_states(self.model, self.ids(texts)).mean(1)
        unit: np.ndarray[Any, Any] = torch.nn.functional.normalize(means).numpy()
        return unit


@pytest.fixture(scope="module")
def comp(tmp_path_factory: pytest.TempPathFactory) -> Comp:
    return Comp(tmp_path_factory.mktemp("comp"))


@pytest.fixture(scope="module")
def server(comp: Comp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("served")
    with serving(comp.store.own, root, "--no-samples", "--dtype", "float32") as live:
        yield live


def openai(server: Any, **body: Any) -> Any:
    return httpx.post(f"{server.url}/v1/embeddings", json={"model": "comp", **body})


def vectors_of(reply: Any) -> list[list[float]]:
    assert reply.status_code == 200, reply.text
    return [item["embedding"] for item in reply.json()["data"]]


@pytest.mark.parametrize("model", ["comp", "merged"])
def test_texts_embed_at_every_door(model: str, server: Any, comp: Comp) -> None:
    wanted = comp.vectors(TEXTS)
    assert np.abs(wanted[0] - wanted[3]).max() > 0.01
    got = vectors_of(openai(server, input=TEXTS, model=model))
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    rows = httpx.post(f"{server.url}/embed", json={"inputs": TEXTS, "model": model}).json()
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    with GrpcClient(server.grpc) as client:
        np.testing.assert_allclose(client.embed(TEXTS, model=model), wanted, atol=1e-5)
    with grpc.insecure_channel(server.grpc) as channel:
        request = tei.EmbedRequest(inputs=TEXTS[0], normalize=True)
        reply = tei_grpc.EmbedStub(channel).Embed(request, metadata=(("x-model", model),))
    np.testing.assert_allclose(reply.embeddings, wanted[0], atol=1e-5)


def test_texts_of_many_lengths_share_batches(server: Any, comp: Comp) -> None:
    texts = [f"{'the river and the mill ' * (n % 9)}{n}" for n in range(120)]
    wanted = comp.vectors(texts)
    with ThreadPoolExecutor(8) as threads:
        parts = [texts[at : at + 15] for at in range(0, len(texts), 15)]
        got = list(threads.map(lambda part: vectors_of(openai(server, input=part)), parts))
    np.testing.assert_allclose(np.concatenate(got), wanted, atol=1e-5)


def test_a_prompt_by_its_name_its_purpose_or_the_caller_s_words(server: Any, comp: Comp) -> None:
    text = "the old mill"
    told = "Given a claim, find what refutes it"
    wanted = {
        "query": comp.vectors([f"Find the answer:{text}\n"]),
        "sts": comp.vectors([f"Retrieve alike text: {text}"]),
        "document": comp.vectors([text]),
        "instruction": comp.vectors([f"{told}:{text}\n"]),
    }
    asked: list[tuple[str, dict[str, str]]] = [
        ("query", {"prompt_name": "query"}),
        ("query", {"input_type": "search_query"}),
        ("query", {"input_type": "query"}),
        ("document", {"input_type": "search_document"}),
        ("sts", {"prompt_name": "sts"}),
        ("instruction", {"instruction": told}),
    ]
    with Client(server.url) as rest, GrpcClient(server.grpc) as by_grpc:
        for name, how in asked:
            got = vectors_of(openai(server, input=text, **how))
            np.testing.assert_allclose(got, wanted[name], atol=1e-5)
            for client in (rest, by_grpc):
                got = client.embed([text], model="comp", **how)
                np.testing.assert_allclose(got, wanted[name], atol=1e-5)
    body = {"inputs": text, "model": "comp", "prompt_name": "query"}
    rows = httpx.post(f"{server.url}/embed", json=body).json()
    np.testing.assert_allclose(rows, wanted["query"], atol=1e-5)
    body = {"texts": [text], "model": "comp", "input_type": "search_query"}
    reply = httpx.post(f"{server.url}/v2/embed", json=body).json()
    np.testing.assert_allclose(reply["embeddings"]["float"], wanted["query"], atol=1e-5)
    with grpc.insecure_channel(server.grpc) as channel:
        request = tei.EmbedRequest(inputs=text, normalize=True, prompt_name="query")
        one = tei_grpc.EmbedStub(channel).Embed(request, metadata=(("x-model", "comp"),))
    np.testing.assert_allclose(one.embeddings, wanted["query"][0], atol=1e-5)


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"prompt_name": "haiku"}, "prompt_name"),
        ({"prompt_name": "instruction"}, "prompt_name"),
        ({"instruction": " "}, "instruction"),
        ({"instruction": "a {text} b"}, "instruction"),
        ({"instruction": "x" * 10**6}, "instruction"),
        ({"instruction": "a", "input_type": "query"}, "input_type"),
        ({"instruction": "a", "prompt_name": "query"}, "prompt_name"),
    ],
)
def test_a_prompt_that_can_t_be_is_refused_by_its_field(
    how: dict[str, str], field: str, server: Any
) -> None:
    reply = openai(server, input="a", **how)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field


def test_tokens_are_counted_as_they_are_listed(server: Any, comp: Comp) -> None:
    """Memory tokens are no tokens of the text: they are not counted, and always read."""
    ids = comp.ids(TEXTS)
    assert openai(server, input=TEXTS).json()["usage"]["prompt_tokens"] == sum(map(len, ids))
    short = [TEXTS[0], TEXTS[1], TEXTS[3]]
    body = {"inputs": short, "model": "comp"}
    listed = httpx.post(f"{server.url}/tokenize", json=body).json()
    used = openai(server, input=short).json()["usage"]["prompt_tokens"]
    assert used == sum(map(len, listed))
    assert {token["id"] for token in listed[1]} == {comp.start}
    shown = {model["id"]: model for model in httpx.get(f"{server.url}/v1/models").json()["data"]}
    assert shown["comp"]["max_tokens"] == MOST - K
    assert (shown["comp"]["method"], shown["comp"]["pooling"]) == ("llm2comp", "mean")
    refused = openai(server, input=TEXTS[2], truncate=False)
    assert refused.status_code == 400
    assert f"over the model's {MOST - K}" in refused.json()["error"]["message"]
    cuts = [TEXTS[2][:length] for length in range(1, 200)]
    full = next(text for text in cuts if len(comp.tokenizer.encode(text).ids) == MOST - K)
    whole = openai(server, input=full, truncate=False)
    np.testing.assert_allclose(vectors_of(whole), comp.vectors([full]), atol=1e-5)


def test_the_vectors_of_tokens_are_the_text_s_own(server: Any, comp: Comp) -> None:
    body = {"inputs": TEXTS, "model": "comp"}
    rows = httpx.post(f"{server.url}/embed_all", json=body).json()
    first = len(comp.model.get_input_embeddings().weight) - K
    for text_rows, ids in zip(rows, comp.ids(TEXTS), strict=True):
        row = torch.tensor([[*ids, *range(first, first + K)]])
        mask = torch.zeros(1, 1, row.shape[1], row.shape[1])
        with torch.inference_mode():
            states = comp.model(input_ids=row, attention_mask=mask).last_hidden_state[0]
        np.testing.assert_allclose(text_rows, states[: len(ids)], atol=1e-5)


def test_both_doors_list_it_and_its_base_serves_nothing(server: Any) -> None:
    with Client(server.url) as rest, GrpcClient(server.grpc) as by_grpc:
        assert rest.models() == by_grpc.models()
        models = {model.name: (model.kind, model.method) for model in rest.models()}
    assert models["comp"] == models["merged"] == ("encoder", "llm2comp")
    assert "tiny-lm" not in models
