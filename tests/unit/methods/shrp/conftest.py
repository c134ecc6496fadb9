"""Labelled rows whose label a word decides, texts, and rows to rank."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.methods.conftest import TOPICS

Rows = Callable[..., Path]


@pytest.fixture
def labelled(tmp_path: Path) -> Rows:
    """Write rows, labelled by whether "river" stands in the text, or in both of a pair."""

    def write(
        name: str, count: int, *, pairs: bool = False, labels: Sequence[Any] = (0, 1)
    ) -> Path:
        rng = random.Random(name)
        rows: list[dict[str, Any]] = []
        for number in range(count):
            right = number % 2
            others = [topic for topic in TOPICS if topic != "river"]
            word = "river" if right else rng.choice(others)
            text = f"the {word} is old {rng.choice(others)} {rng.randrange(50)}"
            row = {"text1": text, "text2": f"how long is the {word}"} if pairs else {"text": text}
            rows.append({**row, "label": labels[right]})
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def plain_text(tmp_path: Path) -> Path:
    """Write some two hundred lines of text."""
    rng = random.Random(3)
    lines = {
        " ".join(rng.choice([*TOPICS, "the", "is", "old", "how", "long"]) for _ in range(length))
        for length in range(3, 13)
        for _ in range(20)
    }
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sorted(lines)) + "\n")
    return path


@pytest.fixture
def scored_pairs(tmp_path: Path) -> Path:
    """Write pairs whose score is how many words they share."""
    rng = random.Random(4)
    rows = []
    for _ in range(30):
        left, right = (rng.sample(TOPICS, 3) for _ in range(2))
        score = len({*left} & {*right})
        rows.append({"text1": " ".join(left), "text2": " ".join(right), "score": score})
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
