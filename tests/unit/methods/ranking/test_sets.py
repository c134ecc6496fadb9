import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import EmptyInput, InputError
from condensery.methods.ranking.retrieval import titled_text
from condensery.methods.ranking.sets import read_corpus, read_set


def test_a_set_is_read_with_the_queries_that_are_judged(beir: Path) -> None:
    ranking_set = read_set(beir)
    assert ranking_set.name == "tiny"
    assert [passage.id for passage in ranking_set.passages] == ["p0", "p1", "p2", "p3", "p4", "p5"]
    assert list(ranking_set.queries) == ["q0", "q1", "q2", "q3"]
    assert ranking_set.judged["q0"] == {"p0": 2, "p4": 1}
    assert ranking_set.judged["q2"] == {"p1": 1}, "grade 0 is no judgement in its favour"


def test_a_sample_hangs_on_the_seed_and_keeps_the_order(beir: Path) -> None:
    chosen = [tuple(read_set(beir, queries=2, seed=seed).queries) for seed in range(12)]
    assert chosen == [tuple(read_set(beir, queries=2, seed=seed).queries) for seed in range(12)]
    assert len(set(chosen)) > 2
    assert all(list(names) == sorted(names) and len(names) == 2 for names in chosen)
    assert len(read_set(beir, queries=100).queries) == 4


def test_of_a_corpus_the_relevant_passages_and_some_others_are_searched(beir: Path) -> None:
    whole = read_set(beir)
    ranking_set = read_set(beir, queries=2, others=1)
    relevant = {passage for grades in ranking_set.judged.values() for passage in grades}
    kept = [passage.id for passage in ranking_set.passages]
    assert relevant < set(kept)
    assert len(kept) == len(relevant) + 1
    assert kept == [passage.id for passage in whole.passages if passage.id in set(kept)]
    assert ranking_set.content != whole.content
    assert read_set(beir, others=10**6).passages == whole.passages
    with pytest.raises(InputError, match="others: -1 is less than 0"):
        read_set(beir, others=-1)


def test_another_split_has_another_name(beir: Path) -> None:
    (beir / "qrels.train.tsv").write_text("query\tpassage\tgrade\nq4\tp5\t1\n")
    ranking_set = read_set(beir, "train")
    assert (ranking_set.name, list(ranking_set.queries)) == ("tiny:train", ["q4"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("q0\tp9\t1", "line 2: there is no passage 'p9'"),
        ("q9\tp0\t1", "line 2: there is no query 'q9'"),
        ("q0\tp0", "line 2: .* is not query, passage and grade"),
        ("q0\tp0\tgood", "line 2: .* is not query, passage and grade"),
        ("q0 p0 1", "line 2: .* is not query, passage and grade"),
    ],
)
def test_a_wrong_judgement_is_named_by_line(beir: Path, line: str, says: str) -> None:
    (beir / "qrels.test.tsv").write_text(f"query\tpassage\tgrade\n{line}\n")
    with pytest.raises(InputError, match=says):
        read_set(beir)


def test_a_set_without_anything_relevant_is_refused(beir: Path) -> None:
    (beir / "qrels.test.tsv").write_text("query\tpassage\tgrade\nq0\tp0\t0\n")
    with pytest.raises(EmptyInput, match=r"qrels\.test\.tsv"):
        read_set(beir)


def test_a_set_is_read_as_beir_lays_it_out_too(beir: Path) -> None:
    compact = read_set(beir)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (beir / name).write_bytes(gzip.decompress((beir / f"{name}.gz").read_bytes()))
        (beir / f"{name}.gz").unlink()
    (beir / "qrels").mkdir()
    (beir / "qrels.test.tsv").rename(beir / "qrels" / "test.tsv")
    assert read_set(beir) == compact
    _, *judgements = (beir / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (beir / "qrels" / "test.tsv").write_text("".join(judgements))  # without a heading
    assert read_set(beir) == compact


def test_a_missing_file_and_a_negative_count_are_named(beir: Path) -> None:
    with pytest.raises(InputError, match=r"qrels\.dev\.tsv"):
        read_set(beir, "dev")
    with pytest.raises(InputError, match="queries: -1"):
        read_set(beir, queries=-1)


Row = dict[str, Any]


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_passages_are_found_by_their_words_and_titles(tmp_path: Path) -> None:
    rows = [
        {"_id": "a", "title": "Rhine", "text": "A river that is long."},
        {"id": "b", "title": "", "text": "Bread is sold in the stone market."},
        {"id": "c", "text": "The mill stands by the water."},
    ]
    corpus = read_corpus(write(tmp_path / "corpus.jsonl", rows))
    assert [passage.id for passage in corpus.passages] == ["a", "b", "c"]
    hits = corpus.search(["stone bread", "how long is the Rhine?"], 3, "bm25")
    assert hits[0] == [rows[1]["text"]]  # the only one that shares a word
    assert hits[1][0] == rows[0]["text"]  # the text alone is read, not its title
    other = [{**rows[0], "text": "A river that is short."}, *rows[1:]]
    assert read_corpus(write(tmp_path / "other.jsonl", other)).fingerprint != corpus.fingerprint
    titled = read_corpus(write(tmp_path / "titled.jsonl", [{"id": "d", "title": "T", "text": ""}]))
    assert [titled_text(passage) for passage in titled.passages] == ["T"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"text": "x"}, "line 2: id: None"),
        ({"id": 3, "text": "x"}, "line 2: id: 3"),
        ({"id": "a", "text": "x"}, "line 2: id: 'a' stands in .*line 1"),
        ({"id": "b", "text": " "}, "line 2: text: ' '"),
        ({"id": "b"}, "line 2: text: None"),
        ({"id": "b", "text": "x", "title": 4}, "title: 4"),
    ],
)
def test_a_row_that_is_no_passage_is_named(tmp_path: Path, row: Row, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_corpus(write(tmp_path / "corpus.jsonl", [{"id": "a", "text": "y"}, row]))


def test_no_passages_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmptyInput, match="holds no passage"):
        read_corpus(write(tmp_path / "corpus.jsonl", []))
