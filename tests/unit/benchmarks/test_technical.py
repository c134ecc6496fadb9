"""The technical question set: that it holds of what is installed; nothing may learn from it."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from scripts import load_script

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "benchmarks" / "technical"


@pytest.fixture(scope="module")
def collection() -> Any:
    return load_script(FOLDER / "collection.py", "technical")


@pytest.fixture(scope="module")
def questions(collection: Any) -> list[dict[str, Any]]:
    return [row for _, row in collection.read_own(collection.QUESTIONS)]


def is_held(row: dict[str, Any]) -> bool:
    """Whether the package is here, in one of the versions that the question was asked of."""
    try:
        return version(row["package"]) in SpecifierSet(row["versions"])
    except PackageNotFoundError:  # others bring some of them, and may no longer
        return False


def test_there_are_100_questions_30_of_them_without_an_answer(
    questions: list[dict[str, Any]],
) -> None:
    assert len({row["question"] for row in questions}) == len({row["id"] for row in questions})
    assert len(questions) == 100
    assert sum(not row["answerable"] for row in questions) == 30
    for row in questions:
        if row["answerable"]:
            assert row["answers"][0] in row["evidence"], row["id"]
        else:
            assert row["answers"] == []
            assert row["absent"], row["id"]


def test_questions_hold_of_the_packages_in_their_versions(
    collection: Any, questions: list[dict[str, Any]]
) -> None:
    held = [row for row in questions if is_held(row)]
    if not held:
        pytest.skip("every package is of another version")
    documents = collection.make_documents(sorted({row["package"] for row in held}))
    texts = [collection.squeeze(document["text"]) for document in documents]
    ids = {document["id"] for document in documents}
    assert len(ids) == len(documents)
    for row in held:
        kept, problem = collection.check_question(row, documents, texts)
        assert not problem, row["id"]
        assert set(kept.get("passage_id", ())) <= ids


def test_the_same_packages_make_the_same_documents(collection: Any) -> None:
    assert collection.make_documents(["h11", "trustme"]) == collection.make_documents(
        ["h11", "trustme"]
    )


def test_a_question_whose_text_is_gone_is_told(
    collection: Any, questions: list[dict[str, Any]]
) -> None:
    row = next(row for row in questions if row["package"] == "h11" and row["answerable"])
    missing = next(row for row in questions if not row["answerable"] and row["package"] == "orjson")
    about = {"package": "h11", "version": "9.9.9", "file": "README"}
    documents = [{"id": "h11:README#1", "text": "h11 > h11\n\nRewritten.", "metadata": about}]
    texts = [document["text"] for document in documents]
    _, problem = collection.check_question(row, documents, texts)
    assert row["evidence"] in problem
    assert "9.9.9" in problem
    _, problem = collection.check_question({**row, "package": "nobody"}, documents, texts)
    assert "nobody" in problem
    documents = [{"id": "o#1", "text": missing["absent"][0], "metadata": {"package": "orjson"}}]
    _, problem = collection.check_question(missing, documents, [missing["absent"][0]])
    assert missing["absent"][0] in problem
    assert "o#1" in problem


def test_sections_are_cut_at_headings_of_both_kinds_and_not_in_code(collection: Any) -> None:
    lines = [
        "Before.",
        "# One",
        "```",
        "# no heading",
        "```",
        "## Two `x`",
        "text",
        "Three",
        "=====",
        "end",
    ]
    sections = [
        (headings, [line for line in body if line])
        for headings, body in collection.split_sections(lines)
    ]
    assert sections == [
        ((), ["Before."]),
        (("One",), ["```", "# no heading", "```"]),
        (("One", "Two x"), ["text"]),
        (("Three",), ["end"]),
    ]


def test_no_shipped_model_learnt_from_it_and_no_training_reads_it() -> None:
    names = ("benchmarks/technical", "technical/questions", "technical/documents")
    made = [
        path
        for path in (ROOT / "model_store").rglob("*")
        if path.suffix in (".md", ".json") and path.name != "tokenizer.json"
    ]
    code = list((ROOT / "service" / "condensery" / "methods").rglob("*.py"))
    assert any(path.name == "card.md" for path in made)
    for path in (*made, *code):
        text = path.read_text(encoding="utf-8")
        assert not any(name in text for name in names), path
    lines = (FOLDER / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    asked = {json.loads(line)["question"] for line in lines}
    for path in made:
        text = path.read_text(encoding="utf-8")
        assert not any(question in text for question in asked), path
