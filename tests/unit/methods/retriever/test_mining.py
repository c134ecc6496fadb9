import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.methods.conftest import write_encoder

from condensery.errors import InputError
from condensery.methods.retriever.batches import read_examples
from condensery.methods.retriever.mining import main


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_hold_what_a_search_finds_and_what_is_judged_does_not(
    beir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    main(["--retrieval-set", f"{beir}:test", "--negatives", "2", "--out", str(out)])
    rows = {row["query"]: row for row in lines(out)}
    assert len(rows) == 4  # the fifth query is judged by nobody
    mill = rows["where is the old mill"]
    assert mill["positive"] == [
        "Mills the old mill stands beside the river in town",
        "Bread bread and stone and river and market and mill",
    ]
    assert len(mill["negatives"]) == 2
    assert not set(mill["negatives"]) & set(mill["positive"])
    # What shares most words with it, but doesn't answer it, comes first.
    assert mill["negatives"][0] == "the market in town is old"
    assert len(read_examples([out])) == 4
    about = json.loads((tmp_path / "rows.jsonl.about.json").read_text())
    assert (about["queries"], about["rows"]) == (4, 4)


def test_what_is_there_is_not_made_again_and_other_settings_are_refused(
    beir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    flags = ["--retrieval-set", f"{beir}:test", "--out", str(out)]
    main([*flags, "--negatives", "2"])
    before = out.stat().st_mtime_ns
    main([*flags, "--negatives", "2"])
    assert out.stat().st_mtime_ns == before
    with pytest.raises(InputError, match="negatives: 2, not 3"):
        main([*flags, "--negatives", "3"])


def test_vectors_find_negatives_too(beir: Path, tmp_path: Path) -> None:
    write_encoder(tmp_path / "encoder", "bert")
    out = tmp_path / "rows.jsonl"
    main(["--retrieval-set", f"{beir}:test", "--negatives", "3", "--encoder",
          str(tmp_path / "encoder"), "--search", "dense", "--out", str(out)])  # fmt: skip
    assert all(len(row["negatives"]) == 3 for row in lines(out))


def test_a_search_by_vectors_needs_an_encoder(beir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="search: 'both' needs --encoder"):
        main(["--retrieval-set", f"{beir}:test", "--search", "both",
              "--out", str(tmp_path / "rows.jsonl")])  # fmt: skip
