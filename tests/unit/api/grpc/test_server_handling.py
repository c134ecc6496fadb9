"""What stands around each call: ids, counts, refusals that fit into headers, clients who leave."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from condensery.api.grpc.server import start_server
from condensery.errors import IndexNotFound, InputError, StartError
from condensery.jobs.services import Services
from condensery.logs import SlowRequests
from condensery.question import GeneratedToken
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs
from condensery.stubs import tei_v1_pb2 as tei_pb
from condensery.stubs import tei_v1_pb2_grpc as tei_stubs
from condensery.values import Document


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def until(happened: Callable[[], Any]) -> None:
    for _ in range(1500):
        if happened():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


def counted(services: Services, **labels: str) -> float:
    sample = services.metrics.registry.get_sample_value(
        "condensery_requests_total", {"protocol": "grpc", **labels}
    )
    return sample or 0.0


def embed(channel: grpc.aio.Channel, *, request_id: str | None = None, **request: Any) -> Any:
    metadata = () if request_id is None else (("x-request-id", request_id),)
    message = pb.EmbedBatchRequest(**{"texts": ["a"], **request})
    return stubs.EmbeddingStub(channel).EmbedBatch(message, metadata=metadata)


async def request_id_of(call: Any) -> str:
    return dict(await call.trailing_metadata())["x-request-id"]


async def test_the_request_id_comes_back_with_a_reply(channel: grpc.aio.Channel) -> None:
    assert await request_id_of(embed(channel, request_id="mine")) == "mine"


async def test_the_request_id_comes_back_with_a_stream(channel: grpc.aio.Channel) -> None:
    call = stubs.RagStub(channel).AnswerStream(
        pb.AnswerRequest(query="why", documents=[pb.Document(text="gold")]),
        metadata=(("x-request-id", "mine"),),
    )
    assert [event async for event in call]
    assert await request_id_of(call) == "mine"


@pytest.mark.parametrize("unusable", [None, "", "x" * 5000], ids=["none", "empty", "too long"])
async def test_a_request_without_a_usable_id_gets_one(
    channel: grpc.aio.Channel, unusable: str | None
) -> None:
    first = await request_id_of(embed(channel, request_id=unusable))
    second = await request_id_of(embed(channel, request_id=unusable))
    assert first != second
    assert 16 <= len(first) <= 64


async def test_a_long_refusal_is_cut_to_what_headers_hold(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    registry.encoders["words"].fails = InputError("é𝄞" * 20_000, field="f" * 20_000)
    error = await refused(embed(channel))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").startswith("é𝄞é𝄞")
    assert (error.details() or "").endswith("…")
    assert dict(error.trailing_metadata() or ())["x-error"] == "InputError"


async def test_a_message_far_over_the_limit_is_refused_by_us(
    channel: grpc.aio.Channel, services: Services
) -> None:
    most = services.limits.max_body_bytes
    error = await refused(embed(channel, texts=["a" * (3 * most)]))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert str(most) in (error.details() or "")
    assert dict(error.trailing_metadata() or ())["x-error"] == "PayloadTooLarge"


async def test_ten_thousand_inputs_are_refused_by_count_and_limit(services: Services) -> None:
    roomy = replace(services, limits=replace(services.limits, max_items=2048, max_body_bytes=2**20))
    server = await start_server(roomy, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        error = await refused(embed(channel, texts=["a"] * 10_000))
    await server.stop(0)
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert "10000" in (error.details() or "")
    assert "2048" in (error.details() or "")


async def test_an_unknown_method_is_unimplemented(channel: grpc.aio.Channel) -> None:
    error = await refused(channel.unary_unary("/condensery.v1.Embedding/Nope")(b""))
    assert error.code() is StatusCode.UNIMPLEMENTED


async def test_a_bug_is_logged_with_its_request_id(
    channel: grpc.aio.Channel, registry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry.encoders["words"].fails = RuntimeError("secret")
    with caplog.at_level(logging.ERROR):
        error = await refused(embed(channel, request_id="mine"))
    assert error.code() is StatusCode.INTERNAL
    assert "secret" not in (error.details() or "")
    assert "mine" in (error.details() or "")
    (record,) = [item for item in caplog.records if item.exc_info]
    assert vars(record)["request_id"] == "mine"


async def test_each_call_is_logged_by_its_request_id(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await embed(channel, request_id="good")
        await refused(embed(channel, request_id="bad", texts=[]))
        # A refusal is logged once it is sent, and may be here before that.
        await until(lambda: "bad" in [vars(item).get("request_id") for item in caplog.records])
    logged = [
        (record.levelname, vars(record)["request_id"], vars(record)["status"])
        for record in caplog.records
        if record.getMessage() == "reply"
    ]
    assert logged == [("DEBUG", "good", "OK"), ("INFO", "bad", "INVALID_ARGUMENT")]


async def test_a_reply_that_can_not_be_written_is_a_fault_of_ours(
    channel: grpc.aio.Channel, registry: Any, services: Services
) -> None:
    encoder = registry.encoders["words"]
    encoder.info = replace(encoder.info, id="half a surrogate: \ud800")
    error = await refused(embed(channel))
    assert error.code() is StatusCode.INTERNAL
    assert "x-request-id" in dict(error.trailing_metadata() or ())


async def test_an_index_request_counts_for_the_indexs_encoder(
    channel: grpc.aio.Channel, services: Services
) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="kb", encoder="other"))
    assert counted(services, task="index-write", model="other", code="ok") == 1
    await stub.Count(pb.CountRequest(index="kb"))
    await stub.Get(pb.GetIndexRequest(name="kb"))
    assert counted(services, task="index", model="other", code="ok") == 2
    assert counted(services, task="index-write", model="other", code="ok") == 1
    await refused(stub.Count(pb.CountRequest(index="nope")))
    assert counted(services, task="index", model="unknown", code=IndexNotFound.__name__) == 1


async def test_writing_replies_is_a_stage(channel: grpc.aio.Channel, services: Services) -> None:
    await embed(channel)
    value = services.metrics.registry.get_sample_value
    labels = {"model": "words", "stage": "serialize"}
    assert value("condensery_stage_duration_seconds_count", labels) == 1


async def test_documents_come_back_in_the_order_asked(
    channel: grpc.aio.Channel, services: Services
) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="kb"))
    documents = [pb.Document(id=name, text=f"text of {name}") for name in ("a", "b")]
    documents[0].metadata["year"] = 1969
    await stub.Upsert(pb.UpsertRequest(index="kb", documents=documents))
    reply = await stub.GetDocuments(pb.GetDocumentsRequest(index="kb", ids=["b", "nope", "a"]))
    assert [item.id for item in reply.documents] == ["b", "a"]
    assert reply.documents[1] == documents[0]


async def test_a_number_in_metadata_that_is_none_is_refused_by_its_place(
    channel: grpc.aio.Channel,
) -> None:
    document = pb.Document(id="a", text="a")
    document.metadata["x"] = float("nan")
    await stubs.IndexStub(channel).Create(pb.CreateIndexRequest(name="kb"))
    calls = (
        stubs.IndexStub(channel).Upsert(pb.UpsertRequest(index="kb", documents=[document])),
        stubs.RagStub(channel).Answer(pb.AnswerRequest(query="q", documents=[document])),
    )
    for call in calls:
        error = await refused(call)
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert dict(error.trailing_metadata() or ())["x-field"] == "documents[0].metadata.x"


async def test_metadata_as_deep_as_an_index_takes_is_found_again(
    channel: grpc.aio.Channel, services: Services
) -> None:
    deep: dict[str, Any] = {"end": 1}
    for _ in range(30):
        deep = {"in": deep}
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="kb"))
    document = pb.Document(id="a", text="a")
    document.metadata.update(deep)
    await stub.Upsert(pb.UpsertRequest(index="kb", documents=[document]))
    assert services.indexes.get("kb", ["a"]) == [Document("a", "a", deep)]
    (hit,) = (await stub.Query(pb.QueryRequest(index="kb", query="a"))).hits
    assert hit.metadata == document.metadata
    request = pb.AnswerRequest(query="q", index="kb")
    events = [event async for event in stubs.RagStub(channel).AnswerStream(request)]
    assert events[-1].final.citations[0].metadata == document.metadata


async def test_a_document_without_an_id_is_cited_by_its_place(channel: grpc.aio.Channel) -> None:
    request = pb.AnswerRequest(query="q", documents=[pb.Document(text=item) for item in ("a", "b")])
    reply = await stubs.RagStub(channel).Answer(request)
    assert [item.id for item in reply.citations] == ["0", "1"]


async def test_a_disk_that_turns_read_only_refuses_writes_and_still_answers(
    channel: grpc.aio.Channel, services: Any
) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="kb"))
    writing = pb.UpsertRequest(index="kb", documents=[pb.Document(id="a", text="one")])
    await stub.Upsert(writing)
    writer = services.indexes.find("kb")._writer
    writer.execute("PRAGMA query_only = ON")
    error = await refused(stub.Upsert(writing))
    assert error.code() is StatusCode.INTERNAL
    assert dict(error.trailing_metadata() or ())["x-error"] == "StorageReadOnly"
    assert (await stub.Query(pb.QueryRequest(index="kb", query="one"))).hits
    writer.execute("PRAGMA query_only = OFF")
    await stub.Upsert(writing)


async def test_a_snapshot_of_a_newer_version_is_refused_as_that(
    channel: grpc.aio.Channel, tmp_path: Path
) -> None:
    await stubs.IndexStub(channel).Create(pb.CreateIndexRequest(name="kb"))
    keeping = stubs.IndexUpkeepStub(channel)
    made = await keeping.CreateSnapshot(pb.CreateSnapshotRequest(index="kb"))
    note = tmp_path / "snapshots" / "kb" / made.id / "snapshot.json"
    note.write_text(note.read_text().replace('"format": 1,', '"format": 9,'))
    request = pb.RestoreSnapshotRequest(index="kb", snapshot=made.id)
    error = await refused(keeping.RestoreSnapshot(request))
    assert error.code() is StatusCode.FAILED_PRECONDITION
    trailers = dict(error.trailing_metadata() or ())
    assert (trailers["x-error"], trailers["x-field"]) == ("SnapshotTooNew", "snapshot")


async def test_a_full_disk_refuses_writes_and_still_answers(
    channel: grpc.aio.Channel, services: Any
) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="kb"))
    writer = services.indexes.find("kb")._writer
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    documents = [pb.Document(id=str(n), text=f"text {n} " * 20) for n in range(50)]
    error = await refused(stub.Upsert(pb.UpsertRequest(index="kb", documents=documents)))
    assert error.code() is StatusCode.INTERNAL  # not RESOURCE_EXHAUSTED, which reads as "retry"
    assert dict(error.trailing_metadata() or ())["x-error"] == "StorageFull"
    assert "full" in (error.details() or "")
    assert (await stub.Count(pb.CountRequest(index="kb"))).documents == 0


async def test_a_bug_in_the_middle_of_a_stream_ends_it_as_one(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    registry.pairs["pair"].fails_after = 1
    call = stubs.RagStub(channel).AnswerStream(
        pb.AnswerRequest(query="why", documents=[pb.Document(text="gold")])
    )
    for kind in ("retrieved", "delta"):
        assert (await call.read()).WhichOneof("event") == kind
    error = await refused(call.read())
    assert error.code() is StatusCode.INTERNAL
    assert "secret" not in (error.details() or "")


async def test_a_client_that_stops_reading_and_leaves_is_not_generated_for(
    channel: grpc.aio.Channel, services: Services, registry: Any
) -> None:
    reader = registry.pairs["pair"]
    written = 0
    closed = False

    async def endless(words: Sequence[str], max_tokens: int) -> AsyncIterator[GeneratedToken]:
        nonlocal written, closed
        try:
            while True:
                written += 1
                yield GeneratedToken("word " * 2000, written)
        finally:
            closed = True

    reader._say = endless
    call = stubs.RagStub(channel).AnswerStream(
        pb.AnswerRequest(query="why", documents=[pb.Document(text="gold")])
    )
    await call.read()
    while True:  # until what the connection buffers is full, and the server waits to write
        before = written
        await asyncio.sleep(0.3)
        if written == before:
            break
    assert not closed
    call.cancel()
    await until(lambda: closed)
    await until(lambda: counted(services, task="answer", model="pair", code="Cancelled") == 1)


async def test_a_host_that_is_not_ours_is_refused(services: Services) -> None:
    with pytest.raises(StartError, match=r"192\.0\.2\.1"):
        await start_server(services, "192.0.2.1", 0)


async def test_slow_calls_are_logged_and_each_message_of_a_request_stream_is_one(
    channel: grpc.aio.Channel, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.monotonic() + 3600  # every call has taken an hour; and two seconds later the next

    def clock() -> float:
        nonlocal now
        now += 2
        return now

    object.__setattr__(services, "slow", SlowRequests(1_000, clock))  # the fixture's are frozen
    secret = "private words"

    def slow_requests() -> list[tuple[str, str]]:
        lines = [vars(item) for item in caplog.records if item.getMessage() == "slow_request"]
        assert secret not in repr(lines)
        assert all(item["door"] == "grpc" for item in lines)
        caplog.clear()
        return [(item["route"], item["status"]) for item in lines]

    await embed(channel, texts=[secret])
    await refused(embed(channel, texts=[secret], model="nope"))
    request = pb.AnswerRequest(query=secret, documents=[pb.Document(text=f"{secret} gold")])
    await stubs.RagStub(channel).Answer(request)
    assert [event async for event in stubs.RagStub(channel).AnswerStream(request)]
    await until(lambda: sum(item.getMessage() == "slow_request" for item in caplog.records) == 4)
    assert slow_requests() == [
        ("/condensery.v1.Embedding/EmbedBatch", "OK"),
        ("/condensery.v1.Embedding/EmbedBatch", "NOT_FOUND"),
        ("/condensery.v1.Rag/Answer", "OK"),
        ("/condensery.v1.Rag/AnswerStream", "OK"),
    ]
    messages = (tei_pb.EmbedRequest(inputs=secret) for _ in range(3))
    assert len([item async for item in tei_stubs.EmbedStub(channel).EmbedStream(messages)]) == 3
    assert slow_requests() == [("/tei.v1.Embed/EmbedStream", "OK")] * 3
