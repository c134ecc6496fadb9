"""A small set in BEIR's form."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

PASSAGES = {
    "p0": ("Mills", "the old mill stands beside the river in town"),
    "p1": ("Bread", "new bread is baked of stone ground corn"),
    "p2": ("", "the market in town is old"),
    "p3": ("Rivers", "how long the river is nobody knows"),
    "p4": ("Bread", "bread and stone and river and market and mill"),
    "p5": ("Other", "words that no query asks for"),
}
QUERIES = {
    "q0": "where is the old mill",
    "q1": "how long is the river",
    "q2": "what bread is new",
    "q3": "old market in town",
    "q4": "zeppelin",
}
JUDGED = [("q0", "p0", 2), ("q0", "p4", 1), ("q1", "p3", 1), ("q2", "p1", 1), ("q2", "p5", 0),
          ("q3", "p2", 1)]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    corpus = [{"_id": i, "title": title, "text": text} for i, (title, text) in PASSAGES.items()]
    write(folder / "corpus.jsonl.gz", corpus)
    write(folder / "queries.jsonl.gz", [{"_id": i, "text": text} for i, text in QUERIES.items()])
    lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{p}\t{grade}" for q, p, grade in JUDGED)]
    (folder / "qrels.test.tsv").write_text("\n".join(lines) + "\n")
    return folder
