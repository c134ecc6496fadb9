"""A real server whose indexes' vectors are in a database that comes, goes and forgets."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.conftest import LiveServer, serving, wait_for

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.errors import CondenseryError, VectorDatabaseUnavailable
from condensery.values import Document, SearchMode

pytest.importorskip("qdrant_client")
from qdrant_server import QdrantServer, serving_qdrant

MODES: tuple[SearchMode, ...] = ("dense", "bm25", "hybrid")
QUESTION = "Which lake does the Rhine pass through?"
SECONDS = 5.0  # that the database may take for a reply
FLAGS = ("--index-backend", "qdrant", "--index-database-timeout", str(SECONDS), "--no-samples")
DOCUMENTS = [
    Document("rhine", "The Rhine passes through Lake Constance.", {"kind": "river"}),
    Document("rhone", "The Rhone passes through Lake Geneva.", {"kind": "river"}),
    Document("tea", "Green tea is brewed at eighty degrees.", {"kind": "drink"}),
]


@pytest.fixture(scope="module")
def database() -> Iterator[QdrantServer]:
    with serving_qdrant() as running:
        yield running


@pytest.fixture(scope="module")
def live(
    store_with_pair: Path, database: QdrantServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("remote")
    with serving(store_with_pair, folder, *FLAGS, "--index-database", database.url) as server:
        with Client(server.url) as client:
            client.create_index("kb")
            client.upsert("kb", DOCUMENTS)
        yield server


@pytest.fixture(params=["rest", "grpc"])
def door(request: pytest.FixtureRequest, live: LiveServer) -> Iterator[Client | GrpcClient]:
    made: Client | GrpcClient = GrpcClient(live.grpc, retries=0)
    if request.param == "rest":
        made.close()
        made = Client(live.url, retries=0)
    with made:
        yield made


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def readiness(live: LiveServer) -> tuple[int, str, bool]:
    """What REST says, why, and what gRPC's health says."""
    reply = httpx.get(f"{live.url}/readyz")
    with grpc.insecure_channel(live.grpc) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return reply.status_code, reply.text, check.status == health_pb2.HealthCheckResponse.SERVING


def is_ready(live: LiveServer) -> bool:
    return httpx.get(f"{live.url}/readyz").status_code == 200


def test_every_search_finds_it_there(door: Client | GrpcClient, database: QdrantServer) -> None:
    assert len(database.collections()) == 1
    for mode in MODES:
        hits = door.query("kb", QUESTION, search=mode, top_k=2)
        assert hits[0].passage.document_id == "rhine"
    only = door.query(
        "kb", QUESTION, filter={"must": [{"key": "kind", "match": {"value": "drink"}}]}
    )
    assert [hit.passage.document_id for hit in only] == ["tea"]
    answer = door.answer(QUESTION, index="kb", top_k=2, max_tokens=4)
    assert {cited.document_id for cited in answer.citations} == {"rhine", "rhone"}


def test_a_database_that_goes_is_said_by_every_door_and_back_in_use_without_a_restart(
    live: LiveServer, database: QdrantServer
) -> None:
    with Client(live.url, retries=0) as rest, GrpcClient(live.grpc, retries=0) as by_grpc:
        calls: list[Callable[[], Any]] = []
        for client in (rest, by_grpc):
            calls += [
                lambda client=client: client.query("kb", QUESTION),
                lambda client=client: client.query("kb", QUESTION, search="hybrid"),
                lambda client=client: client.answer(QUESTION, index="kb"),
                lambda client=client: list(client.answer_stream(QUESTION, index="kb")),
                lambda client=client: client.upsert("kb", DOCUMENTS[:1]),
            ]
        database.stop()
        try:
            for call in calls:
                began = time.monotonic()
                with pytest.raises(VectorDatabaseUnavailable, match="Qdrant at http"):
                    call()
                assert time.monotonic() - began < 30
            reply = httpx.post(f"{live.url}/v1/indexes/kb/query", json={"query": QUESTION})
            assert reply.status_code == 503
            assert reply.json()["error"]["code"] == "vector_database_unavailable"
            assert reply.headers["retry-after"]
            with (
                openai.OpenAI(base_url=f"{live.url}/v1", api_key="-", max_retries=0) as chat,
                pytest.raises(openai.InternalServerError, match="Qdrant at http"),
            ):
                chat.chat.completions.create(
                    model="oscar-mini",
                    messages=[{"role": "user", "content": QUESTION}],
                    extra_body={"index": "kb"},
                )
            status, why, serves = readiness(live)
            assert (status, serves) == (503, False)
            assert "index kb: Qdrant at" in why
            # what needs no database goes on
            assert rest.query("kb", "Rhine", search="bm25")
            assert len(rest.embed([QUESTION])) == 1
            assert "condensery_index_database_up 0.0" in httpx.get(f"{live.url}/metrics").text
        finally:
            database.start()
        until(lambda: is_ready(live))
        assert readiness(live)[2]
        for call in calls:
            assert call() is not False
        assert "condensery_index_database_up 1.0" in httpx.get(f"{live.url}/metrics").text


def test_a_slow_database_is_an_error_within_the_callers_time(
    live: LiveServer, database: QdrantServer
) -> None:
    database.gate.clear()
    try:
        began = time.monotonic()
        with Client(live.url, retries=0) as client, pytest.raises(VectorDatabaseUnavailable):
            client.query("kb", QUESTION)
        with GrpcClient(live.grpc, retries=0) as client, pytest.raises(VectorDatabaseUnavailable):
            client.query("kb", QUESTION)
        assert time.monotonic() - began < 30
        until(lambda: not is_ready(live))
    finally:
        database.gate.set()
    until(lambda: is_ready(live))


def test_a_database_that_forgot_all_is_filled_again(
    door: Client | GrpcClient, live: LiveServer, database: QdrantServer
) -> None:
    door.upsert("kb", [Document("new", "The Danube passes through Vienna.")])
    for name in database.collections():
        database.client.delete_collection(name)
    with pytest.raises(VectorDatabaseUnavailable):
        door.query("kb", QUESTION)
    until(lambda: is_ready(live))
    hits = door.query("kb", "Which river passes through Vienna?", top_k=1)
    assert hits[0].passage.document_id == "new"
    door.delete("kb", ["new"])


@pytest.mark.slow
def test_what_was_acknowledged_is_found_after_a_kill_amid_writes(
    store_with_pair: Path, tmp_path: Path
) -> None:
    acknowledged: list[str] = []
    with serving_qdrant() as own:
        command = [str(Path(sys.executable).with_name("condensery")), "serve", "--port", "0"]
        command += ["--grpc-port", "0", "--data-dir", str(tmp_path / "data")]
        command += ["--store", str(store_with_pair), *FLAGS, "--index-database", own.url]
        log = tmp_path / "killed"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            text = wait_for(log, "condensery: ready in", process)
            with Client(text.split("REST on ")[1].split()[0], retries=0) as client:
                client.create_index("kb")

                def write() -> None:
                    for n in range(10_000):
                        name = f"d{n}"
                        # two in three replace another one as well: its old row must go
                        documents = [Document(name, f"Text {name}.")]
                        if n % 3:
                            documents.append(Document(f"d{n // 3 * 3}", f"Text {name} too."))
                        try:
                            client.upsert("kb", documents)
                        except CondenseryError:
                            return
                        acknowledged.append(name)

                thread = threading.Thread(target=write)
                thread.start()
                until(lambda: len(acknowledged) >= 12)
                os.kill(process.pid, signal.SIGKILL)
                thread.join()
        finally:
            process.kill()
            process.wait()
        flags = (*FLAGS, "--index-database", own.url)
        with serving(store_with_pair, tmp_path, *flags) as again, Client(again.url) as client:
            until(lambda: is_ready(again))
            documents, passages = client.count("kb")
            there = {document.id for document in client.get("kb", acknowledged)}
            assert there == set(acknowledged)
            (collection,) = own.collections()
            assert len(own.rows(collection)) == passages
            hits = client.query("kb", "Text", top_k=100)
            assert len({hit.passage.document_id for hit in hits}) == min(100, documents)
