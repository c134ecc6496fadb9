"""The real server, with faults put in from outside: `condensery serve` whose forward passes fail.

    python loadtests/faulty_server.py serve --port 0 --grpc-port 0 --data-dir DIR ...

Takes what `condensery` takes, and wraps what a device worker calls: the encoder's forward pass, the
compressor's, and the generator's steps. The service itself knows nothing of it. Says on stderr on
which port it takes faults; each is one line of JSON, answered by one with the faults done so far:

    {"poison": [7, 8]}              a batch with this run of token ids in a text raises RuntimeError
    {"nan": [7, 9]}                 a text with this run of ids gets a vector of NaN
    {"oom": {"over": 4, "times": 9}} batches of more items raise torch.OutOfMemoryError, so often
    {"hang": 3}                     the next batch takes so many seconds; null: for ever
    {"die": true}                   the next batch ends its thread
    {"slow": 0.1}                   each batch takes so many seconds more; 0 ends that
    {}                              nothing; only tells
"""

import json
import socketserver
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from condensery import cli
from condensery.networks import backbone, stepping
from condensery.runtime import encoder, oscar

Ids = Sequence[int]
FOR_EVER = 86_400.0


class Faults:
    """What is wrong at the moment, and what was done so far."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.poison: list[int] = []
        self.nan: list[int] = []
        self.oom_over = 0
        self.oom_times = 0
        self.hang = 0.0
        self.die = False
        self.slow = 0.0
        self.done: Counter[str] = Counter()
        # Which rows of the batch in hand get NaN, for each worker.
        self.rows = threading.local()

    def set(self, command: dict[str, Any]) -> dict[str, int]:
        with self.lock:
            self.poison = command.get("poison", self.poison)
            self.nan = command.get("nan", self.nan)
            if "oom" in command:
                self.oom_over = command["oom"]["over"]
                self.oom_times = command["oom"]["times"]
            if "hang" in command:
                self.hang = FOR_EVER if command["hang"] is None else command["hang"]
            self.die = command.get("die", self.die)
            self.slow = command.get("slow", self.slow)
            return dict(self.done)

    def before(self, texts: list[Ids]) -> None:
        """Do what is due to a batch of texts, given by their token ids."""
        slow, hang = self.slow, 0.0
        with self.lock:
            if self.hang:
                hang, self.hang = self.hang, 0.0
                self.done["hang"] += 1
            if self.die:
                self.die = False
                self.done["die"] += 1
                raise SystemExit("killed")
            if self.oom_times and len(texts) > self.oom_over:
                self.oom_times -= 1
                self.done["oom"] += 1
                raise torch.OutOfMemoryError("injected")
            if any(holds(ids, self.poison) for ids in texts):
                self.done["poison"] += 1
                raise RuntimeError("injected")
            self.done["slow"] += bool(slow)
        time.sleep(slow + hang)
        self.rows.bad = [place for place, ids in enumerate(texts) if holds(ids, self.nan)]
        if self.rows.bad:
            with self.lock:
                self.done["nan"] += len(self.rows.bad)

    def wrap(self, forward: Any, read: Callable[..., list[Ids]]) -> Any:
        """Do what is due before each call of a method; ``read`` tells its texts' token ids."""

        def faulty(self_: Any, *args: Any) -> Any:
            self.before(read(*args))
            return forward(self_, *args)

        return faulty

    def wrap_pooling(self, pool: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def faulty(*args: Any) -> torch.Tensor:
            vectors = pool(*args)
            for row in getattr(self.rows, "bad", ()):
                vectors[row] = float("nan")
            return vectors

        return faulty


def holds(ids: Ids, run: Ids) -> bool:
    """Tell whether ``run`` is somewhere in ``ids``; an empty run is nowhere."""
    if not run or run[0] not in ids:
        return False
    return any(list(window) == list(run) for window in windows(ids, len(run)))


def windows(ids: Ids, size: int) -> Iterator[Ids]:
    return (ids[start : start + size] for start in range(len(ids) - size + 1))


def break_forwards(faults: Faults) -> None:
    """Wrap what device workers call, before any model is loaded."""
    network: Any = encoder.EncoderNetwork
    network.forward = faults.wrap(network.forward, lambda texts: [text.ids for text in texts])
    read: Any = backbone.Backbone
    read.pool = faults.wrap_pooling(read.pool)
    pairs: Any = oscar.Compressor
    pairs._forward = faults.wrap(
        pairs._forward,
        lambda windows: [
            window.ids[window.head : len(window.ids) - window.tail] for window in windows
        ],
    )
    steps: Any = stepping.Stepper
    steps.run = faults.wrap(steps.run, lambda embeds, step: [() for _ in step.last])


def listen(faults: Faults) -> None:
    """Take commands on a port of its own, in a thread of its own."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                done = faults.set(json.loads(line))
                self.wfile.write(json.dumps(done).encode() + b"\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="faults", daemon=True).start()
    sys.stderr.write(f"faulty server: faults on port {server.server_address[1]}\n")
    sys.stderr.flush()


def main() -> int:
    faults = Faults()
    break_forwards(faults)
    listen(faults)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
