"""What lasts: over closing, a lost cache, a power cut and a kill."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.index.conftest import (
    SETTINGS,
    Disk,
    assert_agrees,
    events,
    make_batch,
    make_vectors,
    open_store,
    read_truth,
)
from tests.unit.index.lives import Say, live

from condensery.index.store import IndexStore
from condensery.values import IndexSpec


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_all_is_there_after_closing_and_opening(data_dir: Path, kind: str) -> None:
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**{**SETTINGS, "kind": kind}))
        make_batch([f"d{n}" for n in range(50)]).upsert(store)
        store.delete("kb", ["d7"])
        before = store.query("kb", make_vectors(1, seed=4)[0], top_k=20)
    with open_store(data_dir) as store:
        assert store.query("kb", make_vectors(1, seed=4)[0], top_k=20) == before
        assert store.count("kb") == (49, 98)
        make_batch(["d7", "more"], seed=8).upsert(store)
        assert_agrees(store, data_dir)


def test_a_good_cache_is_used_without_a_word(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b"]).upsert(store)
    with open_store(data_dir) as store:
        assert_agrees(store, data_dir)
    assert events(caplog) == []


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
@pytest.mark.parametrize("harm", ["missing", "damaged", "empty", "directory"])
def test_a_lost_cache_is_rebuilt_with_a_log_event(
    data_dir: Path, harm: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**{**SETTINGS, "kind": kind}))
        make_batch([f"d{n}" for n in range(30)]).upsert(store)
    cache = data_dir / "indexes" / "kb" / "vectors.faiss"
    data = bytearray(cache.read_bytes())
    data[-40] ^= 1
    cache.unlink()
    if harm == "damaged":
        cache.write_bytes(data)
    elif harm == "empty":
        cache.write_bytes(b"")
    elif harm == "directory":
        cache.mkdir()
    with open_store(data_dir) as store:
        assert_agrees(store, data_dir)
    assert [event for event, _ in events(caplog)][:1] == ["index_cache_rebuilt"]


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_cache_that_is_behind_is_brought_up_to_date(
    data_dir: Path, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = data_dir / "indexes" / "kb" / "vectors.faiss"
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**{**SETTINGS, "kind": kind}))
        make_batch([f"d{n}" for n in range(30)]).upsert(store)
    shutil.copy(cache, tmp_path / "old")
    with open_store(data_dir) as store:
        make_batch(["d1", "d2", "x"], seed=6).upsert(store)
        store.delete("kb", ["d5"])
        # a crash: the cache on disk stays what it was
        shutil.copytree(data_dir, tmp_path / "crashed")
    with open_store(tmp_path / "crashed") as store:
        assert_agrees(store, tmp_path / "crashed")
        make_batch(["d5"], seed=7).upsert(store)
        assert_agrees(store, tmp_path / "crashed")
    assert [event for event, _ in events(caplog)] == ["index_cache_caught_up"]
    (record,) = (
        record for record in caplog.records if record.getMessage() == "index_cache_caught_up"
    )
    assert {name: getattr(record, name) for name in ("writes", "added", "removed")} == {
        "writes": 2,
        "added": 6,
        "removed": 6,
    }


def test_a_cache_of_another_history_is_not_trusted(
    data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # the same sequence numbers and row ids, but other vectors: a copy restored, then written to
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
    database = data_dir / "indexes" / "kb" / "index.sqlite3"
    shutil.copy(database, tmp_path / "backup")
    with open_store(data_dir) as store:
        make_batch(["a", "b"], seed=1).upsert(store)
    stale = (data_dir / "indexes" / "kb" / "vectors.faiss").read_bytes()
    shutil.copy(tmp_path / "backup", database)
    with open_store(data_dir) as store:
        make_batch(["a", "b"], seed=2).upsert(store)
    (data_dir / "indexes" / "kb" / "vectors.faiss").write_bytes(stale)
    caplog.clear()
    with open_store(data_dir) as store:
        assert_agrees(store, data_dir)
    assert events(caplog) == [("index_cache_rebuilt", "of another history of this index")]


def test_the_cache_file_is_written_after_enough_changes(data_dir: Path) -> None:
    cache = data_dir / "indexes" / "kb" / "vectors.faiss"
    with open_store(data_dir, cache_every=10) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b"]).upsert(store)
        assert not cache.exists()
        make_batch(["c", "d", "e"], seed=1).upsert(store)
        store.find("kb").wait_until_agreed(60)
        assert cache.exists()
        assert store.find("kb").cache_behind == 0


def test_an_acknowledged_write_was_synced_before_it_returned(
    disk: Disk, store: IndexStore, data_dir: Path
) -> None:
    log = data_dir / "indexes" / "kb" / "index.sqlite3-wal"
    disk.synced.clear()
    make_batch(["a"]).upsert(store)
    assert disk.synced[-1:] == [log]
    disk.synced.clear()
    store.delete("kb", ["a"])
    assert disk.synced[-1:] == [log]


def write_and_cut_power(
    disk: Disk, store: IndexStore, tmp_path: Path, writes: int
) -> tuple[set[str], set[str]]:
    """Ids acknowledged as there, and ids there after a power cut."""
    disk.keep_all()
    there = set()
    for n in range(writes):
        make_batch([f"d{n}", f"e{n}"], seed=n, tag="x" * 2000).upsert(store)
        there |= {f"d{n}", f"e{n}"}
        if n % 3 == 2:
            store.delete("kb", [f"d{n - 1}"])
            there.discard(f"d{n - 1}")
    left = disk.after_power_cut(tmp_path / "left")
    with open_store(left) as survivor:
        assert_agrees(survivor, left)
        documents = {
            document.id
            for document in survivor.get("kb", sorted(there | {f"d{n}" for n in range(99)}))
        }
    return there, documents


# 150 writes of some 20 pages each pass several checkpoints (one every 1,000 pages)
@pytest.mark.parametrize("writes", [1, 2, 7, 150])
def test_what_was_acknowledged_survives_a_power_cut(
    disk: Disk, store: IndexStore, tmp_path: Path, writes: int
) -> None:
    there, after_cut = write_and_cut_power(disk, store, tmp_path, writes)
    assert after_cut == there


@pytest.mark.parametrize("mode", ["NORMAL", "OFF"])
def test_the_power_cut_test_notices_a_writer_that_does_not_sync(
    disk: Disk, store: IndexStore, tmp_path: Path, mode: str
) -> None:
    store.find("kb")._writer.execute(f"PRAGMA synchronous = {mode}")
    there, after_cut = write_and_cut_power(disk, store, tmp_path, 7)
    assert after_cut < there


CHILD = """
import os, random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.unit.index.conftest import SETTINGS, make_batch
from condensery.index.store import IndexStore
from condensery.values import IndexSpec
store = IndexStore(Path(sys.argv[1]), cache_every=40)
store.create("kb", IndexSpec(**{**SETTINGS, "kind": sys.argv[4]}))
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # one write: a kill can't cut it
start = int(sys.argv[2])
draw = random.Random(start)
say("ready")
for seed in range(start, start + 100_000):
    ids = [f"d{n}" for n in draw.sample(range(60), 4)]
    if draw.random() < 0.3:
        say("delete", seed, *ids)
        store.delete("kb", ids)
    else:
        say("upsert", seed, *ids)
        make_batch(ids, seed=seed, tag=f" v{seed}").upsert(store)
    say("done", seed)
"""


def apply(state: dict[str, int], line: str) -> dict[str, int]:
    """What each document's version is after the write that ``line`` announces."""
    verb, seed, *ids = line.split()
    if verb == "delete":
        return {name: version for name, version in state.items() if name not in ids}
    return {**state, **dict.fromkeys(ids, int(seed))}


def expected_vectors(state: dict[str, int], batches: dict[int, list[str]]) -> dict[str, Any]:
    truth = {}
    for name, seed in state.items():
        batch = make_batch(batches[seed], seed=seed)
        for passage, vector in zip(batch.passages, batch.vectors, strict=True):
            if passage.document_id == name:
                truth[passage.id] = vector
    return truth


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_what_was_acknowledged_survives_kill_9(data_dir: Path, kind: str) -> None:
    draw = random.Random(17)
    state: dict[str, int] = {}
    batches: dict[int, list[str]] = {}
    acknowledged = 0
    root = str(Path(__file__).parents[3])
    for life in range(6):
        command = [sys.executable, "-c", CHILD, str(data_dir), str(life * 100_000), root, kind]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            # So many writes, however long they take here, and anywhere in one of those that follow.
            some, lines = draw.randint(6, 40), list[str]()
            while sum(line.startswith("done") for line in lines) < some:
                lines.append(child.stdout.readline().rstrip("\n"))
                assert lines[-1], "it ended by itself"
            time.sleep(draw.uniform(0, 0.05))
            child.kill()
            lines += child.stdout.read().splitlines()
        assert child.returncode == -9
        doubt = None
        for line in lines:
            if line.startswith("done"):
                assert doubt is not None
                state, doubt = apply(state, doubt), None
                acknowledged += 1
            else:
                doubt = line
                batches[int(line.split()[1])] = line.split()[2:]
        with IndexStore(data_dir) as store:  # the lock went with its holder
            truth = read_truth(data_dir)
            wanted = [state] if doubt is None else [state, apply(state, doubt)]
            matches = [
                name for name in wanted if expected_vectors(name, batches).keys() == truth.keys()
            ]
            matches = [
                name
                for name in matches
                if all(
                    np.array_equal(vector, truth[passage])
                    for passage, vector in expected_vectors(name, batches).items()
                )
            ]
            assert matches, f"life {life}: neither with nor without {doubt!r}"
            state = matches[-1]
            assert_agrees(store, data_dir)
    assert acknowledged > 30


def watch_syncs(data_dir: Path, say: Say) -> None:
    """Say each sync and rename of Python's in this process, names that are drawn by their kind."""
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def name(path: Any) -> str:
        text = os.path.relpath(path, data_dir)
        for kind, drawn in (
            ("NEW", r"\.new-[^/]+"),
            ("GENERATION", r"gen-[0-9a-f]{16}"),
            ("SNAPSHOT", r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}"),
        ):
            text = re.sub(drawn, kind, text)
        return text

    def watched_fsync(handle: int) -> None:
        fsync(handle)
        say("sync", name(Path(f"/proc/self/fd/{handle}").readlink()))

    def watched(move: Any) -> Any:
        def moved(source: Any, target: Any, **options: Any) -> None:
            move(source, target, **options)
            say("move", name(source), name(target))

        return moved

    os.fsync, os.rename, os.replace = watched_fsync, watched(rename), watched(replace)


def copy_and_restore(data_dir: Path, say: Say, _: None) -> None:
    store = IndexStore(data_dir)
    watch_syncs(data_dir, say)
    made = store.maintenance.snapshot("kb")
    say("done")
    store.maintenance.restore("kb", made.id)
    say("done")
    store.maintenance.restore("kb", made.id, "other")
    say("done")
    signal.pause()  # until it is killed


def test_a_snapshot_and_what_is_restored_are_on_the_disk_before_they_count(data_dir: Path) -> None:
    with open_store(data_dir) as store:
        store.create("kb", IndexSpec(**SETTINGS))
        make_batch(["a", "b"]).upsert(store)
    steps = [list[str]()]
    for step in live(copy_and_restore, data_dir, None, after=3):
        steps.append([]) if step == "done" else steps[-1].append(step)
    snapshot, over, into = steps[:3]

    def check(steps: list[str], before: list[str], move: str, after: list[str]) -> None:
        """A rename counts once what it names is synced, and lasts once its folder is."""
        assert steps.count(move) == 1, steps
        place = steps.index(move)
        assert [path for path in before if f"sync {path}" not in steps[:place]] == [], steps
        assert [path for path in after if f"sync {path}" not in steps[place:]] == [], steps

    check(
        snapshot,
        [f"snapshots/kb/SNAPSHOT.partial{end}" for end in ("", "/index.sqlite3", "/snapshot.json")],
        "move snapshots/kb/SNAPSHOT.partial snapshots/kb/SNAPSHOT",
        ["snapshots/kb", "snapshots", "."],  # each names the next, and is new with the first
    )
    generation = "indexes/kb/GENERATION"
    moved = over.index(f"move indexes/NEW {generation}")
    check(
        over[moved:],
        [
            *(f"{generation}{end}" for end in ("", "/index.sqlite3", "/vectors.faiss")),
            *("indexes/kb", "indexes/kb/current.partial"),
        ],
        "move indexes/kb/current.partial indexes/kb/current",
        ["indexes/kb"],
    )
    check(
        into,
        ["indexes/NEW/index.sqlite3", "indexes/NEW"],
        "move indexes/NEW indexes/other",
        ["indexes"],
    )
