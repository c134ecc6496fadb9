"""KServe's and Triton's contract: its messages, its codes, texts in and numbers out."""

import struct
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from condensery.errors import ModelFault
from condensery.jobs.services import Services
from condensery.stubs import inference_v2_pb2 as pb
from condensery.stubs import inference_v2_pb2_grpc as stubs

TEXTS = ["naïve 北京", "", "b"]
Input = pb.ModelInferRequest.InferInputTensor

# What Triton's own file calls them on the wire: its client was compiled against these.
WIRE = {
    "ServerLiveResponse": "live=1",
    "ServerReadyResponse": "ready=1",
    "ModelReadyRequest": "name=1 version=2",
    "ModelReadyResponse": "ready=1",
    "ServerMetadataResponse": "name=1 version=2 extensions=3",
    "ModelMetadataRequest": "name=1 version=2",
    "ModelMetadataResponse": "name=1 versions=2 platform=3 inputs=4 outputs=5",
    "ModelMetadataResponse.TensorMetadata": "name=1 datatype=2 shape=3",
    "InferParameter": "bool_param=1 int64_param=2 string_param=3 double_param=4 uint64_param=5",
    "InferTensorContents": "bool_contents=1 int_contents=2 int64_contents=3 uint_contents=4 "
    "uint64_contents=5 fp32_contents=6 fp64_contents=7 bytes_contents=8",
    "ModelInferRequest": "model_name=1 model_version=2 id=3 parameters=4 inputs=5 outputs=6 "
    "raw_input_contents=7",
    "ModelInferRequest.InferInputTensor": "name=1 datatype=2 shape=3 parameters=4 contents=5",
    "ModelInferRequest.InferRequestedOutputTensor": "name=1 parameters=2",
    "ModelInferResponse": "model_name=1 model_version=2 id=3 parameters=4 outputs=5 "
    "raw_output_contents=6",
    "ModelInferResponse.InferOutputTensor": "name=1 datatype=2 shape=3 parameters=4 contents=5",
}


@pytest.fixture
def service(channel: grpc.aio.Channel) -> Any:
    return stubs.GRPCInferenceServiceStub(channel)


def packed(*texts: str) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def ask(*texts: str, **more: Any) -> pb.ModelInferRequest:
    fields: dict[str, Any] = {"model_name": "words", "raw_input_contents": [packed(*texts)]}
    given = Input(name="input", datatype="BYTES", shape=[len(texts)])
    return pb.ModelInferRequest(**{**fields, "inputs": [given], **more})


def numbers(reply: pb.ModelInferResponse) -> Any:
    (output,), (data,) = reply.outputs, reply.raw_output_contents
    assert output.datatype == "FP32"
    return np.frombuffer(data, "<f4").reshape(tuple(output.shape))


def test_the_contract_has_tritons_names_and_numbers() -> None:
    assert pb.DESCRIPTOR.package == "inference"
    for name, wanted in WIRE.items():
        kind: Any = pb
        for step in name.split("."):
            kind = getattr(kind, step)
        fields = kind.DESCRIPTOR.fields
        assert " ".join(f"{field.name}={field.number}" for field in fields) == wanted, name


async def test_texts_become_vectors_raw_or_in_contents(service: Any, services: Services) -> None:
    wanted = (await services.registry.encoder().embed(TEXTS)).vectors
    raw = await service.ModelInfer(ask(*TEXTS, id="seven"))
    assert (raw.model_name, raw.model_version, raw.id) == ("words", "sha256:words", "seven")
    assert np.array_equal(numbers(raw), wanted)
    contents = pb.InferTensorContents(bytes_contents=[text.encode() for text in TEXTS])
    given = Input(name="TEXT", datatype="BYTES", shape=[3, 1], contents=contents)
    reply = await service.ModelInfer(ask(inputs=[given], raw_input_contents=[]))
    assert np.array_equal(numbers(reply), wanted)


async def test_documents_get_scores_in_their_order(service: Any) -> None:
    inputs = [
        Input(name="query", datatype="BYTES", shape=[1]),
        Input(name="documents", datatype="BYTES", shape=[3]),
    ]
    request = pb.ModelInferRequest(
        model_name="pair",
        inputs=inputs,
        outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="relevance_score")],
        parameters={"raw_scores": pb.InferParameter(bool_param=True)},
        raw_input_contents=[packed("q"), packed("a", "gold gold", "gold")],
    )
    assert numbers(await service.ModelInfer(request)).tolist() == [0, 2, 1]


async def test_the_server_and_its_models_are_described(service: Any) -> None:
    assert (await service.ServerLive(pb.ServerLiveRequest())).live
    assert (await service.ServerReady(pb.ServerReadyRequest())).ready
    described = await service.ServerMetadata(pb.ServerMetadataRequest())
    assert described.name == "condensery"
    model = await service.ModelMetadata(pb.ModelMetadataRequest(name="words"))
    assert [(i.name, i.datatype, list(i.shape)) for i in model.inputs] == [("input", "BYTES", [-1])]
    assert [(o.name, list(o.shape)) for o in model.outputs] == [("embedding", [-1, 8])]
    for version in ("", *model.versions):
        ready = await service.ModelReady(pb.ModelReadyRequest(name="words", version=version))
        assert ready.ready


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"model_name": "nope"}, StatusCode.NOT_FOUND, "model"),
        ({"model_version": "9"}, StatusCode.NOT_FOUND, "version"),
        ({"raw_input_contents": [packed("a"), b""]}, StatusCode.INVALID_ARGUMENT, "raw_input_co"),
        ({"raw_input_contents": [b"\x09\0\0\0a"]}, StatusCode.INVALID_ARGUMENT, "inputs[0].data"),
        ({"raw_input_contents": []}, StatusCode.INVALID_ARGUMENT, "inputs[0].shape"),
        ({"inputs": [], "raw_input_contents": []}, StatusCode.INVALID_ARGUMENT, "inputs"),
        (
            {"parameters": {"truncate": pb.InferParameter()}},
            StatusCode.INVALID_ARGUMENT,
            "parameters.truncate",
        ),
        (
            {"parameters": {"priority": pb.InferParameter(int64_param=1)}},
            StatusCode.INVALID_ARGUMENT,
            "parameters.priority",
        ),
    ],
)
async def test_what_is_wrong_is_named(
    service: Any, change: dict[str, Any], code: StatusCode, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.ModelInfer(ask("a", **change))
    assert caught.value.code() is code, caught.value.details()
    assert dict(caught.value.trailing_metadata() or ())["x-field"].startswith(field)


async def test_calls_are_counted_by_what_the_model_does(
    service: Any, services: Services, registry: Any
) -> None:
    await service.ModelInfer(ask("a"))
    registry.encoders["words"].fails = ModelFault("not finite")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.ModelInfer(ask("a"))
    assert caught.value.code() is StatusCode.INTERNAL
    for code in ("ok", "ModelFault"):
        assert services.metrics.requests.labels("words", "embed", "grpc", code)._value.get() == 1
