"""Answers that another server writes, over a real channel."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from scripted_server import CUT, HOLD, answer, head, refuse, say, scripted

from condensery.api.grpc.server import start_server
from condensery.jobs.services import Services
from condensery.runtime.answer_server import AnswerServerConfig, RemoteGenerator
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

ASKED = pb.AnswerRequest(query="why", documents=[pb.Document(text="some gold")])
OK = answer("Seven", " traits")


@asynccontextmanager
async def rag_of(services: Services, url: str, patience: float = 60) -> AsyncIterator[Any]:
    config = AnswerServerConfig(
        f"{url}/chat/completions", "qwen", retries=0, timeout_seconds=patience
    )
    made = RemoteGenerator(config, services.metrics)
    running = await start_server(replace(services, answer_server=made), "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        yield stubs.RagStub(channel)
    await running.stop(1)
    await made.close()


async def test_an_answer_names_its_generator_whole_and_streamed(services: Services) -> None:
    async with scripted(OK) as server, rag_of(services, server.url) as rag:
        whole = await rag.Answer(ASKED)
        events = [event async for event in rag.AnswerStream(ASKED)]
        unasked = await rag.Answer(
            pb.AnswerRequest(query="why", documents=ASKED.documents, min_relevance=1)
        )
    assert (whole.answer, whole.generator, whole.model) == ("Seven traits", "qwen", "pair")
    assert events[0].retrieved.generator == events[-1].final.generator == "qwen"
    assert [event.delta for event in events[1:-1]] == ["Seven", " traits"]
    assert not unasked.HasField("generator")


@pytest.mark.parametrize(
    ("script", "code", "kind"),
    [
        ([head(), b"data: {\n\n"], StatusCode.INTERNAL, "AnswerServerFault"),
        ([head(), say("Se"), CUT], StatusCode.INTERNAL, "AnswerServerFault"),
        ([head(), HOLD], StatusCode.DEADLINE_EXCEEDED, "AnswerServerSlow"),
        (
            refuse("429 Too Many Requests", retry_after="17"),
            StatusCode.UNAVAILABLE,
            "AnswerServerUnavailable",
        ),
    ],
    ids=["rubbish", "cut", "slow", "busy"],
)
async def test_each_fault_has_its_status(
    services: Services, script: Any, code: StatusCode, kind: str
) -> None:
    # A connection has half of it: on a busy machine a short time is over before it stands.
    patience = 2 if HOLD in script else 60
    async with scripted(script) as server, rag_of(services, server.url, patience) as rag:
        for call in (rag.Answer, lambda asked: drain(rag.AnswerStream(asked))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(ASKED)
            trailer = dict(caught.value.trailing_metadata() or ())
            assert (caught.value.code(), trailer["x-error"]) == (code, kind)
            if code == StatusCode.UNAVAILABLE:
                assert trailer["grpc-retry-pushback-ms"] == "17000"


async def drain(call: Any) -> None:
    async for _ in call:
        pass


async def test_a_client_that_leaves_ends_the_request(services: Services) -> None:
    script = [head(), say("Se"), HOLD]
    async with scripted(script) as server, rag_of(services, server.url) as rag:
        call = rag.AnswerStream(ASKED, timeout=30)
        events = aiter(call)
        await anext(events)
        await anext(events)
        call.cancel()
        async with asyncio.timeout(20):
            await server.left.wait()
