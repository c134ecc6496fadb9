"""Folders of rows to judge encoders on: what is read, and what is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.judging.sets import (
    Cap,
    Kind,
    LabelledTexts,
    PairRows,
    read_judged_set,
    read_judged_sets,
)
from condensery.methods.ranking.sets import RankingSet


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def pair(number: int, **more: Any) -> dict[str, Any]:
    return {"text1": f"left {number}", "text2": f"right {number}", **more}


def test_rows_of_each_kind_are_read(tmp_path: Path, beir: Path) -> None:
    write(tmp_path / "sts/test.jsonl.gz", [pair(n, score=n / 2) for n in range(4)])
    write(tmp_path / "pairs/dev.jsonl", [pair(n, label=n % 2) for n in range(4)])
    labelled = [{"text": f"text {n}", "label": "ba"[n % 2]} for n in range(4)]
    write(tmp_path / "kinds/train.jsonl", labelled)
    write(tmp_path / "kinds/test.jsonl", labelled[2:])
    rows = [
        {"text1": f"query {n // 3}", "text2": f"passage {n}", "label": int(n in (1, 3, 4, 5))}
        for n in range(9)
    ]
    write(tmp_path / "rank/test.jsonl", rows)
    sts, pairs, kinds, groups, search, rank = read_judged_sets(
        [
            ("sts", str(tmp_path / "sts")),
            ("pairs", f"{tmp_path / 'pairs'}:dev"),
            ("classification", str(tmp_path / "kinds")),
            ("clustering", f"{tmp_path / 'kinds'}:train"),
            ("retrieval", str(beir)),
            ("reranking", str(tmp_path / "rank")),
        ],
        Cap(),
    )
    assert sts.rows == PairRows(
        [f"left {n}" for n in range(4)], [f"right {n}" for n in range(4)], [0.0, 0.5, 1.0, 1.5]
    )
    assert (pairs.name, pairs.key, pairs.count) == ("pairs:dev", "pairs/pairs:dev", 4)
    texts = [row["text"] for row in labelled]
    assert kinds.rows == LabelledTexts(texts[2:], [1, 0], texts, [1, 0, 1, 0])
    assert groups.rows == LabelledTexts(texts, [1, 0, 1, 0], [], [])
    assert isinstance(search.rows, RankingSet)
    assert search.count == 4
    # Of three queries the second has no passage that is wrong, the third none that is right.
    assert isinstance(rank.rows, tuple)
    assert [(row.query, row.relevant) for row in rank.rows] == [("query 0", [False, True, False])]


def test_a_cap_draws_the_same_rows_each_time_and_another_seed_others(tmp_path: Path) -> None:
    write(tmp_path / "sts/test.jsonl", [pair(n, score=n) for n in range(50)])

    def read(seed: int) -> Any:
        return read_judged_set("sts", str(tmp_path / "sts"), Cap(10, seed=seed))

    first, again, other = read(1), read(1), read(2)
    assert first == again
    assert first.count == 10
    assert first.content != other.content
    assert first.rows.figures == sorted(first.rows.figures)


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("sts", [pair(0, score=1), pair(1, score="high")], "line 2: score: 'high' is no number"),
        ("sts", [pair(0, score=1), pair(1, score=1)], "no two rows of different scores"),
        ("pairs", [pair(0, label=1), pair(1, label=2)], "line 2: label: 2 is none of 0, 1"),
        ("pairs", [pair(0, label=1), pair(1, label=1)], "all have the label '1'"),
        ("pairs", [{"text": "one", "label": 1}], "line 1: has not text1 and text2"),
        ("clustering", [{"text": " ", "label": "a"}], "line 1: text: ' ' is no text"),
        ("clustering", [pair(0, label="a"), pair(1, label="b")], "line 1: has not one text"),
        ("clustering", [{"text": "a", "label": "a"}], "all are 'a'"),
        ("reranking", [pair(0, label=1), pair(0, label=None)], "line 2: label: None is neither"),
        ("reranking", [pair(0, label=1), {"text1": "left 0", "label": 0}], "line 2: text2: None"),
        ("reranking", [pair(0, label=1), pair(1, label=0)], "no query"),
        ("classification", [{"text": "a", "label": "z"}], "line 1: label: 'z' is none of a, b"),
    ],
)
def test_rows_that_are_wrong_are_named(
    kind: Kind, rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "set/test.jsonl", rows)
    learnt = [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}]
    write(tmp_path / "set/train.jsonl", learnt)
    with pytest.raises(InputError) as refused:
        read_judged_set(kind, str(tmp_path / "set"), Cap())
    assert message in refused.value.message
    assert "set/test.jsonl" in refused.value.message


def test_a_split_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    write(tmp_path / "set/all.jsonl.gz", [pair(0, score=1)])
    with pytest.raises(InputError, match=r"has no test\.jsonl .*all\.jsonl\.gz"):
        read_judged_set("sts", str(tmp_path / "set"), Cap())


def test_two_folders_of_one_name_are_refused(tmp_path: Path) -> None:
    for parent in ("one", "two"):
        (tmp_path / parent).mkdir()
        write(tmp_path / parent / "set/test.jsonl", [pair(n, score=n) for n in range(2)])
    named: list[tuple[Kind, str]] = [("sts", str(tmp_path / p / "set")) for p in ("one", "two")]
    with pytest.raises(InputError, match="two folders of the name sts/set"):
        read_judged_sets(named, Cap())
