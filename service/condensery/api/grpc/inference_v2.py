"""The contract inference of KServe and Triton, version 2: its methods, and tensors as its messages.

Texts come in ``raw_input_contents``, as Triton's client sends them, or in each input's contents;
numbers go out in ``raw_output_contents``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import condensery
from condensery.api.grpc.condensery_v1 import RpcMethod
from condensery.api.grpc.convert import serialize_timed
from condensery.errors import InputError
from condensery.jobs import models
from condensery.jobs.accounting import count_request
from condensery.jobs.infer import (
    EXTENSIONS,
    FLOATS,
    InferModel,
    Inferred,
    TensorShape,
    TextTensor,
    describe_tensors,
    infer,
    read_text,
    read_texts,
)
from condensery.jobs.services import Services
from condensery.stubs import inference_v2_pb2 as pb


async def server_live(
    services: Services, _request: pb.ServerLiveRequest, _model: str | None
) -> pb.ServerLiveResponse:
    """Whether the process is alive."""
    return pb.ServerLiveResponse(live=services.health.live)


async def server_ready(
    services: Services, _request: pb.ServerReadyRequest, _model: str | None
) -> pb.ServerReadyResponse:
    """Whether the server is ready for requests."""
    return pb.ServerReadyResponse(ready=services.health.ready)


async def model_ready(
    services: Services, request: pb.ModelReadyRequest, _model: str | None
) -> pb.ModelReadyResponse:
    """Whether a model serves; a name that there isn't is an error, as with Triton."""
    if models.is_serving(services, request.name) is False:
        return pb.ModelReadyResponse(ready=False)
    describe_tensors(services, request.name, request.version)
    well = models.find_unready(services, request.name) is None
    return pb.ModelReadyResponse(ready=services.health.ready and well)


async def server_metadata(
    _services: Services, _request: pb.ServerMetadataRequest, _model: str | None
) -> pb.ServerMetadataResponse:
    """Describe the server."""
    return pb.ServerMetadataResponse(
        name="condensery", version=condensery.__version__, extensions=EXTENSIONS
    )


async def model_metadata(
    services: Services, request: pb.ModelMetadataRequest, _model: str | None
) -> pb.ModelMetadataResponse:
    """Describe a model: the tensors that it takes and gives."""
    model = describe_tensors(services, request.name, request.version)
    return pb.ModelMetadataResponse(
        name=model.info.id,
        versions=[model.version],
        platform=f"condensery_{model.info.kind}",
        inputs=map(write_shape, model.inputs),
        outputs=map(write_shape, model.outputs),
    )


async def model_infer(services: Services, request: pb.ModelInferRequest, name: str | None) -> bytes:
    """Infer: texts to vectors, scores or labels."""
    model = describe_tensors(services, name or "", request.model_version)
    with count_request(services, model.info.name, model.task or "embed", "grpc"):
        for place, output in enumerate(request.outputs):
            for parameter in output.parameters:
                field = f"outputs[{place}].parameters.{parameter}"
                raise InputError.at(field, "unknown parameter; none are known.")
        inferred = await infer(
            services,
            model,
            read_tensors(request),
            read_parameters(request.parameters),
            [output.name for output in request.outputs],
        )
    write = partial(write_inferred, model=model, identity=request.id)
    return serialize_timed(services, inferred, write)


def read_tensors(request: pb.ModelInferRequest) -> list[TextTensor]:
    """Return the texts of a request's inputs.

    Raises:
        InputError: There are raw contents for other than all inputs, or what is no text.
    """
    raw: Sequence[bytes] = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        where = f"{len(raw)} contents for {len(request.inputs)} inputs."
        raise InputError.at("raw_input_contents", where, len(raw))
    tensors = []
    for place, given in enumerate(request.inputs):
        field = f"inputs[{place}]"
        if raw:
            texts = read_texts(raw[place], f"{field}.data")
        else:
            data = given.contents.bytes_contents
            texts = [read_text(text, f"{field}.data[{n}]") for n, text in enumerate(data)]
        tensors.append(TextTensor(given.name, given.datatype, list(given.shape), texts))
    return tensors


def read_parameters(parameters: Any) -> dict[str, Any]:
    """Return parameters by name.

    Raises:
        InputError: One has no value.
    """
    read = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InputError.at(f"parameters.{name}", "it has no value.")
        read[name] = getattr(parameter, choice)
    return read


def write_shape(shape: TensorShape) -> pb.ModelMetadataResponse.TensorMetadata:
    """Write what a model takes or gives."""
    return pb.ModelMetadataResponse.TensorMetadata(
        name=shape.name, datatype=shape.datatype, shape=shape.shape
    )


def write_inferred(inferred: Inferred, *, model: InferModel, identity: str) -> Any:
    """Write the tensors that a model gave."""
    return pb.ModelInferResponse(
        model_name=model.info.id,
        model_version=model.version,
        id=identity,
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name=tensor.name, datatype=FLOATS, shape=tensor.values.shape
            )
            for tensor in inferred.outputs
        ],
        raw_output_contents=[
            np.ascontiguousarray(tensor.values, "<f4").tobytes() for tensor in inferred.outputs
        ],
    )


_method: Callable[..., RpcMethod[Any]] = partial(
    RpcMethod,
    "GRPCInferenceService",
    scope="infer",
    task=None,
    contract=pb.DESCRIPTOR,
    model_field="",
)

METHODS: tuple[RpcMethod[Any], ...] = (
    _method("ServerLive", unary=server_live),
    _method("ServerReady", unary=server_ready),
    _method("ModelReady", unary=model_ready),
    _method("ServerMetadata", unary=server_metadata),
    _method("ModelMetadata", unary=model_metadata),
    _method("ModelInfer", unary=model_infer, model_field="model_name"),
)
