"""Tensors in, tensors out, as KServe and Triton ask: texts to vectors, scores or labels.

What a model takes and gives hangs on what it can (``describe_tensors``):

| model | takes | gives |
|---|---|---|
| encoder | ``input`` (texts) | ``embedding`` (texts, dims) |
| reranker, pair | ``query`` (1), ``documents`` (texts) | ``relevance_score`` (documents) |
| classifier | ``input`` (texts) | ``score`` (texts, labels), in the order of the model's labels |
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from condensery.errors import InputError, ModelCannot, ModelNotFound, list_some, shorten
from condensery.jobs.embed import embed
from condensery.jobs.models import find_model
from condensery.jobs.rerank import classify, rerank
from condensery.jobs.services import Services
from condensery.values import Embedded, Floats, ModelInfo, Predicted, Reranked

InferTask = Literal["embed", "rerank", "classify"]
# Of KServe's protocol, what both doors have beyond its core.
EXTENSIONS = ("model_repository", "binary_tensor_data")
TEXTS = "BYTES"
FLOATS = "FP32"
ANY = -1

# By task, the options that a request's parameters may be, and the type of each.
PARAMETERS: dict[InferTask, dict[str, type]] = {
    "embed": {
        "normalize": bool,
        "truncate": bool,
        "prompt_name": str,
        "input_type": str,
        "instruction": str,
        "dimensions": int,
    },
    "rerank": {"truncate": bool, "raw_scores": bool},
    "classify": {"truncate": bool, "raw_scores": bool},
}


@dataclass(frozen=True, slots=True)
class TensorShape:
    """What a model takes or gives; -1 is any number."""

    name: str
    datatype: str
    shape: list[int]


@dataclass(frozen=True, slots=True)
class InferModel:
    """A model, and what can be asked of it.

    Attributes:
        task: None where it gives neither vectors nor scores: a pair without a rerank head, or one
            that is named with an index.
        version: The one that serves: the store's, or its fingerprint.
    """

    info: ModelInfo
    task: InferTask | None
    version: str
    inputs: list[TensorShape]
    outputs: list[TensorShape]


@dataclass(frozen=True, slots=True)
class TextTensor:
    """Texts, as a request gives them, row by row."""

    name: str
    datatype: str
    shape: Sequence[int]
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class FloatTensor:
    """Numbers, as a reply gives them."""

    name: str
    values: Floats


@dataclass(frozen=True, slots=True)
class Inferred:
    """What a model gave, and the tensors that were asked for."""

    result: Embedded | Reranked | Predicted
    outputs: tuple[FloatTensor, ...]

    @property
    def model(self) -> str:
        """The name of the model that gave them."""
        return self.result.model


def describe_tensors(services: Services, name: str, version: str | None = None) -> InferModel:
    """Return what can be asked of a running model.

    Args:
        version: The one that must serve; None and "" take the one that does.

    Raises:
        ModelNotFound: It does not serve, or another version does.
    """
    info = find_model(services, name)
    served = info.version or info.fingerprint
    if version and version != served:
        raise ModelNotFound(
            f"version {shorten(version)} of {info.name} does not serve; {served} does.",
            field="version",
            value=version,
        )
    own, models = info.alias_of or info.name, services.registry.models
    texts = TensorShape("input", TEXTS, [ANY])
    if info.index is not None:  # such a name answers questions alone
        return InferModel(info, None, served, [], [])
    if any(model.name == own for model in models("encoder")):
        vectors = TensorShape("embedding", FLOATS, [ANY, info.dims or ANY])
        return InferModel(info, "embed", served, [texts], [vectors])
    if any(model.name == own for model in models("reranker")):
        inputs = [TensorShape("query", TEXTS, [1]), TensorShape("documents", TEXTS, [ANY])]
        scores = TensorShape("relevance_score", FLOATS, [ANY])
        return InferModel(info, "rerank", served, inputs, [scores])
    if any(model.name == own for model in models("classifier")):
        scores = TensorShape("score", FLOATS, [ANY, len(info.labels)])
        return InferModel(info, "classify", served, [texts], [scores])
    return InferModel(info, None, served, [], [])


async def infer(
    services: Services,
    model: InferModel,
    inputs: Sequence[TextTensor],
    parameters: Mapping[str, Any],
    outputs: Sequence[str] = (),
) -> Inferred:
    """Answer a request for inference.

    Args:
        inputs: Those of ``model.inputs``; where that is a single one, whatever its name.
        parameters: Options of the job, by name (``PARAMETERS``).
        outputs: Names of the tensors wanted, of ``model.outputs``; none is all.

    Raises:
        InputError: A tensor or parameter is missing, unknown, or not what the model takes.
        ModelCannot: It gives neither vectors nor scores.
        ModelNotFound, ModelFault, Overloaded: As for the job.
    """
    if model.task is None:
        raise ModelCannot(
            f"{model.info.name} gives neither vectors nor scores; ask it at /v1/rag/answer.",
            field="model",
            value=model.info.name,
        )
    options = _read_parameters(parameters, model.task)
    (given,) = [shape.name for shape in model.outputs]
    for place, name in enumerate(outputs):
        if name != given:
            field = f"outputs[{place}].name"
            raise InputError.at(field, f"{shorten(name)} is not {given}, which it gives.", name)
    texts = _read_inputs(inputs, model)
    name = model.info.name
    if model.task == "embed":
        embedded = await embed(services, texts[0], model=name, field="inputs[0].data", **options)
        return Inferred(embedded, (FloatTensor(given, embedded.vectors),))
    if model.task == "rerank":
        (query,), passages = texts
        ranked = await rerank(services, query, passages, model=name, **options)
        scores = np.empty(len(passages), np.float32)
        for item in ranked.items:
            scores[item.index] = item.relevance_score
        return Inferred(ranked, (FloatTensor(given, scores),))
    predicted = await classify(services, texts[0], model=name, field="inputs[0].data", **options)
    by_label = [{entry.label: entry.score for entry in item} for item in predicted.items]
    rows = [[scores[label] for label in model.info.labels] for scores in by_label]
    return Inferred(predicted, (FloatTensor(given, np.array(rows, np.float32)),))


def read_texts(data: bytes, field: str) -> list[str]:
    """Read texts of their bytes: before each its length, four bytes, little-endian.

    Raises:
        InputError: The bytes end within a text, or a text is no UTF-8.
    """
    texts: list[str] = []
    place = 0
    while place < len(data):
        end = place + 4 + int.from_bytes(data[place : place + 4], "little")
        if place + 4 > len(data) or end > len(data):
            raise InputError.at(field, f"the bytes end within text {len(texts)}.")
        texts.append(read_text(data[place + 4 : end], f"{field}[{len(texts)}]"))
        place = end
    return texts


def read_text(data: bytes, field: str) -> str:
    """Read a text of its bytes.

    Raises:
        InputError: They are no UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError.at(field, f"the byte at {error.start} is not UTF-8.") from error


def _read_parameters(parameters: Mapping[str, Any], task: InferTask) -> dict[str, Any]:
    kinds = PARAMETERS[task]
    for name, value in parameters.items():
        field = f"parameters.{name}"
        if name not in kinds:
            known = ", ".join(kinds)
            raise InputError.at(field, f"unknown parameter; known: {known}.", value)
        if type(value) is not kinds[name]:
            kind = {bool: "true or false", int: "a whole number", str: "a text"}[kinds[name]]
            raise InputError.at(field, f"{shorten(value)} is not {kind}.", value)
    return dict(parameters)


def _read_inputs(inputs: Sequence[TextTensor], model: InferModel) -> list[list[str]]:
    """Return the texts of each of the model's inputs, in their order."""
    wanted = model.inputs
    by_name = {tensor.name: (place, tensor) for place, tensor in enumerate(inputs)}
    if len(wanted) == len(inputs) == 1:
        by_name = {wanted[0].name: (0, inputs[0])}
    names = [shape.name for shape in wanted]
    if len(inputs) != len(wanted) or by_name.keys() != set(names):
        got = list_some([tensor.name for tensor in inputs]) or "none"
        raise InputError.at("inputs", f"{model.info.name} takes {' and '.join(names)}; got {got}.")
    return [_read_input(*by_name[shape.name], shape) for shape in wanted]


def _read_input(place: int, tensor: TextTensor, wanted: TensorShape) -> list[str]:
    field = f"inputs[{place}]"
    if tensor.datatype != TEXTS:
        where = f"{shorten(tensor.datatype)}, but models here take texts, {TEXTS}."
        raise InputError.at(f"{field}.datatype", where, tensor.datatype)
    shape = list(tensor.shape)
    flat = shape[:1] == shape or shape[1:] == [1]  # Triton's batches have a column
    if not (shape and flat) or math.prod(shape) != len(tensor.texts):
        where = f"{shorten(shape)} is not the shape of a list of {len(tensor.texts)} texts."
        raise InputError.at(f"{field}.shape", where, shape)
    if wanted.shape == [1] and len(tensor.texts) != 1:
        raise InputError.at(f"{field}.shape", f"{shape}, but {tensor.name} is one text.", shape)
    return list(tensor.texts)
