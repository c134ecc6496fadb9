"""What holds for every test: one thread an operation, no model hub, GPU tests only beside a GPU.

And what several kinds of tests share: a store with an untrained pair, and a running server.
"""

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

# Before torch and faiss are imported, and inherited by the servers that tests start: two pools of
# threads on a small machine starve each other, and tests are run side by side with other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A shell that runs us in the background has us ignore interrupts, and the programs that we start
# with us. What we start then hears them again.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something of the machine.
if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]
    settings.register_profile("unhurried", deadline=None, suppress_health_check=slow)
    settings.load_profile("unhurried")


# A machine with no core to spare takes more than the five seconds that httpx gives a server.
if find_spec("httpx"):
    import httpx

    for verb in ("get", "post", "put", "delete"):
        setattr(httpx, verb, partial(getattr(httpx, verb), timeout=60))


# What is imported and collected stays to the end: looking for garbage in it took two fifths of the
# time that collecting takes, and each full look later takes as long as many a test.
gc.disable()


# Whether the servers of tests have their models in replicas on a Ray of their own: pytest --ray.
on_ray = False
RAY_CONFIG = """
local_cpus: 16
local_object_store_mib: 150
ready_seconds: 290
groups:
  - {models: [minilm-l6, oscar-mini], replicas: 2, cpus: 0.25}
  - {models: ["*"], cpus: 0.25}
"""


# How many front processes they have: pytest --front-processes 2.
front_processes = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "run models in replicas on a Ray that each server of a test starts for itself"
    parser.addoption("--ray", action="store_true", help=help)
    help = "let so many front processes serve REST before each server of a test"
    parser.addoption("--front-processes", type=int, default=0, help=help)


def pytest_configure(config: pytest.Config) -> None:
    global on_ray, front_processes  # noqa: PLW0603  servers are also started by functions that are no fixtures
    on_ray = config.getoption("--ray")
    front_processes = config.getoption("--front-processes")


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_cluster = [item for item in items if item.get_closest_marker("ray")]
    if on_cluster and find_spec("ray") is None:
        for item in on_cluster:
            item.add_marker(pytest.mark.skip(reason="no ray, of the extra `ray`"))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


# One grey pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a"
    "49444154789c636800000082008177cd72b60000000049454e44ae426082"
)


@pytest.fixture(scope="session")
def store_with_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's own root with minilm-l6 and ``oscar-mini``: small, untrained, of fixed weights.

    Its answers mean nothing, and are the same each time: enough for whatever asks how an answer
    travels rather than whether it is right.
    """
    import torch
    from transformers import BertConfig

    from condensery.networks.oscar import OscarPair
    from condensery.networks.oscar_shape import OscarShape
    from condensery.runtime.oscar_pair import word_embeddings
    from condensery.store.importing import import_minilm
    from condensery.store.manifest import Manifest
    from condensery.store.store import ModelStore
    from condensery.store.weights import save_state

    root = tmp_path_factory.mktemp("store")
    store = ModelStore(None, root / "models")
    base = import_minilm(store)
    files = root / "pair"
    files.mkdir()
    sizes = {"generator_layers": 1, "generator_heads": 12, "generator_mlp_size": 1536}
    shape = OscarShape(two_way=True, **sizes)
    config = BertConfig.from_json_file(base.path / "config.json")
    config.num_hidden_layers = 2
    with torch.random.fork_rng():
        torch.manual_seed(1)
        pair = OscarPair(config, shape, word_embeddings(base.path))
        # As it starts, it repeats its prompt's last token, which ends the answer. Like this it
        # says words, and others for other prompts.
        layer = pair.generator.backbone.get_submodule("encoder.layer.0")
        with torch.no_grad():
            norm = layer.output.LayerNorm
            norm.weight.copy_(torch.randn_like(norm.weight))
            for weight in layer.parameters():
                if weight.ndim == 2:
                    weight.mul_(4)
    save_state(files, pair.own_state(), int8_names=[])
    (files / "config.json").write_text(json.dumps(config.to_dict()))
    shutil.copy(base.path / "tokenizer.json", files)
    measured = {"format": 2, "model": "oscar-mini", "settings": {"gold": {"f1": {"mean": 1.5}}}}
    (files / "report.json").write_text(json.dumps(measured))
    (files / "card.md").write_text("# oscar-mini\n\nUntrained: é. ![cost](plots/cost.png)\n")
    (files / "plots").mkdir()
    (files / "plots" / "cost.png").write_bytes(PNG)
    manifest = Manifest(
        name="oscar-mini",
        kind="oscar-pair",
        method="oscar",
        base=base.name,
        max_tokens=shape.query_tokens + shape.passage_tokens + 3,
        shape=shape.to_dict(),
    )
    store.publish(files, manifest)
    return store.own


@dataclass(frozen=True)
class LiveServer:
    """A real ``condensery serve`` on loopback."""

    url: str
    grpc: str
    data_dir: Path
    log: Path
    pid: int


@pytest.fixture(scope="session")
def live_server(
    store_with_pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """One server for all tests that do not break it; it must end by itself, and with 0."""
    with serving(store_with_pair, tmp_path_factory.mktemp("live")) as server:
        yield server


PAGES = "https://app.example.com"


@dataclass(frozen=True)
class Guarded:
    """A server that wants keys and shows a certificate.

    Attributes:
        keys: By the scope that each has.
        ca: File with whom to trust.
    """

    server: LiveServer
    keys: dict[str, str]
    ca: Path


@pytest.fixture(scope="session")
def guarded_server(
    store_with_pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """One server with keys and TLS on both doors, one origin whose pages may use it, and settings
    that are not the defaults: words are searched, and TEI's metrics are left out."""
    import trustme

    folder = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca, cert, key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(ca))
    issued.private_key_pem.write_to_path(str(key))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(cert), append=True)
    keys = {scope: f"a-key-that-is-only-for-{scope}" for scope in ("infer", "index-write", "admin")}
    listed = folder / "keys"
    listed.touch(0o600)
    listed.write_text("".join(f"{scope}-key {scope} {key}\n" for scope, key in keys.items()))
    flags = ("--keys-file", str(listed), "--tls-cert", str(cert), "--tls-key", str(key))
    flags += ("--cors-origin", PAGES, "--allowed-hosts", "rag.example.com")
    flags += ("--search", "bm25", "--no-tei-metrics")
    with serving(store_with_pair, folder, *flags) as server:
        yield Guarded(server, keys, ca)


@contextmanager
def serving(
    store: Path, folder: Path, *flags: str, config: str | None = None, status: int = 0
) -> Iterator[LiveServer]:
    """Run a server; it must end by itself, when it is told to, and with 0.

    Args:
        config: Of a cluster, on which its models run in replicas.
        status: That it must end with; if not 0, then by itself.
    """
    data_dir, log = folder / "data", folder / "log"
    command = [str(Path(sys.executable).with_name("condensery")), *serve_words(folder, config)]
    command += ["--port", "0"]
    command += ["--grpc-port", "0", "--data-dir", str(data_dir), "--store", str(store)]
    # However slow the machine, what waits is not refused but served.
    command += ["--settle-seconds", "0", "--max-queue-seconds", "600", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        text = wait_for(log, "condensery: ready in", process)
        rest = re.search(r"REST on (https?://\S+)", text)
        grpc = re.search(r"gRPC on (\S+)", text)
        assert rest, text
        yield LiveServer(rest[1], grpc[1] if grpc else "", data_dir, log, process.pid)
        assert status or process.poll() is None, f"the server died:\n{log.read_text()}"
    finally:
        if not status:
            process.send_signal(signal.SIGTERM)
        try:
            ended = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert ended == status, log.read_text()


def serve_words(folder: Path, config: str | None) -> list[str]:
    """Return the command that serves: on this machine, or from replicas."""
    config = config or (RAY_CONFIG if on_ray else None)
    if config is None:
        return ["serve", *(["--front-processes", str(front_processes)] if front_processes else [])]
    (folder / "ray.yaml").write_text(config)
    return ["ray", "deploy", str(folder / "ray.yaml")]


def wait_for(log: Path, line: str, process: "subprocess.Popen[bytes]", seconds: float = 270) -> str:
    """Return a process's output once it holds ``line`` and what is said in one go with it."""
    deadline = time.monotonic() + seconds
    while line not in (text := log.read_text()):
        assert process.poll() is None, f"it ended with {process.returncode}:\n{text}"
        assert time.monotonic() < deadline, f"not in {seconds} s:\n{text}"
        time.sleep(0.05)
    while "condensery: try:" not in text and time.monotonic() < deadline:
        time.sleep(0.02)
        text = log.read_text()
    return text


def read_metric(url: str, name: str, **labels: str) -> float:
    """Return a sample of a server's metrics, by name and labels; 0 if there is none."""
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    text = httpx.get(f"{url}/metrics", timeout=60).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or nobody has asked yet how it ended."""
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
