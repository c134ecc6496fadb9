"""Imported classifiers and cross-encoders, asked at a real server's doors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch
from tests.conftest import serving
from tiny_classifier import as_sentence_transformers, reference, write_classifier

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.store.importing import import_model
from condensery.store.store import ModelStore
from condensery.stubs import tei_v1_pb2 as tei
from condensery.stubs import tei_v1_pb2_grpc as tei_grpc

LABELS = ("contradiction", "entailment", "neutral")
QUERY, PASSAGES = "who sold the mill", ["the old mill", "bread", "who sold it in the town", "a"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("published")
    return {
        "cross": as_sentence_transformers(write_classifier(root / "cross")),
        "nli": write_classifier(root / "nli", "modernbert", LABELS),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("classifiers")
    store = ModelStore(None, root / "models")
    for name, folder in folders.items():
        import_model(store, folder, name)
    with serving(store.own, root, "--no-samples", "--dtype", "float32") as live:
        yield live


def test_a_cross_encoder_reranks_at_every_door(server: Any, folders: dict[str, Path]) -> None:
    logits = reference(folders["cross"], [(QUERY, text) for text in PASSAGES], 40)[:, 0]
    order = logits.argsort(descending=True).tolist()
    wanted = logits.sigmoid()[order].tolist()
    body = {"query": QUERY, "model": "cross"}
    tei = httpx.post(f"{server.url}/rerank", json={**body, "texts": PASSAGES}).json()
    jina = httpx.post(f"{server.url}/v1/rerank", json={**body, "documents": PASSAGES}).json()
    assert [item["index"] for item in tei] == order
    assert [result["index"] for result in jina["results"]] == order
    assert [entry["score"] for entry in tei] == pytest.approx(wanted, abs=1e-5)
    assert [result["relevance_score"] for result in jina["results"]] == pytest.approx(
        wanted, abs=1e-5
    )
    with GrpcClient(server.grpc) as client:
        ranked = client.rerank(QUERY, PASSAGES, model="cross")
    assert [item.index for item in ranked] == order


def test_a_classifier_says_what_transformers_says(server: Any, folders: dict[str, Path]) -> None:
    pairs = [["the mill is old", "the mill is new"], ["bread"]]
    predicted = httpx.post(f"{server.url}/predict", json={"inputs": pairs, "model": "nli"}).json()
    wanted = torch.softmax(reference(folders["nli"], [tuple(pairs[0]), "bread"]), -1)
    for rows, likely in zip(predicted, wanted, strict=True):
        assert [entry["score"] for entry in rows] == sorted(
            (o["score"] for o in rows), reverse=True
        )
        by_label = {item["label"]: item["score"] for item in rows}
        assert [by_label[label] for label in LABELS] == pytest.approx(likely.tolist(), abs=1e-5)
    labels = httpx.post(f"{server.url}/predict", json={"inputs": "bread"}).json()
    assert {tuple(row) for row in labels} == {("score", "label")}


def test_teis_doors_give_the_same_labels_bit_for_bit(server: Any) -> None:
    pairs = [["the mill is old", "the mill is new"], ["bread"]]
    wanted = [
        httpx.post(f"{server.url}/predict", json={"inputs": [pair], "model": "nli"}).json()[0]
        for pair in pairs
    ]
    with grpc.insecure_channel(server.grpc) as channel:
        stub, model = tei_grpc.PredictStub(channel), (("x-model", "nli"),)
        asked = [tei.PredictPairRequest(inputs=item) for item in pairs]
        alone = [stub.PredictPair(entry, metadata=model) for entry in asked]
        streamed = list(stub.PredictPairStream(iter(asked), metadata=model))
        (text_reply,) = stub.PredictStream(
            iter([tei.PredictRequest(inputs="bread")]), metadata=model
        )
    for rows, pair_reply in zip(wanted, alone, strict=True):
        assert [(o.label, o.score) for o in pair_reply.predictions] == [
            (row["label"], np.float32(row["score"])) for row in rows
        ]
    for unbatched, together in zip(alone, streamed, strict=True):
        assert [o.score for o in together.predictions] == pytest.approx(
            [o.score for o in unbatched.predictions], abs=1e-5
        )
    assert [o.label for o in text_reply.predictions] == [o.label for o in alone[1].predictions]


def test_both_doors_list_its_labels(server: Any) -> None:
    with Client(server.url) as rest, GrpcClient(server.grpc) as grpc:
        assert rest.models() == grpc.models()
        labels = {model.name: model.labels for model in rest.models()}
    assert (labels["nli"], labels["cross"], labels["minilm-l6"]) == (LABELS, ("relevant",), ())


def test_a_model_of_the_wrong_kind_is_refused_in_each_familys_way(server: Any) -> None:
    reply = httpx.post(f"{server.url}/predict", json={"inputs": "a", "model": "minilm-l6"})
    assert (reply.status_code, reply.json()["error_type"]) == (424, "Backend")
    assert "'minilm-l6' is no classifier; classifiers that serve" in reply.json()["error"]
    body = {"query": "q", "documents": ["a"], "model": "nli"}
    assert httpx.post(f"{server.url}/v1/rerank", json=body).status_code == 404
    unknown = httpx.post(f"{server.url}/predict", json={"inputs": "a", "model": "x"})
    assert unknown.status_code == 404
