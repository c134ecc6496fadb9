"""What the Dockerfile says holds, as far as it can be tried without Docker."""

import http.server
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import LiveServer, serving

from condensery.atomic_files import umask
from condensery.auth import KEY_FILE, load_or_make_key
from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.errors import LimitReached, Unauthenticated
from condensery.index.store import IndexStore
from condensery.settings import Settings, variable_of
from condensery.values import AliasAction, Document, IndexSpec

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")


def check_health(**environment: str) -> int:
    """Run the image's health check; returns its status."""
    hits = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert hits
    _, *arguments = json.loads(hits[1])
    bare = {name: value for name, value in os.environ.items() if "CONDENSERY" not in name}
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        timeout=30,
        capture_output=True,
        env=bare | environment,
    )
    return done.returncode


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    """The port of a server that speaks TLS only, and answers 200 to all."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout key -out cert"
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Yes) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


class Yes(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def test_the_health_check_asks_the_server_that_the_environment_sets_up(
    live_server: Any, tls_port: int
) -> None:
    port = live_server.url.rpartition(":")[2]
    assert check_health(CONDENSERY_PORT=port) == 0
    assert check_health(CONDENSERY_PORT="9") != 0
    assert check_health(CONDENSERY_PORT=str(tls_port)) != 0
    assert check_health(CONDENSERY_PORT=str(tls_port), CONDENSERY_TLS_CERT="cert.pem") == 0


def test_the_variables_that_the_image_sets_are_settings() -> None:
    named = set(re.findall(r"(CONDENSERY_\w+)=", DOCKERFILE))
    assert len(named) > 1
    assert named <= {variable_of(name) for name in Settings.model_fields}


@pytest.fixture
def _as_in_the_image(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The image's environment and no other; the data directory is a flag's. And a usual umask."""
    for variable in [name for name in os.environ if name.startswith("CONDENSERY_")]:
        monkeypatch.delenv(variable)
    (variables,) = re.findall(
        r"^ENV (CONDENSERY_\w+=\S+ (?:\\\n +\S+ ?)+)", DOCKERFILE, re.MULTILINE
    )
    for setting in variables.replace("\\", "").split():
        name, _, value = setting.partition("=")
        monkeypatch.setenv(name, value)
    with umask(0o022):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_as_in_the_image")
def test_told_nothing_it_makes_a_key_and_what_it_writes_is_its_own(
    store_with_pair: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "data" / KEY_FILE
    with serving(store_with_pair, tmp_path) as server:
        key = kept.read_text().strip()
        printed = server.log.read_text()
        assert f"key_made file={str(kept)!r}" in printed
        assert f"the key is in {kept}" in printed
        assert key not in printed
        assert check_health(CONDENSERY_PORT=str(httpx.URL(server.url).port)) == 0
        check_locked(server, key)
        write_of_all_kinds(server, key)
        assert open_to_others(tmp_path / "data") == []
        kept.unlink()  # to have another
        os.kill(server.pid, signal.SIGHUP)
        deadline = time.monotonic() + 60
        while "keys_reloaded" not in server.log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        check_locked(server, kept.read_text().strip())
        with Client(server.url, api_key=key) as former, pytest.raises(Unauthenticated):
            former.models()
    assert open_to_others(tmp_path / "data") == []


@pytest.mark.slow
@pytest.mark.usefixtures("_as_in_the_image")
def test_at_the_next_start_it_takes_the_key_again_and_closes_what_an_older_version_left_open(
    store_with_pair: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    with IndexStore(data_dir) as store:
        settings = {"encoder": "gone", "fingerprint": "sha256:gone", "metric": "ip", "kind": "flat"}
        store.create("kb", IndexSpec(dims=4, **settings))
        store.maintenance.update_aliases([AliasAction("create", "current", "kb")])
        store.maintenance.snapshot("kb")
    (data_dir / "model-aliases.json").write_text('{"format": 1, "aliases": {}}')
    key, _ = load_or_make_key(data_dir / KEY_FILE)
    assert len(open_to_others(data_dir)) > 8
    caps = ("--max-indexes", "2", "--max-aliases", "1", "--max-snapshots", "1")
    with serving(store_with_pair, tmp_path, *caps) as server:
        assert f"key_kept file={str(data_dir / KEY_FILE)!r}" in server.log.read_text()
        check_locked(server, key.get_secret_value())
        check_capped(server, key.get_secret_value())
        # its own folder is whoever's who made it
        assert open_to_others(data_dir) == [f"{data_dir} 40755"]


def check_locked(server: LiveServer, key: str) -> None:
    for kind, address in ((Client, server.url), (GrpcClient, server.grpc)):
        with kind(address) as stranger, pytest.raises(Unauthenticated):
            stranger.models()
        with kind(address, api_key=key) as owner:
            assert owner.models()


def write_of_all_kinds(server: LiveServer, key: str) -> None:
    with Client(server.url, api_key=key) as client:
        client.create_index("kb")
        client.upsert("kb", [Document("a", "radium was found")])
        snapshot = client.create_snapshot("kb")
        client.restore_snapshot("kb", snapshot.id)
        client.restore_snapshot("kb", snapshot.id, into="other")
        client.update_aliases([AliasAction("create", "current", "kb")])
        client.set_aliases({"mine": client.models()[0].name})


def check_capped(server: LiveServer, key: str) -> None:
    """The samples and another index are there, an alias, and a snapshot."""
    with Client(server.url, api_key=key) as rest, GrpcClient(server.grpc, api_key=key) as grpc:
        alias = [AliasAction("create", "second", "kb")]
        for client in (rest, grpc):
            for field, most, call, arguments in (
                ("index", "2 (max_indexes)", client.create_index, "third"),
                ("snapshot", "1 (max_snapshots)", client.create_snapshot, "kb"),
                ("actions", "1 (max_aliases)", client.update_aliases, alias),
            ):
                with pytest.raises(LimitReached, match=re.escape(f"there may be {most}")) as caught:
                    call(arguments)
                assert caught.value.field == field


def open_to_others(folder: Path) -> list[str]:
    """Name what group or others may do anything with."""
    paths = (folder, *folder.rglob("*"))
    return [f"{path} {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & 0o077]


def test_the_image_waits_for_a_start_as_long_as_the_server_does() -> None:
    hits = re.search(r"--start-period=(\d+)s", DOCKERFILE)
    assert hits
    assert int(hits[1]) == Settings.model_fields["start_timeout_seconds"].default
