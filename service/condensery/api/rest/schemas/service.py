"""The bodies of requests that load, unload and name models, of replies about them and of errors."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from condensery.api.rest.errors import TeiType
from condensery.api.rest.schemas.replies import Reply


class _StrictBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LoadModelRequest(_StrictBody):
    """Which version of a model to load."""

    version: str | None = Field(
        default=None, description="In the store, a whole number; the highest if left out."
    )


class UnloadModelRequest(_StrictBody):
    """How to unload a model."""

    force: bool = Field(
        default=False,
        description="Unload it though it is a default, or the encoder of an index.",
    )


class ModelAliasesRequest(_StrictBody):
    """What aliases of models are to lead to: all of this is done, or none."""

    aliases: dict[str, str | None] = Field(
        max_length=1000,
        description="By alias, a running model or another alias; null removes the alias.",
    )


class KServeIndexRequest(_StrictBody):
    """Which models to list."""

    ready: bool = Field(default=False, description="Only those that serve.")


class KServeLoadParameters(_StrictBody):
    """What a load may say; other parameters of Triton's are refused."""

    version: str | None = None


class KServeUnloadParameters(_StrictBody):
    """What an unload may say."""

    unload_dependents: bool = Field(
        default=False, description="Of no effect: no model is loaded for another's sake."
    )
    force: bool = False


class KServeLoadRequest(_StrictBody):
    """Load a model, as KServe asks."""

    parameters: KServeLoadParameters = KServeLoadParameters()


class KServeUnloadRequest(_StrictBody):
    """Unload a model, as KServe asks."""

    parameters: KServeUnloadParameters = KServeUnloadParameters()


# Replies and errors


class Pair(Reply):
    """What a pair can do, and what it does where nothing is asked for."""

    vectors: list[int] = Field(
        description="Memory vectors that a full window may become, the most first."
    )
    rates: list[int] = Field(description="Tokens a vector for each of them: a question's `ratio`.")
    scores: bool = Field(description="Whether it scores passages.")
    top_n: int = Field(description="Passages that it reads best; 0 is all.")
    min_relevance: float = Field(description="Score under which it does not answer; 0 is none.")


class Model(Reply):
    """A running model."""

    id: str
    object: Literal["model"]
    owned_by: str
    kind: str
    method: str
    fingerprint: str
    dims: int | None
    max_tokens: int
    dtype: str
    device: str
    licence: str
    created: int
    pooling: str | None
    pair: Pair | None = Field(description="Of a pair alone.")
    labels: list[str] = Field(description="Of a classifier or cross-encoder alone.")
    independent: bool = Field(description="Whether each label is likely or not by itself.")
    version: str = Field(description="In the store, a whole number.")
    alias_of: str | None = Field(description="The model's own name, where `id` is an alias.")
    dimensions: list[int] = Field(
        description="Of an encoder: lengths that its vectors may be cut to, beside `dims`."
    )


class Models(Reply):
    """Every running model, defaults first."""

    object: Literal["list"]
    data: list[Model]


class Revision(Reply):
    """A version of a model."""

    version: str
    fingerprint: str


class Loaded(Reply):
    """What serves since a model was loaded."""

    object: Literal["model.load"]
    id: str
    model: Model
    previous: Revision | None = Field(description="What served before by that name.")
    changed: bool = Field(description="Whether it was loaded; else it served already.")
    seconds: float
    memory_bytes: int = Field(description="Of its weights.")
    stranded_indexes: list[str] = Field(
        description="Indexes of its name and another fingerprint: they answer 409."
    )


class Unloaded(Reply):
    """What served, and is gone."""

    object: Literal["model.unload"]
    id: str
    version: str
    fingerprint: str
    seconds: float
    stranded_indexes: list[str] = Field(description="Indexes that answer 409 without it.")


class ModelAliases(Reply):
    """Every alias of a model, and what it leads to."""

    aliases: dict[str, str]


class Stats(Reply):
    """How busy a model is."""

    queue_fraction: float = Field(description="Tokens that wait, of those that may, 0 to 1.")
    queue_absolute: int = Field(description="Items that wait.")
    results_pending: int = Field(description="Requests in the house, whatever their model.")
    batch_size: int = Field(description="Items of a forward pass, on average.")


class InfinityModel(Reply):
    """A running model, as Infinity shows it."""

    id: str
    object: Literal["model"]
    owned_by: str
    created: int
    backend: Literal["torch"]
    capabilities: list[Literal["embed", "rerank", "classify"]]
    dtype: str
    device: str
    revision: str = Field(description="Its fingerprint.")
    stats: Stats


class InfinityModels(Reply):
    """Every running model, defaults first."""

    object: Literal["list"]
    data: list[InfinityModel]


class Report(Reply):
    """What a model was measured at when it was published."""

    model: str
    version: str = Field(description="Of the stored model, a whole number.")
    fingerprint: str = Field(description="The running model's.")
    report: dict[str, Any] = Field(description="As `condensery eval` wrote it, format 2.")
    card: bool = Field(description="Whether there is a card, in Markdown.")
    plots: list[str] = Field(description="Names of its plots.")


class TeiInfo(BaseModel):
    """The default model as TEI describes it, and beside it what this service can do."""

    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: dict[str, dict[str, Any]]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None
    capabilities: dict[str, list[str]]
    refused: dict[str, str]


class Version(Reply):
    """This service's version."""

    version: str


class Status(Reply):
    """All is well."""

    status: Literal["live", "ready", "started"]


class KServeLive(Reply):
    """All is well, as KServe says it."""

    live: Literal[True]


class KServeReady(Reply):
    """All is well, as KServe says it."""

    ready: Literal[True]


class KServeModelReady(KServeReady):
    """A model serves, as KServe says it."""

    name: str


class KServeServer(Reply):
    """The server, as KServe describes it."""

    name: str
    version: str
    extensions: list[str]


class KServeTensor(Reply):
    """What a model takes or gives; -1 is any number."""

    name: str
    datatype: str
    shape: list[int]


class KServeModel(Reply):
    """A model, as KServe describes it."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[KServeTensor]
    outputs: list[KServeTensor]


class KServeVersion(Reply):
    """A version of a model, and what it does, as KServe tells it."""

    name: str
    version: str
    state: Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]
    reason: str


class TeiError(Reply):
    """What is wrong, as TEI says it."""

    error: str
    error_type: TeiType


class ErrorDetail(Reply):
    """What is wrong, and where."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(Reply):
    """What is wrong, as OpenAI says it, and as we do."""

    error: ErrorDetail


class RerankError(Reply):
    """What is wrong, where Cohere's, Jina's and OpenAI's clients each look for it."""

    message: str
    detail: str
    error: ErrorDetail


class KServeError(Reply):
    """What is wrong, as KServe says it."""

    error: str
