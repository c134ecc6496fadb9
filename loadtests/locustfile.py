"""REST users: what real callers mix, with every reply checked. `make load` runs the smoke profile.

A reply that is 200 and wrong is a failure: vectors have the model's dimensions and length 1, a
ranking names each passage once and in order, an index returns passages that exist, an answer says
where it comes from. locust exits with 1 if anything failed.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

from locust import HttpUser, between, events, task
from locust.clients import ResponseContextManager
from locust.env import Environment

SAMPLES = Path(__file__).resolve().parents[1] / "service" / "condensery" / "samples"
DEFAULT_HOST = "http://127.0.0.1:8080"
INDEX = "samples"
UNIT = 0.01  # how far a length may be from 1: bf16 forward, fp32 normalisation


def read_lines(name: str) -> list[dict[str, Any]]:
    lines = (SAMPLES / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


PASSAGES = read_lines("passages.jsonl")
TEXTS = [passage["text"] for passage in PASSAGES]
IDS = {passage["id"] for passage in PASSAGES}
QUESTIONS = [line["question"] for line in read_lines("questions.jsonl")]


class Wrong(Exception):
    """A reply came, and is not what it should be."""


@events.test_start.add_listener
def check_server(environment: Environment, **_: Any) -> None:
    print(f"loading {environment.host or DEFAULT_HOST}: every reply is checked")


class Caller(HttpUser):
    """One of many callers of a service that holds the sample index."""

    host = DEFAULT_HOST
    wait_time = between(0.0, 0.05)
    dims: int | None = None

    @task(10)
    def embed_one(self) -> None:
        self.embed([random.choice(QUESTIONS)], "embed 1")

    @task(2)
    def embed_batch(self) -> None:
        self.embed(random.sample(TEXTS, 16), "embed 16")

    @task(3)
    def rerank(self) -> None:
        texts = random.sample(TEXTS, 8)
        body = {"query": random.choice(QUESTIONS), "texts": texts}
        with self.post("/rerank", body, "rerank 8") as reply:
            ranks = self.read(reply)
            need(sorted(rank["index"] for rank in ranks) == list(range(8)), "indices", ranks)
            scores = [rank["score"] for rank in ranks]
            need(scores == sorted(scores, reverse=True), "scores out of order", scores)
            need(all(0 <= score <= 1 for score in scores), "scores out of range", scores)

    @task(5)
    def query(self) -> None:
        body = {"query": random.choice(QUESTIONS), "top_k": 5}
        with self.post(f"/v1/indexes/{INDEX}/query", body, "query") as reply:
            hits = self.read(reply)["results"]
            need(len(hits) == 5, "passages", len(hits))
            strangers = {hit["document_id"] for hit in hits} - IDS
            need(not strangers, "passages that are not in the index", strangers)
            scores = [hit["score"] for hit in hits]
            need(scores == sorted(scores, reverse=True), "scores out of order", scores)

    @task(2)
    def answer(self) -> None:
        body = {"query": random.choice(QUESTIONS), "index": {"name": INDEX}, "max_tokens": 24}
        with self.post("/v1/rag/answer", body, "answer") as reply:
            answer = self.read(reply)
            cited = [citation["document_id"] for citation in answer["citations"]]
            need(len(cited) == 5 and set(cited) <= IDS, "citations", cited)
            block = answer["compression"]
            need(block["status"] == "applied", "compression status", block["status"])
            need(block["vectors_out"] < block["tokens_in"], "nothing was compressed", block)

    def embed(self, texts: list[str], name: str) -> None:
        with self.post("/embed", {"inputs": texts}, name) as reply:
            vectors = self.read(reply)
            need(len(vectors) == len(texts), "vectors", len(vectors))
            for vector in vectors:
                Caller.dims = Caller.dims or len(vector)
                need(len(vector) == Caller.dims, "dimensions", len(vector))
                length = math.sqrt(sum(x * x for x in vector))
                need(abs(length - 1) < UNIT, "length", length)

    def post(self, path: str, body: dict[str, Any], name: str) -> "Checked":
        return Checked(self.client.post(path, json=body, name=name, catch_response=True))

    def read(self, reply: ResponseContextManager) -> Any:
        need(reply.status_code == 200, f"status {reply.status_code}", reply.text)
        return reply.json()


class Checked:
    """Counts a reply as failed if what is done with it raises."""

    def __init__(self, reply: ResponseContextManager) -> None:
        self.reply = reply

    def __enter__(self) -> ResponseContextManager:
        return self.reply.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Wrong | ValueError | LookupError | TypeError):
            self.reply.failure(f"{type(error).__name__}: {error}")
            self.reply.__exit__(None, None, None)
            return True
        return bool(self.reply.__exit__(kind, error, trace))


def need(holds: bool, what: str, got: object) -> None:
    if not holds:
        raise Wrong(f"{what}: {str(got)[:200]}")
