"""KServe's v2 protocol (Open Inference): health, metadata, inference and the repository.

A request's tensors, and a reply's, are JSON, or follow it as bytes (Triton's binary data).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

import condensery
from condensery.api.rest.embeddings import OCTET_STREAM, Vector
from condensery.api.rest.io import (
    PIECE_NUMBERS,
    parse_body,
    read_body,
    read_bytes,
    result_headers,
    write_json,
    write_list,
)
from condensery.api.rest.models import check_live, check_model_ready, check_ready
from condensery.api.rest.schemas.inference import (
    KServeInferRequest,
    KServeInput,
    KServeOutput,
)
from condensery.api.rest.schemas.service import (
    KServeIndexRequest,
    KServeLoadRequest,
    KServeUnloadRequest,
)
from condensery.api.rest.validation import validate_body
from condensery.errors import InputError, shorten
from condensery.jobs import models as jobs
from condensery.jobs.accounting import count_refusals, count_request
from condensery.jobs.infer import (
    EXTENSIONS,
    FLOATS,
    InferModel,
    Inferred,
    TensorShape,
    TextTensor,
    describe_tensors,
    infer,
    read_texts,
)
from condensery.jobs.services import Services
from condensery.values import ModelState, ModelVersion

# Of a request and of a reply: how much of the body is JSON.
JSON_LENGTH_HEADER = "inference-header-content-length"
BINARY_SIZE = "binary_data_size"


@dataclass(frozen=True, slots=True)
class KServeLive:
    """All is well, as KServe says it."""

    live: Literal[True] = field(init=False, default=True)


@dataclass(frozen=True, slots=True)
class KServeReady:
    """All is well, as KServe says it."""

    ready: Literal[True] = field(init=False, default=True)


@dataclass(frozen=True, slots=True)
class KServeModelReady(KServeReady):
    """A model serves, as KServe says it."""

    name: str


@dataclass(frozen=True, slots=True)
class KServeServer:
    """The server, as KServe describes it."""

    name: str = "condensery"
    version: str = condensery.__version__
    extensions: tuple[str, ...] = EXTENSIONS


@dataclass(frozen=True, slots=True)
class KServeModel:
    """A model, as KServe describes it."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorShape]
    outputs: list[TensorShape]


class KServeOutputTensor(TypedDict):
    """A tensor of a reply."""

    name: str
    datatype: str
    shape: list[int]
    data: NotRequired[Vector]
    """Row by row; not where they follow as bytes."""
    parameters: NotRequired[dict[str, int]]
    """`binary_data_size`, where they do."""


class KServeInferred(TypedDict):
    """What a model gave."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    """The request's, if it had one."""
    outputs: list[KServeOutputTensor]


async def kserve_live(_request: Request, services: Services) -> Response:
    """Whether the process is alive, as KServe asks."""
    check_live(services)
    return write_json(KServeLive())


async def kserve_ready(_request: Request, services: Services) -> Response:
    """Whether the server is ready for requests, as KServe asks."""
    check_ready(services)
    return write_json(KServeReady())


async def kserve_server(_request: Request, _services: Services) -> Response:
    """Describe the server, as KServe asks."""
    return write_json(KServeServer())


async def kserve_model(request: Request, services: Services) -> Response:
    """Describe one model, as KServe asks; its version is the store's."""
    model = _describe(request, services)
    return write_json(
        KServeModel(
            name=model.info.id,
            versions=[model.version],
            platform=f"condensery_{model.info.kind}",
            inputs=model.inputs,
            outputs=model.outputs,
        )
    )


async def kserve_model_ready(request: Request, services: Services) -> Response:
    """Whether one model serves, as KServe asks."""
    model = _describe(request, services)
    check_ready(services)
    check_model_ready(services, model.info.id)
    return write_json(KServeModelReady(model.info.id))


async def kserve_infer(request: Request, services: Services) -> Response:
    """Infer, as KServe and Triton ask: texts to vectors, scores or labels."""
    with count_refusals(services, request.state.task, "rest"):
        body, after = await _read_infer_body(request, services)
        model = _describe(request, services)
    task = model.task or "embed"
    with count_request(services, model.info.name, task, "rest"):
        tensors = _read_tensors(body.inputs, after)
        parameters = dict(body.parameters or {})
        binary = _read_flag(parameters, "binary_data_output", "parameters")
        forms = _read_outputs(body.outputs or [], binary=binary)
        inferred = await infer(services, model, tensors, parameters, tuple(forms))
        with services.metrics.stage(inferred.result.model, "serialize"):
            return await _write_inferred(body.id, model, inferred, forms, binary=binary)


async def _read_infer_body(
    request: Request, services: Services
) -> tuple[KServeInferRequest, memoryview]:
    """Return a request's JSON, and the bytes of its tensors, which follow it.

    Raises:
        InputError: The JSON does not fit, or is not as long as the header says.
    """
    data = memoryview(await read_bytes(request.receive))
    header = request.headers.get(JSON_LENGTH_HEADER)
    length = len(data)
    if header is not None:
        length = int(header) if header.isdecimal() and len(header) < 20 else -1
    if not 0 <= length <= len(data):
        where = f"{shorten(header)} is no length of JSON in a body of {len(data)} bytes."
        raise InputError.at(JSON_LENGTH_HEADER, where, header)
    body = await parse_body(
        request, services, bytes(data[:length]), lambda it: validate_body(it, KServeInferRequest)
    )
    return body, data[length:]


def _read_tensors(inputs: Sequence[KServeInput], after: memoryview) -> list[TextTensor]:
    """Return the texts of a request's inputs; ``after`` has those that come as bytes, in order.

    Raises:
        InputError: An input has both or neither, is no list of texts, or bytes are left.
    """
    tensors, place = [], 0
    for number, given in enumerate(inputs):
        field = f"inputs[{number}]"
        size = (given.parameters or {}).get(BINARY_SIZE)
        if (size is None) == (given.data is None):
            raise InputError.at(field, f"give `data`, or `{BINARY_SIZE}` among its parameters.")
        if size is None:
            texts = list(_flatten(given.data, f"{field}.data"))
        else:
            if type(size) is not int or not 0 <= size <= len(after) - place:
                where = f"{shorten(size)}, but {len(after) - place} bytes follow the JSON."
                raise InputError.at(f"{field}.parameters.{BINARY_SIZE}", where, size)
            data = bytes(after[place : place + size])
            texts, place = read_texts(data, f"{field}.data"), place + size
        tensors.append(TextTensor(given.name, given.datatype, given.shape, texts))
    if place != len(after):
        raise InputError.at("body", f"{len(after) - place} bytes follow that no input names.")
    return tensors


def _flatten(data: Any, field: str) -> Iterator[str]:
    """Yield the texts of a list, or of lists in it, row by row."""
    for number, item in enumerate(data):
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            yield from _flatten(item, f"{field}[{number}]")
        else:
            raise InputError.at(f"{field}[{number}]", f"{shorten(item)} is no text.", item)


def _read_outputs(outputs: Sequence[KServeOutput], *, binary: bool) -> dict[str, bool]:
    """Return whether each of the outputs wanted comes as bytes, by name."""
    forms = {}
    for number, wanted in enumerate(outputs):
        parameters, field = dict(wanted.parameters or {}), f"outputs[{number}].parameters"
        forms[wanted.name] = _read_flag(parameters, "binary_data", field, default=binary)
        if parameters:
            name = next(iter(parameters))
            raise InputError.at(f"{field}.{name}", "unknown parameter; known: binary_data.")
    return forms


def _read_flag(parameters: dict[str, Any], name: str, field: str, *, default: bool = False) -> bool:
    """Take a flag out of parameters."""
    value = parameters.pop(name, default)
    if not isinstance(value, bool):
        raise InputError.at(f"{field}.{name}", f"{shorten(value)} is not true or false.", value)
    return value


async def _write_inferred(
    identity: str | None,
    model: InferModel,
    inferred: Inferred,
    forms: Mapping[str, bool],
    *,
    binary: bool,
) -> Response:
    """Return the reply: its only tensor's numbers in the JSON, or as bytes after it."""
    (tensor,) = inferred.outputs
    described: KServeOutputTensor = {
        "name": tensor.name,
        "datatype": FLOATS,
        "shape": list(tensor.values.shape),
    }
    reply: KServeInferred = {
        "model_name": model.info.id,
        "model_version": model.version,
        "outputs": [described],
    }
    if identity is not None:
        reply["id"] = identity
    headers = result_headers(inferred.result)
    if not forms.get(tensor.name, binary):
        described["data"] = []
        numbers = np.ascontiguousarray(tensor.values, np.float32).ravel()
        return await write_list(numbers, PIECE_NUMBERS, within=reply, field="data", headers=headers)
    data = np.ascontiguousarray(tensor.values, "<f4").tobytes()
    described["parameters"] = {BINARY_SIZE: len(data)}
    head = orjson.dumps(reply)
    headers[JSON_LENGTH_HEADER] = str(len(head))
    return Response(head + data, headers=headers, media_type=OCTET_STREAM)


def _describe(request: Request, services: Services) -> InferModel:
    """Return what can be asked of the model that the path names, of the path's version if any."""
    return describe_tensors(
        services, request.path_params["name"], request.path_params.get("version")
    )


async def kserve_index(request: Request, services: Services) -> Response:
    """List every stored version of every model, and which of them serve, as KServe asks."""
    body = await read_body(request, services, KServeIndexRequest, optional=True)
    versions = await jobs.list_versions(services)
    return write_json([item for item in versions if item.state == "READY" or not body.ready])


async def kserve_load(request: Request, services: Services) -> Response:
    """Load a model, as KServe asks."""
    body = await read_body(request, services, KServeLoadRequest, optional=True)
    loaded = await jobs.load_model(services, request.path_params["name"], body.parameters.version)
    return write_json(
        _kserve_version(loaded.model.id, loaded.model.version, "READY", loaded.stranded_indexes)
    )


async def kserve_unload(request: Request, services: Services) -> Response:
    """Unload a model, as KServe asks."""
    body = await read_body(request, services, KServeUnloadRequest, optional=True)
    unloaded = await jobs.unload_model(
        services, request.path_params["name"], force=body.parameters.force
    )
    return write_json(
        _kserve_version(unloaded.id, unloaded.version, "UNAVAILABLE", unloaded.stranded_indexes)
    )


def _kserve_version(
    name: str, version: str, state: ModelState, stranded: tuple[str, ...]
) -> ModelVersion:
    reason = ""
    if stranded:
        reason = f"indexes of another fingerprint refuse to be used: {', '.join(stranded)}"
    return ModelVersion(name, version, state, reason)
