import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.methods.distil import killing
from tests.unit.methods.distil.conftest import (
    jsonl,
    write_cross_encoder,
    write_encoder,
    write_teacher,
)

from condensery.errors import CondenseryError, InputError
from condensery.methods.distil import oscar
from condensery.methods.distil.distillation import RowBuilder
from condensery.methods.distil.teacher import Teacher
from condensery.methods.ranking.retrieval import CorpusPassage, Retriever
from condensery.methods.rerank.scoring import CrossEncoder
from condensery.methods.trainer.questions import Rules, read_questions

TEXT = "mill river town bread stone market baker bridge weir grain who sold it the a of"
WORDS = TEXT.split()
FP32 = {"device": torch.device("cpu"), "dtype": torch.float32}
Run = Callable[..., list[dict[str, Any]]]


def data(count: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Make questions of a passage each; the answer is a word of it that only it has."""
    draw = random.Random(seed)
    return [
        {
            "question": f"who {' '.join(draw.choices(WORDS, k=3))} {n}",
            "context": f"{' '.join(draw.choices(WORDS, k=8))} name{n}",
            "answers": [f"Name{n}"],
            "title": f"t {n % 3}",
        }
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    stop = list(range(1, 320, 3))
    return {
        "teacher": write_teacher(root / "teacher", stop=stop),
        "cross_encoder": write_cross_encoder(root / "cross"),
        "encoder": write_encoder(root / "encoder"),
    }


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs the command and returns the finished rows."""

    def call(*flags: str | Path, labels: Sequence[str | Path] = ("--labels", "given")) -> Any:
        if not (tmp_path / "questions.jsonl").exists():
            jsonl(tmp_path / "questions.jsonl", data())
        words = {"--index-folder": "index", "--out": "rows.jsonl"}
        if "--retrieval-set" not in flags:
            words["--questions"] = "questions.jsonl"
        arguments: list[str] = ["--dtype", "float32", *map(str, labels)]
        for name, path in words.items():
            if name not in flags:
                arguments += [name, str(tmp_path / path)]
        oscar.main([*arguments, *map(str, flags)])
        out = tmp_path / "rows.jsonl"
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    return call


def about(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "rows.jsonl.about.json").read_text())
    return content


def test_rows_of_given_labels_are_what_training_reads(
    tmp_path: Path, models: dict[str, Path], run: Run
) -> None:
    corpus = jsonl(tmp_path / "more.jsonl", [{"text": "a weir of grain and stone", "title": "x"}])
    asked = [*data(), {"question": "weir grain", "context": "", "answers": ["stone"]}]
    jsonl(tmp_path / "questions.jsonl", asked)
    rows = run("--corpus", corpus, "--top", "4", "--cross-encoder", models["cross_encoder"])
    assert [row["question"] for row in rows] == [question["question"] for question in asked]
    passages = [CorpusPassage(str(n), row["context"], row["title"]) for n, row in enumerate(data())]
    passages.append(CorpusPassage("24", "a weir of grain and stone", "x"))
    texts = [passage.text for passage in passages]
    with Retriever.build(passages, tmp_path / "own") as retriever:
        ranked = retriever.search([question["question"] for question in asked], 4, "bm25")
    scorer = CrossEncoder.open(models["cross_encoder"], **FP32)
    hits = 0
    for question, row, hit in zip(asked, rows, ranked, strict=True):
        wanted = [texts[int(place)] for place, _ in hit]
        hits += question["context"] in wanted
        if question["context"] and question["context"] not in wanted:
            wanted = [*wanted[:3], question["context"]]
        assert row["passages"] == wanted
        assert (row["answers"], row["label"]) == (question["answers"], question["answers"][0])
        assert row["scores"] == pytest.approx(
            scorer.scores(question["question"], row["passages"]), abs=1e-4
        )
    read, left_out = read_questions([tmp_path / "rows.jsonl"], Rules(label_tokens=3))
    assert not left_out
    assert [question.scores for question in read] == [tuple(row["scores"]) for row in rows]
    figures = about(tmp_path)["figures"]
    assert figures["rows"] == 25
    assert 0 < hits < 24
    assert figures["gold_found"] == pytest.approx(hits / 24, abs=1e-4)


@pytest.mark.tiny_run
def test_rows_of_a_teacher_have_its_answers_and_need_no_other(
    tmp_path: Path, models: dict[str, Path], run: Run
) -> None:
    asked = [{**row, "answers": []} for row in data()]
    jsonl(tmp_path / "questions.jsonl", asked)
    flags = ("--label-tokens", "12", "--most-unlabelled", "1", "--batch", "5", "--top", "2")
    rows = run(*flags, labels=("--teacher", models["teacher"]))
    teacher = Teacher.open(models["teacher"], **FP32, max_tokens=12)
    assert 8 < len(rows) < 24
    for row in rows:
        (answer,) = teacher.answer([(row["question"], row["passages"])])
        assert answer.finished
        assert row["label"] == answer.text != ""
        assert row["answers"] == []
    figures = about(tmp_path)["figures"]
    assert sum(figures["left_out"].values()) == 24 - len(rows)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_passages_may_be_found_by_vectors(
    tmp_path: Path, models: dict[str, Path], run: Run, mode: str
) -> None:
    flags = ("--mode", mode, "--encoder", models["encoder"], "--gold", "as-found")
    rows = run(*flags)
    assert rows
    again = run(*flags, "--out", tmp_path / "again.jsonl")  # with the same index
    assert again == rows
    with oscar.open_encoder(models["encoder"], **FP32) as encoder:
        passages = [CorpusPassage(str(n), o["context"], o["title"]) for n, o in enumerate(data())]
        with Retriever.build(passages, tmp_path / "own", encoder=encoder) as retriever:
            ranked = retriever.search([row["question"] for row in rows], 5, mode)  # type: ignore[arg-type]
    for row, hits in zip(rows, ranked, strict=True):
        assert row["passages"] == [passages[int(place)].text for place, _ in hits]


def test_the_first_questions_are_asked_of_all_passages(tmp_path: Path, run: Run) -> None:
    whole = run()
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "rows.jsonl").unlink()
    (tmp_path / "rows.jsonl.about.json").unlink()
    assert run("--limit", "5") == whole[:5]


def test_a_run_that_broke_off_goes_on_after_its_last_line(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("--every", "5")
    wanted = (
        (tmp_path / "rows.jsonl").read_bytes(),
        (tmp_path / "rows.jsonl.about.json").read_bytes(),
    )
    for name in ("rows.jsonl", "rows.jsonl.about.json"):
        (tmp_path / name).unlink()
    made: list[str] = []
    lines = RowBuilder.lines

    def broken(self: RowBuilder, questions: Sequence[Any], *rest: Any) -> Any:
        if len(made) == 10:
            raise KeyboardInterrupt
        made.extend(question.question for question in questions)
        return lines(self, questions, *rest)

    monkeypatch.setattr(RowBuilder, "lines", broken)
    with pytest.raises(KeyboardInterrupt):
        run("--every", "5")
    assert not (tmp_path / "rows.jsonl").exists()
    made.append("one more")
    assert run("--every", "7") == whole
    assert made[:10] + made[11:] == [row["question"] for row in data()]
    written = (
        (tmp_path / "rows.jsonl").read_bytes(),
        (tmp_path / "rows.jsonl.about.json").read_bytes(),
    )
    assert written == wanted
    made.clear()
    assert run() == whole
    assert not made, "it was there already"
    with pytest.raises(InputError, match=r"other settings: plan\.top: 5, not 3"):
        run("--top", "3")
    jsonl(tmp_path / "questions.jsonl", data(23))
    with pytest.raises(InputError, match="questions: 'sha256:"):
        run("--index-folder", tmp_path / "other")


@pytest.mark.parametrize(
    ("rows", "flags", "says"),
    [
        (None, ["--top", "0"], "top: 0 is less than 1"),
        (None, ["--limit", "0"], "limit: 0 is less than 1"),
        (None, ["--most-unlabelled", "1.5"], "most_unlabelled: 1.5 is no share"),
        (None, ["--mode", "hybrid"], "encoder: mode hybrid needs one"),
        (None, ["--out", "rows.txt"], r"rows\.txt does not end in \.jsonl"),
        (None, ["--tokenizer", "none"], "tokenizer: none: "),
        (None, ["--corpus", "none.jsonl"], r"none\.jsonl, after line 0: No such file"),
        (None, ["--cross-encoder", "none"], r"cross-encoder: none: it has no config\.json"),
        ([{"question": " "}], [], r"line 1: question: ' ' is empty"),
        ([*data(2), data(2)[1]], [], "line 3: question: .* stands in .*line 2 too"),
        ([{"question": "who"}], [], r"line 1: answers: \[\] holds no answer"),
        ([{"question": "who", "answers": ["x"]}], [], "passages: none to index"),
        ([{**data(1)[0], "label": "a b c"}], ["--label-tokens", "2"], "'a b c' has 3 tokens, more"),
        ([{**data(1)[0], "answers": ["smith"]}], [], "no row is left: .*holds the answer': 1"),
    ],
)
def test_what_is_wrong_is_said_before_work_is_lost(
    tmp_path: Path, run: Run, rows: list[dict[str, Any]] | None, flags: list[str], says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if rows is not None:
        jsonl(tmp_path / "questions.jsonl", rows)
    with pytest.raises(CondenseryError, match=says):
        run(*flags)
    assert not (tmp_path / "rows.jsonl").exists()


def test_bad_rows_may_be_left_out_and_are_counted(tmp_path: Path, run: Run) -> None:
    jsonl(tmp_path / "questions.jsonl", [*data(6), data(6)[2], {"question": ""}])
    assert len(run("--wrong", "leave_out")) == 6
    left = about(tmp_path)["figures"]["rows_not_read"]
    assert left == {"repeated question": 1, "empty question": 1, "no answer": 1}


def test_a_labels_tokens_are_counted_by_the_given_tokenizer(
    tmp_path: Path, models: dict[str, Path], run: Run
) -> None:
    flags = ("--tokenizer", models["encoder"], "--label-tokens")
    with pytest.raises(InputError, match="'Name0' has 5 tokens, more than 4"):
        run(*flags, "4")
    jsonl(tmp_path / "questions.jsonl", data(9))
    assert len(run(*flags, "5")) == 9


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_command_killed_before_any_call_to_the_disk_ends_with_the_same_rows(
    tmp_path: Path, models: dict[str, Path], run: Run
) -> None:
    """By SIGKILL, before each sync, rename and removal in turn, and in the middle of each write."""
    flags = ["--every", "5", "--label-tokens", "8", "--most-unlabelled", "1", "--threads", "1"]
    flags += ["--cross-encoder", str(models["cross_encoder"])]
    labels = ["--teacher", str(models["teacher"])]
    jsonl(tmp_path / "questions.jsonl", data(8))
    whole = run(*flags, labels=labels)
    assert len(whole) > 3
    questions = ["--questions", tmp_path / "questions.jsonl", "--dtype", "float32"]
    done = subprocess.run(
        [sys.executable, killing.__file__, tmp_path / "killed", *questions, *flags, *labels],
        check=True, capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert int(done.stdout) > 20
    for number in range(int(done.stdout)):
        folder = tmp_path / "killed" / str(number)
        rows = (folder / "rows.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in rows] == whole
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["index", "rows.jsonl", "rows.jsonl.about.json"]


def test_a_teacher_of_no_use_stops_the_command(tmp_path: Path, run: Run) -> None:
    def say_the_first(model: Any) -> None:
        model.lm_head.weight.data.zero_()

    silent = write_teacher(tmp_path / "silent", stop=0, change=say_the_first)
    with pytest.raises(
        InputError, match=r"no label of 5 of the first 5 .*nothing .5.: .*line 1: 'who"
    ):
        run("--every", "5", labels=("--teacher", silent))
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_retrieval_set_makes_rows_that_say_which_passages_answer(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    texts = [f"the {word} of name{n}" for n, word in enumerate(WORDS)]
    corpus = [{"_id": f"p{n}", "title": f"t{n}", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": f"what {word} is it"} for n, word in enumerate(WORDS[:6])]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\tp{(n + 3) % 6}\t1" for n in range(5))]
    (folder / "qrels.train.tsv").write_text("\n".join(lines))
    rows = run("--retrieval-set", f"{folder}:train", "--top", "3")
    assert [row["question"] for row in rows] == [query["text"] for query in queries[:5]]
    for n, row in enumerate(rows):
        assert (row["answers"], row["label"]) == ([], "")
        assert len(row["passages"]) == 3
        gold = (n + 3) % 6
        assert [row["passages"][place] for place in row["gold"]] == [f"t{gold}\n{texts[gold]}"]
    again, left_out = read_questions([tmp_path / "rows.jsonl"], Rules(ranked=True))
    assert (len(again), left_out) == (5, {})
    with pytest.raises(InputError, match="is not DIR:SPLIT"):
        run("--retrieval-set", str(folder))


def test_no_questions_at_all_are_refused(tmp_path: Path) -> None:
    flags = ["--labels", "given", "--index-folder", str(tmp_path / "i"), "--out", "rows.jsonl"]
    with pytest.raises(InputError, match="nor a retrieval set"):
        oscar.main(flags)
