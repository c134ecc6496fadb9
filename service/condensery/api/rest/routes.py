"""Every route in one table: what answers, who may ask, how its errors look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.routing import compile_path

from condensery import errors, schemas, schemas_rag, schemas_upkeep
from condensery.api.rest import (
    chat,
    compare,
    compress,
    embeddings,
    indexes,
    kserve,
    measured,
    notices,
    ops,
    pages,
    predict,
    rag,
    replies,
    replies_rag,
    replies_upkeep,
    rerank,
    tokens,
    upkeep,
)
from condensery.api.rest.doors import Endpoint
from condensery.api.rest.errors import Family
from condensery.errors import CondenseryError
from condensery.keys import Scope
from condensery.metrics import Task

Access = Scope | Literal["any", "open"]
Errors = tuple[type[CondenseryError], ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A path and a method.

    Attributes:
        method: HTTP's.
        path: Starlette's pattern.
        endpoint: What answers.
        task: What it is for, in the metrics; None is not counted.
        access: The scope that a key needs, once there are keys; ``any`` takes every key, ``open``
            needs none.
        family: How its errors look.
        other_family: And how they look if the body is of this other family.
        body: The request's schema; ``optional`` bodies may be left out.
        reply: The reply's type; ``media`` is its content type, and where it ``streams``, it can be
            server-sent events instead: ours, or OpenAI's chunks.
        other_media: Another content type that the reply can have, as text.
        parameters: Those of its own in path and query, as OpenAPI has them; ``name`` is known.
        fails: The errors that it has beside those of all routes, for the description.
        hot: Whether requests skip FastAPI, which takes 0.2 ms each: the short ones, many a second.
        vital: Whether it answers when the house is full or about to close: health and metrics.
    """

    method: str
    path: str
    endpoint: Endpoint
    task: Task | None = None
    access: Access = "infer"
    family: Family = "openai"
    other_family: Family | None = None
    body: Any = None
    optional: bool = False
    reply: Any = None
    media: str = "application/json"
    streams: Literal["events", "chunks"] | None = None
    other_media: str | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()
    fails: Errors = ()
    hot: bool = False
    vital: bool = False

    @property
    def template(self) -> str:
        """The path as it is described, and logged."""
        return self.path.replace(":path}", "}")


ENCODES: Errors = (errors.EmptyInput, errors.ModelNotFound, errors.ModelFault)
FINDS: Errors = (errors.IndexNotFound,)
SEARCHES: Errors = (*FINDS, errors.EncoderMismatch, errors.ModelFault)
READS: Errors = (
    *ENCODES,
    *SEARCHES,
    errors.ContextTooLong,
    errors.ContextNotFound,
    errors.ContextExpired,
    errors.ContextMismatch,
    errors.CompressionFailed,
)
WRITES: Errors = (*FINDS, errors.StorageError, errors.StorageFull)
ALIASES: Errors = (*WRITES, errors.EmptyInput, errors.AliasNotFound, errors.AliasCircle)
COPIES: Errors = (*WRITES, errors.SnapshotNotFound, errors.SnapshotDamaged)
UNREADY: Errors = (errors.Unavailable,)

MEASURED: Errors = (errors.ModelNotFound, errors.ReportNotFound, errors.CorruptModel)

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

SNAPSHOT = {
    "name": "snapshot",
    "in": "path",
    "required": True,
    "description": "The id of one of the index's snapshots.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9-]+$"},
}

ONE = "/v1/indexes/{name}"
DOCUMENTS = f"{ONE}/documents"
SNAPSHOTS = f"{ONE}/snapshots"
REPORT = "/v1/models/{name}/report"
KSERVE_MODEL = "/v2/models/{name}"

OPENAI_EMBEDDINGS = ("/v1/embeddings", "/embeddings", "/openai/v1/embeddings")


def _tei(path: str, endpoint: Endpoint, body: Any, reply: Any) -> Route:
    """Return one of TEI's routes that tell what an encoder makes of texts."""
    return Route(
        *("POST", path, endpoint, "embed"), family="tei", body=body, reply=reply, fails=ENCODES
    )


INFERENCE = (
    *(
        Route(
            *("POST", path, embeddings.openai_embeddings, "embed"),
            body=schemas.OpenAIEmbedRequest,
            reply=replies.Embeddings,
            fails=ENCODES,
            hot=True,
        )
        for path in OPENAI_EMBEDDINGS
    ),
    _tei(
        "/",
        tokens.tei_root,
        schemas.TeiEmbedRequest | schemas.TeiSimilarityRequest | schemas.TeiRerankRequest,
        replies.Anything,
    ),
    _tei("/embed_all", tokens.tei_embed_all, schemas.TeiEmbedAllRequest, replies.TokenVectors),
    _tei("/similarity", tokens.tei_similarity, schemas.TeiSimilarityRequest, replies.Cosines),
    _tei("/tokenize", tokens.tei_tokenize, schemas.TeiTokenizeRequest, replies.Tokenized),
    _tei("/decode", tokens.tei_decode, schemas.TeiDecodeRequest, replies.Decoded),
    Route(
        *("POST", "/embed", embeddings.tei_embed, "embed"),
        family="tei",
        body=schemas.TeiEmbedRequest,
        reply=replies.Vectors,
        fails=ENCODES,
        hot=True,
    ),
    Route(
        *("POST", "/rerank", rerank.any_rerank, "rerank"),
        family="tei",
        other_family="rerank",
        body=schemas.TeiRerankRequest | schemas.RerankRequest,
        reply=replies.AnyRanking,
        fails=ENCODES,
        hot=True,
    ),
    Route(
        *("POST", "/predict", predict.tei_predict, "classify"),
        family="tei",
        body=schemas.TeiPredictRequest,
        reply=replies.Predictions,
        fails=(*ENCODES, errors.ModelCannot),
        hot=True,
    ),
    Route(
        *("POST", "/v1/rerank", rerank.v1_rerank, "rerank"),
        family="rerank",
        body=schemas.RerankRequest,
        reply=replies.Ranking,
        fails=ENCODES,
        hot=True,
    ),
    Route(
        *("POST", "/v2/rerank", rerank.v2_rerank, "rerank"),
        family="rerank",
        body=schemas.RerankRequest,
        reply=replies.Ranking,
        fails=ENCODES,
    ),
    Route(
        *("POST", "/v1/ranking", rerank.nim_ranking, "rerank"),
        family="rerank",
        body=schemas.NimRankingRequest,
        reply=replies.NimRanking,
        fails=ENCODES,
    ),
)

ANSWERS = (
    Route(
        *("POST", "/v1/rag/answer", rag.rag_answer, "answer"),
        body=schemas_rag.AnswerRequest,
        reply=replies_rag.WholeAnswer,
        streams="events",
        fails=READS,
    ),
    Route(
        *("POST", "/v1/rag/compare", compare.compare, "compare"),
        body=schemas_rag.CompareRequest,
        reply=replies_rag.Comparison,
        fails=READS,
    ),
    Route(
        *("POST", "/v1/chat/completions", chat.chat_completions, "answer"),
        body=schemas_rag.ChatRequest,
        reply=replies_rag.ChatCompletion,
        streams="chunks",
        fails=READS,
    ),
    Route(
        *("POST", "/v1/compress", compress.compress, "compress"),
        body=schemas_rag.CompressRequest,
        reply=replies_rag.Compressed,
        fails=ENCODES,
    ),
    Route(
        *("DELETE", "/v1/contexts/{name}", compress.release, "compress"),
        reply=replies_rag.Released,
        fails=(errors.ContextNotFound, errors.ContextExpired),
    ),
)

UPKEEP = (  # before what has an index's name in its path
    Route(
        *("GET", "/v1/indexes/aliases", upkeep.list_aliases, "index"),
        reply=replies_upkeep.Aliases,
    ),
    Route(
        *("POST", "/v1/indexes/aliases", upkeep.update_aliases, "index", "index-write"),
        body=schemas_upkeep.AliasesRequest,
        reply=replies_upkeep.Aliases,
        fails=ALIASES,
    ),
    Route(
        *("POST", SNAPSHOTS, upkeep.make_snapshot, "index", "index-write"),
        reply=replies_upkeep.Snapshot,
        fails=WRITES,
    ),
    Route(
        *("GET", SNAPSHOTS, upkeep.list_snapshots, "index"),
        reply=replies_upkeep.Snapshots,
        fails=FINDS,
    ),
    Route(
        *("GET", f"{SNAPSHOTS}/{{snapshot}}", upkeep.show_snapshot, "index"),
        parameters=(SNAPSHOT,),
        reply=replies_upkeep.Snapshot,
        fails=COPIES,
    ),
    Route(
        *("DELETE", f"{SNAPSHOTS}/{{snapshot}}", upkeep.delete_snapshot, "index", "index-write"),
        parameters=(SNAPSHOT,),
        reply=replies_upkeep.SnapshotDeleted,
        fails=(*WRITES, errors.SnapshotNotFound),
    ),
    Route(
        *("POST", f"{SNAPSHOTS}/{{snapshot}}/restore", upkeep.restore_snapshot),
        *("index", "index-write"),
        parameters=(SNAPSHOT,),
        body=schemas_upkeep.RestoreRequest,
        optional=True,
        reply=replies.Index,
        fails=COPIES,
    ),
    Route(
        *("POST", f"{ONE}/rebuild", upkeep.rebuild_index, "index", "index-write"),
        body=schemas_upkeep.RebuildRequest,
        optional=True,
        reply=replies_upkeep.Rebuild,
        fails=(*WRITES, errors.ModelNotFound, errors.TextsMissing, errors.RebuildRunning),
    ),
    Route(
        *("GET", f"{ONE}/rebuild", upkeep.show_rebuild, "index"),
        reply=replies_upkeep.Rebuild,
        fails=(*FINDS, errors.RebuildNotFound),
    ),
    Route(
        *("DELETE", f"{ONE}/rebuild", upkeep.cancel_rebuild, "index", "index-write"),
        reply=replies_upkeep.RebuildCancelled,
        fails=(*WRITES, errors.RebuildNotFound),
    ),
)

INDEXES = (
    Route("GET", "/v1/indexes", indexes.list_all, "index", reply=replies.Indexes),
    Route(
        *("PUT", ONE, indexes.create, "index", "index-write"),
        body=schemas.CreateIndexRequest,
        optional=True,
        reply=replies.Index,
        fails=(errors.ModelNotFound, errors.IndexExists, errors.StorageError, errors.StorageFull),
    ),
    Route("GET", ONE, indexes.info, "index", reply=replies.Index, fails=FINDS),
    Route(
        *("DELETE", ONE, indexes.drop, "index", "index-write"),
        reply=replies.Dropped,
        fails=(*WRITES, errors.IndexAliased),
    ),
    Route(
        *("POST", DOCUMENTS, indexes.upsert, "index", "index-write"),
        body=schemas.UpsertRequest,
        reply=replies.Written,
        fails=(*WRITES, errors.EmptyInput, errors.EncoderMismatch, errors.ModelFault),
    ),
    Route(
        *("POST", f"{DOCUMENTS}/get", indexes.get, "index"),
        body=schemas.IdsRequest,
        reply=replies.Documents,
        fails=(*FINDS, errors.EmptyInput),
    ),
    Route(
        *("POST", f"{DOCUMENTS}/delete", indexes.delete, "index", "index-write"),
        body=schemas.DeleteRequest,
        reply=replies.Deleted,
        fails=(*WRITES, errors.EmptyInput),
    ),
    Route(
        *("POST", f"{DOCUMENTS}/count", indexes.count, "index"),
        body=schemas.CountRequest,
        optional=True,
        reply=replies.Counts,
        fails=FINDS,
    ),
    Route(
        *("POST", f"{DOCUMENTS}/scroll", indexes.scroll, "index"),
        body=schemas.ScrollRequest,
        optional=True,
        reply=replies.Page,
        fails=FINDS,
    ),
    Route(
        *("POST", f"{ONE}/query", indexes.query, "index"),
        body=schemas.QueryRequest,
        reply=replies.Hits,
        fails=SEARCHES,
    ),
)

ABOUT = (
    Route("GET", "/v1/models", ops.list_models, reply=notices.Models),
    Route(  # before the next, whose names may hold slashes, to be refused as names
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


def sections(*, open_metrics: bool = False) -> dict[str, tuple[Route, ...]]:
    """Return the table, in the sections of its description.

    Args:
        open_metrics: Whether metrics need no key where others do.
    """
    metrics = Route(
        *("GET", "/metrics", ops.metrics, None, "open" if open_metrics else "any"),
        media="text/plain",
        vital=True,
    )
    return {
        "Inference": INFERENCE,
        "Answers": ANSWERS,
        "Keeping indexes": UPKEEP,
        "Indexes": INDEXES,
        "About": ABOUT,
        "Health and metrics": (*HEALTH, metrics),
    }


class Table:
    """Finds the routes of a path, before anything else is known of a request.

    Args:
        table: As FastAPI has it: of two that match, the first.
    """

    def __init__(self, table: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        patterns: dict[str, dict[str, Route]] = {}
        for route in table:
            into = patterns if "{" in route.path else self._exact
            into.setdefault(route.path, {})[route.method] = route
        self._patterns = [(compile_path(path)[0], found) for path, found in patterns.items()]

    def find(self, path: str) -> dict[str, Route]:
        """Return the routes by method; none where there is nothing at that path."""
        found = self._exact.get(path)
        if found is not None:
            return found
        return next((found for regex, found in self._patterns if regex.match(path)), {})
