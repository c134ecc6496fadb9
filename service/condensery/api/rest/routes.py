"""Every route in one table: its endpoint, the scope it needs, its body, reply and errors."""

from functools import partial
from typing import Any

from condensery import errors, question, values
from condensery.api.rest import answers, chat, embeddings, indexes, models, openapi, page, rerank
from condensery.api.rest.compat import cohere, infinity, kserve, tei
from condensery.api.rest.endpoint import (
    ENCODE_ERRORS,
    FIND_ERRORS,
    SEARCH_ERRORS,
    UNREADY_ERRORS,
    WRITE_ERRORS,
    Endpoint,
    ErrorTypes,
    Route,
)
from condensery.api.rest.errors import Family
from condensery.api.rest.schemas import index, inference, rag, service

ANSWER_ERRORS: ErrorTypes = (
    *ENCODE_ERRORS,
    *SEARCH_ERRORS,
    errors.ContextTooLong,
    errors.ContextNotFound,
    errors.ContextExpired,
    errors.ContextMismatch,
    errors.CompressionFailed,
)
OPENAI_EMBEDDINGS = ("/v1/embeddings", "/embeddings", "/openai/v1/embeddings")


_inference_route = partial(Route, "POST", fails=ENCODE_ERRORS)
_answer_route = partial(Route, "POST", fails=ANSWER_ERRORS)

_TEI_ANY = (
    inference.TeiEmbedRequest
    | inference.TeiPredictRequest
    | inference.TeiSimilarityRequest
    | inference.TeiRerankRequest
)

INFERENCE_ROUTES = (
    *(
        _inference_route(
            path,
            embeddings.openai_embeddings,
            "embed",
            family="openai",
            body=inference.OpenAIEmbedRequest,
            reply=embeddings.Embeddings,
            other_media=embeddings.OCTET_STREAM,
        )
        for path in OPENAI_EMBEDDINGS
    ),
    _inference_route("/", tei.tei_any, "embed", family="tei", body=_TEI_ANY, reply=tei.Anything),
    _inference_route(
        "/invocations", tei.tei_any, "embed", family="tei", body=_TEI_ANY, reply=tei.Anything
    ),
    _inference_route(
        "/embed_all",
        tei.tei_embed_all,
        "embed",
        family="tei",
        body=inference.TeiEmbedAllRequest,
        reply=tei.TokenVectors,
    ),
    _inference_route(
        "/similarity",
        tei.tei_similarity,
        "embed",
        family="tei",
        body=inference.TeiSimilarityRequest,
        reply=tei.Cosines,
    ),
    _inference_route(
        "/tokenize",
        tei.tei_tokenize,
        "embed",
        family="tei",
        body=inference.TeiTokenizeRequest,
        reply=tei.Tokenized,
    ),
    _inference_route(
        "/decode",
        tei.tei_decode,
        "embed",
        family="tei",
        body=inference.TeiDecodeRequest,
        reply=tei.Decoded,
    ),
    _inference_route(
        "/embed",
        tei.tei_embed,
        "embed",
        family="tei",
        body=inference.TeiEmbedRequest,
        reply=embeddings.Vectors,
    ),
    _inference_route(
        "/rerank",
        rerank.any_rerank,
        "rerank",
        family="tei",
        body=inference.TeiRerankRequest | inference.RerankRequest,
        reply=rerank.AnyRanking,
        other_family="rerank",
    ),
    _inference_route(
        "/predict",
        tei.tei_predict,
        "classify",
        family="tei",
        body=inference.TeiPredictRequest,
        reply=tei.Predictions,
        fails=(*ENCODE_ERRORS, errors.ModelCannot),
    ),
    _inference_route(
        "/v1/embed",
        cohere.cohere_v1_embed,
        "embed",
        family="rerank",
        body=cohere.CohereEmbedRequest,
        reply=cohere.CohereEmbeddings,
    ),
    _inference_route(
        "/v2/embed",
        cohere.cohere_v2_embed,
        "embed",
        family="rerank",
        body=cohere.CohereEmbedRequest,
        reply=cohere.CohereByType,
    ),
    _inference_route(
        "/v1/rerank",
        rerank.v1_rerank,
        "rerank",
        family="rerank",
        body=inference.RerankRequest,
        reply=rerank.Ranking,
    ),
    _inference_route(
        "/v2/rerank",
        rerank.v2_rerank,
        "rerank",
        family="rerank",
        body=inference.RerankRequest,
        reply=rerank.Ranking,
    ),
    _inference_route(
        "/v1/ranking",
        rerank.nim_ranking,
        "rerank",
        family="rerank",
        body=inference.NimRankingRequest,
        reply=rerank.NimRanking,
    ),
)

ANSWER_ROUTES = (
    _answer_route(
        "/v1/rag/answer",
        answers.answer_question,
        "answer",
        body=rag.AnswerRequest,
        reply=question.Answer,
        streams="events",
    ),
    _answer_route(
        "/v1/rag/compare",
        answers.compare_answers,
        "compare",
        body=rag.CompareRequest,
        reply=question.Comparison,
    ),
    _answer_route(
        "/v1/chat/completions",
        chat.chat_completions,
        "answer",
        body=rag.ChatRequest,
        reply=chat.ChatCompletion,
        streams="chunks",
    ),
    _answer_route(
        "/v1/compress",
        answers.compress_documents,
        "compress",
        body=rag.CompressRequest,
        reply=question.Compressed,
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

INDEX_PATH = "/v1/indexes/{name}"
DOCUMENTS_PATH = f"{INDEX_PATH}/documents"
SNAPSHOTS_PATH = f"{INDEX_PATH}/snapshots"
SNAPSHOT_PATH = f"{SNAPSHOTS_PATH}/{{snapshot}}"

SNAPSHOT_PARAMETER = {
    "name": "snapshot",
    "in": "path",
    "required": True,
    "description": "The id of one of the index's snapshots.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9-]+$"},
}
SNAPSHOT_ERRORS: ErrorTypes = (*WRITE_ERRORS, errors.SnapshotNotFound, errors.SnapshotDamaged)


def _index_route(
    method: str,
    path: str,
    endpoint: Endpoint,
    reply: Any,
    fails: ErrorTypes = (),
    *,
    writes: bool = False,
    body: Any = None,
    optional: bool = False,
) -> Route:
    return Route(
        method,
        path,
        endpoint,
        "index",
        "index-write" if writes else "infer",
        body=body,
        optional=optional,
        reply=reply,
        parameters=(SNAPSHOT_PARAMETER,) if path.startswith(SNAPSHOT_PATH) else (),
        fails=fails,
    )


MAINTENANCE_ROUTES = (  # before the paths with an index's name, which would match `aliases`
    _index_route("GET", "/v1/indexes/aliases", indexes.list_aliases, indexes.Aliases),
    _index_route(
        "POST",
        "/v1/indexes/aliases",
        indexes.update_aliases,
        indexes.Aliases,
        (*WRITE_ERRORS, errors.EmptyInput, errors.AliasNotFound, errors.AliasCircle),
        writes=True,
        body=index.AliasesRequest,
    ),
    _index_route(
        "POST",
        SNAPSHOTS_PATH,
        indexes.create_snapshot,
        values.Snapshot,
        (*WRITE_ERRORS, errors.LimitReached),
        writes=True,
    ),
    _index_route("GET", SNAPSHOTS_PATH, indexes.list_snapshots, values.SnapshotList, FIND_ERRORS),
    _index_route("GET", SNAPSHOT_PATH, indexes.show_snapshot, values.Snapshot, SNAPSHOT_ERRORS),
    _index_route(
        "DELETE",
        SNAPSHOT_PATH,
        indexes.delete_snapshot,
        indexes.SnapshotDeleted,
        (*WRITE_ERRORS, errors.SnapshotNotFound),
        writes=True,
    ),
    _index_route(
        "POST",
        f"{SNAPSHOT_PATH}/restore",
        indexes.restore_snapshot,
        values.IndexInfo,
        SNAPSHOT_ERRORS,
        writes=True,
        body=index.RestoreRequest,
        optional=True,
    ),
    _index_route(
        "POST",
        f"{INDEX_PATH}/rebuild",
        indexes.rebuild_index,
        values.Rebuild,
        (*WRITE_ERRORS, errors.ModelNotFound, errors.TextsMissing, errors.RebuildRunning),
        writes=True,
        body=index.RebuildRequest,
        optional=True,
    ),
    _index_route(
        "GET",
        f"{INDEX_PATH}/rebuild",
        indexes.show_rebuild,
        values.Rebuild,
        (*FIND_ERRORS, errors.RebuildNotFound),
    ),
    _index_route(
        "DELETE",
        f"{INDEX_PATH}/rebuild",
        indexes.cancel_rebuild,
        indexes.RebuildCancelled,
        (*WRITE_ERRORS, errors.RebuildNotFound),
        writes=True,
    ),
)

INDEX_ROUTES = (
    _index_route("GET", "/v1/indexes", indexes.list_indexes, indexes.Indexes),
    _index_route(
        "PUT",
        INDEX_PATH,
        indexes.create_index,
        values.IndexInfo,
        (errors.ModelNotFound, errors.IndexExists, errors.StorageError, errors.StorageFull),
        writes=True,
        body=index.CreateIndexRequest,
        optional=True,
    ),
    _index_route("GET", INDEX_PATH, indexes.show_index, values.IndexInfo, FIND_ERRORS),
    _index_route(
        "DELETE",
        INDEX_PATH,
        indexes.drop_index,
        indexes.Dropped,
        (*WRITE_ERRORS, errors.IndexAliased),
        writes=True,
    ),
    _index_route(
        "POST",
        DOCUMENTS_PATH,
        indexes.upsert_documents,
        values.Upserted,
        (*WRITE_ERRORS, errors.EmptyInput, errors.EncoderMismatch, errors.ModelFault),
        writes=True,
        body=index.UpsertRequest,
    ),
    _index_route(
        "POST",
        f"{DOCUMENTS_PATH}/get",
        indexes.get_documents,
        indexes.Documents,
        (*FIND_ERRORS, errors.EmptyInput),
        body=index.IdsRequest,
    ),
    _index_route(
        "POST",
        f"{DOCUMENTS_PATH}/delete",
        indexes.delete_documents,
        indexes.Deleted,
        (*WRITE_ERRORS, errors.EmptyInput),
        writes=True,
        body=index.DeleteRequest,
    ),
    _index_route(
        "POST",
        f"{DOCUMENTS_PATH}/count",
        indexes.count_documents,
        indexes.Counts,
        FIND_ERRORS,
        body=index.CountRequest,
        optional=True,
    ),
    _index_route(
        "POST",
        f"{DOCUMENTS_PATH}/scroll",
        indexes.scroll_documents,
        values.Page,
        FIND_ERRORS,
        body=index.ScrollRequest,
        optional=True,
    ),
    _index_route(
        "POST",
        f"{INDEX_PATH}/query",
        indexes.query_index,
        indexes.Hits,
        SEARCH_ERRORS,
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


_LOAD, _UNLOAD = service.LoadModelRequest, service.UnloadModelRequest

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
    _admin_route("/v1/models/{name}/load", models.load_model, _LOAD, values.ModelLoad, LOAD_ERRORS),
    _admin_route(
        "/v1/models/{name}/reload", models.reload_model, _LOAD, values.ModelLoad, LOAD_ERRORS
    ),
    _admin_route(
        "/v1/models/{name}/unload", models.unload_model, _UNLOAD, values.ModelUnload, UNLOAD_ERRORS
    ),
)

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
    Route("GET", "/v2", kserve.kserve_server, family="kserve", reply=kserve.KServeServer),
    Route(
        "GET",
        KSERVE_MODEL_PATH,
        kserve.kserve_model,
        family="kserve",
        reply=kserve.KServeModel,
        fails=(errors.ModelNotFound,),
    ),
    Route(
        "GET",
        f"{KSERVE_MODEL_PATH}/ready",
        kserve.kserve_model_ready,
        family="kserve",
        reply=kserve.KServeModelReady,
        fails=(errors.ModelNotFound, *UNREADY_ERRORS),
    ),
)


KSERVE_REPOSITORY_ROUTES = (
    _admin_route(
        "/v2/repository/index",
        kserve.kserve_index,
        service.KServeIndexRequest,
        reply=list[values.ModelVersion],
        fails=(errors.StoreError,),
        family="kserve",
    ),
    _admin_route(
        "/v2/repository/models/{name}/load",
        kserve.kserve_load,
        service.KServeLoadRequest,
        reply=values.ModelVersion,
        fails=LOAD_ERRORS,
        family="kserve",
    ),
    _admin_route(
        "/v2/repository/models/{name}/unload",
        kserve.kserve_unload,
        service.KServeUnloadRequest,
        reply=values.ModelVersion,
        fails=UNLOAD_ERRORS,
        family="kserve",
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
