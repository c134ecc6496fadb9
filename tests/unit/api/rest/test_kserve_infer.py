"""Inference as KServe's and Triton's clients ask for it: tensors in JSON, and as bytes after it."""

import json
import struct

import numpy as np
import pytest

from condensery.jobs.services import Services

LENGTH = "inference-header-content-length"
PATH = "/v2/models/words/infer"


def tensor(name, texts, **more):
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts} | more


def packed(texts):
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


async def wanted(services: Services, texts):
    return (await services.registry.encoder().embed(texts)).vectors


async def test_an_encoder_gives_a_vector_a_text(client, services):
    body = {"inputs": [tensor("input", ["a", "b", ""])], "id": "seven"}
    reply = await client.post(PATH, json=body)
    assert reply.headers["x-model"] == "words"
    inferred = reply.json()
    (output,) = inferred.pop("outputs")
    assert inferred == {"model_name": "words", "model_version": "sha256:words", "id": "seven"}
    assert (output["name"], output["datatype"], output["shape"]) == ("embedding", "FP32", [3, 8])
    got = np.array(output["data"], np.float32).reshape(3, 8)
    assert np.array_equal(got, await wanted(services, ["a", "b", ""]))


async def test_litellm_and_batches_of_triton_are_understood(client, services):
    """Another name, and a column of texts, nested or not."""
    for given in (
        tensor("input_text", ["a", "b"]),
        tensor("TEXT", ["a", "b"], shape=[2, 1]),
        tensor("input", [["a"], ["b"]], shape=[2, 1]),
    ):
        reply = await client.post(
            f"{PATH.removesuffix('/infer')}/versions/sha256:words/infer", json={"inputs": [given]}
        )
        (output,) = reply.json()["outputs"]
        got = np.array(output["data"], np.float32)
        assert np.array_equal(got, np.ravel(await wanted(services, ["a", "b"])))


@pytest.mark.parametrize(
    "outputs", [None, [{"name": "embedding", "parameters": {"binary_data": True}}]]
)
async def test_bytes_follow_the_json_both_ways(client, services, outputs):
    texts = ["naïve 北京", "", "b"]
    data = packed(texts)
    given = tensor("input", texts, data=None, parameters={"binary_data_size": len(data)})
    body = {"inputs": [given], "outputs": outputs}
    if outputs is None:
        body["parameters"] = {"binary_data_output": True}
    head = json.dumps(body).encode()
    reply = await client.post(PATH, content=head + data, headers={LENGTH: str(len(head))})
    assert reply.headers["content-type"] == "application/octet-stream"
    size = int(reply.headers[LENGTH])
    (output,) = json.loads(reply.content[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": 3 * 8 * 4}
    got = np.frombuffer(reply.content[size:], "<f4").reshape(output["shape"])
    assert np.array_equal(got, await wanted(services, texts))


async def test_scores_come_in_the_order_of_the_documents(client, classifiers):
    inputs = [tensor("documents", ["a", "gold gold", "gold"]), tensor("query", ["q"])]
    body = {"inputs": inputs, "parameters": {"raw_scores": True}}
    (output,) = (await client.post("/v2/models/pair/infer", json=body)).json()["outputs"]
    assert (output["name"], output["shape"], output["data"]) == ("relevance_score", [3], [0, 2, 1])


async def test_a_classifier_gives_its_labels_in_their_order(client, classifiers):
    described = (await client.get("/v2/models/nli")).json()
    assert described["outputs"] == [{"name": "score", "datatype": "FP32", "shape": [-1, 3]}]
    body = {"inputs": [tensor("input", ["a", "b"])]}
    (output,) = (await client.post("/v2/models/nli/infer", json=body)).json()["outputs"]
    by_label = (
        await client.post("/predict", json={"inputs": [["a"], ["b"]], "model": "nli"})
    ).json()
    names = ("contradiction", "entailment", "neutral")
    rows = [[{e["label"]: e["score"] for e in item}[name] for name in names] for item in by_label]
    assert np.allclose(np.array(output["data"]).reshape(2, 3), rows)


async def test_what_the_metadata_names_can_be_asked(client, classifiers):
    for model in ("words", "pair", "nli"):
        described = (await client.get(f"/v2/models/{model}")).json()
        inputs = [tensor(shape["name"], ["a"]) for shape in described["inputs"]]
        outputs = [{"name": shape["name"]} for shape in described["outputs"]]
        body = {"inputs": inputs, "outputs": outputs}
        reply = (await client.post(f"/v2/models/{model}/infer", json=body)).json()
        for got, said in zip(reply["outputs"], described["outputs"], strict=True):
            assert got["shape"] == [size if size > 0 else 1 for size in said["shape"]], model


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inputs": []}, "inputs: words takes input"),
        ({"inputs": [tensor("input", [5])]}, "inputs[0].data[0]: 5 is no text"),
        ({"inputs": [tensor("input", ["a"], shape=[2])]}, "inputs[0].shape"),
        ({"inputs": [tensor("input", ["a"], shape=[])]}, "inputs[0].shape"),
        ({"inputs": [tensor("input", ["a"], datatype="FP32")]}, "inputs[0].datatype: 'FP32'"),
        ({"inputs": [tensor("input", ["a"], data=None)]}, "binary_data_size"),
        ({"inputs": [tensor("input", [], shape=[0])]}, "empty"),
        ({"outputs": [{"name": "logits"}]}, "outputs[0].name: 'logits'"),
        (
            {"outputs": [{"name": "embedding", "parameters": {"classification": 2}}]},
            "classification",
        ),
        ({"parameters": {"priority": 1}}, "parameters.priority"),
        ({"parameters": {"truncate": 1}}, "parameters.truncate"),
        ({"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output"),
    ],
)
async def test_what_is_wrong_is_named_as_kserve_does(client, change, says):
    body = {"inputs": [tensor("input", ["a"])], **change}
    reply = await client.post(PATH, json=body)
    assert (reply.status_code, reply.json().keys()) == (400, {"error"}), reply.text
    assert says in reply.json()["error"]


@pytest.mark.parametrize(
    ("size", "length", "data"),
    [(9, None, b"\x01\0\0\0a"), (5, None, b"\x09\0\0\0a"), (5, None, b"\x01\0\0\0\xff"),
     (5, "999", b"\x01\0\0\0a"), (5, "-1", b"\x01\0\0\0a"), (5, "x", b""), (5, "9" * 5000, b""),
     (0, None, b"\x01\0\0\0a"),
     ("5", None, b"\x01\0\0\0a"), (3, None, b"\x01\0\0")],
)  # fmt: skip
async def test_bytes_that_are_no_texts_are_refused(client, size, length, data):
    given = tensor("input", ["a"], data=None, parameters={"binary_data_size": size})
    head = json.dumps({"inputs": [given]}).encode()
    headers = {LENGTH: length or str(len(head))}
    reply = await client.post(PATH, content=head + data, headers=headers)
    assert (reply.status_code, reply.json().keys()) == (400, {"error"}), reply.text


async def test_unknown_models_and_what_gives_no_tensors_are_404(client, registry, services):
    body = {"inputs": [tensor("input", ["a"])]}
    for path in ("/v2/models/nope/infer", "/v2/models/words/versions/9/infer"):
        assert (await client.post(path, json=body)).status_code == 404


async def test_fields_without_effect_are_listed(client):
    body = {"inputs": [tensor("input", ["a"], colour="red")], "model": "other"}
    reply = await client.post(PATH, json=body)
    assert (reply.status_code, reply.headers["x-ignored-fields"]) == (
        200,
        "inputs[].colour, model",
    )
