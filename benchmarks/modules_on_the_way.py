"""How many of our modules a request runs through, and how many lines they have.

    python benchmarks/modules_on_the_way.py

A server in this process, with a profiler in each of its threads, is asked by HTTP; a module counts
once a function of it is called between a request and its reply, each request being made once
before. What runs by itself meanwhile (heartbeats, the watchdog) is found by waiting, and left out.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

import condensery

PACKAGE = str(Path(condensery.__file__).parent)
PORT = 18_347
DOCUMENT = {"id": "1", "text": "Marie Curie discovered radium."}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "POST /v1/rag/answer": (
        "/v1/rag/answer",
        {"query": "Who discovered radium?", "index": {"name": "samples"}},
    ),
    "POST /v1/embeddings": ("/v1/embeddings", {"model": "minilm-l6", "input": ["some text"]}),
    "an upsert": ("/v1/indexes/kb/documents", {"documents": [DOCUMENT]}),
}

counting = threading.Event()
called: set[str] = set()


def profile(frame: FrameType, event: str, _argument: object) -> None:
    if event == "call" and counting.is_set() and frame.f_code.co_name != "<module>":
        called.add(frame.f_code.co_filename)


def ask(path: str, body: dict[str, Any], method: str = "POST") -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        reply.read()


def is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def count(path: str, body: dict[str, Any]) -> set[str]:
    """Return the files whose functions a request calls; nothing asked, if there is no path."""
    called.clear()
    counting.set()
    if path:
        ask(path, body)
    else:
        time.sleep(5)
    counting.clear()
    return {name for name in called if name.startswith(PACKAGE) and "/stubs/" not in name}


def drive() -> None:
    try:
        while not is_ready():
            time.sleep(0.5)
        ask("/v1/indexes/kb", {}, "PUT")
        for path, body in REQUESTS.values():
            ask(path, body)
        by_itself = count("", {})
        for name, (path, body) in REQUESTS.items():
            files = count(path, body) - by_itself
            lines = sum(len(Path(file).read_text().splitlines()) for file in files)
            print(f"{name}: {len(files)} modules, {lines:,} lines")
            if "-v" in sys.argv:
                print("   ", *sorted(str(Path(file).relative_to(PACKAGE)) for file in files))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.setprofile(profile)
    sys.setprofile(profile)
    from condensery.cli import main

    with tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=drive, daemon=True).start()
        options = ["--data-dir", folder, "--port", str(PORT), "--grpc-port", "0"]
        main(["serve", *options])
