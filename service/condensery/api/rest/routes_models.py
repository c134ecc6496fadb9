"""The routes that tell of models, change which serve, and say how the server is."""

from typing import Any

from condensery import errors, schemas_models
from condensery.api.rest import infinity, kserve, measured, notices, ops, pages, repository
from condensery.api.rest.doors import Endpoint
from condensery.api.rest.errors import Family
from condensery.api.rest.routing import UNREADY, Errors, Route

MEASURED: Errors = (errors.ModelNotFound, errors.ReportNotFound, errors.CorruptModel)

LOADS: Errors = (
    *(errors.ModelNotFound, errors.ModelCannot, errors.ModelAliasTaken, errors.ModelNotLoaded),
    errors.StoreError,
)
UNLOADS: Errors = (errors.ModelNotFound, errors.ModelInUse)

FORMAT = {
    "name": "format",
    "in": "query",
    "description": "Without it, the header `accept` decides.",
    "schema": {"enum": list(measured.FORMATS)},
}
PLOT = {
    "name": "plot",
    "in": "path",
    "required": True,
    "description": "One of the report's `plots`.",
    "schema": {"type": "string", "pattern": "^[a-z0-9_-]{1,64}$"},
}

REPORT = "/v1/models/{name}/report"
KSERVE_MODEL = "/v2/models/{name}"
MODEL_ALIASES = "/v1/models/aliases"


def _change(
    path: str, endpoint: Endpoint, body: Any, reply: Any, fails: Errors, family: Family = "openai"
) -> Route:
    """Return a route that loads or unloads models."""
    return Route(
        *("POST", path, endpoint, None, "admin", family),
        body=body,
        optional=True,
        reply=reply,
        fails=fails,
    )


_LOAD, _UNLOAD = schemas_models.LoadModelRequest, schemas_models.UnloadModelRequest

MODELS = (
    Route("GET", MODEL_ALIASES, repository.list_aliases, reply=notices.ModelAliases),
    Route(
        *("POST", MODEL_ALIASES, repository.set_aliases, None, "admin"),
        body=schemas_models.ModelAliasesRequest,
        reply=notices.ModelAliases,
        fails=(
            *(errors.ModelNotFound, errors.ModelAliasToNothing, errors.ModelAliasTaken),
            *(errors.ModelAliasCircle, errors.StoreError),
        ),
    ),
    _change("/v1/models/{name}/load", repository.load, _LOAD, notices.Loaded, LOADS),
    _change("/v1/models/{name}/reload", repository.reload, _LOAD, notices.Loaded, LOADS),
    _change("/v1/models/{name}/unload", repository.unload, _UNLOAD, notices.Unloaded, UNLOADS),
)

ABOUT = (
    Route("GET", "/v1/models", ops.list_models, reply=notices.Models),
    Route("GET", "/models", infinity.infinity_models, reply=notices.InfinityModels),
    # These before the one whose names may hold slashes, to be refused as names.
    *MODELS,
    Route(
        *("GET", REPORT, measured.show_report),
        reply=notices.Report,
        other_media=measured.MARKDOWN,
        parameters=(FORMAT,),
        fails=(errors.InputError, *MEASURED),
    ),
    Route(
        *("GET", f"{REPORT}/plots/{{plot}}.png", measured.show_plot),
        media="image/png",
        parameters=(PLOT,),
        fails=MEASURED,
    ),
    Route(
        *("GET", "/v1/models/{name:path}", ops.show_model),
        reply=notices.Model,
        fails=(errors.ModelNotFound,),
    ),
    Route("GET", "/info", ops.tei_info, family="tei", reply=notices.TeiInfo, fails=UNREADY),
    Route("GET", "/version", ops.version, reply=notices.Version),
    Route("GET", "/docs", pages.docs, media="text/html"),
    Route("GET", "/openapi.json", pages.openapi, reply=dict[str, Any]),
    Route("GET", "/v2", kserve.server, family="kserve", reply=notices.KServeServer),
    Route(
        *("GET", KSERVE_MODEL, kserve.model),
        family="kserve",
        reply=notices.KServeModel,
        fails=(errors.ModelNotFound,),
    ),
    Route(
        *("GET", f"{KSERVE_MODEL}/ready", kserve.model_ready),
        family="kserve",
        reply=notices.KServeModelReady,
        fails=(errors.ModelNotFound, *UNREADY),
    ),
)


KSERVE_REPOSITORY = (
    _change(
        "/v2/repository/index",
        *(repository.kserve_index, schemas_models.KServeIndexRequest),
        reply=list[notices.KServeVersion],
        fails=(errors.StoreError,),
        family="kserve",
    ),
    _change(
        "/v2/repository/models/{name}/load",
        *(repository.kserve_load, schemas_models.KServeLoadRequest),
        reply=notices.KServeVersion,
        fails=LOADS,
        family="kserve",
    ),
    _change(
        "/v2/repository/models/{name}/unload",
        *(repository.kserve_unload, schemas_models.KServeUnloadRequest),
        reply=notices.KServeVersion,
        fails=UNLOADS,
        family="kserve",
    ),
)


def _health(path: str, endpoint: Endpoint, family: Family, reply: Any) -> Route:
    return Route(
        *("GET", path, endpoint, None, "open", family), reply=reply, fails=UNREADY, vital=True
    )


HEALTH = (
    _health("/livez", ops.livez, "openai", notices.Status),
    _health("/readyz", ops.readyz, "openai", notices.Status),
    _health("/startupz", ops.startupz, "openai", notices.Status),
    _health("/health", ops.readyz, "tei", notices.Status),
    _health("/ping", ops.readyz, "tei", notices.Status),
    _health("/v2/health/live", kserve.live, "kserve", notices.KServeLive),
    _health("/v2/health/ready", kserve.ready, "kserve", notices.KServeReady),
)
