"""What finding passages by their words costs: writing, bytes, migrating, asking.

Passages of 40 to 119 words drawn by Zipf's law from 50,000 (seeded), indexed through the store in
one document each, 8-dimensional vectors, 256 a write. Questions are ten words drawn likewise, so
that common words are in them as in real ones.

    python benchmarks/search.py [--passages 100000] [--out FILE.json]

Prints a table; with --out every figure is kept in FILE.json, and FILE.md is made of it.
"""

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from recording import Recording, raw, tell_machine, tell_others, tell_versions

from condensery.index import bm25
from condensery.index.store import IndexStore
from condensery.values import Document, IndexSpec, Passage

VOCABULARY = 50_000
QUESTIONS = 100
WRITE = 256
DIMS = 8
PAGE = """# Finding passages by their words: what it costs

On {machine}, SQLite {sqlite}.
{passages:,} passages of 40 to 119 words drawn by Zipf's law, {megabytes:.1f} MB of text; questions
of ten words drawn likewise, {questions} of them.

| | |
|---|---|
| written in all, {write} passages a write | {written_seconds:.1f} s |
| of that words alone, in one write (a migration) | {words_seconds:.1f} s |
| the file without words | {without_mb:.1f} MB |
| words | {words_mb:.1f} MB |
| a question, top 50: median / p95 | {median_ms:.0f} / {p95_ms:.0f} ms |

Made on {date} by `{command}`; {versions}; {others}.
"""


def make_texts(count: int, least: int, most: int, chance: np.random.Generator) -> Iterator[str]:
    weights = 1 / (np.arange(VOCABULARY) + 2.7)  # Zipf and Mandelbrot's law
    weights /= weights.sum()
    for _ in range(count):
        length = chance.integers(least, most + 1)
        yield " ".join(f"w{n}" for n in chance.choice(VOCABULARY, size=length, p=weights))


def fill(store: IndexStore, texts: list[str], chance: np.random.Generator) -> float:
    settings = {"encoder": "none", "fingerprint": "none", "metric": "ip", "kind": "flat"}
    store.create("kb", IndexSpec(dims=DIMS, **settings))
    seconds = 0.0
    for start in range(0, len(texts), WRITE):
        block = list(enumerate(texts[start : start + WRITE], start))
        documents = [Document(f"d{n}", text) for n, text in block]
        passages = [Passage(f"d{n}#0", f"d{n}", text, 0, len(text)) for n, text in block]
        vectors = chance.standard_normal((len(block), DIMS)).astype(np.float32)
        began = time.perf_counter()
        store.upsert("kb", documents, passages, vectors, fingerprint="none")
        seconds += time.perf_counter() - began
        sys.stderr.write(f"\r{start + len(block)} of {len(texts)}")
    sys.stderr.write("\n")
    return seconds


def migrate(path: Path) -> tuple[float, int, int]:
    """Take the words out and make them again; returns seconds, and bytes without and with."""
    connection = sqlite3.connect(path, isolation_level=None)
    for table in ("vocabulary", "words"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute("VACUUM")
    without = path.stat().st_size
    began = time.perf_counter()
    connection.execute("BEGIN")
    bm25.create(connection)
    connection.execute("COMMIT")
    seconds = time.perf_counter() - began
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return seconds, without, path.stat().st_size


def render(report: dict[str, Any]) -> str:
    context = {
        "machine": tell_machine(report),
        "others": tell_others(report),
        "versions": tell_versions(report),
    }
    return PAGE.format(**(report | context))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep all; makes a page")
    args = parser.parse_args()
    recording = Recording("benchmarks/search.py", "condensery", "numpy")
    chance = np.random.default_rng(7)
    texts = list(make_texts(args.passages, 40, 119, chance))
    questions = list(make_texts(QUESTIONS, 10, 10, chance))
    with tempfile.TemporaryDirectory() as folder:
        with IndexStore(Path(folder)) as store:
            written = fill(store, texts, chance)
            times = []
            for question in questions:
                began = time.perf_counter()
                store.query("kb", question, top_k=50)
                times.append(1000 * (time.perf_counter() - began))
        seconds, without, bytes_ = migrate(Path(folder) / "indexes" / "kb" / "index.sqlite3")
    *_, p95 = statistics.quantiles(times, n=20)
    report = {
        **recording.about(),
        "sqlite": sqlite3.sqlite_version,
        "passages": args.passages,
        "questions": QUESTIONS,
        "write": WRITE,
        "megabytes": sum(map(len, texts)) / 1e6,
        "written_seconds": written,
        "words_seconds": seconds,
        "without_mb": without / 1e6,
        "words_mb": (bytes_ - without) / 1e6,
        "median_ms": statistics.median(times),
        "p95_ms": p95,
        "each_ms": times,
    }
    print(render(report))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(raw(report))
        args.out.with_suffix(".md").write_text(render(report))


if __name__ == "__main__":
    main()
