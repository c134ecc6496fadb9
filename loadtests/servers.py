"""Servers to load: `condensery serve` as a process, on free ports, with its own data directory.

And what they show beside their replies: memory, CPU time, metrics.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "benchmarks"))  # what a run was made on is told as there

from recording import Recording, raw, tell_machine, tell_others  # noqa: E402 - found by the line above

START_SECONDS = 600.0
STOP_SECONDS = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Server:
    """A server that runs.

    Attributes:
        control: Where `faulty_server.py` takes faults; 0 for a plain server.
    """

    process: "subprocess.Popen[bytes]"
    port: int
    grpc: str
    control: int
    log: Path
    store: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def memory(self) -> int:
        """Return its resident set, bytes."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * PAGE

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def metrics(self) -> dict[str, float]:
        """Return each metric of ours by its name, summed over all labels but those kept by name.

        A sample is counted under its name, and under its name with its labels.
        """
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        values: dict[str, float] = {}
        for line in lines:
            if line.startswith("condensery_"):
                sample, _, value = line.rpartition(" ")
                for name in {sample, sample.split("{")[0]}:
                    values[name] = values.get(name, 0.0) + float(value)
        return values

    def inject(self, **fault: Any) -> dict[str, int]:
        """Send a command to a faulty server; returns how often each fault was done so far."""
        with socket.create_connection(("127.0.0.1", self.control), timeout=10) as control:
            control.sendall(json.dumps(fault).encode() + b"\n")
            done: dict[str, int] = json.loads(control.makefile().readline())
        return done

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = STOP_SECONDS) -> int | None:
        """Return its exit status, or None if it still runs after so many seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class Neighbours:
    """What others on this machine use meanwhile: the more, the less figures say."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.began = time.monotonic()
        self.then = self._others()

    def cores(self) -> float:
        """Return the cores in use since this was made, by neither the server nor this process."""
        return max(0.0, self._others() - self.then) / (time.monotonic() - self.began)

    def _others(self) -> float:
        line = Path("/proc/stat").read_text().splitlines()[0]
        user, nice, system, _, _, irq, softirq, *_ = map(int, line.split()[1:])
        busy = (user + nice + system + irq + softirq) / TICKS
        return busy - self.server.cpu_seconds() - own_cpu_seconds()


def take_out(parser: argparse.ArgumentParser) -> None:
    """Let a load keep its figures: all take the same flag."""
    parser.add_argument(
        "--out", "--json", dest="out", type=Path, metavar="FILE.json", help="keep the figures"
    )


def begin(script: str) -> Recording:
    """Note what a load runs on, from now."""
    return Recording(f"loadtests/{script}", "condensery", "torch", "transformers")


def tell_run(run: dict[str, Any]) -> str:
    """Say where, when and beside what a load ran."""
    return f"{run['date']}, {tell_machine(run)}; {tell_others(run)}"


def keep(figures: dict[str, Any], recording: Recording, out: Path | None) -> None:
    """Write a load's figures, with what it ran on beside them under ``run``."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(raw({"run": recording.about(), **figures}))


def own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder for the servers of one run; they share a model store in it."""
    with tempfile.TemporaryDirectory(prefix="condensery-load-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def source(root: Path | None) -> Iterator[None]:
    """Start servers of another source root in this block."""
    before = os.environ.get("PYTHONPATH")
    if root is not None:
        os.environ["PYTHONPATH"] = str(root)
    try:
        yield
    finally:
        if root is not None:
            os.environ.pop("PYTHONPATH")
            if before is not None:
                os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def serving(folder: Path, flags: Sequence[str] = (), *, faulty: bool = False) -> Iterator[Server]:
    """Start a server, wait until it is ready, and see to it that it has ended afterwards."""
    number = len(list(folder.glob("*.log")))
    log = folder / f"{number}.log"
    store = folder / "models"
    command = (
        [sys.executable, str(HERE / "faulty_server.py")]
        if faulty
        else [str(Path(sys.executable).with_name("condensery"))]
    )
    command += ["serve", "--port", "0", "--grpc-port", "0", "--no-samples"]
    command += ["--data-dir", str(folder / f"data{number}"), "--store", str(store), *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        text = wait_until_ready(process, log)
        rest, grpc = re.search(r"REST on http://\S+:(\d+)", text), re.search(r"gRPC on (\S+)", text)
        assert rest is not None
        assert grpc is not None
        control = re.search(r"faults on port (\d+)", text)
        yield Server(process, int(rest[1]), grpc[1], int(control[1]) if control else 0, log, store)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while "condensery: try:" not in (text := log.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the server did not start:\n{text[-3000:]}")
        time.sleep(0.1)
    return text
