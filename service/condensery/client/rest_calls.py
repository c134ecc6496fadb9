"""The service's operations as REST calls: what is sent where, and how the reply is read."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack
from urllib.parse import quote

import numpy as np

from condensery.client import rest_replies as replies
from condensery.client.operations import (
    Call,
    DocumentInputs,
    QuestionOptions,
    make_documents,
    make_question,
)
from condensery.client.rest_replies import read_dataclass, read_index, read_models
from condensery.encodings import Encoding, unpack
from condensery.errors import InputError, shorten
from condensery.question import Answer, AnswerEvent, Comparison, Compressed, Question, SearchMode
from condensery.values import (
    ALIAS_VERBS,
    Alias,
    AliasAction,
    Document,
    Floats,
    Hit,
    IndexInfo,
    Metadata,
    ModelInfo,
    ModelLoad,
    ModelReport,
    ModelUnload,
    ModelVersion,
    Page,
    Ranked,
    Rebuild,
    Revision,
    Snapshot,
    SnapshotList,
    Upserted,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RestCall(Call[T], Generic[T]):
    """A request with a JSON body or none; ``read`` gets the reply's JSON (or an event's).

    ``decode`` reads the reply's bytes, where they are not JSON.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    decode: Callable[[bytes], Any] = json.loads


def embed(
    texts: Sequence[str],
    *,
    model: str | None = None,
    prompt_name: str | None = None,
    normalize: bool | None = None,
    truncate: bool = True,
    dimensions: int | None = None,
    dtype: Encoding = "float32",
) -> RestCall[Floats]:
    """Embed each text.

    Args:
        texts: At least one, at most 2,048.
        model: Name of an encoder; None takes the server's default.
        prompt_name: Name of one of the model's prompts, put before each text.
        normalize: Whether vectors get length 1; None leaves it to the model.
        truncate: Cut texts that are too long (else they are an error).
        dimensions: How many of a vector's first numbers to get, of those lengths that the model
            declares (``ModelInfo.dimensions``); None is all.
        dtype: What vectors travel in; they are read back from it, with what that lost.

    Returns:
        Vectors, (texts, dims), float32.
    """
    body = make_body(
        input=list(texts),
        encoding_format="base64",
        model=model,
        prompt_name=prompt_name,
        normalize=normalize,
        truncate=truncate,
        dimensions=dimensions,
        embed_dtype=None if dtype == "float32" else dtype,
    )
    return RestCall(_read_vectors, "POST", "/v1/embeddings", body)


def rerank(
    query: str,
    passages: Sequence[str],
    *,
    model: str | None = None,
    top_n: int | None = None,
    raw_scores: bool = False,
    truncate: bool = True,
) -> RestCall[list[Ranked]]:
    """Order passages by their relevance to ``query``, the best first.

    Args:
        query: What the passages should answer.
        passages: At least one.
        model: Name of a reranker or pair; None takes the server's default.
        top_n: How many to return; None returns all.
        raw_scores: Logits instead of their sigmoid.
        truncate: Cut passages that are too long (else they are an error).
    """
    texts = list(passages)
    body = make_body(
        query=query,
        documents=texts,
        model=model,
        top_n=top_n,
        raw_scores=raw_scores,
        truncate=truncate,
    )
    return RestCall(lambda reply: replies.read_ranked(reply, texts), "POST", "/v1/rerank", body)


def create_index(
    name: str,
    *,
    encoder: str | None = None,
    kind: str = "flat",
    metric: str = "ip",
    options: Mapping[str, int] | None = None,
) -> RestCall[IndexInfo]:
    """Create an index; with the same settings again, it stays as it is.

    Args:
        name: Letters, digits, dots, dashes, underscores.
        encoder: Name of the encoder of its vectors; None takes the server's default.
        kind: ``flat``, ``hnsw`` or ``ivf_pq``.
        metric: ``ip`` (inner product) or ``l2``.
        options: The kind's: ``m``, ``ef_construction``, ``ef_search`` of ``hnsw``; ``nlist``,
            ``nprobe``, ``pq_m``, ``pq_bits`` of ``ivf_pq``. What is left out follows from the
            index's size.
    """
    body = make_body(
        encoder=encoder,
        kind=kind,
        metric=metric,
        options=None if options is None else dict(options),
    )
    return RestCall(replies.read_index, "PUT", index_path(name), body)


def list_indexes() -> RestCall[list[IndexInfo]]:
    """List the indexes and what they hold."""
    return RestCall(replies.read_indexes, "GET", "/v1/indexes")


def drop_index(name: str) -> RestCall[None]:
    """Delete an index and all it holds."""
    return RestCall(read_nothing, "DELETE", index_path(name))


def upsert(
    name: str,
    documents: Sequence[Document],
    *,
    vectors: Floats | None = None,
    fingerprint: str | None = None,
) -> RestCall[Upserted]:
    """Write documents, replacing those of the same ids; they are on disk when this returns.

    Args:
        name: The index.
        documents: Split into passages and embedded by the server, unless there are
        vectors: of whole documents, (documents, dims), made by
        fingerprint: the index's own encoder; ``models`` returns it.
    """
    items: list[dict[str, Any]] = [write_document(document) for document in documents]
    if vectors is not None:
        if len(vectors) != len(items):
            raise InputError(f"vectors: {len(vectors)} for {len(items)} documents", field="vectors")
        for item, vector in zip(items, np.asarray(vectors), strict=True):
            item["vector"] = vector.tolist()
    body = make_body(documents=items, fingerprint=fingerprint)
    return RestCall(replies.read_upserted, "POST", f"{index_path(name)}/documents", body)


def delete(
    name: str, ids: Sequence[str] | None = None, *, filter: Metadata | None = None
) -> RestCall[int]:
    """Delete documents; returns how many there were. They are off the disk when this returns.

    Args:
        name: The index.
        ids: Those to delete; or
        filter: what chooses them, as in ``query``; it must hold a condition.
    """
    body = make_body(ids=None if ids is None else list(ids), filter=filter)
    return RestCall(replies.read_deleted, "POST", f"{index_path(name)}/documents/delete", body)


def query(
    name: str,
    text: str | None = None,
    *,
    vector: Floats | None = None,
    fingerprint: str | None = None,
    top_k: int = 10,
    search: SearchMode | None = None,
    filter: Metadata | None = None,
) -> RestCall[list[Hit]]:
    """Find the passages nearest to a text, or to a vector, the best first.

    Args:
        name: The index.
        text: What to look for; or
        vector: its vector, (dims,), made by
        fingerprint: the index's own encoder; ``models`` returns it.
        top_k: How many passages to find.
        search: By vectors (``dense``), by words (``bm25``) or by both, their ranks fused
            (``hybrid``); None is the server's default.
        filter: Which documents' passages are looked at, as Qdrant has it:
            ``{"must": [{"key": "year", "range": {"gte": 1900}}]}``.
    """
    body = make_body(
        query=text,
        vector=None if vector is None else np.asarray(vector).tolist(),
        fingerprint=fingerprint,
        top_k=top_k,
        mode=search,
        filter=filter,
    )
    return RestCall(replies.read_hits, "POST", f"{index_path(name)}/query", body)


def count(name: str, *, filter: Metadata | None = None) -> RestCall[tuple[int, int]]:
    """Count an index's documents and passages, or those that a filter chooses."""
    body = make_body(filter=filter)
    return RestCall(replies.read_counts, "POST", f"{index_path(name)}/documents/count", body)


def get(name: str, ids: Sequence[str]) -> RestCall[list[Document]]:
    """Return documents by id: those found, in the order of ``ids``."""
    body = {"ids": list(ids)}
    return RestCall(replies.read_documents, "POST", f"{index_path(name)}/documents/get", body)


def scroll(
    name: str,
    *,
    filter: Metadata | None = None,
    limit: int | None = None,
    after: str | None = None,
    with_text: bool = True,
    with_metadata: bool = True,
    with_vectors: bool = False,
) -> RestCall[Page]:
    """Return documents by id, page by page.

    A document that is there all the while is on exactly one page, whatever is written meanwhile.

    Args:
        name: The index.
        filter: Which documents, as in ``query``; None is all.
        limit: Most documents of this page, None is the server's 100; one of long documents may be
            shorter.
        after: The ``next`` of the page before; None begins. After the last page it is None.
        with_text: Whether texts come with them.
        with_metadata: Whether metadata does.
        with_vectors: Whether their passages do, with their vectors.
    """
    body = make_body(
        filter=filter,
        limit=limit,
        after=after,
        with_text=with_text,
        with_metadata=with_metadata,
        with_vectors=with_vectors,
    )
    return RestCall(replies.read_page, "POST", f"{index_path(name)}/documents/scroll", body)


def models() -> RestCall[list[ModelInfo]]:
    """List the models that serve, defaults first."""
    return RestCall(replies.read_models, "GET", "/v1/models")


def report(name: str) -> RestCall[ModelReport]:
    """Return what a model was measured at; ReportNotFound if it never was.

    Args:
        name: The model's, which must serve.
    """
    return RestCall(replies.read_report, "GET", _report_path(name))


def report_card(name: str) -> RestCall[str]:
    """Return a model's card: its report for people, Markdown.

    Args:
        name: The model's, which must serve.
    """
    return RestCall(str, "GET", f"{_report_path(name)}?format=markdown", decode=bytes.decode)


def report_plot(name: str, plot: str) -> RestCall[bytes]:
    """Return a plot of a model's report, PNG.

    Args:
        name: The model's, which must serve.
        plot: The plot's, one of ``report(name).plots``.
    """
    path = f"{_report_path(name)}/plots/{quote(plot, safe='')}.png"
    return RestCall(bytes, "GET", path, decode=bytes)


def ready() -> RestCall[None]:
    """Check that the service is ready; else it is an error."""
    return RestCall(read_nothing, "GET", "/readyz")


def make_body(**fields: Any) -> dict[str, Any]:
    """Leave out what is None, so that the server's defaults hold."""
    return {name: value for name, value in fields.items() if value is not None}


def write_document(document: Document) -> dict[str, Any]:
    """Write a document as bodies hold it."""
    return {"id": document.id, "text": document.text, "metadata": dict(document.metadata)}


def index_path(name: str) -> str:
    """Return the path of an index."""
    return f"/v1/indexes/{quote(name, safe='')}"


def _report_path(name: str) -> str:
    return f"/v1/models/{quote(name, safe='')}/report"


def _read_vectors(reply: Any) -> Floats:
    rows = [base64.b64decode(item["embedding"]) for item in reply["data"]]
    if "embed_dtype" in reply:
        return unpack(b"".join(rows), reply["embed_dtype"], reply["dims"])
    return unpack(b"".join(rows), "float32", len(rows[0]) // 4)


def read_nothing(_reply: Any) -> None:
    """Ignore a reply that only says that it is done."""


# Questions, answers and contexts


def answer(question: str, **how: Unpack[QuestionOptions]) -> RestCall[Answer]:
    """Answer a question from passages.

    Args:
        question: What to answer.
        **how: Where the passages are: ``documents`` (texts, or values with ids and metadata), an
            ``index`` (of which ``search`` takes ``top_k`` that ``filter`` allows), or the
            ``context`` of passages that ``compress`` read for this question. How to read them:
            ``model`` (a pair), ``top_n`` (0 is all), ``mode``, ``rate``, ``max_context_vectors``,
            ``target_ms``, ``compress_timeout_ms``, ``min_relevance``. How to answer:
            ``max_tokens``, ``stop``, ``temperature``, ``top_p``, ``seed``, ``logprobs``.
            ``condensery.question`` says what each means; what is left out is as there, or the
            pair's own default.
    """
    return RestCall(
        replies.read_answer,
        "POST",
        "/v1/rag/answer",
        _write_question(make_question(question, **how)),
    )


def answer_stream(question: str, **how: Unpack[QuestionOptions]) -> RestCall[Iterable[AnswerEvent]]:
    """Answer a question as ``answer`` does, while it is generated.

    Yields:
        First ``Retrieved``, then ``Delta`` by ``Delta``, at last the whole ``Answer``, whose text
        is what the deltas join to.
    """
    body = {**_write_question(make_question(question, **how)), "stream": True}
    return RestCall(replies.read_event, "POST", "/v1/rag/answer", body)


def compare(question: str, **how: Unpack[QuestionOptions]) -> RestCall[Comparison]:
    """Answer a question as ``answer`` does, and from the passages' own text, and compare."""
    body = _write_question(make_question(question, **how))
    return RestCall(replies.read_comparison, "POST", "/v1/rag/compare", body)


def compress(
    question: str,
    documents: DocumentInputs,
    *,
    model: str | None = None,
    rate: int | None = None,
    ttl_seconds: float | None = None,
    keep: bool = True,
) -> RestCall[Compressed]:
    """Compress and score documents for a question; the server keeps the vectors for its answer.

    Args:
        question: What they are read for; ``answer`` takes the context for the same one only.
        documents: Texts, or values with ids.
        model: Name of a pair; None takes the server's default.
        rate: Tokens a memory vector, of the rates that the pair has; None is the finest.
        ttl_seconds: How long to keep the vectors; None is the server's ten minutes.
        keep: Whether to keep them; else there is no ``context``, only what became of each.
    """
    body = make_body(
        query=question,
        documents=[write_document(document) for document in make_documents(documents)],
        model=model,
        ratio=rate,
        ttl_s=ttl_seconds,
        **{"return": "handle" if keep else "stats"},
    )
    return RestCall(replies.read_compressed, "POST", "/v1/compress", body)


def release(context: str) -> RestCall[None]:
    """Release kept vectors before their time is over."""
    return RestCall(read_nothing, "DELETE", f"/v1/contexts/{quote(context, safe='')}")


def _write_question(question: Question) -> dict[str, Any]:
    documents, index, compression = question.documents, question.index, question.compression
    return make_body(
        query=question.query,
        documents=None if documents is None else [write_document(item) for item in documents],
        index=None
        if index is None
        else make_body(name=index.name, top_k=index.top_k, mode=index.mode, filter=index.filter),
        context=question.context,
        rerank=make_body(top_n=question.rerank.top_n),
        compression=make_body(
            mode=compression.mode,
            ratio=compression.ratio,
            max_context_vectors=compression.max_context_vectors,
            target_ms=compression.target_ms,
            timeout_ms=compression.timeout_ms,
        ),
        min_relevance=question.min_relevance,
        model=question.model,
        max_tokens=question.max_tokens,
        stop=list(question.stop),
        temperature=question.temperature,
        top_p=question.top_p,
        seed=question.seed,
        logprobs=question.logprobs,
    )


# Maintenance of indexes: aliases, snapshots, rebuilds

ALIASES_PATH = "/v1/indexes/aliases"
# What an action calls its target.
TARGET_FIELDS = {"create": "index", "rename": "to"}


def aliases() -> RestCall[list[Alias]]:
    """List every alias and where it leads, by name."""
    return RestCall(_read_index_aliases, "GET", ALIASES_PATH)


def update_aliases(actions: Sequence[AliasAction]) -> RestCall[list[Alias]]:
    """Make all of these changes, at one moment, or none; returns the aliases then.

    Args:
        actions: Made in this order; they are on disk when this returns. To swap what two aliases
            point at, create both anew.
    """
    body = {"actions": [_write_action(action) for action in actions]}
    return RestCall(_read_index_aliases, "POST", ALIASES_PATH, body)


def create_snapshot(name: str) -> RestCall[Snapshot]:
    """Copy an index as it is now, while it goes on; the copy is on disk when this returns."""
    return RestCall(_read_snapshot, "POST", _snapshots_path(name))


def list_snapshots(name: str) -> RestCall[SnapshotList]:
    """List an index's snapshots, also of an index that is no more."""
    return RestCall(_read_snapshots, "GET", _snapshots_path(name))


def delete_snapshot(name: str, snapshot: str) -> RestCall[None]:
    """Delete a snapshot, whether it can be used or not."""
    return RestCall(read_nothing, "DELETE", _snapshots_path(name, snapshot))


def restore_snapshot(name: str, snapshot: str, *, into: str | None = None) -> RestCall[IndexInfo]:
    """Make an index of a snapshot; on disk when this returns.

    Args:
        name: Whose snapshot.
        snapshot: Its id.
        into: The index to make; None is ``name``. One that is there serves until the new one is
            whole, and stays as it is if that fails.
    """
    path = f"{_snapshots_path(name, snapshot)}/restore"
    return RestCall(read_index, "POST", path, make_body(into=into))


def rebuild_index(
    name: str,
    *,
    encoder: str | None = None,
    metric: str | None = None,
    kind: str | None = None,
    options: Mapping[str, int] | None = None,
) -> RestCall[Rebuild]:
    """Begin to make an index anew for another encoder, while it serves and is written; or go on.

    Args:
        name: The index.
        encoder: Name of the new encoder; None is the index's own, as it runs today.
        metric: As for ``create_index``; None leaves it as it is.
        kind: As for ``create_index``; None leaves it as it is.
        options: The kind's, as for ``create_index``; None leaves them as they are, if the kind is.
    """
    body = make_body(
        encoder=encoder,
        metric=metric,
        kind=kind,
        options=None if options is None else dict(options),
    )
    return RestCall(_read_rebuild, "POST", f"{index_path(name)}/rebuild", body)


def rebuild_status(name: str) -> RestCall[Rebuild]:
    """Return how far an index's rebuild has come, or how the last one ended."""
    return RestCall(_read_rebuild, "GET", f"{index_path(name)}/rebuild")


def cancel_rebuild(name: str) -> RestCall[None]:
    """Cancel an index's rebuild; the index stays as it was."""
    return RestCall(read_nothing, "DELETE", f"{index_path(name)}/rebuild")


def _read_rebuild(reply: Any) -> Rebuild:
    return read_dataclass(Rebuild, reply)


def _snapshots_path(name: str, snapshot: str | None = None) -> str:
    path = f"{index_path(name)}/snapshots"
    return path if snapshot is None else f"{path}/{quote(snapshot, safe='')}"


def _read_snapshot(reply: Any) -> Snapshot:
    return read_dataclass(Snapshot, reply)


def _read_snapshots(reply: Any) -> SnapshotList:
    return SnapshotList(
        tuple(read_dataclass(Snapshot, item) for item in reply["data"]), reply["refused"]
    )


def _write_action(action: AliasAction) -> dict[str, Any]:
    if action.verb not in ALIAS_VERBS:
        raise InputError(
            f"actions: {shorten(action.verb)} is not one of {', '.join(ALIAS_VERBS)}",
            field="actions",
        )
    fields = {"alias": action.alias}
    if action.verb in TARGET_FIELDS:
        fields[TARGET_FIELDS[action.verb]] = action.target or ""
    return {f"{action.verb}_alias": fields}


def _read_index_aliases(reply: Any) -> list[Alias]:
    return [read_dataclass(Alias, item) for item in reply["data"]]


# Loading and unloading models, and their aliases; these need a key of scope ``admin``


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
    return RestCall(_read_load, "POST", _model_path(name, action), make_body(version=version))


def unload_model(name: str, *, force: bool = False) -> RestCall[ModelUnload]:
    """Unload a model; its last requests are finished when this returns, and its memory is free.

    ModelInUse says what depends on it.

    Args:
        name: The model's own, no alias.
        force: Though it is a default, or the encoder of an index.
    """
    return RestCall(_read_unload, "POST", _model_path(name, "unload"), {"force": force})


def stored_models() -> RestCall[list[ModelVersion]]:
    """List every stored version of every model, and which of them serve."""
    return RestCall(_read_versions, "POST", "/v2/repository/index", {})


def set_aliases(aliases: Mapping[str, str | None]) -> RestCall[dict[str, str]]:
    """Set aliases of models, or remove them, all at once; returns all that there are.

    Args:
        aliases: By alias, a running model or another alias; None removes the alias.
    """
    return RestCall(_read_model_aliases, "POST", "/v1/models/aliases", {"aliases": dict(aliases)})


def _model_path(name: str, action: str) -> str:
    return f"/v1/models/{quote(name, safe='')}/{action}"


def _read_load(reply: Any) -> ModelLoad:
    (info,) = read_models({"data": [reply["model"]]})
    previous = reply["previous"]
    return ModelLoad(
        model=info,
        previous=None if previous is None else read_dataclass(Revision, previous),
        changed=reply["changed"],
        seconds=reply["seconds"],
        memory_bytes=reply["memory_bytes"],
        stranded_indexes=tuple(reply["stranded_indexes"]),
    )


def _read_unload(reply: Any) -> ModelUnload:
    indexes = tuple(reply["stranded_indexes"])
    return read_dataclass(ModelUnload, {**reply, "stranded_indexes": indexes})


def _read_versions(reply: Any) -> list[ModelVersion]:
    return [read_dataclass(ModelVersion, item) for item in reply]


def _read_model_aliases(reply: Any) -> dict[str, str]:
    return dict(reply["aliases"])
