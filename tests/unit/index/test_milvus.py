"""Vectors in Milvus: Milvus Lite as a server, a process that is killed, stopped and started."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    assert_agrees,
    count_vectors,
    make_batch,
    make_vectors,
    wait_until,
)

from condensery.errors import InputError, PayloadTooLarge, VectorDatabaseUnavailable
from condensery.index.filters import read_filter
from condensery.index.store import IndexStore
from condensery.index.vector_database import DatabaseConfig, VectorDatabases
from condensery.values import IndexSpec

pytest.importorskip("milvus_lite")
from condensery.index import milvus, remote_vectors

SECONDS = 2.0


class MilvusServer:
    """Milvus Lite's own gRPC server; its data outlives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "milvus_lite", "server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--data-dir", str(self._folder)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._listens)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
        if number == signal.SIGSTOP:
            os.waitpid(self._process.pid, os.WUNTRACED)  # it has stopped, every thread of it

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MilvusServer]:
    running = MilvusServer(tmp_path / "milvus")
    running.start()
    yield running
    running.kill()


def open_on(server: MilvusServer, data_dir: Path) -> IndexStore:
    config = DatabaseConfig("milvus", server.url, timeout_seconds=SECONDS)
    return IndexStore(data_dir, databases=VectorDatabases(config, "milvus"))


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_database_that_goes_is_said_in_its_time_and_used_again_when_it_is_back(
    server: MilvusServer, data_dir: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what was sent to a stopped one arrives when it goes on, and is taken away at the next look
    monkeypatch.setattr(remote_vectors, "CHECK_SECONDS", 0.2)
    with open_on(server, data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b", "c"]).upsert(store)
        assert_agrees(store, data_dir)
        if end == "killed":
            server.kill()
        else:
            server.send(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(VectorDatabaseUnavailable, match="Milvus at http"):
            store.query("kb", make_vectors(1)[0], top_k=3)
        assert time.monotonic() - began < 10 * SECONDS
        with pytest.raises(VectorDatabaseUnavailable, match="Milvus at http"):
            make_batch(["d"]).upsert(store)
        assert store.databases.fault is not None
        store.delete("kb", ["b"])
        if end == "killed":
            server.start()
        else:
            server.send(signal.SIGCONT)
        wait_until(lambda: store.databases.fault is None, 60)
        assert store.count("kb") == (2, 4)
        wait_until(lambda: count_vectors(store) == 4, 60)
        assert_agrees(store, data_dir)
        make_batch(["d"], seed=3).upsert(store)
        assert_agrees(store, data_dir)


def test_a_server_starts_without_it_and_finds_it_later(
    server: MilvusServer, data_dir: Path
) -> None:
    with open_on(server, data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a"]).upsert(store)
    server.kill()
    with open_on(server, data_dir) as store:
        wait_until(lambda: store.databases.fault is not None)
        assert store.info("kb").passages == 2
        server.start()
        wait_until(lambda: store.databases.fault is None, 60)
        assert_agrees(store, data_dir)


def test_what_milvus_cannot_do_is_refused_by_name(
    server: MilvusServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_on(server, data_dir) as store:
        for spec, says in (
            ({"kind": "ivf_pq"}, "kind: 'ivf_pq'"),
            ({"dims": 40_000}, "dims: 40000"),
        ):
            with pytest.raises(InputError, match=says):
                store.create("odd", IndexSpec(**{**SETTINGS, **spec}))
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b"]).upsert(store)
        monkeypatch.setattr(milvus, "MAX_ROWS", 3)
        every = read_filter({"must_not": {"has_id": ["z"]}})
        with pytest.raises(PayloadTooLarge, match="filter: it chooses 4 passages"):
            store.query("kb", make_vectors(1)[0], top_k=1, filter=every)
        store.drop("kb")
