"""Indexes at size: building, memory, finding beside FAISS itself, starting, writing while asked.

Vectors of 384 features drawn around centres, as many as a thousandth of the passages, written
through the store, a passage a document, 1,000 a write. For each kind and size, in this order:

- written: passages a second in all, the longest write, and how long a training that goes on aside
  took beyond the last one;
- found: 10 nearest of each query, by the store (whose hits come with their texts, out of SQLite)
  and by FAISS's own index of the same kind and settings over the same vectors, one thread each, in
  turn; recall against brute force;
- started: the store is closed and opened, until its first hits; also with nothing of its files in
  the system's memory, as after a boot (for all that follows they are read once); and until writes
  are taken, for which vectors that are searched in their file must be in memory;
- written while asked: one thread asks without a pause, another writes;
- the longest that a query waits: for nothing, while a snapshot is made, while a fifth of the
  documents are deleted and the index is compacted.

    python benchmarks/index_size.py --kinds flat hnsw ivf_pq --passages 100000 [--out FILE]

Rows are kept in FILE.json as they are made, those of earlier runs too; FILE.md is made of them.
"""

import argparse
import gc
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from recording import Recording
from result_table import ResultTable

from condensery.index import kinds
from condensery.index.flat_vectors import vectors_of
from condensery.index.store import IndexStore
from condensery.index.vectors import make_graph, train
from condensery.values import Document, Floats, IndexSpec, Passage

DIMS, TOP_K, WRITE = 384, 10, 1000
SPREAD = 1.0  # of a passage around its centre, whose own length is about 1
QUERIES, ASKED_WRITES = 300, 20
HEADS = (
    *(
        "kind",
        "passages",
        "written/s",
        "longest write, s",
        "aside after, s",
        "MiB in memory",
        "KB a passage, disk",
    ),
    *("recall, ours", "FAISS", "p50 / p95 ms, ours", "FAISS", "FAISS, 8 bits"),
    *("to first hits, s", "after a boot", "to writes"),
    *("written/s while asked", "longest query, ms: quiet", "writing", "snapshot", "compacting"),
)
PAGE = """# Indexes at size

{dims} features, the {top_k} nearest, one thread a query. "FAISS" is its own index of the same kind
and settings over the same vectors, which returns numbers where ours returns passages out of SQLite;
of `ivf_pq` both compare the nearest by code with their vectors, FAISS with those in its memory, and
"FAISS, 8 bits" is the one with codes of 8 bits, which FAISS's users know by that name.
"Aside after": how much longer than the last write training and saving took. "While asked": one
thread asks without a pause meanwhile, and so for the longest queries.

![](index_size.png)

{rows}
"""


def block(number: int, centres: Floats, count: int) -> Floats:
    """Return a block of vectors (count, dims), always the same for its number."""
    chance = np.random.default_rng(number)
    near = centres[chance.integers(len(centres), size=count)]
    drawn = near + chance.standard_normal(near.shape, dtype=np.float32) * SPREAD / DIMS**0.5
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), dtype=np.float32)


def centres_of(passages: int) -> Floats:
    drawn = np.random.default_rng(1).standard_normal((max(50, passages // 1000), DIMS))
    return np.asarray(drawn / DIMS**0.5, dtype=np.float32)


def write(store: IndexStore, number: int, vectors: Floats) -> float:
    """Write a block as documents of a passage each; returns the seconds."""
    names = [f"d{number * WRITE + place:08}" for place in range(len(vectors))]
    documents = [Document(name, f"passage {name}") for name in names]
    passages = [Passage(f"{name}#0", name, f"passage {name}", 0, 17) for name in names]
    began = time.perf_counter()
    store.upsert("kb", documents, passages, vectors, fingerprint="none")
    return time.perf_counter() - began


def resident() -> float:
    """Return the process's resident memory, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@contextmanager
def asking(store: IndexStore, queries: Floats) -> Iterator[list[float]]:
    """Ask without a pause in this block, in a thread; gives the milliseconds of each query."""
    taken: list[float] = []
    over = threading.Event()

    def ask() -> None:
        place = 0
        while not over.is_set():
            began = time.perf_counter()
            store.query("kb", queries[place % len(queries)], top_k=TOP_K)
            taken.append(1000 * (time.perf_counter() - began))
            place += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()


def flat(count: int, blocks: Iterable[Floats]) -> Any:
    """Return FAISS's own flat index of so many vectors."""
    index = faiss.IndexFlat(DIMS, faiss.METRIC_INNER_PRODUCT)
    index.codes.resize(4 * DIMS * count)  # at once: growing takes as much again for a while
    room = faiss.rev_swig_ptr(index.get_xb(), DIMS * count).reshape(count, DIMS)
    start = 0
    for vectors in blocks:
        room[start : start + len(vectors)] = vectors
        start += len(vectors)
    index.ntotal = count
    return index


def coded(vectors: Any, options: Mapping[str, int]) -> Any:
    """Return FAISS's own IVF-PQ index over a flat one, by whose vectors it compares the nearest.

    Codes alone would find less; ours does so, too.
    """
    count, held = vectors.ntotal, vectors_of(vectors, vectors.ntotal)
    # Vectors are drawn one like the other: the first ones are a sample.
    codes = train("ip", DIMS, options, count, held[: kinds.sample_size(options, count)])
    codes.nprobe = kinds.probes_for(codes.nlist)
    for start in range(0, count, WRITE):
        codes.add(held[start : start + WRITE])
    index = faiss.IndexRefine(codes, vectors)
    index.k_factor = kinds.candidates_for(TOP_K, int(codes.pq.nbits)) / TOP_K
    return index


def peers(kind: str, count: int, blocks: Iterable[Floats]) -> dict[str, Any]:
    """Return FAISS's own index of the kind, with the settings that ours chooses at this size.

    Of ``ivf_pq`` also the one that FAISS's users know by that name, with codes of 8 bits.
    """
    if kind == "hnsw":
        graph = make_graph("ip", DIMS, {})
        graph.hnsw.efSearch = kinds.HNSW_SEARCH_BREADTH
        for vectors in blocks:
            graph.add(vectors)
        return {"faiss": graph}
    held = flat(count, blocks)
    if kind == "flat":
        return {"faiss": held}
    return {"faiss": coded(held, {}), "faiss_8_bits": coded(held, {"pq_bits": kinds.FULL_BITS})}


def nearest(queries: Floats, blocks: Iterable[Floats]) -> list[set[int]]:
    """Return the rows truly nearest to each query, by brute force."""
    scores, rows = (
        np.full((len(queries), TOP_K), -np.inf, np.float32),
        np.zeros((len(queries), TOP_K), np.int64),
    )
    start = 0
    for vectors in blocks:
        more, places = faiss.knn(queries, vectors, TOP_K, metric=faiss.METRIC_INNER_PRODUCT)
        scores, rows = np.hstack([scores, more]), np.hstack([rows, places + start])
        best = np.argsort(-scores, axis=1)[:, :TOP_K]
        scores, rows = (np.take_along_axis(array, best, axis=1) for array in (scores, rows))
        start += len(vectors)
    return [set(found) for found in rows.tolist()]


def timed(ask: Callable[[Any], Any], query: object) -> tuple[float, Any]:
    began = time.perf_counter()
    found = ask(query)
    return 1000 * (time.perf_counter() - began), found


def search(index: Any, query: Floats) -> Any:
    return index.search(query[None, :], TOP_K)


def recall(found: Sequence[Sequence[int]], truth: Sequence[set[int]]) -> float:
    return statistics.fmean(
        len(set(rows) & right) / len(right) for rows, right in zip(found, truth, strict=True)
    )


def find(
    store: IndexStore,
    work: Path,
    kind: str,
    count: int,
    blocks: Sequence[Callable[[], Floats]],
    queries: Floats,
) -> dict[str, Any]:
    """Ask the store and FAISS in turn."""
    truth = nearest(queries, (make() for make in blocks))
    own = peers(kind, count, (make() for make in blocks))
    remember(work)  # of which the system may have forgotten some, as long as that took
    times: dict[str, list[float]] = {name: [] for name in ("ours", *own)}
    found: dict[str, list[list[int]]] = {name: [] for name in times}
    for query in queries:
        taken, hits = timed(lambda q: store.query("kb", q, top_k=TOP_K), query)
        times["ours"].append(taken)
        found["ours"].append([int(hit.passage.document_id[1:]) for hit in hits])
        for name, index in own.items():
            taken, (_, rows) = timed(partial(search, index), query)
            times[name].append(taken)
            found[name].append(rows[0].tolist())
    return {
        name: {
            "recall": recall(found[name], truth),
            "p50_ms": statistics.median(times[name]),
            "p95_ms": statistics.quantiles(times[name], n=20)[-1],
        }
        for name in times
    }


def copy(store: IndexStore, work: Path) -> float | None:
    """Make a snapshot; returns the seconds, None where the disk has no room for one."""
    if shutil.disk_usage(work).free < 1.5 * size_of(work):
        return None
    began = time.perf_counter()
    store.maintenance.snapshot("kb")
    return time.perf_counter() - began


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def forget(folder: Path) -> None:
    """Let the system keep nothing of a folder's files in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remember(folder: Path) -> None:
    """Read a folder's files once, as they were before ``forget``."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(2**24):
                    pass


def start(work: Path, query: Floats) -> tuple[float, float]:
    """Open a store; returns the seconds until its first hits, and until it takes writes."""
    began = time.perf_counter()
    with IndexStore(work) as store:
        store.query("kb", query, top_k=TOP_K)
        first = time.perf_counter() - began
        store.find("kb").wait_until_agreed()
        return first, time.perf_counter() - began


def measure(kind: str, count: int, work: Path) -> dict[str, Any]:
    """Return a row: an index of so many passages, from its making to its compaction."""
    centres = centres_of(count)
    blocks = [
        partial(block, number, centres, min(WRITE, count - number * WRITE))
        for number in range(-(-count // WRITE))
    ]
    queries = block(10**9, centres, QUERIES)
    spec = IndexSpec(dims=DIMS, encoder="none", fingerprint="none", metric="ip", kind=kind)
    faiss.omp_set_num_threads(1)
    with IndexStore(work) as store:
        store.create("kb", spec)
        before, began = resident(), time.perf_counter()
        writes = [write(store, number, make()) for number, make in enumerate(blocks)]
        built = time.perf_counter() - began
        store.find("kb").wait_until_agreed()  # a training, aside
        trained = time.perf_counter() - began - built
        gc.collect()
        memory = resident() - before
    disk = size_of(work)
    started, writable = start(work, queries[0])
    forget(work)
    booted, _ = start(work, queries[0])
    remember(work)
    with IndexStore(work) as store:
        store.find("kb").wait_until_agreed()
        asked = find(store, work, kind, count, blocks, queries)
        with asking(store, queries) as quiet:
            time.sleep(5)
        with asking(store, queries) as meanwhile:
            fresh = [
                write(store, len(blocks) + place, block(len(blocks) + place, centres, WRITE))
                for place in range(ASKED_WRITES)
            ]
        with asking(store, queries) as copying:
            copied = copy(store, work)
        fifth = [f"d{place:08}" for place in range(0, count, 4)]
        with asking(store, queries) as compacting:
            deleted = [
                timed(lambda ids: store.delete("kb", ids), fifth[start : start + WRITE])[0]
                for start in range(0, len(fifth), WRITE)
            ]
    return {
        "kind": kind,
        "passages": count,
        "built_seconds": built,
        "trained_seconds": trained,
        "written_a_second": count / sum(writes),
        "longest_write": max(writes),
        "memory_mib": memory,
        "disk_kb": disk / count / 1000,
        "found": asked,
        "start_seconds": started,
        "boot_seconds": booted,
        "writable_seconds": writable,
        "asked_written_a_second": WRITE * len(fresh) / sum(fresh),
        "asked_p50_ms": statistics.median(meanwhile),
        "asked_ms": max(meanwhile),
        "quiet_ms": max(quiet),
        "snapshot_ms": None if copied is None else max(copying),
        "snapshot_seconds": copied,
        "compacting_ms": max(compacting),
        "longest_delete_ms": max(deleted),
    }


def render(table: ResultTable) -> str:
    lines = [f"| {' | '.join(HEADS)} |", f"|---|{'---:|' * (len(HEADS) - 1)}"]
    for row in table.rows.values():
        by_name = row["found"]
        ours, own, full = (by_name.get(name) for name in ("ours", "faiss", "faiss_8_bits"))
        cells = (
            row["kind"],
            f"{row['passages']:,}",
            f"{row['written_a_second']:,.0f}",
            f"{row['longest_write']:.1f}",
            f"{row['trained_seconds']:.1f}" if "trained_seconds" in row else "–",
            f"{row['memory_mib']:,.0f}",
            f"{row['disk_kb']:.1f}",
            *(f"{one['recall']:.3f}" for one in (ours, own)),
            *(
                f"{one['p50_ms']:.1f} / {one['p95_ms']:.1f}" if one else "–"
                for one in (ours, own, full)
            ),
            *(f"{row[name]:.1f}" for name in ("start_seconds", "boot_seconds", "writable_seconds")),
            f"{row['asked_written_a_second']:,.0f}",
            *(
                "no room" if row[name] is None else f"{row[name]:.0f}"
                for name in ("quiet_ms", "asked_ms", "snapshot_ms", "compacting_ms")
            ),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return PAGE.format(dims=DIMS, top_k=TOP_K, rows="\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=kinds.KINDS, default=list(kinds.KINDS))
    parser.add_argument("--passages", nargs="+", type=int, default=[100_000])
    parser.add_argument("--work", type=Path, help="folder for the indexes, some 5 KB a passage")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="without ending")
    args = parser.parse_args()
    recording = Recording("benchmarks/index_size.py", "condensery", "faiss-cpu", "numpy")
    table = ResultTable(args.out, recording, render)
    for count in args.passages:
        for kind in args.kinds:
            with tempfile.TemporaryDirectory(dir=args.work) as work:
                table.add(f"{kind} {count}", measure(kind, count, Path(work)))
    print(render(table))


if __name__ == "__main__":
    main()
