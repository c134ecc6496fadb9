"""Both doors as callers see them: one question, one `Reply`, whatever the protocol."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
import httpx
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

Job = Literal["embed", "rerank", "answer", "stream"]
Verdict = Literal["ok", "refused", "expired", "fault", "other", "lost"]
REPLY_SECONDS = 60.0  # after which a reply counts as lost

# What compression says of itself where it failed for a passage.
LESSENED = ("partial", "fallback")

REST_VERDICTS: dict[int, Verdict] = {
    200: "ok",
    408: "expired",
    424: "fault",
    429: "refused",
    500: "fault",
    503: "refused",
    504: "expired",
}
GRPC_VERDICTS: dict[str, Verdict] = {
    "RESOURCE_EXHAUSTED": "refused",
    "UNAVAILABLE": "refused",
    "DEADLINE_EXCEEDED": "expired",
    "INTERNAL": "fault",
}


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        texts: To embed; or the passages to order, or to answer from.
        query: Of rerank and answer.
        seconds: The deadline that the caller names; None names none.
    """

    job: Job
    texts: tuple[str, ...]
    query: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        code: HTTP's number or gRPC's name.
        message: Of an error.
        vectors: (texts, dims), of embed.
        scores: By the passage's place in the request, of rerank.
        text: Of an answer; a streamed one's by its last event.
        deltas: What a stream's pieces join to.
        uncompressed: Why an answer's passages were not all compressed, as the reply owns.
    """

    verdict: Verdict
    code: str
    message: str = ""
    vectors: Any = None
    scores: dict[int, float] = field(default_factory=dict)
    text: str = ""
    deltas: str | None = None
    uncompressed: str = ""


class RestDoor:
    name = "REST"

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.client = httpx.AsyncClient(base_url=url, timeout=REPLY_SECONDS, limits=limits)

    async def ask(self, ask: Ask) -> Reply:
        """Send a request; whatever happens is a `Reply`."""
        headers = {}
        if ask.seconds is not None:
            headers["x-request-timeout-ms"] = str(round(ask.seconds * 1000))
        path, body = _rest_request(ask)
        try:
            reply = await self.client.post(path, json=body, headers=headers)
        except httpx.HTTPError as error:
            return Reply("lost", type(error).__name__, str(error))
        code = str(reply.status_code)
        if reply.status_code != 200:
            verdict = REST_VERDICTS.get(reply.status_code, "other")
            if verdict == "refused" and "retry-after" not in reply.headers:
                verdict = "other"
            return Reply(verdict, code, reply.text[:300])
        return _read_rest(ask, reply)

    async def ready(self) -> bool:
        try:
            return (await self.client.get("/readyz", timeout=2)).status_code == 200
        except httpx.HTTPError:
            return False

    async def close(self) -> None:
        await self.client.aclose()


def _rest_request(ask: Ask) -> tuple[str, dict[str, Any]]:
    if ask.job == "embed":
        return "/v1/embeddings", {"input": ask.texts, "encoding_format": "base64"}
    if ask.job == "rerank":
        return "/rerank", {"query": ask.query, "texts": ask.texts}
    body = {"query": ask.query, "documents": ask.texts, "max_tokens": 8}
    return "/v1/rag/answer", {**body, "stream": ask.job == "stream"}


def _read_rest(ask: Ask, reply: httpx.Response) -> Reply:
    if ask.job == "embed":
        rows = [base64.b64decode(row["embedding"]) for row in reply.json()["data"]]
        return Reply(
            "ok", "200", vectors=np.frombuffer(b"".join(rows), "<f4").reshape(len(rows), -1)
        )
    if ask.job == "rerank":
        return Reply("ok", "200", scores={row["index"]: row["score"] for row in reply.json()})
    if ask.job == "answer":
        body = reply.json()
        return Reply("ok", "200", text=body["answer"], uncompressed=_why(body["compression"]))
    deltas, final, why = "", None, ""
    for event in reply.text.split("\n\n"):
        name, _, data = event.partition("\ndata: ")
        if name == "event: message":
            deltas += json.loads(data)["delta"]["content"][0]["payload"]["value"]
        elif name == "event: compression":
            why = _why(json.loads(data))
        elif name == "event: final_answer":
            final = json.loads(data)["generated_answer"]
        elif name == "event: error":
            return _read_error(json.loads(data)["error"])
    if final is None:
        return Reply("lost", "200", "the stream ended before its answer")
    return Reply("ok", "200", text=final, deltas=deltas, uncompressed=why)


def _why(compression: dict[str, Any]) -> str:
    return str(compression["reason"]) if compression["status"] in LESSENED else ""


def _read_error(error: dict[str, Any]) -> Reply:
    """Read an error in a stream, whose status was long sent."""
    verdicts: dict[str, Verdict] = {
        "model_fault": "fault",
        "overloaded": "refused",
        "unavailable": "refused",
        "deadline_exceeded": "expired",
        "timeout": "expired",
    }
    code = str(error.get("code"))
    return Reply(verdicts.get(code, "other"), code, str(error.get("message")))


class GrpcDoor:
    name = "gRPC"

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.embedding = stubs.EmbeddingStub(self.channel)
        self.rerank = stubs.RerankStub(self.channel)
        self.rag = stubs.RagStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def ask(self, ask: Ask) -> Reply:
        """Send a request; whatever happens is a `Reply`."""
        timeout = REPLY_SECONDS if ask.seconds is None else ask.seconds
        try:
            return await self._ask(ask, timeout)
        except grpc.aio.AioRpcError as error:
            trailers = {name for name, _ in error.trailing_metadata() or ()}
            code, message = error.code().name, error.details() or ""
            if code == "DEADLINE_EXCEEDED" and ask.seconds is None:
                return Reply("lost", code, message)
            verdict = GRPC_VERDICTS.get(code, "other")
            # Said by gRPC itself, not by the server: the connection broke.
            if code == "UNAVAILABLE" and "x-error" not in trailers:
                return Reply("lost", code, message)
            if code == "RESOURCE_EXHAUSTED" and "grpc-retry-pushback-ms" not in trailers:
                verdict = "other"
            return Reply(verdict, code, message)

    async def _ask(self, ask: Ask, timeout: float) -> Reply:
        if ask.job == "embed":
            embedded = await self.embedding.EmbedBatch(
                pb.EmbedBatchRequest(texts=ask.texts), timeout=timeout
            )
            rows = np.frombuffer(embedded.vectors, "<f4").reshape(-1, embedded.dims)
            return Reply("ok", "OK", vectors=rows)
        if ask.job == "rerank":
            request = pb.RerankRequest(query=ask.query, passages=ask.texts)
            ranked = await self.rerank.Rerank(request, timeout=timeout)
            return Reply(
                "ok", "OK", scores={result.index: result.score for result in ranked.results}
            )
        documents = [pb.Document(text=text) for text in ask.texts]
        asked = pb.AnswerRequest(query=ask.query, documents=documents, max_tokens=8)
        if ask.job == "answer":
            answer = await self.rag.Answer(asked, timeout=timeout)
            return Reply("ok", "OK", text=answer.answer, uncompressed=_why_grpc(answer))
        deltas, final, why = "", None, ""
        async for event in self.rag.AnswerStream(asked, timeout=timeout):
            if event.HasField("delta"):
                deltas += event.delta
            elif event.HasField("final"):
                final, why = event.final.answer, _why_grpc(event.final)
        if final is None:
            return Reply("lost", "OK", "the stream ended before its answer")
        return Reply("ok", "OK", text=final, deltas=deltas, uncompressed=why)

    async def ready(self) -> bool:
        try:
            reply = await self.health.Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.aio.AioRpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        await self.channel.close()


def _why_grpc(answer: pb.AnswerResponse) -> str:
    compression = answer.compression
    return compression.reason if compression.status in LESSENED else ""


Door = RestDoor | GrpcDoor
