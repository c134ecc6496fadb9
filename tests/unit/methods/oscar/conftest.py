"""A folder of data sets in small, written as the real ones are, and an encoder to start from."""

import gzip
import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import WORDS, write_base

KNOWN = [word for word in WORDS.split() if len(word) > 1]
TITLES = [f"Article_{letter}" for letter in "ABCDEFGH"]
HELD_OUT = "the dev paragraph has words of its own that no other text may share for ten in a row"


def sentence(rng: random.Random, fact: str) -> str:
    """Write eight random words round a fact."""
    words = rng.choices(KNOWN, k=8)
    return f"{' '.join(words[:4])} {fact} {' '.join(words[4:])}."


def some_rows(
    rng: random.Random, title: str, count: int, ask: str = "what is"
) -> list[dict[str, Any]]:
    """Write paragraphs, each with a question for a fact of it."""
    rows = []
    for _ in range(count):
        fact = f"{rng.choice(KNOWN)} {rng.randint(10, 99)}"
        context = sentence(rng, fact)
        words = context.split()
        rows.append(
            {
                "question": f"{ask} {words[3]} {words[-4]}?",
                "answers": [fact, fact.upper()],
                "answer_start": [context.index(fact)],
                "context": context,
                "title": title,
            }
        )
    return rows


def write_gz(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(0)
    dev = [{**some_rows(rng, "Dev_article", 1, ask="how is")[0], "context": f"Here {HELD_OUT}."}]
    leaked = {**some_rows(rng, TITLES[0], 1)[0]}
    leaked["context"] = f"{leaked['context']} Copied: {HELD_OUT}."
    squad = [row for title in TITLES for row in some_rows(rng, title, 6)]
    write_gz(folder / "squad_v1" / "dev.jsonl.gz", dev)
    write_gz(folder / "squad_v1" / "train_part.jsonl.gz", squad)
    qamr = [{**row, "title": ""} for row in some_rows(rng, "", 10, ask="who or what is")]
    write_gz(folder / "qamr" / "train.jsonl.gz", [*qamr, leaked])
    write_gz(
        folder / "fairytaleqa" / "train.jsonl.gz", some_rows(rng, "A tale", 10, ask="where is")
    )
    passages = [
        {"title": f"Page {i}", "text": sentence(rng, "Maria Teller"), "source": "2wiki"}
        for i in range(20)
    ]
    text = sentence(rng, "Brenn Hollow")
    refused = [
        {"title": "Dev article", "text": text, "source": "2wiki"},  # as an evaluation article
        {"title": "Other", "text": text, "source": "squad_dev"},
        {"title": "Other", "text": f"Brenn Hollow: {HELD_OUT}.", "source": "2wiki"},
    ]
    write_gz(folder / "wikipedia_passages" / "passages.jsonl.gz", [*passages, *refused])
    book = ["= Title =", "too short", *(" ".join(sentence(rng, "1912") for _ in range(4)),) * 3]
    (folder / "openstax").mkdir()
    with lzma.open(folder / "openstax" / "train.txt.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(book) + "\n")
    return folder


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base"))
