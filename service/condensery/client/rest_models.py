"""Models that come and go, and their aliases, as REST calls; for keys of scope ``admin``."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from condensery.client.rest_calls import RestCall, make_body
from condensery.client.rest_replies import build, read_models
from condensery.values import ModelLoad, ModelUnload, ModelVersion, Revision


def load_model(
    name: str, *, version: str | None = None, again: bool = False
) -> RestCall[ModelLoad]:
    """Load a stored model and let it serve, in place of the version that does.

    The old one serves until the new one is checked and warm. A load that fails raises
    ModelNotLoaded with the reason, and what served before serves on.

    Args:
        name: In the server's stores.
        version: A whole number; None is the highest.
        again: Load it though it serves already.
    """
    action = "reload" if again else "load"
    return RestCall(_read_load, "POST", _path(name, action), make_body(version=version))


def unload_model(name: str, *, force: bool = False) -> RestCall[ModelUnload]:
    """Unload a model; its last requests are finished when this returns, and its memory is free.

    ModelInUse says what depends on it.

    Args:
        name: The model's own, no alias.
        force: Though it is a default, or the encoder of an index.
    """
    return RestCall(_read_unload, "POST", _path(name, "unload"), {"force": force})


def stored_models() -> RestCall[list[ModelVersion]]:
    """List every stored version of every model, and which of them serve."""
    return RestCall(_read_versions, "POST", "/v2/repository/index", {})


def set_aliases(aliases: Mapping[str, str | None]) -> RestCall[dict[str, str]]:
    """Set aliases of models, or remove them, all at once; returns all that there are.

    Args:
        aliases: By alias, a running model or another alias; None removes the alias.
    """
    return RestCall(_read_aliases, "POST", "/v1/models/aliases", {"aliases": dict(aliases)})


def _path(name: str, action: str) -> str:
    return f"/v1/models/{quote(name, safe='')}/{action}"


def _read_load(reply: Any) -> ModelLoad:
    (info,) = read_models({"data": [reply["model"]]})
    previous = reply["previous"]
    return ModelLoad(
        info=info,
        previous=None if previous is None else build(Revision, previous),
        changed=reply["changed"],
        seconds=reply["seconds"],
        memory_bytes=reply["memory_bytes"],
        stranded_indexes=tuple(reply["stranded_indexes"]),
    )


def _read_unload(reply: Any) -> ModelUnload:
    indexes = tuple(reply["stranded_indexes"])
    return ModelUnload(reply["id"], build(Revision, reply), reply["seconds"], indexes)


def _read_versions(reply: Any) -> list[ModelVersion]:
    return [build(ModelVersion, item) for item in reply]


def _read_aliases(reply: Any) -> dict[str, str]:
    return dict(reply["aliases"])
