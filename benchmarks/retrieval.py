"""Retrieval on a set with judgements: by vectors, by words (BM25), and by both.

Reads a set in BEIR's form, indexes it through the same job as the server does (documents cut into
passages of 128 tokens), asks each judged query in each mode for as many passages as one request
may, and takes a document's best passage for its place. nDCG@10 has the judgements as gains, by
trec_eval itself; means over the queries that have a relevant document.

    python benchmarks/retrieval.py --data FOLDER [--index FOLDER] [--queries N] [--out FILE.json]

Prints a table. ``--index`` keeps the index, so that a second run need not embed again. With
``--out`` the figures, each query's too in the order of the judgements, are kept in FILE.json
beside those of other sets, and FILE.md is made of all.
"""

import argparse
import asyncio
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recording import Recording, raw, tell_machine, tell_others, tell_versions

from condensery.index.store import IndexStore
from condensery.jobs import indexes, retrieval
from condensery.jobs.services import Services
from condensery.methods.ranking.measures import Judgements, ndcg
from condensery.metrics import Metrics
from condensery.runtime.device import choose_device, choose_dtype, prepare_process
from condensery.runtime.encoder import Encoder
from condensery.runtime.workers import Workers
from condensery.store.importing import import_minilm
from condensery.store.store import ModelStore
from condensery.values import Document

MODES = ("dense", "bm25", "hybrid")
PAGE = """# Finding by vectors, by words, and by both
{parts}"""
PART = """
## {name}

On {machine}; minilm-l6 in {dtype}.
{documents:,} documents in {passages:,} passages of 128 tokens, {queries} queries, {top_k} passages
asked for; a document's best passage counts.

| | nDCG@10 | recall@10 | ms a query, median |
|---|---|---|---|
{rows}

Made on {date} by `{command}`; {versions}; {others}.
"""
BATCH = 64


class OneEncoder:
    """A pool of one encoder."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def encoder(self, name: str | None = None) -> Encoder:
        return self._encoder


def read_lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_judgements(path: Path) -> Judgements:
    judged: dict[str, dict[str, int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            judged.setdefault(query, {})[document] = int(grade)
    return judged


def recall(ranked: Sequence[str], grades: Mapping[str, int], depth: int = 10) -> float:
    return len(grades.keys() & set(ranked[:depth])) / len(grades)


async def fill(services: Services, documents: Sequence[dict[str, Any]]) -> None:
    await indexes.create_index(services, "set")
    started = time.perf_counter()
    done, _ = await indexes.count_documents(services, "set")
    for start in range(done, len(documents), BATCH):
        block = [
            Document(document["_id"], f"{document.get('title', '')}\n\n{document['text']}".strip())
            for document in documents[start : start + BATCH]
        ]
        await indexes.upsert_documents(services, "set", block)
        seconds = time.perf_counter() - started
        sys.stderr.write(f"\r{start + len(block)} of {len(documents)} in {seconds:.0f} s")
    sys.stderr.write("\n")


async def measure(
    services: Services, queries: Mapping[str, str], judged: Judgements, mode: Any
) -> dict[str, Any]:
    """Ask every judged query; returns the means, and what each query had, in their order."""
    orders: dict[str, list[str]] = {}
    times = []
    for query in judged:
        started = time.perf_counter()
        top_k = services.limits.max_top_k
        hits = await retrieval.query_index(services, "set", queries[query], top_k=top_k, mode=mode)
        times.append(1000 * (time.perf_counter() - started))
        ranked = list(dict.fromkeys(hit.passage.document_id for hit in hits))
        orders[query] = ranked
    recalls = {query: recall(orders[query], grades) for query, grades in judged.items()}
    gains = ndcg(orders, judged)
    return {
        "ndcg@10": statistics.mean(gains.values()),
        "recall@10": statistics.mean(recalls.values()),
        "median_ms": statistics.median(times),
        "each": {
            "ndcg@10": [round(gains[query], 4) for query in judged],
            "recall@10": [round(recalls[query], 4) for query in judged],
            "ms": [round(ms, 1) for ms in times],
        },
    }


def render(report: dict[str, Any]) -> str:
    """Write the page of all sets that were measured."""
    parts = []
    for name, figures in report.items():
        rows = [
            f"| {mode} | {row['ndcg@10']:.4f} | {row['recall@10']:.4f} | {row['median_ms']:.1f} |"
            for mode, row in figures["modes"].items()
        ]
        words = {
            "machine": tell_machine(figures),
            "others": tell_others(figures),
            "versions": tell_versions(figures),
        }
        parts.append(PART.format(**(figures | words), name=name, rows="\n".join(rows)))
    return PAGE.format(parts="".join(parts))


async def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Index the set and ask it in every mode."""
    packages = ("condensery", "torch", "transformers", "faiss-cpu", "pytrec-eval-terrier")
    recording = Recording("benchmarks/retrieval.py", *packages)
    prepare_process()
    workers = Workers()
    store = ModelStore(None, folder / "models")
    device = choose_device("auto")
    encoder = Encoder.load(import_minilm(store), workers, dtype=choose_dtype(device, "auto"))
    await encoder.warm_up()
    with IndexStore(folder) as store_of_indexes:
        pool: Any = OneEncoder(encoder)
        services = Services(registry=pool, indexes=store_of_indexes, metrics=Metrics())
        await fill(services, read_lines(args.data / "corpus.jsonl.gz"))
        judged = read_judgements(args.data / "qrels.test.tsv")
        judged = dict(list(judged.items())[: args.queries])
        queries = {row["_id"]: row["text"] for row in read_lines(args.data / "queries.jsonl.gz")}
        documents, passages = await indexes.count_documents(services, "set")
        modes = {mode: await measure(services, queries, judged, mode) for mode in MODES}
    encoder.close()
    workers.close(1)
    return {
        **recording.about(),
        "dtype": encoder.info.dtype,
        "documents": documents,
        "passages": passages,
        "queries": len(judged),
        "top_k": services.limits.max_top_k,
        "modes": modes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of a set in BEIR's form")
    parser.add_argument("--index", type=Path, help="keep the index there")
    parser.add_argument("--queries", type=int, help="only so many, the first")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep all; makes a page")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        report = {args.data.name: asyncio.run(compare(args, args.index or Path(aside)))}
    print(render(report))
    if args.out:
        if args.out.exists():
            report = json.loads(args.out.read_text()) | report
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(raw(report))
        args.out.with_suffix(".md").write_text(render(report))


if __name__ == "__main__":
    main()
