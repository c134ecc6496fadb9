"""The gRPC services: a real server and real stubs on loopback, models of known numbers."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import StatusCode
from grpc_reflection.v1alpha import reflection_pb2

from condensery.api import ports
from condensery.api.grpc.server import GrpcServer, start_server
from condensery.encodings import ENCODINGS, Encoding, encode
from condensery.errors import ModelFault, Overloaded, PortTaken
from condensery.jobs.services import Services
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

# Calls, from many threads at once, half of them over a channel for each call, until it can't
# connect; then tells what became of all that. In another process: this one's loop is busy.
NEWCOMERS = """
import collections, json, sys, threading
import grpc
ends = collections.Counter()
address, method = sys.argv[1], "/condensery.v1.Embedding/EmbedBatch"
kept = grpc.insecure_channel(address)
def ask(channel):
    try:
        channel.unary_unary(method)(bytes.fromhex(sys.argv[2]), timeout=60)
        return "answered"
    except grpc.RpcError as error:
        if "x-error" in {name for name, _ in error.trailing_metadata() or ()}:
            return "refused"
        unmade = "failed to connect" in error.details().lower()
        return "not let in" if unmade else f"{error.code().name}: {error.details()}"
def come(number):
    while True:
        if number % 2:
            end = ask(kept)
        else:
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(address, options) as channel:
                end = ask(channel)
        ends[end] += 1
        if end == "not let in":
            return
threads = [threading.Thread(target=come, args=(number,)) for number in range(16)]
for thread in threads: thread.start()
print("came", flush=True)
for thread in threads: thread.join()
print(json.dumps(ends))
"""


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def trailer(error: grpc.aio.AioRpcError, name: str) -> str | None:
    return dict(error.trailing_metadata() or ()).get(name)


async def test_vectors_come_packed_row_by_row(
    channel: grpc.aio.Channel, services: Services
) -> None:
    reply = await stubs.EmbeddingStub(channel).EmbedBatch(
        pb.EmbedBatchRequest(texts=["one", "two words"])
    )
    got = np.frombuffer(reply.vectors, "<f4").reshape(2, reply.dims)
    wanted = await services.registry.encoder().embed(["one", "two words"])
    assert np.array_equal(got, wanted.vectors)
    assert (reply.dtype, reply.model, reply.tokens) == ("float32", "words", 3)
    assert reply.fingerprint == "sha256:words"


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_vectors_come_in_the_encoding_that_is_asked_for(
    channel: grpc.aio.Channel, services: Services, encoding: Encoding
) -> None:
    request = pb.EmbedBatchRequest(texts=["one", "two words"], dtype=encoding)
    reply = await stubs.EmbeddingStub(channel).EmbedBatch(request)
    wanted = await services.registry.encoder().embed(["one", "two words"])
    assert (reply.dtype, reply.dims) == (encoding, 8)
    assert reply.vectors == encode(wanted.vectors, encoding).tobytes()


async def test_what_texts_are_for_and_where_they_are_cut_reach_the_model(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    request = pb.EmbedBatchRequest(texts=["a"], input_type="search_query", truncate_left=True)
    await stubs.EmbeddingStub(channel).EmbedBatch(request)
    encoder = registry.encoders["words"]
    assert (encoder.asked, encoder.sides) == ([("a", "query: ", None)], ["left"])


async def test_prompt_and_normalize_reach_the_model(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    await stubs.EmbeddingStub(channel).EmbedBatch(
        pb.EmbedBatchRequest(texts=["a"], prompt_name="query", normalize=False)
    )
    assert registry.encoders["words"].asked == [("a", "query: ", False)]


async def test_the_model_may_come_as_metadata_and_the_field_wins(
    channel: grpc.aio.Channel,
) -> None:
    stub = stubs.EmbeddingStub(channel)
    other = (("x-model", "other"),)
    reply = await stub.EmbedBatch(pb.EmbedBatchRequest(texts=["a"]), metadata=other)
    assert reply.model == "other"
    reply = await stub.EmbedBatch(pb.EmbedBatchRequest(texts=["a"], model="words"), metadata=other)
    assert reply.model == "words"


async def test_passages_are_ranked_best_first(channel: grpc.aio.Channel) -> None:
    reply = await stubs.RerankStub(channel).Rerank(
        pb.RerankRequest(query="q", passages=["none", "gold gold", "gold"], raw_scores=True)
    )
    assert [(item.index, item.score, item.text) for item in reply.results] == [
        (1, 2.0, ""),
        (2, 1.0, ""),
        (0, 0.0, ""),
    ]


async def test_a_query_that_was_cut_is_reported(channel: grpc.aio.Channel) -> None:
    rerank = stubs.RerankStub(channel).Rerank
    assert (await rerank(pb.RerankRequest(query="q " * 20, passages=["a"]))).query_truncated
    assert not (await rerank(pb.RerankRequest(query="q", passages=["a"]))).query_truncated


async def test_a_text_that_may_not_be_cut_is_named_as_the_message_calls_it(
    channel: grpc.aio.Channel,
) -> None:
    request = pb.EmbedBatchRequest(texts=["a", "b " * 20], truncate=False)
    error = await refused(stubs.EmbeddingStub(channel).EmbedBatch(request))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert trailer(error, "x-field") == "texts[1]"
    ranked = pb.RerankRequest(query="q " * 20, passages=["a"], truncate=False)
    error = await refused(stubs.RerankStub(channel).Rerank(ranked))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert trailer(error, "x-field") == "query"


def make_document(text: str, **metadata: Any) -> pb.Document:
    document = pb.Document(id=text.split(maxsplit=1)[0], text=text)
    document.metadata.update(metadata)
    return document


async def test_an_index_is_made_filled_asked_counted_and_emptied(
    channel: grpc.aio.Channel,
) -> None:
    stub = stubs.IndexStub(channel)
    created = await stub.Create(pb.CreateIndexRequest(name="notes"))
    assert (created.encoder, created.dims, created.metric, created.kind) == (
        "words",
        8,
        "ip",
        "flat",
    )
    documents = [
        make_document("alpha is first", rank=1, tags=["a"]),
        make_document("beta is second"),
    ]
    wrote = await stub.Upsert(pb.UpsertRequest(index="notes", documents=documents))
    assert (wrote.documents, wrote.passages) == (2, 2)
    reply = await stub.Query(pb.QueryRequest(index="notes", query="alpha is first", top_k=1))
    (hit,) = reply.hits
    assert (hit.document_id, hit.text, hit.start, hit.end) == ("alpha", "alpha is first", 0, 14)
    assert hit.metadata["rank"] == 1
    counted = await stub.Count(pb.CountRequest(index="notes"))
    assert (counted.documents, counted.passages) == (2, 2)
    gone = await stub.Delete(pb.DeleteRequest(index="notes", ids=["alpha", "nobody"]))
    assert gone.deleted == 1
    (listed,) = (await stub.List(pb.ListIndexesRequest())).indexes
    assert (listed.name, listed.documents) == ("notes", 1)
    await stub.Drop(pb.DropIndexRequest(name="notes"))
    error = await refused(stub.Get(pb.GetIndexRequest(name="notes")))
    assert error.code() is StatusCode.NOT_FOUND


async def test_whole_numbers_in_metadata_stay_whole(
    channel: grpc.aio.Channel, services: Services
) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="notes"))
    document = make_document("alpha", rank=1, share=0.5, deep={"n": [2]})
    await stub.Upsert(pb.UpsertRequest(index="notes", documents=[document]))
    (stored,) = services.indexes.get("notes", ["alpha"])
    assert stored.metadata == {"rank": 1, "share": 0.5, "deep": {"n": [2]}}
    assert isinstance(stored.metadata["rank"], int)


async def test_vectors_can_be_written_and_asked_for_with_their_encoders_fingerprint(
    channel: grpc.aio.Channel,
) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="notes"))
    rows = np.eye(2, 8, dtype="<f4")
    documents = [make_document("alpha"), make_document("beta")]
    await stub.Upsert(
        pb.UpsertRequest(
            index="notes", documents=documents, vectors=rows.tobytes(), fingerprint="sha256:words"
        )
    )
    request = pb.QueryRequest(
        index="notes", vector=rows[1].tobytes(), fingerprint="sha256:words", top_k=1
    )
    (hit,) = (await stub.Query(request)).hits
    assert (hit.document_id, hit.score) == ("beta", 1.0)


async def test_a_streamed_answers_deltas_join_to_the_answer(channel: grpc.aio.Channel) -> None:
    request = pb.AnswerRequest(
        query="why", documents=[make_document("none"), make_document("some gold")]
    )
    events = [event async for event in stubs.RagStub(channel).AnswerStream(request)]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["retrieved", *["delta"] * (len(events) - 2), "final"]
    joined = "".join(event.delta for event in events[1:-1])
    final = events[-1].final
    assert final.answer == joined == "why 1 0 "
    assert [item.id for item in events[0].retrieved.citations] == ["some", "none"]
    whole = await stubs.RagStub(channel).Answer(request)
    assert (whole.answer, whole.finish_reason) == (final.answer, "stop")
    assert (whole.compression.status, whole.compression.vectors_out) == ("applied", 4)
    assert whole.usage.context_vectors == 4


async def test_requests_are_counted_by_outcome(
    channel: grpc.aio.Channel, services: Services
) -> None:
    stub = stubs.EmbeddingStub(channel)
    await stub.EmbedBatch(pb.EmbedBatchRequest(texts=["a"]))
    await refused(stub.EmbedBatch(pb.EmbedBatchRequest()))
    value = services.metrics.registry.get_sample_value
    labels = {"model": "words", "task": "embed", "protocol": "grpc"}
    assert value("condensery_requests_total", {**labels, "code": "ok"}) == 1
    assert value("condensery_requests_total", {**labels, "code": "EmptyInput"}) == 1


BAD: dict[str, tuple[Callable[[grpc.aio.Channel], Awaitable[Any]], StatusCode, str, str | None]] = {
    "an unknown model": (
        lambda c: stubs.EmbeddingStub(c).EmbedBatch(
            pb.EmbedBatchRequest(texts=["a"], model="nope")
        ),
        *(StatusCode.NOT_FOUND, "'nope'", "model"),
    ),
    "an unknown index": (
        lambda c: stubs.IndexStub(c).Query(pb.QueryRequest(index="nope", query="a")),
        *(StatusCode.NOT_FOUND, "nope", "index"),
    ),
    "an empty list": (
        lambda c: stubs.EmbeddingStub(c).EmbedBatch(pb.EmbedBatchRequest()),
        *(StatusCode.INVALID_ARGUMENT, "empty", "texts"),
    ),
    "a text that is far too long": (
        lambda c: stubs.EmbeddingStub(c).EmbedBatch(pb.EmbedBatchRequest(texts=["a" * 4001])),
        *(StatusCode.INVALID_ARGUMENT, "4001", "texts[0]"),
    ),
    "too many texts": (
        lambda c: stubs.EmbeddingStub(c).EmbedBatch(pb.EmbedBatchRequest(texts=["a"] * 51)),
        *(StatusCode.INVALID_ARGUMENT, "51", "texts"),
    ),
    "dimensions that the model has not": (
        lambda c: stubs.EmbeddingStub(c).EmbedBatch(
            pb.EmbedBatchRequest(texts=["a"], dimensions=3)
        ),
        *(StatusCode.INVALID_ARGUMENT, "3", "dimensions"),
    ),
    "an unknown encoding": (
        lambda c: stubs.EmbeddingStub(c).EmbedBatch(
            pb.EmbedBatchRequest(texts=["a"], dtype="int4")
        ),
        *(StatusCode.INVALID_ARGUMENT, "'int4'", "dtype"),
    ),
    "int8 of vectors as they come": (
        lambda c: stubs.EmbeddingStub(c).EmbedBatch(
            pb.EmbedBatchRequest(texts=["a"], dtype="int8", normalize=False)
        ),
        *(StatusCode.INVALID_ARGUMENT, "int8", "dtype"),
    ),
    "a malformed message": (
        lambda c: c.unary_unary("/condensery.v1.Embedding/EmbedBatch")(b"\xff\xff\xff"),
        *(StatusCode.INVALID_ARGUMENT, "malformed", None),
    ),
    "text that is not UTF-8": (
        lambda c: c.unary_unary("/condensery.v1.Embedding/EmbedBatch")(b"\x12\x02\xff\xfe"),
        *(StatusCode.INVALID_ARGUMENT, "UTF-8", None),
    ),
    "a message over the limit": (
        lambda c: stubs.EmbeddingStub(c).EmbedBatch(pb.EmbedBatchRequest(texts=["a" * 30_000])),
        *(StatusCode.INVALID_ARGUMENT, "over the limit of 20000", None),
    ),
    "documents and an index": (
        lambda c: stubs.RagStub(c).Answer(
            pb.AnswerRequest(query="q", index="i", documents=[make_document("a")])
        ),
        *(StatusCode.INVALID_ARGUMENT, "both", "documents"),
    ),
    "neither documents nor an index": (
        lambda c: stubs.RagStub(c).Answer(pb.AnswerRequest(query="q")),
        *(StatusCode.INVALID_ARGUMENT, "documents", "documents"),
    ),
    "an unknown compression mode": (
        lambda c: stubs.RagStub(c).Answer(
            pb.AnswerRequest(query="q", documents=[make_document("a")], compression_mode="hard")
        ),
        *(StatusCode.INVALID_ARGUMENT, "'hard'", "compression.mode"),
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_refused_by_field_and_value(
    channel: grpc.aio.Channel, name: str
) -> None:
    call, code, says, field = BAD[name]
    error = await refused(call(channel))
    assert error.code() is code, error.details()
    assert says in (error.details() or "")
    assert trailer(error, "x-field") == field
    good = await stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(texts=["still"]))
    assert good.dims == 8, "the service did not go on"


@pytest.mark.parametrize(
    ("vectors", "fingerprint", "code", "says"),
    [
        (np.full((1, 8), np.nan, "<f4"), "sha256:words", StatusCode.INVALID_ARGUMENT, "NaN"),
        (np.ones((1, 3), "<f4"), "sha256:words", StatusCode.INVALID_ARGUMENT, "3"),
        (np.ones((1, 8), "<f4"), "sha256:other", StatusCode.FAILED_PRECONDITION, "sha256:other"),
    ],
    ids=["NaN", "other dimensions", "another encoder"],
)
async def test_vectors_that_do_not_fit_are_refused(
    channel: grpc.aio.Channel, vectors: Any, fingerprint: str, code: StatusCode, says: str
) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="notes"))
    data = vectors.tobytes()
    writing = pb.UpsertRequest(
        index="notes", documents=[make_document("a")], vectors=data, fingerprint=fingerprint
    )
    asking = pb.QueryRequest(index="notes", vector=data, fingerprint=fingerprint)
    for call in (stub.Upsert(writing), stub.Query(asking)):
        error = await refused(call)
        assert error.code() is code, error.details()
        assert says.lower() in (error.details() or "").lower()


async def test_a_document_to_index_needs_an_id(channel: grpc.aio.Channel) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="notes"))
    writing = pb.UpsertRequest(index="notes", documents=[make_document("a"), pb.Document(text="b")])
    error = await refused(stub.Upsert(writing))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert trailer(error, "x-field") == "documents[1].id"


async def test_bytes_that_are_no_vectors_are_refused(channel: grpc.aio.Channel) -> None:
    stub = stubs.IndexStub(channel)
    await stub.Create(pb.CreateIndexRequest(name="notes"))
    error = await refused(stub.Query(pb.QueryRequest(index="notes", vector=b"abc")))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert trailer(error, "x-field") == "vector"


async def test_a_full_queue_says_when_to_come_back(
    channel: grpc.aio.Channel, registry: Any
) -> None:
    registry.encoders["words"].fails = Overloaded("full", retry_after_seconds=2)
    error = await refused(
        stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(texts=["a"]))
    )
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    assert trailer(error, "grpc-retry-pushback-ms") == "2000"


@pytest.mark.parametrize(
    ("fault", "says"),
    [(ModelFault("words: NaN"), "words: NaN"), (RuntimeError("secret"), "internal error; ")],
    ids=["model", "bug"],
)
async def test_a_fault_is_internal_and_shows_nothing_of_ours(
    channel: grpc.aio.Channel, registry: Any, fault: Exception, says: str
) -> None:
    registry.encoders["words"].fails = fault
    error = await refused(
        stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(texts=["a"]))
    )
    assert error.code() is StatusCode.INTERNAL
    assert (error.details() or "").startswith(says)
    assert "secret" not in (error.details() or "")


async def test_the_request_id_comes_back_with_an_error(channel: grpc.aio.Channel) -> None:
    error = await refused(
        stubs.EmbeddingStub(channel).EmbedBatch(
            pb.EmbedBatchRequest(), metadata=(("x-request-id", "mine"),)
        )
    )
    assert trailer(error, "x-request-id") == "mine"


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection_describes_the_services_and_itself(
    channel: grpc.aio.Channel, version: str
) -> None:
    own = f"grpc.reflection.{version}.ServerReflection"
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=own),
    ]
    call = channel.stream_stream(f"/{own}/ServerReflectionInfo")(
        iter([request.SerializeToString() for request in asked])
    )
    listed, described = [
        reflection_pb2.ServerReflectionResponse.FromString(item) async for item in call
    ]
    names = {service.name for service in listed.list_services_response.service}
    assert {"condensery.v1.Rag", "tei.v1.Embed", "grpc.health.v1.Health", own} <= names
    (data,) = described.file_descriptor_response.file_descriptor_proto
    described_file = FileDescriptorProto.FromString(data)
    assert f"{described_file.package}.{described_file.service[0].name}" == own
    assert f".grpc.reflection.{version}." in described_file.service[0].method[0].input_type


async def test_a_malformed_question_about_the_services_gets_an_error_reply(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    call = channel.stream_stream(path)(iter([b"\xff\xff", b"\x3a\x00"]))
    bad, good = [reflection_pb2.ServerReflectionResponse.FromString(item) async for item in call]
    assert bad.error_response.error_code == StatusCode.INVALID_ARGUMENT.value[0]
    assert len(good.list_services_response.service) == 16
    assert await call.code() is StatusCode.OK
    assert caplog.records == []


async def test_models_are_listed(channel: grpc.aio.Channel) -> None:
    reply = await stubs.ModelsStub(channel).List(pb.ListModelsRequest())
    assert [(item.name, item.kind, item.dims) for item in reply.models] == [
        ("words", "encoder", 8),
        ("other", "encoder", 8),
        ("pair", "oscar-pair", 0),
    ]


async def test_a_taken_port_is_refused_by_number(server: GrpcServer, services: Services) -> None:
    with pytest.raises(PortTaken, match=str(server.port)):
        await start_server(services, "127.0.0.1", server.port)


async def test_of_those_who_keep_coming_while_it_ends_each_is_answered_or_refused(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "LAST_SECONDS", 2.0)  # each newcomer has long come by then
    ends: Counter[str] = Counter()
    message = pb.EmbedBatchRequest(texts=["a"]).SerializeToString().hex()
    for _ in range(4):
        server = await start_server(services, "127.0.0.1", 0)
        async with asyncio.timeout(100):
            newcomers = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", NEWCOMERS, f"127.0.0.1:{server.port}", message),
                stdout=subprocess.PIPE,
            )
            assert newcomers.stdout is not None
            await newcomers.stdout.readline()
            await asyncio.sleep(0.2)
            services.health.refusing = True
            await server.stop(20)
            ends.update(json.loads(await newcomers.stdout.read()))
            await newcomers.wait()
        services.health.refusing = False
    assert ends["answered"] > 0
    assert set(ends) <= {"answered", "refused", "not let in"}, ends
