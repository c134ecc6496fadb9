"""Evaluations of a tiny pair, retrieval and all."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import InputError
from condensery.methods.oscar.evaluating.evaluation import Evaluation
from condensery.methods.oscar.evaluating.questions import sample_questions
from condensery.methods.oscar.evaluating.settings import FIXED
from condensery.methods.ranking.retrieval import CorpusPassage, fingerprint
from condensery.methods.ranking.sets import Corpus
from condensery.runtime.oscar import OscarModel

Row = dict[str, Any]


@pytest.fixture
def evaluation(rows: list[Row], tmp_path: Path) -> Evaluation:
    path = tmp_path / "mills.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    passages = [
        CorpusPassage(str(place), row["context"], row["title"]) for place, row in enumerate(rows)
    ]
    return Evaluation(
        questions=sample_questions(path, 9, 1),
        corpus=Corpus(passages, fingerprint(passages)),
        passages=(1, 3),
        read=2,
        max_tokens=4,
    )


def without_time(report: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(report))
    for figures in copy["settings"].values():
        del figures["seconds"]
    return copy


def test_every_setting_is_measured_and_the_same_again(
    evaluation: Evaluation, reader: OscarModel, tmp_path: Path
) -> None:
    report = evaluation.run(reader, tmp_path / "a")
    families = ("plain", "compressed", "reranked", "bm25")
    wanted = [setting.key for setting in FIXED] + [
        f"{name}_{k}" for k in (1, 3) for name in families
    ]
    assert list(report["settings"]) == wanted
    assert report["measured_on"] | {"seconds": ""} == {
        "questions": 9,
        "file": "mills.jsonl",
        "questions_in_file": 18,
        "repeated": 0,
        "passages_in_corpus": 18,
        "retrieval": "gold+bm25",
        "read": 2,
        "answer_tokens": 4,
        "seconds": "",
    }
    settings = report["settings"]
    read = {key: (setting["passages"], setting["read"]) for key, setting in settings.items()}
    assert read["no_passage"] == (0, 0)
    assert read["others_passages"] == read["gold_among_five"] == (5, 5)
    assert read["gold_among_five_best_one"] == (5, 1)
    assert read["plain_3"][0] == read["compressed_3"][1] == 3
    assert read["reranked_3"] == (3, 2)
    assert read["bm25_3"] == (3, 2)
    # Plain reading compresses nothing, and all that is given is compressed, read or not.
    assert settings["plain_3"]["vectors"] == settings["bm25_3"]["vectors"] == 0
    assert settings["compressed_3"]["vectors"] == 9
    assert settings["reranked_3"]["vectors"] == 6
    assert settings["compressed_1"]["tflops"] < settings["reranked_3"]["tflops"]
    assert settings["reranked_3"]["tflops"] < settings["compressed_3"]["tflops"]
    assert settings["compressed_1"] == settings["reranked_1"]
    assert settings["bm25_1"] == settings["plain_1"]
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    again = evaluation.run(reader, tmp_path / "b")
    assert without_time(again) == without_time(report)
    # What is there is not asked again: even the time is the same.
    assert evaluation.run(reader, tmp_path / "a") == report


def test_settings_come_together_over_several_runs(
    evaluation: Evaluation, reader: OscarModel, tmp_path: Path
) -> None:
    some = replace(evaluation, names=("gold", "plain_1"))
    report = some.run(reader, tmp_path / "a")
    assert list(report["settings"]) == ["gold", "plain_1"]
    lines = {path: path.read_bytes() for path in (tmp_path / "a").glob("*.jsonl")}
    more = replace(evaluation, names=("gold", "plain", "no_passage")).run(reader, tmp_path / "a")
    assert more["settings"]["gold"] == report["settings"]["gold"]
    for path, content in lines.items():
        assert path.read_bytes() == content
    with pytest.raises(InputError, match="seed: 17, not 3"):
        replace(some, seed=3).run(reader, tmp_path / "a")
    with pytest.raises(InputError, match="answer_tokens: 4, not 5"):
        replace(some, max_tokens=5).run(reader, tmp_path / "a")


def test_a_pair_of_language_models_that_scores_nothing_is_measured_too(
    evaluation: Evaluation, causal_reader: OscarModel, tmp_path: Path
) -> None:
    few = replace(evaluation, passages=(2,), max_tokens=2)
    report = few.run(causal_reader, tmp_path / "a")
    missing = {"gold_among_five_best_one", "reranked_2"}
    wanted = [setting.key for setting in FIXED] + ["plain_2", "compressed_2", "bm25_2"]
    assert list(report["settings"]) == [key for key in wanted if key not in missing]
    assert not report.keys() & {"abstention", "gold_ranked_first_among_five"}
    assert report["settings"]["compressed_2"]["vectors"] > 0
    with pytest.raises(InputError, match="reranked needs a pair that scores passages"):
        replace(few, names=("reranked",)).run(causal_reader, tmp_path / "b")


def test_what_can_not_be_measured_is_said_before_any_question(
    evaluation: Evaluation, reader: OscarModel, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="passages: 50 is more than the corpus has, 18"):
        replace(evaluation, passages=(1, 50)).run(reader, tmp_path / "a")
    with pytest.raises(InputError, match="plain needs a corpus"):
        replace(evaluation, corpus=None, names=("plain",)).run(reader, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_the_pair_says_how_many_it_reads_best(evaluation: Evaluation, reader: OscarModel) -> None:
    changed = replace(evaluation, read=None, names=("reranked_10",))
    (setting,) = changed.choose(reader)
    assert setting.read == reader.traits.top_n == 5
