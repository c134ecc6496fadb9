"""The bodies of requests that load, unload and name models."""

from pydantic import BaseModel, ConfigDict, Field


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
