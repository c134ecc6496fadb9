"""Networks of experts at a real server's doors: an encoder, a classifier, a reranker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch
from tests.conftest import serving
from tiny_classifier import reference, write_classifier
from tiny_pair import tiny_tokenizer, write_base
from tiny_shrp import Heads, to_experts
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoModelForSequenceClassification

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.methods.retriever.publishing import publish
from condensery.networks.shrp import Experts
from condensery.store.importing import import_model
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import load_state
from condensery.stubs import tei_v1_pb2 as tei
from condensery.stubs import tei_v1_pb2_grpc as tei_grpc

LABELS = ("contradiction", "entailment", "neutral")
QUERY, PASSAGES = "who sold the mill", ["the old mill", "bread", "who sold it in the town", "a"]
TEXTS = ["the old mill", "where is the river", "", "bread and stone"]
STATIC: Heads = ((0,), (1,))
ROUTED: Heads = (None, (0, 2, 3))


class Children:
    """The models that are served, in the layers that are trained, and the parents' folders."""

    def __init__(self, root: Path) -> None:
        self.store = ModelStore(None, root / "models")
        self.models: dict[str, Any] = {}
        self.folders = {
            "encoder": write_base(root / "encoder"),
            "nli": write_classifier(root / "nli", "roberta", LABELS),
            "cross": write_classifier(root / "cross"),
        }
        tokenizer = tiny_tokenizer()
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        tokenizer.save(str(self.folders["encoder"] / "tokenizer.json"))
        for name, folder in self.folders.items():
            parent = import_model(self.store, folder, name)
            kind = AutoModel if name == "encoder" else AutoModelForSequenceClassification
            heads = ROUTED if name == "nli" else STATIC
            model = to_experts(kind.from_pretrained(folder), heads)
            self.put(parent, f"{name}-shrp", model, heads)
        small = {"dtype": "int8", "share": True}
        self.put(self.store.open("encoder"), "small", self.models["encoder-shrp"], STATIC, **small)

    def put(
        self, parent: StoredModel, name: str, model: Any, heads: Heads, **how: Any
    ) -> StoredModel:
        config = Experts(heads).to_config()
        manifest = parent.manifest.model_copy(
            update={"name": name, "method": "shrp", "shape": parent.manifest.shape | config}
        )
        self.models[name] = model
        return publish(self.store, parent, manifest, model.state_dict(), config=config, **how)

    @torch.inference_mode()
    def vectors(self, model: Any) -> np.ndarray[Any, Any]:
        """Return each text's mean of states, of length 1."""
        tokenizer = Tokenizer.from_file(str(self.folders["encoder"] / "tokenizer.json"))
        rows = [
            model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(0)
            for text in TEXTS
        ]
        unit_rows: np.ndarray[Any, Any] = torch.nn.functional.normalize(torch.stack(rows)).numpy()
        return unit_rows


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Children:
    return Children(tmp_path_factory.mktemp("shrp"))


@pytest.fixture(scope="module")
def server(children: Children, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("served")
    with serving(children.store.own, root, "--no-samples", "--dtype", "float32") as live:
        yield live


def test_an_encoder_embeds_at_every_door(server: Any, children: Children) -> None:
    wanted = children.vectors(children.models["encoder-shrp"])
    assert np.abs(wanted[0] - wanted[1]).max() > 0.01
    asked = {"inputs": TEXTS, "model": "encoder-shrp"}
    rows = httpx.post(f"{server.url}/embed", json=asked).json()
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    asked = {"input": TEXTS, "model": "encoder-shrp"}
    data = httpx.post(f"{server.url}/v1/embeddings", json=asked).json()["data"]
    np.testing.assert_allclose([item["embedding"] for item in data], wanted, atol=1e-5)
    with GrpcClient(server.grpc) as client:
        vectors = client.embed(TEXTS, model="encoder-shrp")
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)
    parent = httpx.post(f"{server.url}/embed", json={"inputs": TEXTS, "model": "encoder"}).json()
    assert np.abs(np.asarray(parent) - wanted).max() > 0.01  # one field says which


def test_int8_beside_a_base_embeds_its_dequantised_weights(server: Any, children: Children) -> None:
    model = to_experts(AutoModel.from_pretrained(children.folders["encoder"]), STATIC)
    model.load_state_dict(load_state(children.store.open("small")), strict=False)
    asked = {"inputs": TEXTS, "model": "small"}
    rows = httpx.post(f"{server.url}/embed", json=asked).json()
    np.testing.assert_allclose(rows, children.vectors(model), atol=1e-5)


def test_a_classifier_predicts_at_every_door(server: Any, children: Children) -> None:
    pairs = [["the mill is old", "the mill is new"], ["bread"]]
    model = children.models["nli-shrp"]
    logits = reference(children.folders["nli"], [tuple(pairs[0]), "bread"], model=model)
    wanted = torch.softmax(logits, -1)
    asked = {"inputs": pairs, "model": "nli-shrp"}
    predicted = httpx.post(f"{server.url}/predict", json=asked).json()
    for rows, likely in zip(predicted, wanted, strict=True):
        by_label = {row["label"]: row["score"] for row in rows}
        assert [by_label[label] for label in LABELS] == pytest.approx(likely.tolist(), abs=1e-5)
    with grpc.insecure_channel(server.grpc) as channel:
        metadata = (("x-model", "nli-shrp"),)
        request = tei.PredictPairRequest(inputs=pairs[0])
        reply = tei_grpc.PredictStub(channel).PredictPair(request, metadata=metadata)
    by_label = {prediction.label: prediction.score for prediction in reply.predictions}
    assert [by_label[label] for label in LABELS] == pytest.approx(wanted[0].tolist(), abs=1e-5)


def test_a_reranker_ranks_at_every_door(server: Any, children: Children) -> None:
    pairs = [(QUERY, text) for text in PASSAGES]
    logits = reference(children.folders["cross"], pairs, model=children.models["cross-shrp"])[:, 0]
    order = logits.argsort(descending=True).tolist()
    scores = logits.sigmoid()[order].tolist()
    body = {"query": QUERY, "model": "cross-shrp"}
    rows = httpx.post(f"{server.url}/rerank", json={**body, "texts": PASSAGES}).json()
    assert [row["index"] for row in rows] == order
    assert [item["score"] for item in rows] == pytest.approx(scores, abs=1e-5)
    body["documents"] = PASSAGES  # type: ignore[assignment]
    results = httpx.post(f"{server.url}/v1/rerank", json=body).json()["results"]
    assert [entry["relevance_score"] for entry in results] == pytest.approx(scores, abs=1e-5)
    with GrpcClient(server.grpc) as client:
        assert [item.index for item in client.rerank(QUERY, PASSAGES, model="cross-shrp")] == order


def test_both_doors_list_the_method(server: Any) -> None:
    with Client(server.url) as rest, GrpcClient(server.grpc) as by_grpc:
        assert rest.models() == by_grpc.models()
        methods = {model.name: (model.kind, model.method) for model in rest.models()}
    assert methods["encoder-shrp"] == methods["small"] == ("encoder", "shrp")
    assert methods["nli-shrp"] == ("classifier", "shrp")
    assert methods["cross-shrp"] == ("reranker", "shrp")
