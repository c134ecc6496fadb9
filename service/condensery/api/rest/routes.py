"""Every route in one table: its endpoint, the scope it needs, its body, reply and errors."""

from functools import partial
from typing import Any

from condensery import errors, question, values
from condensery.api.rest import answers, chat, embeddings, indexes, models, openapi, page, rerank
from condensery.api.rest.compat import cohere, infinity, kserve, tei
from condensery.api.rest.endpoint import Access, Endpoint, ErrorTypes, Route
from condensery.api.rest.errors import Family
from condensery.api.rest.schemas import index, inference, rag, service
from condensery.metrics import Task

# Errors that many routes share.
ENCODE_ERRORS: ErrorTypes = (errors.EmptyInput, errors.ModelNotFound, errors.ModelFault)
FIND_ERRORS: ErrorTypes = (errors.IndexNotFound,)
DISK_ERRORS: ErrorTypes = (errors.StorageError, errors.StorageFull)
WRITE_ERRORS: ErrorTypes = (*FIND_ERRORS, *DISK_ERRORS)
UNREADY_ERRORS: ErrorTypes = (errors.Unavailable,)
ANSWER_ERRORS: ErrorTypes = (
    *ENCODE_ERRORS,
    *FIND_ERRORS,
    errors.EncoderMismatch,
    errors.ContextTooLong,
    errors.ContextNotFound,
    errors.ContextExpired,
    errors.ContextMismatch,
    errors.CompressionFailed,
)
OPENAI_EMBEDDINGS = ("/v1/embeddings", "/embeddings", "/openai/v1/embeddings")


def _inference_route(
    family: Family,
    path: str,
    endpoint: Endpoint,
    task: Task,
    body: Any,
    reply: Any,
    fails: ErrorTypes = ENCODE_ERRORS,
    **options: Any,
) -> Route:
    return Route(
        "POST",
        path,
        endpoint,
        task,
        family=family,
        body=body,
        reply=reply,
        fails=fails,
        **options,
    )


_answer_route = partial(_inference_route, "openai", fails=ANSWER_ERRORS)
_tei_route = partial(_inference_route, "tei")
_rerank_route = partial(_inference_route, "rerank")

_TEI_ANY = (
    inference.TeiEmbedRequest
    | inference.TeiPredictRequest
    | inference.TeiSimilarityRequest
    | inference.TeiRerankRequest
)

INFERENCE_ROUTES = (
    *(
        _inference_route(
            "openai",
            path,
            embeddings.openai_embeddings,
            "embed",
            inference.OpenAIEmbedRequest,
            embeddings.Embeddings,
            other_media=embeddings.OCTET_STREAM,
        )
        for path in OPENAI_EMBEDDINGS
    ),
    _tei_route("/", tei.tei_any, "embed", _TEI_ANY, tei.Anything),
    _tei_route("/invocations", tei.tei_any, "embed", _TEI_ANY, tei.Anything),
    _tei_route(
        "/embed_all", tei.tei_embed_all, "embed", inference.TeiEmbedAllRequest, tei.TokenVectors
    ),
    _tei_route(
        "/similarity", tei.tei_similarity, "embed", inference.TeiSimilarityRequest, tei.Cosines
    ),
    _tei_route("/tokenize", tei.tei_tokenize, "embed", inference.TeiTokenizeRequest, tei.Tokenized),
    _tei_route("/decode", tei.tei_decode, "embed", inference.TeiDecodeRequest, tei.Decoded),
    _tei_route("/embed", tei.tei_embed, "embed", inference.TeiEmbedRequest, embeddings.Vectors),
    _tei_route(
        "/rerank",
        rerank.any_rerank,
        "rerank",
        inference.TeiRerankRequest | inference.RerankRequest,
        rerank.AnyRanking,
        other_family="rerank",
    ),
    _tei_route(
        "/predict",
        tei.tei_predict,
        "classify",
        inference.TeiPredictRequest,
        tei.Predictions,
        (*ENCODE_ERRORS, errors.ModelCannot),
    ),
    _rerank_route(
        "/v1/embed",
        cohere.cohere_v1_embed,
        "embed",
        cohere.CohereEmbedRequest,
        cohere.CohereEmbeddings,
    ),
    _rerank_route(
        "/v2/embed", cohere.cohere_v2_embed, "embed", cohere.CohereEmbedRequest, cohere.CohereByType
    ),
    _rerank_route(
        "/v1/rerank", rerank.v1_rerank, "rerank", inference.RerankRequest, rerank.Ranking
    ),
    _rerank_route(
        "/v2/rerank", rerank.v2_rerank, "rerank", inference.RerankRequest, rerank.Ranking
    ),
    _rerank_route(
        "/v1/ranking", rerank.nim_ranking, "rerank", inference.NimRankingRequest, rerank.NimRanking
    ),
)

ANSWER_ROUTES = (
    _answer_route(
        "/v1/rag/answer",
        answers.answer_question,
        "answer",
        rag.AnswerRequest,
        question.Answer,
        streams="events",
    ),
    _answer_route(
        "/v1/rag/compare",
        answers.compare_answers,
        "compare",
        rag.CompareRequest,
        question.Comparison,
    ),
    _answer_route(
        "/v1/chat/completions",
        chat.chat_completions,
        "answer",
        rag.ChatRequest,
        chat.ChatCompletion,
        streams="chunks",
    ),
    _answer_route(
        "/v1/compress",
        answers.compress_documents,
        "compress",
        rag.CompressRequest,
        question.Compressed,
        fails=ENCODE_ERRORS,
    ),
    Route(
        "DELETE",
        "/v1/contexts/{name}",
        answers.release_context,
        "compress",
        reply=answers.Released,
        fails=(errors.ContextNotFound, errors.ContextExpired),
    ),
)

ALIASES_PATH = "/v1/indexes/aliases"
INDEX_PATH = "/v1/indexes/{name}"
DOCUMENTS_PATH = f"{INDEX_PATH}/documents"
REBUILD_PATH = f"{INDEX_PATH}/rebuild"
SNAPSHOTS_PATH = f"{INDEX_PATH}/snapshots"
SNAPSHOT_PATH = f"{SNAPSHOTS_PATH}/{{snapshot}}"

SNAPSHOT_PARAMETER = {
    "name": "snapshot",
    "in": "path",
    "required": True,
    "description": "The id of one of the index's snapshots.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9-]+$"},
}
SNAPSHOT_ERRORS: ErrorTypes = (errors.SnapshotNotFound, errors.SnapshotDamaged)


def _index_route(
    shared: ErrorTypes,
    access: Access,
    method: str,
    path: str,
    endpoint: Endpoint,
    reply: Any,
    *fails: type[errors.CondenseryError],
    body: Any = None,
    optional: bool = False,
) -> Route:
    return Route(
        method,
        path,
        endpoint,
        "index",
        access,
        body=body,
        optional=optional,
        reply=reply,
        parameters=(SNAPSHOT_PARAMETER,) if path.startswith(SNAPSHOT_PATH) else (),
        fails=(*shared, *fails),
    )


_list = partial(_index_route, (), "infer", "GET")
_read = partial(_index_route, FIND_ERRORS, "infer")
_write = partial(_index_route, WRITE_ERRORS, "index-write")

MAINTENANCE_ROUTES = (  # before the paths with an index's name, which would match `aliases`
    _list(ALIASES_PATH, indexes.list_aliases, indexes.Aliases),
    _write(
        "POST",
        ALIASES_PATH,
        indexes.update_aliases,
        indexes.Aliases,
        errors.EmptyInput,
        errors.AliasNotFound,
        errors.AliasCircle,
        body=index.AliasesRequest,
    ),
    _write("POST", SNAPSHOTS_PATH, indexes.create_snapshot, values.Snapshot, errors.LimitReached),
    _read("GET", SNAPSHOTS_PATH, indexes.list_snapshots, values.SnapshotList),
    _read(
        "GET", SNAPSHOT_PATH, indexes.show_snapshot, values.Snapshot, *DISK_ERRORS, *SNAPSHOT_ERRORS
    ),
    _write(
        "DELETE",
        SNAPSHOT_PATH,
        indexes.delete_snapshot,
        indexes.SnapshotDeleted,
        errors.SnapshotNotFound,
    ),
    _write(
        "POST",
        f"{SNAPSHOT_PATH}/restore",
        indexes.restore_snapshot,
        values.IndexInfo,
        *SNAPSHOT_ERRORS,
        body=index.RestoreRequest,
        optional=True,
    ),
    _write(
        "POST",
        REBUILD_PATH,
        indexes.rebuild_index,
        values.Rebuild,
        errors.ModelNotFound,
        errors.TextsMissing,
        errors.RebuildRunning,
        body=index.RebuildRequest,
        optional=True,
    ),
    _read("GET", REBUILD_PATH, indexes.show_rebuild, values.Rebuild, errors.RebuildNotFound),
    _write(
        "DELETE",
        REBUILD_PATH,
        indexes.cancel_rebuild,
        indexes.RebuildCancelled,
        errors.RebuildNotFound,
    ),
)

INDEX_ROUTES = (
    _list("/v1/indexes", indexes.list_indexes, indexes.Indexes),
    _index_route(
        DISK_ERRORS,
        "index-write",
        "PUT",
        INDEX_PATH,
        indexes.create_index,
        values.IndexInfo,
        errors.ModelNotFound,
        errors.IndexExists,
        body=index.CreateIndexRequest,
        optional=True,
    ),
    _read("GET", INDEX_PATH, indexes.show_index, values.IndexInfo),
    _write("DELETE", INDEX_PATH, indexes.drop_index, indexes.Dropped, errors.IndexAliased),
    _write(
        "POST",
        DOCUMENTS_PATH,
        indexes.upsert_documents,
        values.Upserted,
        errors.EmptyInput,
        errors.EncoderMismatch,
        errors.ModelFault,
        body=index.UpsertRequest,
    ),
    _read(
        "POST",
        f"{DOCUMENTS_PATH}/get",
        indexes.get_documents,
        indexes.Documents,
        errors.EmptyInput,
        body=index.IdsRequest,
    ),
    _write(
        "POST",
        f"{DOCUMENTS_PATH}/delete",
        indexes.delete_documents,
        indexes.Deleted,
        errors.EmptyInput,
        body=index.DeleteRequest,
    ),
    _read(
        "POST",
        f"{DOCUMENTS_PATH}/count",
        indexes.count_documents,
        indexes.Counts,
        body=index.CountRequest,
        optional=True,
    ),
    _read(
        "POST",
        f"{DOCUMENTS_PATH}/scroll",
        indexes.scroll_documents,
        values.Page,
        body=index.ScrollRequest,
        optional=True,
    ),
    _read(
        "POST",
        f"{INDEX_PATH}/query",
        indexes.query_index,
        indexes.Hits,
        errors.EncoderMismatch,
        errors.ModelFault,
        body=index.QueryRequest,
    ),
)

REPORT_ERRORS: ErrorTypes = (errors.ModelNotFound, errors.ReportNotFound, errors.CorruptModel)

LOAD_ERRORS: ErrorTypes = (
    errors.ModelNotFound,
    errors.ModelCannot,
    errors.ModelAliasTaken,
    errors.ModelNotLoaded,
    errors.StoreError,
)
UNLOAD_ERRORS: ErrorTypes = (errors.ModelNotFound, errors.ModelInUse)

FORMAT_PARAMETER = {
    "name": "format",
    "in": "query",
    "description": "Without it, the header `accept` decides.",
    "schema": {"enum": list(models.REPORT_FORMATS)},
}
PLOT_PARAMETER = {
    "name": "plot",
    "in": "path",
    "required": True,
    "description": "One of the report's `plots`.",
    "schema": {"type": "string", "pattern": "^[a-z0-9_-]{1,64}$"},
}

REPORT_PATH = "/v1/models/{name}/report"
KSERVE_MODEL_PATH = "/v2/models/{name}"
MODEL_ALIASES_PATH = "/v1/models/aliases"


def _admin_route(
    path: str,
    endpoint: Endpoint,
    body: Any,
    reply: Any,
    fails: ErrorTypes,
    family: Family = "openai",
) -> Route:
    """Return a route that needs the scope ``admin``, and whose body may be left out."""
    return Route(
        "POST",
        path,
        endpoint,
        access="admin",
        family=family,
        body=body,
        optional=True,
        reply=reply,
        fails=fails,
    )


_load_route = partial(
    _admin_route, body=service.LoadModelRequest, reply=values.ModelLoad, fails=LOAD_ERRORS
)

MODEL_ADMIN_ROUTES = (
    Route("GET", MODEL_ALIASES_PATH, models.list_model_aliases, reply=models.ModelAliases),
    Route(
        "POST",
        MODEL_ALIASES_PATH,
        models.set_model_aliases,
        access="admin",
        body=service.ModelAliasesRequest,
        reply=models.ModelAliases,
        fails=(
            errors.ModelNotFound,
            errors.ModelAliasToNothing,
            errors.ModelAliasTaken,
            errors.ModelAliasCircle,
            errors.StoreError,
        ),
    ),
    _load_route("/v1/models/{name}/load", models.load_model),
    _load_route("/v1/models/{name}/reload", models.reload_model),
    _admin_route(
        "/v1/models/{name}/unload",
        models.unload_model,
        service.UnloadModelRequest,
        values.ModelUnload,
        UNLOAD_ERRORS,
    ),
)

_kserve_route = partial(Route, "GET", family="kserve")

ABOUT_ROUTES = (
    Route("GET", "/v1/models", models.list_models, reply=models.Models),
    Route("GET", "/models", infinity.list_infinity_models, reply=infinity.InfinityModels),
    # Before the path whose names may hold slashes, which would match these too.
    *MODEL_ADMIN_ROUTES,
    Route(
        "GET",
        REPORT_PATH,
        models.show_report,
        reply=values.ModelReport,
        other_media=models.MARKDOWN,
        parameters=(FORMAT_PARAMETER,),
        fails=(errors.InputError, *REPORT_ERRORS),
    ),
    Route(
        "GET",
        f"{REPORT_PATH}/plots/{{plot}}.png",
        models.show_plot,
        media="image/png",
        parameters=(PLOT_PARAMETER,),
        fails=REPORT_ERRORS,
    ),
    Route(
        "GET",
        "/v1/models/{name:path}",
        models.show_model,
        reply=values.ModelInfo,
        fails=(errors.ModelNotFound,),
    ),
    Route("GET", "/info", tei.tei_info, family="tei", reply=tei.TeiInfo, fails=UNREADY_ERRORS),
    Route("GET", "/version", models.show_version, reply=models.Version),
    Route("GET", "/docs", page.show_docs, media="text/html"),
    Route("GET", "/openapi.json", openapi.show_openapi, reply=dict[str, Any]),
    _kserve_route("/v2", kserve.kserve_server, reply=kserve.KServeServer),
    _kserve_route(
        KSERVE_MODEL_PATH,
        kserve.kserve_model,
        reply=kserve.KServeModel,
        fails=(errors.ModelNotFound,),
    ),
    _kserve_route(
        f"{KSERVE_MODEL_PATH}/ready",
        kserve.kserve_model_ready,
        reply=kserve.KServeModelReady,
        fails=(errors.ModelNotFound, *UNREADY_ERRORS),
    ),
)


_repository_route = partial(_admin_route, family="kserve")

KSERVE_REPOSITORY_ROUTES = (
    _repository_route(
        "/v2/repository/index",
        kserve.kserve_index,
        service.KServeIndexRequest,
        list[values.ModelVersion],
        (errors.StoreError,),
    ),
    _repository_route(
        "/v2/repository/models/{name}/load",
        kserve.kserve_load,
        service.KServeLoadRequest,
        values.ModelVersion,
        LOAD_ERRORS,
    ),
    _repository_route(
        "/v2/repository/models/{name}/unload",
        kserve.kserve_unload,
        service.KServeUnloadRequest,
        values.ModelVersion,
        UNLOAD_ERRORS,
    ),
)


def _health_route(path: str, endpoint: Endpoint, family: Family, reply: Any) -> Route:
    return Route(
        "GET",
        path,
        endpoint,
        access="open",
        family=family,
        reply=reply,
        fails=UNREADY_ERRORS,
        vital=True,
    )


HEALTH_ROUTES = (
    _health_route("/livez", models.livez, "openai", models.Status),
    _health_route("/readyz", models.readyz, "openai", models.Status),
    _health_route("/startupz", models.startupz, "openai", models.Status),
    _health_route("/health", models.readyz, "tei", models.Status),
    _health_route("/ping", models.readyz, "tei", models.Status),
    _health_route("/v2/health/live", kserve.kserve_live, "kserve", kserve.KServeLive),
    _health_route("/v2/health/ready", kserve.kserve_ready, "kserve", kserve.KServeReady),
)


def route_sections(*, open_metrics: bool = False) -> dict[str, tuple[Route, ...]]:
    """Return the table of routes, in the sections of its description.

    Args:
        open_metrics: Whether metrics need no key where others do.
    """
    metrics = Route(
        "GET",
        "/metrics",
        models.show_metrics,
        access="open" if open_metrics else "any",
        media="text/plain",
        vital=True,
    )
    return {
        "Inference": INFERENCE_ROUTES,
        "Answers": ANSWER_ROUTES,
        "Keeping indexes": MAINTENANCE_ROUTES,
        "Indexes": INDEX_ROUTES,
        "About": (*ABOUT_ROUTES, *KSERVE_REPOSITORY_ROUTES),
        "Health and metrics": (*HEALTH_ROUTES, metrics),
    }
