"""What a filter costs a search, and what is found under it, for each kind of index.

Passages are indexed through the store, one a document, and asked without a filter (recall is then
that against `flat`), and with one that chooses 1 % or 10 % of them by their metadata: `scattered`
ones, whatever their vectors, and ones that lie `together`, the nearest to one of them. Each query
is asked three ways, in turn:

- filtered before the search, as the service does;
- filtered after it, as who has no filters must: the nearest 10 / share are found, and those that
  are not allowed dropped;
- by brute force in numpy, which is the truth.

    python benchmarks/filters.py [--passages 20000] [--kinds flat hnsw] [--vectors FILE.npy]
    python benchmarks/filters.py --switch       # where scoring all that is allowed beats the walk

Vectors are drawn around 200 centres, unless `--vectors` names an array (rows, dims), whose last
`--queries` rows are the queries: `--embed FILE.jsonl.gz --vectors FILE.npy` makes one of the texts
in a file (`{"text"}` a line) with minilm-l6. Prints tables; `--out FILE.json` keeps every row
there, beside those of an earlier run of the other kind, and makes the page FILE.md of both.
"""

import argparse
import asyncio
import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recording import Recording, raw, tell_machine, tell_others, tell_versions

from condensery.index import checks, vectors
from condensery.index.filters import Filter, read_filter
from condensery.index.store import IndexStore
from condensery.values import Document, Floats, IndexSpec, Passage

SHARES = (0.01, 0.1)
WRITE = 1000
TOP_K = 10
SHARES_WALKED = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
PAGE = """# Finding under a filter, by each kind of index
{parts}"""
SUMMARY = """
On {machine}; {threads}.
{passages:,} passages of {dims} dimensions ({vectors}), {queries} more as queries, the {top_k}
nearest. Times are medians of the queries, in milliseconds; those of a row are taken in turn.
"Before" is what the service does; "after" finds the {top_k} / share nearest and drops what is not
allowed; numpy scores the vectors that are allowed, which it is handed. Recall is that of brute
force. `scattered` documents are allowed whatever their vectors, those that lie `together` are the
nearest to one of them.

{rows}

Made on {date} by `{command}`; {versions}; {others}.
"""
WALKED = """
## Where HNSW's walk meets scoring all that is allowed

On {machine}; {threads}.
{passages:,} passages of {dims} dimensions ({vectors}), {queries} queries.

{rows}

Made on {date} by `{command}`; {versions}; {others}.
"""
HEADS = {
    "found": (
        *("kind", "filter", "share", "recall, before", "ms"),
        *("recall, after", "ms", "ms, numpy"),
    ),
    "walked": ("allowed", "their square / passages", "ms, walked", "recall", "ms, scored"),
}


def draw(rows: int, dims: int, chance: np.random.Generator) -> Floats:
    centres = chance.standard_normal((200, dims))
    drawn = centres[chance.integers(200, size=rows)] + chance.standard_normal((rows, dims))
    return unit(drawn.astype(np.float32))


def unit(vectors: Floats) -> Floats:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def embed(source: Path, target: Path, rows: int) -> None:
    from condensery.runtime.device import choose_device, choose_dtype, prepare_process
    from condensery.runtime.encoder import Encoder
    from condensery.runtime.workers import Workers
    from condensery.store.importing import import_minilm
    from condensery.store.store import ModelStore

    async def run(folder: Path) -> Floats:
        prepare_process()
        workers = Workers()
        dtype = choose_dtype(choose_device("auto"), "auto")
        encoder = Encoder.load(import_minilm(ModelStore(None, folder)), workers, dtype=dtype)
        blocks = []
        for start in range(0, len(texts), 256):
            blocks.append((await encoder.embed(texts[start : start + 256])).vectors)
            sys.stderr.write(f"\r{start} of {len(texts)} embedded")
        encoder.close()
        workers.close(1)
        return np.concatenate(blocks)

    with gzip.open(source, "rt", encoding="utf-8") as lines:
        texts = list(dict.fromkeys(json.loads(line)["text"] for line in lines))[:rows]
    with tempfile.TemporaryDirectory() as folder:
        np.save(target, asyncio.run(run(Path(folder))))


def fill(store: IndexStore, kind: str, rows: Floats, metadata: Sequence[dict[str, Any]]) -> None:
    store.create(
        kind,
        IndexSpec(encoder="none", fingerprint="none", metric="ip", dims=rows.shape[1], kind=kind),
    )
    for start in range(0, len(rows), WRITE):
        block = range(start, min(start + WRITE, len(rows)))
        documents = [Document(f"d{n}", "text", metadata[n]) for n in block]
        passages = [Passage(f"d{n}#0", f"d{n}", "text", 0, 4, metadata[n]) for n in block]
        store.upsert(kind, documents, passages, rows[start : start + WRITE], fingerprint="none")
        sys.stderr.write(f"\r{kind}: {block[-1] + 1} of {len(rows)}")
    store.find(kind).wait_until_agreed()  # a training, aside
    sys.stderr.write("\n")


def describe(rows: Floats, chance: np.random.Generator) -> list[dict[str, Any]]:
    """Metadata whose fields are shares: a filter `< 0.01` chooses a hundredth."""
    ranks = np.argsort(np.argsort(-(rows @ rows[chance.integers(len(rows))])))
    return [
        {"scattered": scattered, "together": float(rank / len(rows))}
        for scattered, rank in zip(chance.permutation(len(rows)) / len(rows), ranks, strict=True)
    ]


def timed(work: Callable[[], Any], times: list[float]) -> Any:
    began = time.perf_counter()
    result = work()
    times.append(1000 * (time.perf_counter() - began))
    return result


def measure(
    store: IndexStore, kind: str, rows: Floats, queries: Floats, allowed: Any, asked: Filter | None
) -> dict[str, float]:
    share = allowed.mean()
    before: list[float] = []
    after: list[float] = []
    brute: list[float] = []
    recalls: tuple[list[float], list[float]] = ([], [])
    wanted = min(round(TOP_K / share), checks.MAX_TOP_K)
    places = np.flatnonzero(allowed)
    for query in queries:

        def search(query: Floats = query) -> set[int]:
            return numbers(store.query(kind, query, top_k=TOP_K, filter=asked))

        def drop(query: Floats = query) -> set[int]:
            hits = store.query(kind, query, top_k=wanted)
            return numbers(
                [hit for hit in hits if allowed[int(hit.passage.document_id[1:])]][:TOP_K]
            )

        def score(query: Floats = query) -> set[int]:
            return set(places[np.argsort(-(rows[places] @ query))[:TOP_K]].tolist())

        filtered, dropped, true = timed(search, before), timed(drop, after), timed(score, brute)
        for each, recall in zip((filtered, dropped), recalls, strict=True):
            recall.append(len(each & true) / len(true))
    return {
        "recall_before": statistics.mean(recalls[0]),
        "before_ms": statistics.median(before),
        "recall_after": statistics.mean(recalls[1]),
        "after_ms": statistics.median(after),
        "numpy_ms": statistics.median(brute),
    }


def numbers(hits: Sequence[Any]) -> set[int]:
    return {int(hit.passage.document_id[1:]) for hit in hits}


def compare(
    kinds: Sequence[str], store: IndexStore, rows: Floats, queries: Floats
) -> list[dict[str, Any]]:
    """Measure each kind of index without a filter and with each; returns the rows."""
    metadata = describe(rows, np.random.default_rng(2))
    measured: list[dict[str, Any]] = []
    for kind in kinds:
        fill(store, kind, rows, metadata)
        asked: list[tuple[str, float]] = [("none", 1.0)]
        asked += [(name, share) for name in ("scattered", "together") for share in SHARES]
        for name, share in asked:
            limit: Any = {"must": {"key": name, "range": {"lt": share}}}
            chosen = None if name == "none" else read_filter(limit)
            allowed = np.array([name == "none" or row[name] < share for row in metadata])
            cells = measure(store, kind, rows, queries, allowed, chosen)
            measured.append({"kind": kind, "filter": name, "share": share, **cells})
            print(json.dumps(measured[-1]), flush=True)
    return measured


def switch(store: IndexStore, rows: Floats, queries: Floats) -> list[dict[str, Any]]:
    """Measure walking the graph and scoring one by one, by how many rows are allowed."""
    chance = np.random.default_rng(2)
    fill(store, "hnsw", rows, [{}] * len(rows))
    cache = store.find("hnsw")._vector_index.cache
    usual, measured = vectors.FEW_FACTOR, []
    for share in SHARES_WALKED:
        places = np.sort(chance.permutation(len(rows))[: round(share * len(rows))])
        allowed = cache.rows()[places]
        times: dict[float, list[float]] = {0: [], float("inf"): []}
        same = 0
        for query in queries:
            medians = []
            for factor, each in times.items():
                vectors.FEW_FACTOR = factor
                nearest = timed(
                    lambda query=query, allowed=allowed: cache.search(query, TOP_K, allowed), each
                )
                medians.append(set(nearest[0]))
            same += len(medians[0] & medians[1])
        walked, scored = (statistics.median(each) for each in times.values())
        row = {"allowed": len(places), "square": len(places) ** 2 / len(rows), "walked_ms": walked}
        measured.append({**row, "recall": same / TOP_K / len(queries), "scored_ms": scored})
        print(json.dumps(measured[-1]), flush=True)
    vectors.FEW_FACTOR = usual
    return measured


def table(part: str, rows: Sequence[dict[str, Any]]) -> str:
    """Write the rows of a part."""
    lines = [f"| {' | '.join(HEADS[part])} |", "|---" * len(HEADS[part]) + "|"]
    for row in rows:
        if part == "found":
            cells = [row["kind"], row["filter"], f"{row['share']:.0%}"]
            for when in ("before", "after"):
                cells += [f"{row[f'recall_{when}']:.3f}", f"{row[f'{when}_ms']:.2f}"]
            cells.append(f"{row['numpy_ms']:.2f}")
        else:
            cells = [str(row["allowed"]), f"{row['square']:.0f}", f"{row['walked_ms']:.2f}"]
            cells += [f"{row['recall']:.3f}", f"{row['scored_ms']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render(report: dict[str, Any]) -> str:
    """Write the page of the parts that were measured."""
    parts = []
    for part, text in (("found", SUMMARY), ("walked", WALKED)):
        if (part_report := report.get(part)) is not None:
            words = {
                "machine": tell_machine(part_report),
                "others": tell_others(part_report),
                "versions": tell_versions(part_report),
                "rows": table(part, part_report["rows"]),
            }
            parts.append(text.format(**(part_report | words), top_k=TOP_K))
    return PAGE.format(parts="".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", choices=checks.KINDS, default=checks.KINDS)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--embed", type=Path)
    parser.add_argument("--switch", action="store_true")
    parser.add_argument("--note", help="what the vectors are of, for the page")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json", help="keep every row; makes a page"
    )
    args = parser.parse_args()
    if args.embed:
        embed(args.embed, args.vectors, args.passages + args.queries)
        return
    recording = Recording("benchmarks/filters.py", "condensery", "faiss-cpu", "numpy")
    if args.vectors:
        vectors = unit(np.load(args.vectors).astype(np.float32))
    else:
        vectors = draw(args.passages + args.queries, args.dims, np.random.default_rng(1))
    rows, queries = vectors[: -args.queries][: args.passages], vectors[-args.queries :]
    with tempfile.TemporaryDirectory() as folder, IndexStore(Path(folder)) as store:
        if args.switch:
            part, measured = "walked", switch(store, rows, queries)
        else:
            part, measured = "found", compare(args.kinds, store, rows, queries)
    threads = os.environ.get("OMP_NUM_THREADS")
    figures = {
        **recording.about(),
        "passages": len(rows),
        "dims": rows.shape[1],
        "queries": len(queries),
        "vectors": args.note or (args.vectors.name if args.vectors else "drawn round 200 centres"),
        "threads": f"OMP_NUM_THREADS={threads}" if threads else "OMP_NUM_THREADS not set",
        "rows": measured,
    }
    report = {part: figures}
    if args.out and args.out.exists():
        report = json.loads(args.out.read_text()) | report
    print(f"\n{render({part: figures})}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(raw(report))
        args.out.with_suffix(".md").write_text(render(report))


if __name__ == "__main__":
    main()
