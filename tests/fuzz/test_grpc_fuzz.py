"""Malformed messages by the ten thousand to the real server: each is refused, none harms it."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from grpc import StatusCode
from tests.fuzz.mangling import MANGLERS

from condensery.client.grpc import GrpcClient
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import inference_v2_pb2 as inference
from condensery.stubs import tei_v1_pb2 as tei
from condensery.values import Document

SEED = 1729
ROUNDS = 40  # of every mangler on every method; twice
AT_ONCE = 24
INDEX, STAYS = "fuzz", "stays"
# As the contract lists them. Never UNKNOWN, which is gRPC's word for "it raised", nor INTERNAL.
DOCUMENTED = {
    StatusCode.OK,
    StatusCode.INVALID_ARGUMENT,
    StatusCode.NOT_FOUND,
    StatusCode.ALREADY_EXISTS,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.DEADLINE_EXCEEDED,
}
MIB = 2**20
GROWTH = 64 * MIB  # of the server, over the second half: 3 KiB a message

DOCUMENT = pb.Document(id="a", text="a text")
DOCUMENT.metadata.update({"n": [1, {"x": None}]})
FILTER = Struct()
FILTER.update({"must": [{"key": "n", "range": {"gt": 0}}], "must_not": {"has_id": ["b"]}})
VECTOR = b"\0\0\x80\x3f" * 384
PASSAGES = ["one passage", "another"]

SAMPLED: dict[str, Any] = {
    "search_mode": "hybrid",
    "ratio": 16,
    "max_context_vectors": 8,
    "target_ms": 1e3,
    "compress_timeout_ms": 1e4,
    "min_relevance": 0.5,
    "temperature": 0.5,
    "top_p": 0.5,
    "seed": -1,
    "stop": [".", "\n"],
    "logprobs": 2,
}

# What each method takes. Where serving it is work, most of it asks for what is not there.
MESSAGES: dict[str, list[Message]] = {
    "Embedding/EmbedBatch": [
        pb.EmbedBatchRequest(texts=["a text", "é𝄞", ""], normalize=True, truncate=False),
        pb.EmbedBatchRequest(model="nobody", texts=["a"], prompt_name="query", dimensions=3),
    ],
    "Rerank/Rerank": [
        pb.RerankRequest(query="q", passages=PASSAGES, top_n=1, return_text=True),
        pb.RerankRequest(model="nobody", query="q", passages=PASSAGES, raw_scores=True),
    ],
    "Index/Create": [
        pb.CreateIndexRequest(name=INDEX, metric="cosine", kind="hnsw", dims=384),
        pb.CreateIndexRequest(name=INDEX, encoder="nobody", metric="ip", kind="flat"),
    ],
    "Index/List": [pb.ListIndexesRequest(), pb.ListIndexesRequest()],
    "Index/Get": [pb.GetIndexRequest(name=INDEX), pb.GetIndexRequest(name="../../etc")],
    "Index/Drop": [pb.DropIndexRequest(name="nowhere"), pb.DropIndexRequest(name="../../etc")],
    "Index/Upsert": [
        pb.UpsertRequest(
            index=INDEX, documents=[DOCUMENT], vectors=VECTOR, fingerprint="sha256:none"
        ),
        pb.UpsertRequest(index=INDEX, documents=[DOCUMENT]),
        pb.UpsertRequest(index="nowhere", documents=[DOCUMENT, DOCUMENT]),
    ],
    "Index/Delete": [
        pb.DeleteRequest(index=INDEX, ids=["a", "b", ""]),
        pb.DeleteRequest(index=INDEX, filter=FILTER),
    ],
    "Index/Query": [
        pb.QueryRequest(index=INDEX, query="a text", top_k=3, mode="hybrid"),
        pb.QueryRequest(index=INDEX, query="a text", filter=FILTER),
        pb.QueryRequest(index=INDEX, vector=VECTOR, fingerprint="sha256:none", top_k=3),
    ],
    "Index/Count": [pb.CountRequest(index=INDEX), pb.CountRequest(index=INDEX, filter=FILTER)],
    "Index/GetDocuments": [pb.GetDocumentsRequest(index=INDEX, ids=["a", "nobody"])],
    "Index/Scroll": [
        pb.ScrollRequest(index=INDEX, filter=FILTER, limit=2, after="a", with_text=False),
        pb.ScrollRequest(index=INDEX, with_vectors=True, with_metadata=False),
    ],
    "IndexUpkeep/UpdateAliases": [
        pb.UpdateAliasesRequest(
            actions=[pb.AliasAction(create_alias={"alias": "other", "index": "nowhere"})]
        ),
        pb.UpdateAliasesRequest(actions=[pb.AliasAction(delete_alias={"alias": "nothing"})]),
    ],
    "IndexUpkeep/ListAliases": [pb.ListAliasesRequest()],
    "IndexUpkeep/CreateSnapshot": [pb.CreateSnapshotRequest(index="nowhere")],
    "IndexUpkeep/ListSnapshots": [pb.ListSnapshotsRequest(index=INDEX)],
    "IndexUpkeep/DeleteSnapshot": [pb.DeleteSnapshotRequest(index=INDEX, snapshot="none")],
    "IndexUpkeep/RestoreSnapshot": [
        pb.RestoreSnapshotRequest(index=INDEX, snapshot="none", into="elsewhere")
    ],
    "IndexUpkeep/RebuildIndex": [
        pb.RebuildIndexRequest(index="nowhere", encoder="nobody", metric="ip", kind="flat")
    ],
    "IndexUpkeep/GetRebuild": [pb.GetRebuildRequest(index=INDEX)],
    "IndexUpkeep/CancelRebuild": [pb.CancelRebuildRequest(index="nowhere")],
    "Rag/Answer": [
        pb.AnswerRequest(query="q", documents=[DOCUMENT], max_tokens=1, top_n=1),
        pb.AnswerRequest(
            query="q", index="nowhere", top_k=3, compression_mode="off", filter=FILTER
        ),
        pb.AnswerRequest(query="q", documents=[DOCUMENT], max_tokens=1, **SAMPLED),
    ],
    "Rag/AnswerStream": [
        pb.AnswerRequest(
            query="q", documents=[DOCUMENT], max_tokens=1, compression_mode="required"
        ),
        pb.AnswerRequest(query="q", index="nowhere", top_k=3, model="nobody"),
    ],
    "Rag/Compare": [
        pb.AnswerRequest(query="q", documents=[DOCUMENT], max_tokens=1, top_n=1),
        pb.AnswerRequest(query="q", context="ctx_none", **SAMPLED),
    ],
    "Rag/Compress": [
        pb.CompressRequest(query="q", documents=[DOCUMENT], ratio=16, ttl_s=1.0),
        pb.CompressRequest(query="q", documents=[DOCUMENT], model="nobody", keep=False),
    ],
    "Rag/ReleaseContext": [pb.ReleaseContextRequest(context="ctx_none")],
    # Nothing that would take a model from the others: they are asked meanwhile.
    "Admin/ListModels": [pb.StoredModelsRequest()],
    "Admin/LoadModel": [pb.LoadModelRequest(model="nobody", version="7", again=True)],
    "Admin/UnloadModel": [pb.UnloadModelRequest(model="nobody", force=True)],
    "Admin/SetAlias": [pb.SetAliasRequest(aliases={"fuzz": "nobody", "other": ""})],
    "Models/List": [pb.ListModelsRequest()],
    "Models/GetReport": [
        pb.GetReportRequest(model="minilm-l6"),
        pb.GetReportRequest(model="oscar-mini", with_card=True, with_plots=["cost", "nope"]),
    ],
}
_PASSAGE = tei.RerankStreamRequest(query="q", text="one passage", return_text=True)
TEI: dict[str, list[Message]] = {
    "Info/Info": [tei.InfoRequest()],
    **{
        f"Embed/{name}": [
            tei.EmbedRequest(inputs="é𝄞", truncate=True, normalize=False, dimensions=384),
            tei.EmbedRequest(inputs="a", prompt_name="query", truncation_direction=1),
        ]
        for name in ("Embed", "EmbedStream")
    },
    **{
        f"Embed/{name}": [tei.EmbedSparseRequest(inputs="a text", truncate=True)]
        for name in ("EmbedSparse", "EmbedSparseStream")
    },
    **{
        f"Embed/{name}": [tei.EmbedAllRequest(inputs="a text", truncation_direction=1)]
        for name in ("EmbedAll", "EmbedAllStream")
    },
    **{
        f"Predict/{name}": [tei.PredictRequest(inputs="a text", raw_scores=True)]
        for name in ("Predict", "PredictStream")
    },
    **{
        f"Predict/{name}": [tei.PredictPairRequest(inputs=["a text", "b"], truncate=True)]
        for name in ("PredictPair", "PredictPairStream")
    },
    "Rerank/Rerank": [tei.RerankRequest(query="q", texts=PASSAGES, raw_scores=True)],
    "Rerank/RerankStream": [_PASSAGE],
    **{
        f"Tokenize/{name}": [tei.EncodeRequest(inputs="a text", add_special_tokens=True)]
        for name in ("Tokenize", "TokenizeStream")
    },
    **{
        f"Tokenize/{name}": [tei.DecodeRequest(ids=[101, 2, 2**32 - 1])]
        for name in ("Decode", "DecodeStream")
    },
}
_TEXTS = inference.ModelInferRequest.InferInputTensor(name="input", datatype="BYTES", shape=[1])
INFERENCE: dict[str, list[Message]] = {
    f"GRPCInferenceService/{name}": messages
    for name, messages in {
        "ServerLive": [inference.ServerLiveRequest()],
        "ServerReady": [inference.ServerReadyRequest()],
        "ServerMetadata": [inference.ServerMetadataRequest()],
        "ModelReady": [inference.ModelReadyRequest(name="minilm-l6", version="1")],
        "ModelMetadata": [inference.ModelMetadataRequest(name="oscar-mini")],
        "ModelInfer": [
            inference.ModelInferRequest(
                model_name="minilm-l6",
                inputs=[_TEXTS],
                parameters={"truncate": inference.InferParameter(bool_param=True)},
                raw_input_contents=[b"\x01\x00\x00\x00a"],
            )
        ],
    }.items()
}
CONTRACTS = (
    ("condensery.v1", pb.DESCRIPTOR, MESSAGES),
    ("tei.v1", tei.DESCRIPTOR, TEI),
    ("inference", inference.DESCRIPTOR, INFERENCE),
)
HEALTH = "/grpc.health.v1.Health/Check"


def paths() -> dict[str, list[bytes]]:
    """Return every method with what it takes, written."""
    written = {
        f"/{package}.{name}": [message.SerializeToString() for message in messages]
        for package, _, methods in CONTRACTS
        for name, messages in methods.items()
    }
    return {**written, HEALTH: [b"", b"\x0a\x0dcondensery.v1"]}


def test_every_method_is_fuzzed() -> None:
    for _, contract, messages in CONTRACTS:
        methods = {
            f"{service.name}/{method.name}"
            for service in contract.services_by_name.values()
            for method in service.methods
        }
        assert set(messages) == methods


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_malformed_messages_are_refused_and_harm_nobody(live_server: Any) -> None:
    logged = len(live_server.log.read_text())
    with GrpcClient(live_server.grpc, retries=0) as client, own_indexes(client):
        before = client.embed(["a text"]).tobytes()
        async with grpc.aio.insecure_channel(live_server.grpc) as channel:
            await ask(channel, HEALTH, b"")
            states = watch(channel)
            codes_of = await fuzz(channel, random.Random(SEED))  # caches fill, pools grow
            client.create_index(INDEX)
            size = resident(live_server.pid)
            codes_of += await fuzz(channel, random.Random(SEED + 1))
            grown = resident(live_server.pid) - size
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            assert states() == [], "the connection was lost"
        assert client.embed(["a text"]).tobytes() == before
        assert client.query(STAYS, "the one that stays")[0].passage.document_id == "stays"
        answer = client.answer("q", documents=["a text"], max_tokens=2)
        assert answer.compression.status == "applied"
    codes: Counter[StatusCode] = Counter()
    for (_, code), count in codes_of.items():
        codes[code] += count
    counts = {code.name: count for code, count in codes.most_common()}
    print(f"{codes.total()} messages: {counts}; grown by {grown / MIB:.1f} MiB")
    odd = {place: count for place, count in codes_of.items() if place[1] not in DOCUMENTED}
    assert odd == {}
    assert codes[StatusCode.INVALID_ARGUMENT] >= 20_000, "so many were malformed"
    assert grown < GROWTH
    log = live_server.log.read_text()[logged:]
    for alarm in ("Traceback", "internal_error", "Unexpected ["):
        assert alarm not in log


@pytest.mark.slow
def test_what_is_no_http_is_cut_off_and_harms_nobody(live_server: Any) -> None:
    chance, logged = random.Random(SEED), len(live_server.log.read_text())
    host, _, port = live_server.grpc.rpartition(":")
    opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    for number in range(1_000):
        with suppress(OSError), socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall((opening if number % 2 else b"") + chance.randbytes(200))
    with GrpcClient(live_server.grpc, retries=0) as client:
        assert client.embed(["a text"]).shape == (1, 384)
    assert "Traceback" not in live_server.log.read_text()[logged:]


async def fuzz(channel: grpc.aio.Channel, chance: random.Random) -> Counter[tuple[str, StatusCode]]:
    """Send every mangler's messages to every method; returns what came back, and how often."""
    statuses: Counter[tuple[str, StatusCode]] = Counter()
    todo = [
        (path, mangle(chance, messages))
        for _ in range(ROUNDS)
        for path, messages in paths().items()
        for mangle in MANGLERS
    ]
    chance.shuffle(todo)
    todo.sort(key=lambda call: not call[0].endswith("Drop"))  # last, as it may well succeed

    async def send() -> None:
        while todo:
            path, data = todo.pop()
            statuses[path, await ask(channel, path, data)] += 1

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return statuses


async def ask(channel: grpc.aio.Channel, path: str, data: bytes) -> Any:
    """Send one message; returns the status that comes back."""
    if not path.endswith("Stream"):
        return await channel.unary_unary(path)(data, timeout=60).code()
    call = channel.unary_stream(path)(data, timeout=60)
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return await call.code()


def watch(channel: grpc.aio.Channel) -> Callable[[], list[grpc.ChannelConnectivity]]:
    """Note each state that the channel leaves READY for."""
    seen: list[grpc.ChannelConnectivity] = []

    async def look() -> None:
        state = channel.get_state()
        while True:
            await channel.wait_for_state_change(state)
            state = channel.get_state()
            seen.append(state)

    task = asyncio.create_task(look())

    def stop() -> list[grpc.ChannelConnectivity]:
        task.cancel()
        return seen

    return stop


def resident(pid: int) -> int:
    """Return the bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


@contextmanager
def own_indexes(client: GrpcClient) -> Iterator[None]:
    """Make the index that messages are about, and another; what they make beside goes with them."""
    there = {info.name for info in client.list_indexes()}
    for name in (INDEX, STAYS):
        client.create_index(name)
        client.upsert(name, [Document("stays", "the one that stays")])
    yield
    for info in client.list_indexes():
        if info.name not in there:
            client.drop_index(info.name)
