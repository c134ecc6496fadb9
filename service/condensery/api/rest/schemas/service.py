"""The bodies of requests that load, unload and name models."""

from pydantic import Field

from condensery.api.rest.schemas.inference import Ours


class LoadModelRequest(Ours):
    """Which version of a model to load."""

    version: str | None = Field(
        default=None, description="In the store, a whole number; the highest if left out."
    )


class UnloadModelRequest(Ours):
    """How to unload a model."""

    force: bool = Field(
        default=False,
        description="Unload it though it is a default, or the encoder of an index.",
    )


class ModelAliasesRequest(Ours):
    """What aliases of models are to lead to: all of this is done, or none."""

    aliases: dict[str, str | None] = Field(
        max_length=1000,
        description="By alias, a running model or another alias, or a pair with the index that it "
        "answers from: `pair@index?top_k=5&mode=bm25`; null removes the alias.",
    )


class KServeIndexRequest(Ours):
    """Which models to list."""

    ready: bool = Field(default=False, description="Only those that serve.")


class KServeLoadParameters(Ours):
    """What a load may say; other parameters of Triton's are refused."""

    version: str | None = None


class KServeUnloadParameters(Ours):
    """What an unload may say."""

    unload_dependents: bool = Field(
        default=False, description="Of no effect: no model is loaded for another's sake."
    )
    force: bool = False


class KServeLoadRequest(Ours):
    """Load a model, as KServe asks."""

    parameters: KServeLoadParameters = KServeLoadParameters()


class KServeUnloadRequest(Ours):
    """Unload a model, as KServe asks."""

    parameters: KServeUnloadParameters = KServeUnloadParameters()
