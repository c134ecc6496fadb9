from pathlib import Path
from typing import Any

import pytest
from tiny_pair import pair_files, tiny_pair

from condensery.agreement import exact_match, f1_score
from condensery.methods.oscar.training import running, score, validate
from condensery.runtime.workers import Workers

Row = dict[str, Any]
ROWS: list[Row] = [
    {
        "question": "what?",
        "context": f"In town {t}{i} the mill number {10 * t + i} stands.",
        "title": f"title {t}",
        "answers": [f"{10 * t + i}"],
    }
    for t in range(1, 4)
    for i in range(3)
]


async def test_scores_are_those_of_the_answers_given(tmp_path: Path) -> None:
    workers = Workers(2)
    pair = tiny_pair()
    reader = running(pair, pair_files(tmp_path, pair), workers)
    passages = [[row["context"], ROWS[0]["context"]] for row in ROWS]
    scores = await score(reader, ROWS, passages)
    for row, texts, text, em, part, first in zip(
        ROWS, passages, scores.answers, scores.em, scores.f1, scores.first, strict=True
    ):
        assert em == exact_match(text, row["answers"])
        assert part == f1_score(text, row["answers"])
        relevance = [p.relevance for p in await reader.compress("what?", texts)]  # type: ignore[union-attr]
        assert relevance[first] == max(relevance)
    assert scores.means()["f1"] == pytest.approx(100 * sum(scores.f1) / len(ROWS))
    reader.close()
    workers.close()


def test_validation_leaves_the_pair_in_training_as_it_was(tmp_path: Path) -> None:
    pair = tiny_pair()
    files = pair_files(tmp_path, pair)
    pair.train()
    before = {name: value.clone() for name, value in pair.state_dict().items()}
    report = validate(pair, files, ROWS, limit=6)
    assert set(report) == {"gold", "plain", "among_five", "gold_first", "samples"}
    assert pair.training
    assert all(value.equal(before[name]) for name, value in pair.state_dict().items())
