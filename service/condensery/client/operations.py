"""What the service does, once: the methods of all four clients.

An operation is a method of ``Operations``. Its decorator says where it is over REST and over gRPC,
its signature is the clients' own, its return type what the reply is read as, and its body names the
fields as REST does. To add one is to add a method here.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Unpack

import numpy as np

from condensery import wire
from condensery.client.questions import (
    DocumentInputs,
    QuestionOptions,
    make_documents,
    make_question,
)
from condensery.client.transports import Call, call, operation, stream
from condensery.encodings import Encoding, unpack
from condensery.errors import InputError, shorten
from condensery.question import Answer, AnswerEvent, Comparison, Compressed
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
    SearchMode,
    Snapshot,
    SnapshotList,
    Upserted,
)

# What an action on aliases calls its target.
TARGET_FIELDS = {"create": "index", "rename": "to"}


class Operations:
    """The service's operations, of which each client is one way to call them."""

    @operation("POST /v1/embeddings", "Embedding/EmbedBatch")
    def embed(
        self,
        texts: Sequence[str],
        *,
        model: str | None = None,
        prompt_name: str | None = None,
        normalize: bool | None = None,
        truncate: bool = True,
        dimensions: int | None = None,
        dtype: Encoding = "float32",
        input_type: str | None = None,
        instruction: str | None = None,
    ) -> Call[Floats]:
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
            input_type: What the texts are for, in place of a prompt's name: ``search_query``,
                ``search_document``, ``classification`` or ``clustering``.
            instruction: The same in your words, in place of both, for models that read one.

        Returns:
            Vectors, (texts, dims), float32.
        """
        embedding = call(
            input=list(texts),
            model=model,
            prompt_name=prompt_name,
            normalize=normalize,
            truncate=truncate,
            dimensions=dimensions,
            embed_dtype=None if dtype == "float32" else dtype,
            input_type=input_type,
            instruction=instruction,
        )
        return embedding.over_rest(encoding_format="base64").read_by(
            rest=_read_base64_rows,
            rpc=lambda reply: unpack(reply.vectors, reply.dtype, reply.dims),
        )

    @operation("POST /v1/rerank", "Rerank/Rerank", within="results")
    def rerank(
        self,
        query: str,
        passages: Sequence[str],
        *,
        model: str | None = None,
        top_n: int | None = None,
        raw_scores: bool = False,
        truncate: bool = True,
    ) -> Call[list[Ranked]]:
        """Order passages by their relevance to ``query``, the best first.

        Args:
            query: What the passages should answer.
            passages: At least one.
            model: Name of a reranker or pair; None takes the server's default.
            top_n: How many to return; None returns all, as 0 does over gRPC (REST refuses it).
            raw_scores: Logits instead of their sigmoid.
            truncate: Cut passages that are too long (else they are an error).
        """
        texts = list(passages)
        ranking = call(
            query=query,
            documents=texts,
            model=model,
            top_n=top_n,
            raw_scores=raw_scores,
            truncate=truncate,
        )
        return ranking.then(
            lambda ranked: [replace(item, text=texts[item.index]) for item in ranked]
        )

    @operation("PUT /v1/indexes/{name}", "Index/Create")
    def create_index(
        self,
        name: str,
        *,
        encoder: str | None = None,
        kind: str = "flat",
        metric: str = "ip",
        options: Mapping[str, int] | None = None,
    ) -> Call[IndexInfo]:
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
        return call(name=name, encoder=encoder, kind=kind, metric=metric, options=options)

    @operation("GET /v1/indexes", "Index/List", within="data")
    def list_indexes(self) -> Call[list[IndexInfo]]:
        """List the indexes and what they hold."""
        return call()

    @operation("DELETE /v1/indexes/{name}", "Index/Drop")
    def drop_index(self, name: str) -> Call[None]:
        """Delete an index and all it holds."""
        return call(name=name)

    @operation("POST /v1/indexes/{index}/documents", "Index/Upsert")
    def upsert(
        self,
        name: str,
        documents: Sequence[Document],
        *,
        vectors: Floats | None = None,
        fingerprint: str | None = None,
    ) -> Call[Upserted]:
        """Write documents, replacing those of the same ids; they are on disk when this returns.

        Args:
            name: The index.
            documents: Split into passages and embedded by the server, unless there are
            vectors: of whole documents, (documents, dims), made by
            fingerprint: the index's own encoder; ``models`` returns it.
        """
        written = call(index=name, documents=list(documents), fingerprint=fingerprint)
        if vectors is None:
            return written
        if len(vectors) != len(documents):
            raise InputError.at("vectors", f"{len(vectors)} for {len(documents)} documents")
        rows = zip(documents, np.asarray(vectors), strict=True)
        items = [{**wire.write(document), "vector": vector} for document, vector in rows]
        return written.over_rest(documents=items).over_rpc(vectors=vectors)

    @operation("POST /v1/indexes/{index}/documents/delete", "Index/Delete", within="deleted")
    def delete(
        self, name: str, ids: Sequence[str] | None = None, *, filter: Metadata | None = None
    ) -> Call[int]:
        """Delete documents; returns how many there were. They are off the disk when this returns.

        Args:
            name: The index.
            ids: Those to delete; or
            filter: what chooses them, as in ``query``; it must hold a condition.
        """
        if ids is not None and not ids and filter is not None:  # which a message can't hold
            raise InputError.at("ids", "give `ids` or `filter`, one of them; got both")
        return call(index=name, ids=None if ids is None else list(ids), filter=filter)

    @operation("POST /v1/indexes/{index}/query", "Index/Query", within="results")
    def query(
        self,
        name: str,
        text: str | None = None,
        *,
        vector: Floats | None = None,
        fingerprint: str | None = None,
        top_k: int = 10,
        search: SearchMode | None = None,
        filter: Metadata | None = None,
    ) -> Call[list[Hit]]:
        """Find the passages nearest to a text, or to a vector, the best first.

        Args:
            name: The index.
            text: What to look for; or
            vector: its vector, (dims,), made by
            fingerprint: the index's own encoder; ``models`` returns it.
            top_k: How many passages to find; over gRPC 0 is 10 (REST refuses it).
            search: By vectors (``dense``), by words (``bm25``) or by both, their ranks fused
                (``hybrid``); None is the server's default.
            filter: Which documents' passages are looked at, as Qdrant has it:
                ``{"must": [{"key": "year", "range": {"gte": 1900}}]}``.
        """
        if text is not None and vector is not None:  # a message would hold the last one alone
            raise InputError.at("query", "give a text or a vector, not both")
        return call(
            index=name,
            query=text,
            vector=vector,
            fingerprint=fingerprint,
            top_k=top_k,
            mode=search,
            filter=filter,
        )

    @operation(
        "POST /v1/indexes/{index}/documents/count",
        "Index/Count",
        within=("documents", "passages"),
    )
    def count(self, name: str, *, filter: Metadata | None = None) -> Call[tuple[int, int]]:
        """Count an index's documents and passages, or those that a filter chooses."""
        return call(index=name, filter=filter)

    @operation("POST /v1/indexes/{index}/documents/get", "Index/GetDocuments", within="documents")
    def get(self, name: str, ids: Sequence[str]) -> Call[list[Document]]:
        """Return documents by id: those found, in the order of ``ids``."""
        return call(index=name, ids=list(ids))

    @operation("POST /v1/indexes/{index}/documents/scroll", "Index/Scroll")
    def scroll(
        self,
        name: str,
        *,
        filter: Metadata | None = None,
        limit: int | None = None,
        after: str | None = None,
        with_text: bool = True,
        with_metadata: bool = True,
        with_vectors: bool = False,
    ) -> Call[Page]:
        """Return documents by id, page by page.

        A document that is there all the while is on exactly one page, whatever is written
        meanwhile.

        Args:
            name: The index.
            filter: Which documents, as in ``query``; None is all.
            limit: Most documents of this page, None is the server's 100; one of long documents may
                be shorter.
            after: The ``next`` of the page before; None begins. After the last page it is None.
            with_text: Whether texts come with them.
            with_metadata: Whether metadata does.
            with_vectors: Whether their passages do, with their vectors.
        """
        page = call(
            index=name,
            filter=filter,
            limit=limit,
            after=after,
            with_text=with_text,
            with_metadata=with_metadata,
            with_vectors=with_vectors,
        )
        return page.then(_fill_passages) if with_vectors else page

    @operation("GET /v1/models", "Models/List", within="data")
    def models(self) -> Call[list[ModelInfo]]:
        """List the models that serve, defaults first."""
        return call()

    @operation("GET /v1/models/{name}/report", "Models/GetReport")
    def report(self, name: str) -> Call[ModelReport]:
        """Return what a model was measured at; ReportNotFound if it never was.

        Args:
            name: The model's, which must serve.
        """
        return call(name=name)

    @operation("GET /v1/models/{name}/report?format=markdown", "Models/GetReport")
    def report_card(self, name: str) -> Call[str]:
        """Return a model's card: its report for people, Markdown.

        Args:
            name: The model's, which must serve.
        """
        card = call(name=name).over_rpc(with_card=True)
        return card.read_by(rest=bytes.decode, rpc=attrgetter("card"))

    @operation("GET /v1/models/{name}/report/plots/{plot}.png", "Models/GetReport")
    def report_plot(self, name: str, plot: str) -> Call[bytes]:
        """Return a plot of a model's report, PNG.

        Args:
            name: The model's, which must serve.
            plot: The plot's, one of ``report(name).plots``.
        """
        picture = call(name=name).over_rest(plot=plot).over_rpc(with_plots=[plot])
        return picture.read_by(rest=bytes, rpc=lambda reply: bytes(reply.pictures[plot]))

    # Questions, answers and contexts

    @operation("POST /v1/rag/answer", "Rag/Answer")
    def answer(self, question: str, **how: Unpack[QuestionOptions]) -> Call[Answer]:
        """Answer a question from passages.

        Args:
            question: What to answer.
            **how: Where the passages are: ``documents`` (texts, or values with ids and metadata),
                an ``index`` (of which ``search`` takes ``top_k`` that ``filter`` allows), or the
                ``context`` of passages that ``compress`` read for this question. How to read them:
                ``model`` (a pair), ``top_n`` (0 is all), ``mode``, ``rate``,
                ``max_context_vectors``, ``target_ms``, ``compress_timeout_ms``, ``min_relevance``.
                How to answer: ``max_tokens``, ``stop``, ``temperature``, ``top_p``, ``seed``,
                ``logprobs``. ``condensery.question`` says what each means; what is left out is as
                there, or the pair's own default.
        """
        return Call(make_question(question, **how))

    @stream("POST /v1/rag/answer", "Rag/AnswerStream")
    def answer_stream(self, question: str, **how: Unpack[QuestionOptions]) -> Call[AnswerEvent]:
        """Answer a question as ``answer`` does, while it is generated.

        Yields:
            First ``Retrieved``, then ``Delta`` by ``Delta``, at last the whole ``Answer``, whose
            text is what the deltas join to.
        """
        return Call(make_question(question, **how)).over_rest(stream=True)

    @operation("POST /v1/rag/compare", "Rag/Compare")
    def compare(self, question: str, **how: Unpack[QuestionOptions]) -> Call[Comparison]:
        """Answer a question as ``answer`` does, and from the passages' own text, and compare."""
        return Call(make_question(question, **how))

    @operation("POST /v1/compress", "Rag/Compress")
    def compress(
        self,
        question: str,
        documents: DocumentInputs,
        *,
        model: str | None = None,
        rate: int | None = None,
        ttl_seconds: float | None = None,
        keep: bool = True,
    ) -> Call[Compressed]:
        """Compress and score documents for a question; the server keeps the vectors for its answer.

        Args:
            question: What they are read for; ``answer`` takes the context for the same one only.
            documents: Texts, or values with ids.
            model: Name of a pair; None takes the server's default.
            rate: Tokens a memory vector, of the rates that the pair has; None is the finest.
            ttl_seconds: How long to keep the vectors; None is the server's ten minutes.
            keep: Whether to keep them; else there is no ``context``, only what became of each.
        """
        compressed = call(
            query=question,
            documents=make_documents(documents),
            model=model,
            ratio=rate,
            ttl_s=ttl_seconds,
        )
        kept = {"return": "handle" if keep else "stats"}
        return compressed.over_rest(**kept).over_rpc(keep=keep)

    @operation("DELETE /v1/contexts/{context}", "Rag/ReleaseContext")
    def release(self, context: str) -> Call[None]:
        """Release kept vectors before their time is over."""
        return call(context=context)

    # Maintenance of indexes: aliases, snapshots, rebuilds

    @operation("GET /v1/indexes/aliases", "IndexUpkeep/ListAliases", within="data")
    def aliases(self) -> Call[list[Alias]]:
        """List every alias and where it leads, by name."""
        return call()

    @operation("POST /v1/indexes/aliases", "IndexUpkeep/UpdateAliases", within="data")
    def update_aliases(self, actions: Sequence[AliasAction]) -> Call[list[Alias]]:
        """Make all of these changes, at one moment, or none; returns the aliases then.

        Args:
            actions: Made in this order; they are on disk when this returns. To swap what two
                aliases point at, create both anew.
        """
        return call(actions=[_write_action(action) for action in actions])

    @operation("POST /v1/indexes/{index}/snapshots", "IndexUpkeep/CreateSnapshot")
    def create_snapshot(self, name: str) -> Call[Snapshot]:
        """Copy an index as it is now, while it goes on; the copy is on disk when this returns."""
        return call(index=name)

    @operation("GET /v1/indexes/{index}/snapshots", "IndexUpkeep/ListSnapshots")
    def list_snapshots(self, name: str) -> Call[SnapshotList]:
        """List an index's snapshots, also of an index that is no more."""
        return call(index=name)

    @operation("DELETE /v1/indexes/{index}/snapshots/{snapshot}", "IndexUpkeep/DeleteSnapshot")
    def delete_snapshot(self, name: str, snapshot: str) -> Call[None]:
        """Delete a snapshot, whether it can be used or not."""
        return call(index=name, snapshot=snapshot)

    @operation(
        "POST /v1/indexes/{index}/snapshots/{snapshot}/restore", "IndexUpkeep/RestoreSnapshot"
    )
    def restore_snapshot(
        self, name: str, snapshot: str, *, into: str | None = None
    ) -> Call[IndexInfo]:
        """Make an index of a snapshot; on disk when this returns.

        Args:
            name: Whose snapshot.
            into: The index to make; None is ``name``. One that is there serves until the new one is
                whole, and stays as it is if that fails.
        """
        return call(index=name, snapshot=snapshot, into=into)

    @operation("POST /v1/indexes/{index}/rebuild", "IndexUpkeep/RebuildIndex")
    def rebuild_index(
        self,
        name: str,
        *,
        encoder: str | None = None,
        metric: str | None = None,
        kind: str | None = None,
        options: Mapping[str, int] | None = None,
    ) -> Call[Rebuild]:
        """Begin to make an index anew for another encoder while it serves and is written; or go on.

        Args:
            name: The index.
            encoder: Name of the new encoder; None is the index's own, as it runs today.
            metric: As for ``create_index``; None leaves it as it is.
            kind: As for ``create_index``; None leaves it as it is.
            options: The kind's, as for ``create_index``; None leaves them as they are, if the kind
                is.
        """
        return call(index=name, encoder=encoder, metric=metric, kind=kind, options=options)

    @operation("GET /v1/indexes/{index}/rebuild", "IndexUpkeep/GetRebuild")
    def rebuild_status(self, name: str) -> Call[Rebuild]:
        """Return how far an index's rebuild has come, or how the last one ended."""
        return call(index=name)

    @operation("DELETE /v1/indexes/{index}/rebuild", "IndexUpkeep/CancelRebuild")
    def cancel_rebuild(self, name: str) -> Call[None]:
        """Cancel an index's rebuild; the index stays as it was."""
        return call(index=name)

    # Loading and unloading models, and their aliases; these need a key of scope ``admin``

    @operation("POST /v1/models/{name}/{action}", "Admin/LoadModel")
    def load_model(
        self, name: str, *, version: str | None = None, again: bool = False
    ) -> Call[ModelLoad]:
        """Load a stored model and let it serve, in place of the version that does.

        The old one serves until the new one is checked and warm. A load that fails raises
        ModelNotLoaded with the reason, and what served before serves on.

        Args:
            name: In the server's stores.
            version: A whole number; None is the highest.
            again: Load it though it serves already.
        """
        load = call(name=name, version=version).over_rest(action="reload" if again else "load")
        return load.over_rpc(again=again)

    @operation("POST /v1/models/{name}/unload", "Admin/UnloadModel")
    def unload_model(self, name: str, *, force: bool = False) -> Call[ModelUnload]:
        """Unload a model; its last requests are finished when this returns, and its memory is free.

        ModelInUse says what depends on it.

        Args:
            name: The model's own, no alias.
            force: Though it is a default, or the encoder of an index.
        """
        return replace(call(name=name, force=force), known={"id": name})

    @operation("POST /v2/repository/index", "Admin/ListModels", within="data")
    def stored_models(self) -> Call[list[ModelVersion]]:
        """List every stored version of every model, and which of them serve."""
        return call()

    @operation("POST /v1/models/aliases", "Admin/SetAlias", within="aliases")
    def set_aliases(self, aliases: Mapping[str, str | None]) -> Call[dict[str, str]]:
        """Set aliases of models, or remove them, all at once; returns all that there are.

        Args:
            aliases: By alias, a running model or another alias, or a pair with the index that it
                answers from (``pair@index?top_k=5&mode=bm25``); None removes the alias.
        """
        return call(aliases=dict(aliases))


def _read_base64_rows(body: bytes) -> Floats:
    reply = json.loads(body)
    rows = [base64.b64decode(item["embedding"]) for item in reply["data"]]
    if "embed_dtype" in reply:
        return unpack(b"".join(rows), reply["embed_dtype"], reply["dims"])
    return unpack(b"".join(rows), "float32", len(rows[0]) // 4)


def _fill_passages(page: Page) -> Page:
    """Tell documents without passages from those whose passages were not asked for."""
    documents = (replace(item, passages=item.passages or ()) for item in page.documents)
    return replace(page, documents=tuple(documents))


def _write_action(action: AliasAction) -> dict[str, dict[str, str]]:
    if action.verb not in ALIAS_VERBS:
        raise InputError.at(
            "actions", f"{shorten(action.verb)} is not one of {', '.join(ALIAS_VERBS)}"
        )
    fields = {"alias": action.alias}
    if action.verb in TARGET_FIELDS:
        fields[TARGET_FIELDS[action.verb]] = action.target or ""
    return {f"{action.verb}_alias": fields}
