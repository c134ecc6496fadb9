"""Tiny questions whose answers can be found, and an encoder to start from."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import WORDS, write_base

KNOWN = [word for word in WORDS.split() if len(word) > 1 and word != "long"]


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Two hundred questions for the number that follows "long", in eight articles."""
    rng = random.Random(1)
    made = []
    for i in range(200):
        words = rng.choices(KNOWN, k=7)
        at, number = rng.randrange(8), str(rng.randint(10, 99))
        made.append(
            {
                "question": f"how {words[0]} is {words[1]} {i}?",
                "answers": [number],
                "context": " ".join([*words[:at], "long", number, *words[at:]]),
                "title": f"Article_{i % 8}",
            }
        )
    return made


@pytest.fixture
def questions(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    """Those in a file."""
    path = tmp_path / "tiny" / "train.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("reader-base"))


@pytest.fixture(autouse=True)
def on_one_thread(one_thread: None) -> None:
    """Every test here compares figures of a training."""
