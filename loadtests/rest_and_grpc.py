"""The two doors of a service, as blocking clients: a job is one request, its reply checked."""

import json
import os
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
import numpy as np
import requests
from profiles import Job
from requests.adapters import HTTPAdapter
from texts import PASSAGES as TEXTS
from texts import QUESTIONS, SAMPLE_IDS

from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

INDEX = "samples"
WRITTEN = "load-test"  # made by load.py, and dropped by it
WRITTEN_DOCUMENTS = 2000  # different ones: then writes replace
UNIT = 0.01  # how far a length may be from 1: bf16 forward, fp32 normalisation
REPLY_SECONDS = 120.0
CONNECTIONS = 256
# What proves who asks, of a server with keys: as REST's header and as gRPC's metadata.
KEY = {"authorization": f"Bearer {key}"} if (key := os.environ.get("CONDENSERY_API_KEY")) else {}


class Wrong(Exception):
    """A reply came, and is not what it should be."""


class Refused(Exception):
    """The server said that it has too much to do, and when to come back."""


def need(holds: bool, what: str, got: object) -> None:
    if not holds:
        raise Wrong(f"{what}: {str(got)[:200]}")


def check_vectors(rows: Any, count: int) -> None:
    vectors = np.asarray(rows, np.float32)
    need(vectors.ndim == 2 and len(vectors) == count, "vectors", vectors.shape)
    lengths = np.linalg.norm(vectors, axis=1)
    need(bool(np.all(np.abs(lengths - 1) < UNIT)), "lengths", lengths)


def check_ranks(ranks: Sequence[tuple[int, float]], count: int) -> None:
    scores = [score for _, score in ranks]
    need(sorted(place for place, _ in ranks) == list(range(count)), "places", ranks)
    need(scores == sorted(scores, reverse=True), "scores out of order", scores)
    need(all(0 <= score <= 1 for score in scores), "scores out of range", scores)


def check_hits(hits: Sequence[tuple[str, float]], count: int) -> None:
    need(len(hits) == count, "passages", len(hits))
    strangers = {name for name, _ in hits} - SAMPLE_IDS
    need(not strangers, "passages that are not in the index", strangers)
    scores = [score for _, score in hits]
    need(scores == sorted(scores, reverse=True), "scores out of order", scores)


def check_answer(cited: Iterable[str], status: str, vectors: int, tokens: int) -> None:
    names = list(cited)
    need(bool(names) and set(names) <= SAMPLE_IDS, "citations", names)
    need(status == "applied", "compression status", status)
    need(vectors < tokens, "nothing was compressed", (vectors, tokens))


def documents(count: int) -> list[dict[str, str]]:
    """Return documents to write: over and over the same, each with another text."""
    numbers = random.sample(range(WRITTEN_DOCUMENTS), count)
    return [{"id": str(number), "text": random.choice(TEXTS)} for number in numbers]


class RestDoor:
    name = "REST"

    def __init__(self, url: str, _: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.headers.update(KEY)
        adapter = HTTPAdapter(pool_connections=1, pool_maxsize=CONNECTIONS)
        self.session.mount("http://", adapter)
        self.session.mount("https://", adapter)

    def close(self) -> None:
        self.session.close()

    def run(self, job: Job) -> float | None:
        """Do a job; returns when a stream's first words came.

        Raises:
            Refused, Wrong: The reply is that.
            requests.RequestException: There is none.
        """
        if job in ("embed 1", "embed 16"):
            texts = random.sample(TEXTS, 16) if job == "embed 16" else [random.choice(QUESTIONS)]
            check_vectors(self.post("/embed", {"inputs": texts}).json(), len(texts))
        elif job == "rerank 8":
            body = {"query": random.choice(QUESTIONS), "texts": random.sample(TEXTS, 8)}
            ranks = self.post("/rerank", body).json()
            check_ranks([(rank["index"], rank["score"]) for rank in ranks], 8)
        elif job == "query":
            body = {"query": random.choice(QUESTIONS), "top_k": 5}
            hits = self.post(f"/v1/indexes/{INDEX}/query", body).json()["results"]
            check_hits([(hit["document_id"], hit["score"]) for hit in hits], 5)
        elif job == "write 4":
            written = self.post(f"/v1/indexes/{WRITTEN}/documents", {"documents": documents(4)})
            need(bool(written.json()), "reply", written.text)
        else:
            return self.answer(streamed=job == "answer streamed")
        return None

    def answer(self, *, streamed: bool) -> float | None:
        body = {"query": random.choice(QUESTIONS), "index": {"name": INDEX}, "max_tokens": 24}
        if not streamed:
            self.check(self.post("/v1/rag/answer", body).json())
            return None
        first, event, whole = None, "", None
        with self.post("/v1/rag/answer", {**body, "stream": True}, stream=True) as reply:
            for line in reply.iter_lines(decode_unicode=True):
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                    if event == "message":
                        first = first or time.perf_counter()
                elif name == "data" and event == "error":
                    raise Wrong(f"an error in the stream: {value[:200]}")
                elif name == "data" and event == "final_answer":
                    whole = json.loads(value)
        need(whole is not None and bool(whole["generated_answer"]), "no end of the stream", whole)
        return first

    def check(self, answer: Any) -> None:
        block = answer["compression"]
        cited = (citation["document_id"] for citation in answer["citations"])
        check_answer(cited, block["status"], block["vectors_out"], block["tokens_in"])

    def post(self, path: str, body: Any, *, stream: bool = False) -> requests.Response:
        reply = self.session.post(self.url + path, json=body, stream=stream, timeout=REPLY_SECONDS)
        if reply.status_code == 429 and "retry-after" in reply.headers:
            raise Refused(reply.text[:200])
        need(reply.status_code == 200, f"status {reply.status_code}", reply.text)
        return reply


class GrpcDoor:
    name = "gRPC"

    def __init__(self, _: str, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.embedding = stubs.EmbeddingStub(self.channel)
        self.reranking = stubs.RerankStub(self.channel)
        self.index = stubs.IndexStub(self.channel)
        self.rag = stubs.RagStub(self.channel)

    def close(self) -> None:
        self.channel.close()

    def run(self, job: Job) -> float | None:
        """Do a job, as REST's; what fails is a ``grpc.RpcError``."""
        try:
            return self.call(job)
        except grpc.RpcError as error:
            trailers = dict(error.trailing_metadata() or ())
            pushed = "grpc-retry-pushback-ms" in trailers
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and pushed:
                raise Refused(error.details()) from None
            raise Wrong(f"{error.code().name}: {error.details()}") from None

    def call(self, job: Job) -> float | None:
        options: dict[str, Any] = {"timeout": REPLY_SECONDS, "metadata": tuple(KEY.items())}
        if job in ("embed 1", "embed 16"):
            texts = random.sample(TEXTS, 16) if job == "embed 16" else [random.choice(QUESTIONS)]
            embedded = self.embedding.EmbedBatch(pb.EmbedBatchRequest(texts=texts), **options)
            rows = np.frombuffer(embedded.vectors, "<f4").reshape(-1, embedded.dims)
            check_vectors(rows, len(texts))
        elif job == "rerank 8":
            request = pb.RerankRequest(
                query=random.choice(QUESTIONS), passages=random.sample(TEXTS, 8)
            )
            ranked = self.reranking.Rerank(request, **options).results
            check_ranks([(result.index, result.score) for result in ranked], 8)
        elif job == "query":
            query = pb.QueryRequest(index=INDEX, query=random.choice(QUESTIONS), top_k=5)
            hits = self.index.Query(query, **options).hits
            check_hits([(hit.document_id, hit.score) for hit in hits], 5)
        elif job == "write 4":
            written = [pb.Document(**document) for document in documents(4)]
            self.index.Upsert(pb.UpsertRequest(index=WRITTEN, documents=written), **options)
        else:
            return self.answer(options, streamed=job == "answer streamed")
        return None

    def answer(self, options: dict[str, Any], *, streamed: bool) -> float | None:
        asked = pb.AnswerRequest(query=random.choice(QUESTIONS), index=INDEX, max_tokens=24)
        first = None
        if streamed:
            final = None
            for event in self.rag.AnswerStream(asked, **options):
                if event.HasField("delta"):
                    first = first or time.perf_counter()
                elif event.HasField("final"):
                    final = event.final
            need(final is not None, "no end of the stream", final)
        else:
            final = self.rag.Answer(asked, **options)
        block = final.compression
        cited = (citation.document_id for citation in final.citations)
        check_answer(cited, block.status, block.vectors_out, block.tokens_in)
        return first


DOORS = {"rest": RestDoor, "grpc": GrpcDoor}
