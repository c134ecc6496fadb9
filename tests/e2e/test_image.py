"""What the Dockerfile says holds, as far as it can be tried without Docker."""

import http.server
import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from condensery.settings import Settings, variable_of

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")


def check_health(**environment: str) -> int:
    """Run the image's health check; returns its status."""
    found = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found
    _, *arguments = json.loads(found[1])
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


def test_the_image_waits_for_a_start_as_long_as_the_server_does() -> None:
    found = re.search(r"--start-period=(\d+)s", DOCKERFILE)
    assert found
    assert int(found[1]) == Settings.model_fields["start_timeout_seconds"].default
