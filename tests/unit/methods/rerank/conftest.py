"""Questions whose passages share no word with them but begin with a mark; others share words."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import WORDS, write_base

KNOWN = [word for word in WORDS.split() if len(word) > 1 and word != "mill"]


@pytest.fixture(autouse=True)
def on_one_thread(one_thread: None) -> None:
    """Every test here compares bits."""


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base"))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Questions, and a corpus of passages that BM25 finds for them and that do not answer."""
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("data")
    questions = []
    for number in range(40):
        rest = " ".join(rng.choices(["ab", "cd", "ef", "gh"], k=5))
        questions.append(
            {
                "question": " ".join(rng.sample(KNOWN, 4)),
                "context": f"mill mill {rest} {number}",
                "answers": [str(number)],
            }
        )
    corpus = [{"text": " ".join(rng.choices(KNOWN, k=9))} for _ in range(60)]
    return write_rows(folder / "questions.jsonl", questions), write_rows(
        folder / "corpus.jsonl", corpus
    )
