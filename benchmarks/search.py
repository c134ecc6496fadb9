"""What finding passages by their words costs: writing, bytes, migrating, asking.

Passages of 40 to 119 words drawn by Zipf's law from 50,000 (seeded), indexed through the store in
one document each, 8-dimensional vectors, 256 a write. Questions are ten words drawn likewise, so
that common words are in them as in real ones.

    python benchmarks/search.py [--passages 100000]

Prints a table.
"""

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from condensery.index import words
from condensery.index.store import IndexStore
from condensery.values import Document, Passage

VOCABULARY = 50_000
QUESTIONS = 100
WRITE = 256
DIMS = 8


def make_texts(count: int, least: int, most: int, chance: np.random.Generator) -> Iterator[str]:
    weights = 1 / (np.arange(VOCABULARY) + 2.7)  # Zipf and Mandelbrot's law
    weights /= weights.sum()
    for _ in range(count):
        length = chance.integers(least, most + 1)
        yield " ".join(f"w{n}" for n in chance.choice(VOCABULARY, size=length, p=weights))


def fill(store: IndexStore, texts: list[str], chance: np.random.Generator) -> float:
    settings = {"encoder": "none", "fingerprint": "none", "metric": "ip", "kind": "flat"}
    store.create("kb", dims=DIMS, **settings)
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
    words.create(connection)
    connection.execute("COMMIT")
    seconds = time.perf_counter() - began
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return seconds, without, path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000)
    args = parser.parse_args()
    chance = np.random.default_rng(7)
    texts = list(make_texts(args.passages, 40, 119, chance))
    questions = list(make_texts(QUESTIONS, 10, 10, chance))
    with tempfile.TemporaryDirectory() as folder:
        with IndexStore(Path(folder)) as store:
            written = fill(store, texts, chance)
            times = []
            for question in questions:
                began = time.perf_counter()
                store.match("kb", question, top_k=50)
                times.append(1000 * (time.perf_counter() - began))
        seconds, without, bytes_ = migrate(Path(folder) / "indexes" / "kb" / "index.sqlite3")
    print(f"{args.passages} passages, {sum(map(len, texts)) / 1e6:.1f} MB of text\n")
    print("| | |\n|---|---|")
    print(f"| written in all, {WRITE} passages a write | {written:.1f} s |")
    print(f"| of that words alone, in one write (a migration) | {seconds:.1f} s |")
    print(f"| the file without words | {without / 1e6:.1f} MB |")
    print(f"| words | {(bytes_ - without) / 1e6:.1f} MB |")
    *_, p95 = statistics.quantiles(times, n=20)
    print(f"| a question, top 50: median / p95 | {statistics.median(times):.0f} / {p95:.0f} ms |")


if __name__ == "__main__":
    main()
