"""Real replicas on a real Ray: killed, scaled, never ready, and without a head."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.conftest import LiveServer, has_ended, serving

from condensery.client.grpc import AsyncGrpcClient, GrpcClient
from condensery.client.rest import AsyncClient, Client
from condensery.errors import CondenseryError, ModelNotFound, Unavailable
from condensery.values import Document

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

LOCAL = "local_cpus: 16\nlocal_object_store_mib: 150\nready_seconds: 290\n"
TWO_OF_EACH = (
    LOCAL
    + """
groups:
  - {models: [minilm-l6], replicas: 2, cpus: 0.25}
  - {models: [oscar-mini], replicas: 2, cpus: 0.25}
"""
)
TEXT = "The old mill above the river was sold in autumn."
PASSAGES = ["The Rhine passes through Lake Constance.", "Bread is baked at night.", TEXT]
QUESTION = "Which lake does the Rhine pass through?"


@pytest.fixture(scope="module")
def deployed(
    store_with_pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    with serving(store_with_pair, tmp_path_factory.mktemp("ray"), config=TWO_OF_EACH) as server:
        yield server


def children_of(pid: int) -> list[int]:
    """Return the processes that descend from one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:  # it has just ended
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found, ahead = [], [pid]
    while ahead:
        at = ahead.pop()
        below = [child for child, parent in parents.items() if parent == at]
        found += below
        ahead += below
    return found


def named(server: LiveServer, pattern: str) -> set[int]:
    """Return the processes under a server whose command line has a pattern."""
    found = set()
    for pid in children_of(server.pid):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if re.search(pattern, line):
            found.add(pid)
    return found


def replicas_of(server: LiveServer, model: str) -> set[int]:
    return named(server, rf"ServeReplica:\S*\.{model}\.")


def wait_until(true: Callable[[], Any], what: str, seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.2)


@asynccontextmanager
async def asking(server: LiveServer, callers: int) -> AsyncIterator[list[Any]]:
    """Let callers embed and rerank by turns without a pause; yields what they got so far."""
    got: list[Any] = []
    stop = asyncio.Event()

    async def ask(door: Any, number: int) -> None:
        while not stop.is_set():
            try:
                if number % 2:
                    got.append((await door.embed([TEXT]))[0])
                else:
                    await door.rerank(QUESTION, PASSAGES)
                    got.append("ranked")
            except CondenseryError as error:
                got.append(error)

    async with AsyncClient(server.url, retries=0) as rest, AsyncGrpcClient(server.grpc) as grpc:
        tasks = [
            asyncio.create_task(ask((rest, grpc)[number // 2 % 2], number))
            for number in range(callers)
        ]
        yield got
        stop.set()
        await asyncio.gather(*tasks)


async def grow(got: list[Any], count: int) -> None:
    until = time.monotonic() + 240
    wanted = len(got) + count
    while len(got) < wanted:
        assert time.monotonic() < until
        await asyncio.sleep(0.05)


async def test_no_request_is_lost_when_a_replica_is_killed(deployed: LiveServer) -> None:
    """Of the two replicas of each model one is killed while it has calls in its hands."""
    with Client(deployed.url) as client:
        alone = client.embed([TEXT])[0]
    async with asking(deployed, callers=16) as got:
        await grow(got, 100)
        killed = set()
        for model in ("minilm-l6", "oscar-mini"):
            victim = min(replicas_of(deployed, model))
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
            await grow(got, 100)
    assert [error for error in got if isinstance(error, CondenseryError)] == []
    vectors = [vector for vector in got if not isinstance(vector, str)]
    assert len(vectors) > 50
    assert np.abs(np.array(vectors) - alone).max() < 2e-2  # bf16, in other batches
    for model in ("minilm-l6", "oscar-mini"):
        wait_until(
            lambda model=model: len(replicas_of(deployed, model) - killed) == 2,  # type: ignore[misc]
            f"no new replica of {model}",
        )


async def test_an_answer_whose_replica_is_killed_ends_with_a_retriable_error(
    deployed: LiveServer,
) -> None:
    cut: list[CondenseryError] = []

    async def read(door: AsyncClient | AsyncGrpcClient, begun: asyncio.Event) -> None:
        try:
            async for _ in door.answer_stream(QUESTION, documents=PASSAGES, max_tokens=400):
                begun.set()
        except CondenseryError as error:
            cut.append(error)

    for _ in range(10):  # an answer may be over before its replica is
        wait_until(lambda: len(replicas_of(deployed, "oscar-mini")) == 2, "two replicas")
        async with AsyncClient(deployed.url, retries=0) as rest:
            begun = [asyncio.Event() for _ in range(8)]
            reading = [asyncio.create_task(read(rest, event)) for event in begun]
            await asyncio.gather(*(event.wait() for event in begun))
            for pid in replicas_of(deployed, "oscar-mini"):
                os.kill(pid, signal.SIGKILL)
            await asyncio.gather(*reading)
        if cut:
            break
    assert cut
    assert {type(error) for error in cut} == {Unavailable}
    wait_until(lambda: ready(deployed), "it is not ready again")


def ready(server: LiveServer) -> bool:
    try:
        return httpx.get(f"{server.url}/readyz", timeout=30).status_code == 200
    except httpx.HTTPError:  # it has ended
        return False


def test_a_model_without_a_replica_is_not_ready_and_says_so_on_each_door(
    deployed: LiveServer,
) -> None:
    """Stopped as it starts again and again, it is unavailable; then it comes back by itself."""
    wait_until(lambda: ready(deployed), "it is not ready")
    heard: dict[str, str] = {}
    until = time.monotonic() + 240
    stop = threading.Event()

    def stop_each() -> None:
        while not stop.wait(0.2):
            for pid in replicas_of(deployed, "minilm-l6"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    stopping = threading.Thread(target=stop_each)
    stopping.start()
    try:
        with (
            Client(deployed.url, retries=0, timeout=5) as rest,
            GrpcClient(deployed.grpc, timeout=5) as grpc,
        ):
            while len(heard) < 3:
                assert time.monotonic() < until, heard
                reply = httpx.get(f"{deployed.url}/readyz", timeout=30)
                if reply.status_code == 503:
                    heard["health"] = reply.text
                for name, door in (("rest", rest), ("grpc", grpc)):
                    try:
                        door.embed([TEXT])
                    except Unavailable as error:
                        heard[name] = error.message
                    except CondenseryError:  # its time ran out, as it waited for a replica
                        pass
    finally:
        stop.set()
        stopping.join()
    assert "minilm-l6" in heard["health"]
    assert "No replica is up" in heard["rest"]
    wait_until(lambda: ready(deployed), "it is not ready again")
    with Client(deployed.url) as rest:
        assert rest.embed([TEXT]).shape == (1, 384)


async def test_replicas_come_and_go_with_the_load(store_with_pair: Path, tmp_path: Path) -> None:
    scaling = "{min: 1, max: 2, tokens: 200, up_seconds: 1, down_seconds: 3, look_back_seconds: 2}"
    config = f"{LOCAL}groups:\n  - {{models: [minilm-l6], replicas: {scaling}, cpus: 0.25}}\n"
    with serving(store_with_pair, tmp_path, "--no-samples", config=config) as server:
        assert len(replicas_of(server, "minilm-l6")) == 1
        async with AsyncClient(server.url, retries=0) as client:
            stop = asyncio.Event()

            async def load() -> int:
                count = 0
                while not stop.is_set():
                    vectors = await client.embed([TEXT] * 32)
                    count += len(vectors)
                return count

            tasks = [asyncio.create_task(load()) for _ in range(8)]
            try:
                await asyncio.to_thread(
                    wait_until,
                    lambda: len(replicas_of(server, "minilm-l6")) == 2,
                    "no second replica",
                )
            finally:
                stop.set()
            assert all([await task for task in tasks])
            await asyncio.to_thread(
                wait_until, lambda: len(replicas_of(server, "minilm-l6")) == 1, "still two replicas"
            )
            assert (await client.embed([TEXT])).shape == (1, 384)


def test_a_replica_that_never_gets_ready_is_refused_with_the_reason_and_the_rest_serve(
    store_with_pair: Path, tmp_path: Path
) -> None:
    config = (
        LOCAL.replace("290", "150")
        + """
groups:
  - {models: [minilm-l6], cpus: 0.25}
  - {models: [oscar-mini], cpus: 0.25, resources: {a-gpu-that-nobody-has: 1}}
"""
    )
    with (
        serving(store_with_pair, tmp_path, "--no-samples", config=config) as server,
        Client(server.url, retries=0) as client,
    ):
        assert ready(server)  # as on one machine: what serves is all there
        assert [model.name for model in client.models()] == ["minilm-l6"]
        assert client.embed([TEXT]).shape == (1, 384)
        with pytest.raises(ModelNotFound, match=r"did not get ready \(not within 150 s") as caught:
            client.answer(QUESTION, documents=PASSAGES, model="oscar-mini")
        assert "a-gpu-that-nobody-has" in caught.value.message


def test_without_its_head_it_is_not_ready_refuses_and_ends_for_its_supervisor(
    store_with_pair: Path, tmp_path: Path
) -> None:
    # Ray by itself would end the process after 60, without a word.
    config = f"{LOCAL}lost_seconds: 70\ngroups: [{{models: [minilm-l6], cpus: 0.25}}]\n"
    with (
        serving(store_with_pair, tmp_path, "--no-samples", config=config, status=70) as server,
        Client(server.url, retries=0, timeout=60) as client,
    ):
        client.create_index("kept")
        client.upsert("kept", [Document(id="a", text=TEXT)])
        for pid in named(server, "gcs_server|raylet/raylet"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not ready(server), "it is still ready")
        with pytest.raises(Unavailable, match="Ray cluster does not answer"):
            client.embed([TEXT])
        wait_until(lambda: has_ended(server.pid), "it does not end")
    assert "ended: the Ray cluster does not answer" in server.log.read_text()
    (tmp_path / "log").rename(tmp_path / "first.log")
    with (
        serving(store_with_pair, tmp_path, "--no-samples", config=config) as server,
        Client(server.url) as client,
    ):
        assert [hit.document_id for hit in client.query("kept", TEXT)] == ["a"]


def test_a_reply_of_many_megabytes_comes_whole(deployed: LiveServer) -> None:
    """Vectors of all tokens of 40 long texts: 16 MB, where Serve's gRPC takes 4 by default."""
    wait_until(lambda: ready(deployed), "it is not ready")
    body = {"inputs": [TEXT * 40] * 40, "truncate": True}
    reply = httpx.post(f"{deployed.url}/embed_all", json=body, timeout=120)
    assert reply.status_code == 200, reply.text[:500]
    tokens = [len(vectors) for vectors in reply.json()]
    assert len(tokens) == 40
    assert sum(tokens) * 384 * 4 > 2 * 4 * 2**20


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Ray that was there before, and its address."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # there and at the doors
    ray = str(Path(sys.executable).with_name("ray"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = [ray, "start", "--head", f"--port={port}", "--num-cpus=16", "--include-dashboard=false"]
    start += [f"--object-store-memory={150 * 2**20}", "--disable-usage-stats"]
    subprocess.run(start, check=True, capture_output=True)
    yield f"127.0.0.1:{port}"
    subprocess.run([ray, "stop", "--force"], check=True, capture_output=True)


def test_the_next_start_finds_what_a_load_left(
    store_with_pair: Path, tmp_path: Path, head: str
) -> None:
    config = f"address: {head}\nready_seconds: 290\ngroups: [{{models: [minilm-l6], cpus: 0.25}}]\n"
    (tmp_path / "ray.yaml").write_text(config)

    def deployed() -> list[str]:
        command = [str(Path(sys.executable).with_name("condensery")), "ray"]
        command += ["status", str(tmp_path / "ray.yaml")]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [line.split()[0] for line in lines.splitlines()[1:]]

    with (
        serving(store_with_pair, tmp_path, "--no-samples", config=config) as server,
        Client(server.url) as client,
    ):
        (first,) = deployed()
        client.load_model("minilm-l6", again=True)
        wait_until(lambda: len(deployed()) == 1, "the first replica does not go")
        (loaded,) = deployed()
        assert loaded.startswith(f"{first}.")
    (tmp_path / "log").rename(tmp_path / "first.log")
    with (
        serving(store_with_pair, tmp_path, "--no-samples", config=config) as server,
        Client(server.url) as client,
    ):
        assert client.embed([TEXT]).shape == (1, 384)
        assert deployed() == [loaded]
