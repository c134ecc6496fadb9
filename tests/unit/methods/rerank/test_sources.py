import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.rerank.sources import Answers, Sources, read_pool


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def write_set(folder: Path, qrels: str, suffix: str = ".gz") -> Path:
    corpus = [
        {"_id": "a", "title": "Mills", "text": "They grind."},
        {"_id": "b", "title": "", "text": "Rivers are long."},
        {"_id": "c", "title": "Only a title", "text": ""},
    ]
    write_rows(folder / f"corpus.jsonl{suffix}", corpus)
    queries = [{"_id": "1", "text": "what grinds"}, {"_id": "2", "text": "what is long"}]
    write_rows(folder / f"queries.jsonl{suffix}", queries)
    (folder / "qrels.train.tsv").write_text(qrels)
    return folder


def test_a_questions_only_passage_answers_it_and_of_several_those_that_hold_an_answer(
    tmp_path: Path,
) -> None:
    rows = [
        {"question": "free", "context": "One  passage.", "answers": ["other words"]},
        {"question": "no answers", "context": "one passage.", "title": "T"},
        {"question": "two hold", "passages": ["In 1912.", "x", "1912, yes"], "answers": ["1912"]},
        {"question": "none holds it", "passages": ["x", "y 19123"], "answers": ["1912"]},
    ]  # fmt: skip
    pool = read_pool(Sources([write_rows(tmp_path / "q.jsonl", rows)]))
    assert pool.passages == ["One  passage.", "In 1912.", "x", "1912, yes", "y 19123"]
    assert [(q.text, q.gold, q.group) for q in pool.queries] == [
        ("free", (0,), "One  passage."),
        ("no answers", (0,), "T"),
        ("two hold", (1, 3), "In 1912."),
    ]
    assert pool.left_out == {"no gold passage": 1}
    assert pool.queries[2].where.endswith("q.jsonl, line 3")


def test_an_answer_is_held_as_whole_words_whatever_case_and_marks() -> None:
    held = Answers(["It began in 1912, at the Old Mill.", "19123 mills"])
    assert held.hold(0, ["the old mill"])
    assert held.hold(0, ["none", "1912"])
    assert not held.hold(1, ["1912", "mill"])
    assert not held.hold(0, ["the", ""])  # nothing is left of them
    assert not held.hold(0, [])


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_a_retrieval_set_is_read_with_its_judgements(tmp_path: Path, suffix: str) -> None:
    qrels = "query-id\tcorpus-id\tscore\n1\ta\t1\n1\tc\t2\n2\tb\t1\n2\ta\t0\n"
    folder = write_set(tmp_path / "set", qrels, suffix)
    corpus = write_rows(tmp_path / "more.jsonl", [{"text": "More."}, {"text": "rivers are LONG."}])
    pool = read_pool(Sources(retrieval=[(folder, "train")], corpus=[corpus]))
    assert pool.passages == ["Mills They grind.", "Rivers are long.", "Only a title", "More."]
    assert [(q.text, q.gold, q.answers) for q in pool.queries] == [
        ("what grinds", (0, 2), ()),
        ("what is long", (1,), ()),
    ]


@pytest.mark.parametrize(
    ("qrels", "says"),
    [
        ("1\tz\t1\n", r"train\.tsv, line 1: there is no passage 'z'"),
        ("query-id\tcorpus-id\tscore\n9\ta\t1\n", r"line 2: there is no query '9'"),
        ("1\ta\t0\n", r"train\.tsv: no query has a passage of a grade above 0"),
    ],
)
def test_wrong_judgements_are_refused_with_their_place(
    tmp_path: Path, qrels: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        read_pool(Sources(retrieval=[(write_set(tmp_path, qrels), "train")]))


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither questions nor a retrieval set"):
        read_pool(Sources(corpus=[tmp_path]))
    with pytest.raises(InputError, match=r"no retrieval set, it has no corpus\.jsonl\.gz"):
        read_pool(Sources(retrieval=[(tmp_path, "train")]))
    folder = write_set(tmp_path / "set", "1\ta\t1\n")
    with pytest.raises(InputError, match=r"has no qrels\.dev\.tsv"):
        read_pool(Sources(retrieval=[(folder, "dev")]))
    corpus = write_rows(tmp_path / "corpus.jsonl", [{"text": "More."}, {"text": " "}])
    with pytest.raises(InputError, match=r"corpus\.jsonl, line 2: text: ' ' is no text"):
        read_pool(Sources(retrieval=[(folder, "train")], corpus=[corpus]))
    empty = write_rows(tmp_path / "empty.jsonl", [])
    with pytest.raises(InputError, match="no question to train on"):
        read_pool(Sources([empty]))
