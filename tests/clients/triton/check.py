"""Triton's clients, http and grpc: binary tensors and plain ones, metadata and refusals."""

import os
from types import ModuleType

import numpy as np
import pytest
from plain import ask
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

TEXTS = ["a river in Europe", "", "naïve façade 北京"]
ADDRESSES = {http: os.environ["SERVER"].partition("//")[2], grpc: os.environ["SERVER_GRPC"]}


@pytest.fixture(params=[http, grpc], ids=["http", "grpc"])
def door(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def texts(door: ModuleType, name: str, values: list[str], **options: bool) -> object:
    given = door.InferInput(name, [len(values)], "BYTES")
    given.set_data_from_numpy(np.array(values, object), **options)
    return given


def client_of(door: ModuleType) -> object:
    return door.InferenceServerClient(ADDRESSES[door])


def test_vectors_are_those_of_the_plain_route(door: ModuleType) -> None:
    rows = np.array(ask("/embed", {"inputs": TEXTS}), np.float32)
    client = client_of(door)
    got = client.infer("minilm-l6", [texts(door, "input", TEXTS)]).as_numpy("embedding")
    assert np.array_equal(got, rows)
    (version,) = (
        client.get_model_metadata("minilm-l6")["versions"]
        if door is http
        else client.get_model_metadata("minilm-l6").versions
    )
    wanted = [door.InferRequestedOutput("embedding")]
    named = client.infer(
        "minilm-l6", [texts(door, "TEXT", TEXTS)], outputs=wanted, model_version=version
    )
    assert np.array_equal(named.as_numpy("embedding"), rows)


def test_http_takes_tensors_that_are_not_binary() -> None:
    rows = np.array(ask("/embed", {"inputs": TEXTS}), np.float32)
    given = texts(http, "input", TEXTS, binary_data=False)
    wanted = [http.InferRequestedOutput("embedding", binary_data=False)]
    got = client_of(http).infer("minilm-l6", [given], outputs=wanted, request_id="7")
    assert np.array_equal(got.as_numpy("embedding").astype(np.float32), rows)
    assert got.get_response()["id"] == "7"


def test_documents_get_their_scores(door: ModuleType) -> None:
    body = {"query": "a river", "texts": TEXTS, "model": "oscar-mini"}
    wanted = {rank["index"]: rank["score"] for rank in ask("/rerank", body)}
    inputs = [texts(door, "query", ["a river"]), texts(door, "documents", TEXTS)]
    got = client_of(door).infer("oscar-mini", inputs).as_numpy("relevance_score")
    assert np.array_equal(got, np.array([wanted[place] for place in range(3)], np.float32))


def test_what_serves_is_ready(door: ModuleType) -> None:
    client = client_of(door)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("minilm-l6")


def test_refusals_are_its_own_errors(door: ModuleType) -> None:
    client = client_of(door)
    with pytest.raises(InferenceServerException, match="nope"):
        client.infer("nope", [texts(door, "input", TEXTS)])
    with pytest.raises(InferenceServerException, match="query and documents"):
        client.infer("oscar-mini", [texts(door, "input", TEXTS)])
    with pytest.raises(InferenceServerException, match="priority"):
        client.infer("minilm-l6", [texts(door, "input", TEXTS)], priority=1)
