"""Every route in one table: its endpoint, the scope it needs, its body, reply and errors."""

from functools import partial
from typing import Any

from condensery import errors, question, values
from condensery.api.rest import (
    answers,
    chat,
    console,
    embeddings,
    indexes,
    models,
    openapi,
    page,
    rerank,
    responses,
)
from condensery.api.rest.compat import cohere, infinity, kserve, ollama, tei
from condensery.api.rest.endpoint import Access, Endpoint, ErrorTypes, Route
from condensery.api.rest.schemas import index, inference, rag, service
from condensery.documents.writing import AddedFiles

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
# Another server may write these answers; those that are compared the pair writes itself.
WRITTEN_ERRORS: ErrorTypes = (*ANSWER_ERRORS, errors.AnswerServerFault, errors.AnswerServerSlow)
# As from a NIM that has rerankers alone, and as NVIDIA's own API has it.
NIM_RANKINGS = ("/v1/ranking", "/rerank/v1/ranking", "/v1/retrieval/{name:path}/reranking")
OPENAI_EMBEDDINGS = ("/v1/embeddings", "/embeddings", "/openai/v1/embeddings")


_post = partial(Route, "POST", fails=ENCODE_ERRORS)
_answer_route = partial(Route, "POST", fails=ANSWER_ERRORS)
_tei_route = partial(_post, family="tei")
_rerank_route = partial(_post, family="rerank")

_TEI_ANY = (
    inference.TeiEmbedRequest
    | inference.TeiPredictRequest
    | inference.TeiSimilarityRequest
    | inference.TeiRerankRequest
)

INFERENCE_ROUTES = (
    *(
        _post(
            path,
            embeddings.openai_embeddings,
            "embed",
            family="rerank",  # Jina's and Voyage's clients ask here, too
            body=inference.OpenAIEmbedRequest,
            reply=embeddings.Embeddings,
            other_media=embeddings.OCTET_STREAM,
        )
        for path in OPENAI_EMBEDDINGS
    ),
    _tei_route("/", tei.tei_any, "embed", body=_TEI_ANY, reply=tei.Anything),
    _tei_route("/invocations", tei.tei_any, "embed", body=_TEI_ANY, reply=tei.Anything),
    _tei_route(
        "/embed_all",
        tei.tei_embed_all,
        "embed",
        body=inference.TeiEmbedAllRequest,
        reply=tei.TokenVectors,
    ),
    _tei_route(
        "/embed_sparse",
        tei.tei_embed_sparse,
        "embed",
        body=inference.TeiEmbedAllRequest,
        fails=(*ENCODE_ERRORS, errors.ModelCannot),
    ),
    _tei_route(
        "/similarity",
        tei.tei_similarity,
        "embed",
        body=inference.TeiSimilarityRequest,
        reply=tei.Cosines,
    ),
    _tei_route(
        "/tokenize",
        tei.tei_tokenize,
        "embed",
        body=inference.TeiTokenizeRequest,
        reply=tei.Tokenized,
    ),
    _tei_route(
        "/decode", tei.tei_decode, "embed", body=inference.TeiDecodeRequest, reply=tei.Decoded
    ),
    _tei_route(
        "/embed", tei.tei_embed, "embed", body=inference.TeiEmbedRequest, reply=embeddings.Vectors
    ),
    _tei_route(
        "/rerank",
        rerank.any_rerank,
        "rerank",
        body=inference.TeiRerankRequest | inference.RerankRequest,
        reply=rerank.AnyRanking,
        other_family="rerank",
    ),
    _tei_route(
        "/predict",
        tei.tei_predict,
        "classify",
        body=inference.TeiPredictRequest,
        reply=tei.Predictions,
        fails=(*ENCODE_ERRORS, errors.ModelCannot),
    ),
    _post(
        "/api/embed",
        ollama.ollama_embed,
        "embed",
        family="kserve",  # Ollama's errors look like KServe's
        body=inference.OllamaEmbedRequest,
        reply=ollama.OllamaEmbeddings,
    ),
    _rerank_route(
        "/v1/embed",
        cohere.cohere_v1_embed,
        "embed",
        body=cohere.CohereEmbedRequest,
        reply=cohere.CohereEmbeddings,
    ),
    _rerank_route(
        "/v2/embed",
        cohere.cohere_v2_embed,
        "embed",
        body=cohere.CohereEmbedRequest,
        reply=cohere.CohereByType,
    ),
    _rerank_route(
        "/v1/rerank",
        rerank.v1_rerank,
        "rerank",
        body=inference.RerankRequest,
        reply=rerank.V1Ranking,
    ),
    _rerank_route(
        "/v2/rerank",
        rerank.v2_rerank,
        "rerank",
        body=inference.RerankRequest,
        reply=rerank.V1Ranking,
    ),
    *(
        _rerank_route(
            path,
            rerank.nim_ranking,
            "rerank",
            body=inference.NimRankingRequest,
            reply=rerank.NimRanking,
        )
        for path in NIM_RANKINGS
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
        fails=WRITTEN_ERRORS,
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
        fails=WRITTEN_ERRORS,
    ),
    _answer_route(
        "/v1/responses",
        responses.create_response,
        "answer",
        body=rag.ResponseRequest,
        reply=responses.ModelResponse,
        streams="responses",
        fails=WRITTEN_ERRORS,
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
    *fails: type[errors.CondenseryError],
    **contract: Any,
) -> Route:
    """Return a route whose endpoint's own contract holds, where it is a job and no more."""
    return Route(
        method,
        path,
        endpoint,
        "index" if access == "infer" else "index-write",
        access,
        parameters=(SNAPSHOT_PARAMETER,) if path.startswith(SNAPSHOT_PATH) else (),
        fails=(*shared, *fails),
        **getattr(endpoint, "contract", contract),
    )


_list = partial(_index_route, (), "infer", "GET")
_read = partial(_index_route, FIND_ERRORS, "infer")
_write = partial(_index_route, WRITE_ERRORS, "index-write")

MAINTENANCE_ROUTES = (  # before the paths with an index's name, which would match `aliases`
    _list(ALIASES_PATH, indexes.list_aliases),
    _write(
        "POST",
        ALIASES_PATH,
        indexes.update_aliases,
        errors.EmptyInput,
        errors.AliasNotFound,
        errors.AliasCircle,
        reply=indexes.Aliases,
        body=index.AliasesRequest,
    ),
    _write("POST", SNAPSHOTS_PATH, indexes.create_snapshot, errors.LimitReached),
    _read("GET", SNAPSHOTS_PATH, indexes.list_snapshots),
    _read("GET", SNAPSHOT_PATH, indexes.show_snapshot, *DISK_ERRORS, *SNAPSHOT_ERRORS),
    _write("DELETE", SNAPSHOT_PATH, indexes.delete_snapshot, errors.SnapshotNotFound),
    _write("POST", f"{SNAPSHOT_PATH}/restore", indexes.restore_snapshot, *SNAPSHOT_ERRORS),
    _write(
        "POST",
        REBUILD_PATH,
        indexes.rebuild_index,
        errors.ModelNotFound,
        errors.TextsMissing,
        errors.RebuildRunning,
    ),
    _read("GET", REBUILD_PATH, indexes.show_rebuild, errors.RebuildNotFound),
    _write("DELETE", REBUILD_PATH, indexes.cancel_rebuild, errors.RebuildNotFound),
)

INDEX_ROUTES = (
    _list("/v1/indexes", indexes.list_indexes),
    _index_route(
        DISK_ERRORS,
        "index-write",
        "PUT",
        INDEX_PATH,
        indexes.create_index,
        errors.ModelNotFound,
        errors.IndexExists,
        reply=values.IndexInfo,
        body=index.CreateIndexRequest,
        optional=True,
    ),
    _read("GET", INDEX_PATH, indexes.show_index),
    _write("DELETE", INDEX_PATH, indexes.drop_index, errors.IndexAliased),
    _write(
        "POST",
        DOCUMENTS_PATH,
        indexes.upsert_documents,
        errors.EmptyInput,
        errors.EncoderMismatch,
        errors.ModelFault,
        reply=values.Upserted,
        body=index.UpsertRequest,
    ),
    _write(
        "POST",
        f"{INDEX_PATH}/files",
        indexes.add_files,
        errors.EmptyInput,
        errors.EncoderMismatch,
        errors.ModelFault,
        reply=AddedFiles,
        body=index.FilesForm,
        form=True,
    ),
    _read(
        "POST",
        f"{DOCUMENTS_PATH}/get",
        indexes.get_documents,
        errors.EmptyInput,
        reply=indexes.Documents,
        body=index.IdsRequest,
    ),
    _write("POST", f"{DOCUMENTS_PATH}/delete", indexes.delete_documents, errors.EmptyInput),
    _read("POST", f"{DOCUMENTS_PATH}/count", indexes.count_documents),
    _read(
        "POST",
        f"{DOCUMENTS_PATH}/scroll",
        indexes.scroll_documents,
        reply=values.Page,
        body=index.ScrollRequest,
        optional=True,
    ),
    _read(
        "POST",
        f"{INDEX_PATH}/query",
        indexes.query_index,
        errors.EncoderMismatch,
        errors.ModelFault,
        reply=indexes.Hits,
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
CONSOLE_PARAMETER = {
    "name": "file",
    "in": "path",
    "required": True,
    "description": f"A page ({', '.join(f'`{page}`' for page in console.PAGES)}), or a file of it.",
    "schema": {"type": "string", "pattern": r"^[a-z]+(\.(css|js|svg))?$"},
}

REPORT_PATH = "/v1/models/{name}/report"
VERSION_PARAMETER = {
    "name": "version",
    "in": "path",
    "required": True,
    "description": "The model's version that serves.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9:._-]+$"},
}
KSERVE_MODEL_PATHS: dict[str, tuple[dict[str, Any], ...]] = {
    "/v2/models/{name}": (),
    "/v2/models/{name}/versions/{version}": (VERSION_PARAMETER,),
}
MODEL_ALIASES_PATH = "/v1/models/aliases"


_admin_route = partial(Route, "POST", access="admin", optional=True)
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
            errors.IndexNotFound,
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
        body=service.UnloadModelRequest,
        reply=values.ModelUnload,
        fails=UNLOAD_ERRORS,
    ),
)

_kserve_route = partial(Route, "GET", family="kserve")
_infer_route = partial(Route, "POST", family="kserve")

ABOUT_ROUTES = (
    Route("GET", "/v1/models", models.list_models, reply=models.Models),
    Route("GET", "/api/tags", ollama.ollama_tags, family="kserve", reply=ollama.OllamaModels),
    Route("GET", "/api/version", ollama.ollama_version, family="kserve", reply=models.Version),
    Route("GET", "/rerank/v1/models", models.list_rerankers, reply=models.Models),
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
    Route("GET", "/", console.show_console, access="open", family="tei", media="text/html"),
    Route("GET", "/console", console.show_console, access="open", media="text/html"),
    Route(
        "GET",
        "/console/{file:path}",
        console.show_console_file,
        access="open",
        media="*/*",
        parameters=(CONSOLE_PARAMETER,),
        fails=(errors.NotFound,),
    ),
    Route("GET", "/openapi.json", openapi.show_openapi, reply=dict[str, Any]),
    _kserve_route("/v2", kserve.kserve_server, reply=kserve.KServeServer),
    *(
        _kserve_route(
            path,
            kserve.kserve_model,
            reply=kserve.KServeModel,
            parameters=parameters,
            fails=(errors.ModelNotFound,),
        )
        for path, parameters in KSERVE_MODEL_PATHS.items()
    ),
    *(
        _infer_route(
            f"{path}/infer",
            kserve.kserve_infer,
            body=inference.KServeInferRequest,
            reply=kserve.KServeInferred,
            other_media=embeddings.OCTET_STREAM,
            parameters=parameters,
            fails=(*ENCODE_ERRORS, errors.ModelCannot),
        )
        for path, parameters in KSERVE_MODEL_PATHS.items()
    ),
    *(
        _kserve_route(
            f"{path}/ready",
            kserve.kserve_model_ready,
            reply=kserve.KServeModelReady,
            parameters=parameters,
            fails=(errors.ModelNotFound, *UNREADY_ERRORS),
        )
        for path, parameters in KSERVE_MODEL_PATHS.items()
    ),
)


_repository_route = partial(_admin_route, family="kserve")

KSERVE_REPOSITORY_ROUTES = (
    _repository_route(
        "/v2/repository/index",
        kserve.kserve_index,
        body=service.KServeIndexRequest,
        reply=list[values.ModelVersion],
        fails=(errors.StoreError,),
    ),
    _repository_route(
        "/v2/repository/models/{name}/load",
        kserve.kserve_load,
        body=service.KServeLoadRequest,
        reply=values.ModelVersion,
        fails=LOAD_ERRORS,
    ),
    _repository_route(
        "/v2/repository/models/{name}/unload",
        kserve.kserve_unload,
        body=service.KServeUnloadRequest,
        reply=values.ModelVersion,
        fails=UNLOAD_ERRORS,
    ),
)

_health_route = partial(Route, "GET", access="open", fails=UNREADY_ERRORS, vital=True)

HEALTH_ROUTES = (
    _health_route("/livez", models.livez, reply=models.Status),
    _health_route("/readyz", models.readyz, reply=models.Status),
    _health_route("/startupz", models.startupz, reply=models.Status),
    _health_route("/health", models.readyz, family="tei", reply=models.Status),
    _health_route("/ping", models.readyz, family="tei", reply=models.Status),
    _health_route("/v2/health/live", kserve.kserve_live, family="kserve", reply=kserve.KServeLive),
    _health_route(
        "/v2/health/ready", kserve.kserve_ready, family="kserve", reply=kserve.KServeReady
    ),
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
