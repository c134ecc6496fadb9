"""The service's operations as REST calls; those on answers are in ``rest_answers``."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import numpy as np

from condensery.client import rest_replies as replies
from condensery.client.calls import Call
from condensery.encodings import Encoding, unpack
from condensery.errors import InputError
from condensery.questions import SearchMode
from condensery.values import (
    Document,
    Floats,
    Hit,
    IndexInfo,
    Metadata,
    ModelInfo,
    ModelReport,
    Page,
    Ranked,
    Upserted,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RestCall(Call[T], Generic[T]):
    """A request with a JSON body or none; ``read`` gets the reply's JSON (or an event's).

    ``decode`` is what the reply's bytes become first, where they are no JSON.
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
        fingerprint: the index's own encoder, as ``models`` tells.
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
        fingerprint: the index's own encoder, as ``models`` tells.
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
    """Return documents by id: those found, in the order asked."""
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
    return RestCall(replies.read_report, "GET", _report(name))


def report_card(name: str) -> RestCall[str]:
    """Return a model's card: its report for people, Markdown.

    Args:
        name: The model's, which must serve.
    """
    return RestCall(str, "GET", f"{_report(name)}?format=markdown", decode=bytes.decode)


def report_plot(name: str, plot: str) -> RestCall[bytes]:
    """Return a plot of a model's report, PNG.

    Args:
        name: The model's, which must serve.
        plot: The plot's, one of ``report(name).plots``.
    """
    path = f"{_report(name)}/plots/{quote(plot, safe='')}.png"
    return RestCall(bytes, "GET", path, decode=bytes)


def ready() -> RestCall[None]:
    """Ask whether the service is ready; an error says that it is not."""
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


def _report(name: str) -> str:
    return f"/v1/models/{quote(name, safe='')}/report"


def _read_vectors(reply: Any) -> Floats:
    rows = [base64.b64decode(item["embedding"]) for item in reply["data"]]
    if "embed_dtype" in reply:
        return unpack(b"".join(rows), reply["embed_dtype"], reply["dims"])
    return unpack(b"".join(rows), "float32", len(rows[0]) // 4)


def read_nothing(reply: Any) -> None:
    """Read a reply that says nothing but that it was done."""
    del reply
