"""Kills what writes an index, again and again, and looks what is left. As a command, in full:

    python -m tests.e2e.crashes --kills 300 --server-kills 10

An index process (no model: its vectors are made up) writes, deletes and compacts, with every write
and sync of SQLite watched, and is killed with SIGKILL anywhere in that; then the whole server,
under writes over REST. After each kill every acknowledged write must be there, once, and what was
deleted be gone; only the one write that nobody had an answer to may be there or not.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.conftest import wait_for
from tests.unit.index.conftest import SETTINGS, Disk, assert_agrees, make_batch, read_truth
from tests.unit.index.lives import Life, Say, live

from condensery.client.rest import Client
from condensery.errors import CondenseryError
from condensery.index import vector_index, vectors
from condensery.index.store import IndexStore
from condensery.values import Document, IndexSpec

KINDS = ("flat", "hnsw")
DOCUMENTS = 60
BATCH = 4

State = dict[str, int]  # each document's version


@dataclass
class Watch(Disk):
    """When each file was last written, and last synced."""

    clock: int = 0
    written: dict[Path, int] = field(default_factory=dict)
    done: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refuse = self.note

    def note(self, operation: str, path: Path) -> int:
        self.clock += 1
        if operation == "write":
            self.written[path] = self.clock
        return 0

    def on_sync(self, path: Path) -> None:
        self.clock += 1
        self.done[path] = self.clock

    def is_synced(self, log: Path, since: int) -> bool:
        """Whether a file was written since, and synced after its last write."""
        return since < self.written.get(log, 0) < self.done.get(log, 0)


def write_for_ever(data_dir: Path, say: Say, seed: int) -> None:
    """Write, delete and compact in both kinds of index; what is done was synced, or it says so."""
    vectors.MIN_DEAD = 20  # compact often
    compact = vector_index.VectorIndex._compact

    def compact_and_say(self: vector_index.VectorIndex) -> None:
        say("compacting")
        compact(self)
        say("compacted")

    vector_index.VectorIndex._compact = compact_and_say  # type: ignore[method-assign]
    draw = random.Random(seed)
    watch = Watch(data_dir, data_dir / "none")
    for _ in watch.watch():
        with IndexStore(data_dir, cache_every=40) as store:
            say("ready")
            for number in range(1_000_000):
                name, version = draw.choice(KINDS), seed * 1_000_000 + number
                some = draw.sample(range(DOCUMENTS), BATCH)
                ids = [f"d{n}" for n in some]
                log = data_dir / "indexes" / name / "index.sqlite3-wal"
                since = watch.clock
                if draw.random() < 0.4:
                    say("delete", name, version, *ids)
                    changed = store.delete(name, ids) > 0
                else:
                    say("upsert", name, version, *ids)
                    make_batch(ids, seed=version, tag=f" v{version} " + "x" * 400).upsert(
                        store, name
                    )
                    changed = True
                say("done", "synced" if not changed or watch.is_synced(log, since) else "unsynced")


def follow(state: State, verb: str, version: int, ids: list[str]) -> State:
    """What is there after a write."""
    if verb == "delete":
        return {name: version for name, version in state.items() if name not in ids}
    return state | dict.fromkeys(ids, version)


def expected(state: State, written: dict[int, list[str]]) -> dict[str, bytes]:
    """Each passage's vector."""
    truth = {}
    for version in set(state.values()):
        batch = make_batch(written[version], seed=version)
        for passage, vector in zip(batch.passages, batch.vectors, strict=True):
            if state.get(passage.document_id) == version:
                truth[passage.id] = vector.tobytes()
    return truth


def kill_indexes(
    data_dir: Path, kills: int, seed: int = 1, life: Life = write_for_ever
) -> Counter[str]:
    """Kill a process that writes indexes so many times; returns what happened how often.

    Raises:
        AssertionError: A write was lost, is there twice, or came back; or was not synced.
    """
    draw = random.Random(seed)
    with IndexStore(data_dir) as store:
        for kind in KINDS:
            store.create(kind, IndexSpec(**{**SETTINGS, "kind": kind}))
    states: dict[str, State] = {kind: {} for kind in KINDS}
    written: dict[int, list[str]] = {}
    seen: Counter[str] = Counter()
    for number in range(kills):
        lines = live(
            *(life, data_dir, seed * 1000 + number),
            after=draw.randint(1, 30),
            wait=draw.uniform(0, 0.01),
        )
        doubt: tuple[str, str, int, list[str]] | None = None
        for line in lines:
            verb, *rest = line.split()
            seen[verb] += 1
            if verb == "done":
                assert rest == ["synced"], f"life {number}: acknowledged and not synced: {doubt}"
                assert doubt is not None
                name, *change = doubt
                states[name] = follow(states[name], *change)  # type: ignore[arg-type]
                doubt = None
            elif verb in ("upsert", "delete"):
                doubt = (rest[0], verb, int(rest[1]), rest[2:])
                written[int(rest[1])] = rest[2:]
        seen["kills"] += 1
        seen["amid a write"] += doubt is not None
        seen["amid a compaction"] += lines[-1] == "compacting"
        with IndexStore(data_dir) as store:
            for kind in KINDS:
                wanted = [states[kind]]
                if doubt is not None and doubt[0] == kind:
                    wanted.append(follow(states[kind], *doubt[1:]))
                truth = {name: row.tobytes() for name, row in read_truth(data_dir, kind).items()}
                fits = [name for name in wanted if expected(name, written) == truth]
                assert fits, f"life {number}, {kind}: what is there is not what was acknowledged"
                states[kind] = fits[-1]
                # each passage once in FAISS and in the words, and none that is gone
                assert_agrees(store, data_dir, kind, queries=1)
    return seen


@contextmanager
def serving(folder: Path, store: Path | None, life: int) -> Any:
    """Run a server for one life."""
    log = folder / f"log{life}"
    command = [str(Path(sys.executable).with_name("condensery")), "serve", "--port", "0"]
    command += ["--grpc-port", "0", "--no-samples", "--data-dir", str(folder / "data")]
    command += [] if store is None else ["--store", str(store)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        text = wait_for(log, "condensery: ready in", process, 300)
        hits = re.search(r"REST on (http\S+)", text)
        assert hits, text
        yield process, hits[1]
    finally:
        process.kill()
        process.wait()


class Writer(threading.Thread):
    """Writes and deletes documents of its own over REST until the server is no more."""

    def __init__(self, number: int, seed: int, state: State) -> None:
        super().__init__()
        self.number, self.draw, self.version = number, random.Random(seed), seed
        self.state = state
        self.doubt: tuple[str, int, list[str]] | None = None
        self.acknowledged = 0
        self.url = ""
        self.fingerprint = ""

    def run(self) -> None:
        with Client(self.url, retries=0, timeout=60) as client:
            while True:
                self.version += 1
                some = self.draw.sample(range(DOCUMENTS), BATCH)
                ids = [f"w{self.number}-d{n}" for n in some]
                self.doubt = ("delete" if self.draw.random() < 0.3 else "upsert", self.version, ids)
                try:
                    self.write(client, *self.doubt)
                except CondenseryError:
                    return
                self.state = follow(self.state, *self.doubt)
                self.doubt = None
                self.acknowledged += 1

    def write(self, client: Client, verb: str, version: int, ids: list[str]) -> None:
        if verb == "delete":
            client.delete("kb", ids)
            return
        documents = [document(name, version) for name in ids]
        rows = np.stack([vector_of(name, version) for name in ids])
        client.upsert("kb", documents, vectors=rows, fingerprint=self.fingerprint)


def document(name: str, version: int) -> Document:
    return Document(name, f"{name} as of {version} " + "x" * 400, {"version": version})


def vector_of(name: str, version: int) -> Any:
    row = np.random.default_rng([version, *name.encode()]).standard_normal(384)
    return (row / np.linalg.norm(row)).astype(np.float32)


def kill_servers(
    folder: Path, kills: int, store: Path | None = None, writers: int = 3, seed: int = 1
) -> Counter[str]:
    """Kill a server under writes so many times; returns what happened how often.

    Raises:
        AssertionError: A write was lost, is there twice, or came back.
    """
    draw = random.Random(seed)
    states: list[State] = [{} for _ in range(writers)]
    doubts: list[Any] = [None] * writers
    seen: Counter[str] = Counter()
    for life in range(kills + 1):
        with serving(folder, store, life) as (process, url), Client(url, timeout=60) as client:
            client.create_index("kb")
            for number in range(writers):
                states[number] = look(client, number, states[number], doubts[number], life)
            assert client.count("kb")[0] == sum(map(len, states)), f"life {life}"
            if life == kills:
                break
            fingerprint = client.models()[0].fingerprint
            assert client.models()[0].dims == 384
            threads = [
                Writer(number, (life * writers + number) * 100_000, states[number])
                for number in range(writers)
            ]
            for thread in threads:
                thread.url, thread.fingerprint = url, fingerprint
                thread.start()
            some, deadline = draw.randint(3, 60), time.monotonic() + 120
            while sum(thread.acknowledged for thread in threads) < some:
                assert time.monotonic() < deadline, "nothing is acknowledged"
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.05))
            process.kill()
            for number, thread in enumerate(threads):
                thread.join()
                states[number], doubts[number] = thread.state, thread.doubt
                seen["done"] += thread.acknowledged
                seen["amid a write"] += thread.doubt is not None
        seen["kills"] += 1
    return seen


def look(client: Client, number: int, state: State, doubt: Any, life: int) -> State:
    """Return what a writer's documents are; they must be as acknowledged."""
    ids = [f"w{number}-d{n}" for n in range(DOCUMENTS)]
    documents = {entry.id: entry for entry in client.get("kb", ids)}
    versions = {entry.id: int(entry.metadata["version"]) for entry in documents.values()}
    wanted = [state] if doubt is None else [state, follow(state, *doubt)]
    assert versions in wanted, f"life {life}, writer {number}: not what was acknowledged"
    fingerprint = client.models()[0].fingerprint
    for name, version in list(versions.items())[:10]:
        assert documents[name] == document(name, version)
        (hit,) = client.query(
            "kb", vector=vector_of(name, version), fingerprint=fingerprint, top_k=1
        )
        assert hit.passage.document_id == name, f"life {life}: {name} is not found by its vector"
    return versions


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--server-kills", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--store", type=Path, help="models; default: as `condensery serve` has it")
    parser.add_argument(
        "--out", "--json", dest="out", type=Path, help="write the figures there too"
    )
    args = parser.parse_args()
    from benchmarks.recording import Recording  # as a command, run in the checkout's root

    recording = Recording("tests/e2e/crashes.py", "condensery", "faiss-cpu")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, run in (
            ("index", lambda: kill_indexes(Path(folder) / "index", args.kills, args.seed)),
            ("server", lambda: kill_servers(Path(folder), args.server_kills, args.store)),
        ):
            began = time.monotonic()
            seen = run()
            figures[name] = dict(seen) | {"seconds": round(time.monotonic() - began)}
            print(f"{name}: {figures[name]}: none lost, none twice, none came back", flush=True)
    if args.out:
        args.out.write_text(json.dumps({"run": recording.about(), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
