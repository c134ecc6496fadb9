"""``condensery eval rag``: what it asks, what it keeps, and how it goes on."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from condensery.cli import main
from condensery.commands import common, rag
from condensery.errors import AnswerServerUnavailable, IndexNotFound, InputError, Unavailable
from condensery.question import Answer, Citation, Compression, FinishReason, Timings, Usage
from condensery.values import ModelInfo, PairTraits

BLOCK = Compression("auto", "applied", 1, 60, 4, 3_000_000_000, 1_000_000_000, 12.3)
QUESTIONS: list[dict[str, Any]] = [
    {"id": "a", "question": "Which lake?", "answers": ["Lake Constance"], "passage_id": "rhine"},
    {"id": "b", "question": "Which sea?", "answers": ["Black Sea"], "passage_id": ["danube", "d2"]},
    {"id": "c", "question": "Which moon?", "answers": [], "answerable": False, "level": 3},
    {"id": "d", "question": "Which river?", "answers": ["the Rhine"]},
]
TEXTS = {
    "Which lake?": ("Lake Constance", "rhine", 0.9, "It passes through Lake Constance."),
    "Which sea?": ("black sea", "danube", 0.7, "It ends in the Black Sea."),
    "Which moon?": ("io", "io", 0.2, "Io is a moon."),
    "Which river?": ("Danube", "danube", 0.6, "The Danube."),
}


class Service:
    """Answers as ``TEXTS`` says, with a threshold of 0.5, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.failing: dict[str, Exception] = {}
        self.min_relevance, self.fingerprint = 0.5, "sha"
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def models(self) -> list[ModelInfo]:
        pair = PairTraits(
            vectors=(16,), rates=(8,), scores=True, min_relevance=self.min_relevance, top_n=1
        )
        known: dict[str, Any] = {"dims": None, "max_tokens": 128, "licence": "", "created": 0}
        info = ModelInfo("mini", "oscar-pair", "oscar", self.fingerprint, dtype="float32",
                         device="cpu", pair=pair, version="4", **known)  # fmt: skip
        return [info]

    def count(self, name: str, *, filter: Mapping[str, Any] | None = None) -> tuple[int, int]:
        if name != "kb":
            raise IndexNotFound(f"index: there is no {name!r}")
        return 3, 4

    def answer(self, question: str, **how: Any) -> Answer:
        with self.lock:
            self.asked.append((question, how))
        if question in self.failing:
            raise self.failing[question]
        text, document, relevance, passage = TEXTS[question]
        least = self.min_relevance if how["min_relevance"] is None else how["min_relevance"]
        finish: FinishReason = "stop" if relevance >= least else "not_found"
        start, end = 100, 100 + len(passage)
        cited = Citation(0, f"{document}#0", document, passage, start, end, relevance)
        at = passage.find(text)
        if finish == "stop" and at >= 0:
            cited = replace(cited, answer_start=start + at, answer_end=start + at + len(text))
        grounded = at >= 0 if finish == "stop" else None
        return Answer("ans", text if finish == "stop" else "Not there.", "mini", finish, (cited,),
                      BLOCK, Usage(10, 4, 3), Timings(1, 2, 3, 4, 5),
                      grounded=grounded)  # fmt: skip


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(common, "open_client", lambda args: service)
    return service


Run = Callable[..., int]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    return path


@pytest.fixture
def run(tmp_path: Path, questions: Path) -> Run:
    def run(*more: str, index: str = "kb") -> int:
        words = ["--index", index, "--questions", str(questions), "--out", str(tmp_path / "out")]
        return main(["eval", "rag", *words, *more])

    return run


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def test_every_question_is_asked_and_judged(service: Service, run: Run, tmp_path: Path) -> None:
    assert run("--top-k", "7", "--search", "bm25") == 0
    rows = rows_of(tmp_path / "out")
    assert [row["question"] for row in rows] == QUESTIONS, "whole, in the file's order"
    replies = [row["reply"] for row in rows]
    assert [reply["answered"] for reply in replies] == [True, True, False, True]
    assert [reply["verbatim"] for reply in replies] == [True, False, False, True]
    assert [reply["grounded"] for reply in replies] == [True, False, None, True]
    assert [reply["holding"] for reply in replies] == [["rhine"], [], [], ["danube"]]
    assert [row["judged"]["right"] for row in rows] == [1, 1, 0, 0]
    assert [row["judged"]["held"] for row in rows] == [True, False, None, None]
    assert [row["judged"]["first"] for row in rows] == [True, True, None, None]
    assert replies[2]["below"] == "io", "asked again without a threshold"
    (_, first), *_ = service.asked
    assert (first["index"], first["top_k"], first["search"]) == ("kb", 7, "bm25")
    assert [how["min_relevance"] for text, how in service.asked if text == "Which moon?"] == [
        None,
        0.0,
    ]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    figures = report["settings"]["as_it_is"]
    assert figures["right"]["mean"] == pytest.approx(66.67)
    assert figures["unanswerable_but_answered"]["mean"] == 0
    assert figures["citation_by_offsets"]["mean"] == 50
    assert "in the right document" in (tmp_path / "out" / "report.md").read_text()
    assert report["server"]["fingerprint"] == "sha"
    assert (tmp_path / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_its_own_documents_are_left_out_the_second_time(service: Service, run: Run) -> None:
    allowed = {"must": [{"key": "year", "match": {"value": 1900}}]}
    assert run("--without-passage", "--no-curve", "--filter", json.dumps(allowed)) == 0
    filters = [how["filter"] for _, how in service.asked]
    assert filters[:4] == [allowed] * 4
    assert filters[4:] == [
        {"must": [allowed], "must_not": [{"has_id": ["rhine"]}]},
        {"must": [allowed], "must_not": [{"has_id": ["danube", "d2"]}]},
    ]


def test_without_passages_named_there_is_nothing_to_leave_out(
    service: Service, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--without-passage", "--passage-field", "level2") == 1
    assert "level2" in capsys.readouterr().err
    assert not service.asked


def test_a_question_that_fails_is_shown_counts_and_stops_no_other(
    service: Service, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.failing["Which sea?"] = InputError("query: is too long")
    assert run() == 1
    assert "query: is too long" in capsys.readouterr().out
    rows = rows_of(tmp_path / "out")
    assert [row["reply"]["error"] is None for row in rows] == [True, False, True, True]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["settings"]["as_it_is"]["failed"] == 1
    assert report["settings"]["as_it_is"]["right"]["mean"] == pytest.approx(33.33)

    service.failing.clear()
    service.asked.clear()
    assert run() == 0
    assert [text for text, _ in service.asked] == ["Which sea?"]
    assert all(row["reply"]["error"] is None for row in rows_of(tmp_path / "out"))


def test_a_run_that_was_cut_short_goes_on_to_the_same_report(
    service: Service, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run() == 0
    whole = [{**row, "reply": {**row["reply"], "ms": 0}} for row in rows_of(out)]
    lines = (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (out / "rows.jsonl").write_bytes(lines[0] + lines[1][:30])
    service.asked.clear()
    assert run() == 0
    assert [text for text, _ in service.asked if text != "Which moon?"] == [
        "Which sea?",
        "Which river?",
    ]
    assert [{**row, "reply": {**row["reply"], "ms": 0}} for row in rows_of(out)] == whole


def test_a_line_cut_short_does_not_spoil_the_next_one(
    service: Service, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run() == 0
    lines = (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (out / "rows.jsonl").write_bytes(lines[0] + lines[1][:30])
    service.failing["Which river?"] = IndexNotFound("index: it was dropped")
    assert run() == 1
    service.failing.clear()
    assert run() == 0
    assert len(rows_of(out)) == 4


def test_replies_of_another_evaluation_are_not_mixed_in(
    service: Service, run: Run, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    service.asked.clear()
    for change, named in ((("--top-k", "3"), "top_k"), (("--min-relevance", "0.1"), "0.1")):
        assert run(*change) == 1
        assert named in capsys.readouterr().err
    service.fingerprint = "another"
    assert run() == 1
    assert "another" in capsys.readouterr().err
    service.fingerprint = "sha"
    questions.write_text(json.dumps(QUESTIONS[0]) + "\n")
    assert run() == 1
    assert "questions" in capsys.readouterr().err
    assert not service.asked


def test_many_at_once_give_the_same_rows(service: Service, run: Run, tmp_path: Path) -> None:
    assert run("--concurrency", "3", "--without-passage") == 0
    assert [(row["reply"]["place"], row["reply"]["setting"]) for row in rows_of(tmp_path / "out")] \
        == [*((place, "as_it_is") for place in range(4)), (0, "without_passage"),
            (1, "without_passage")]  # fmt: skip


def test_a_server_that_is_not_there_is_told_before_anything_is_asked(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--url", "http://127.0.0.1:9") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "127.0.0.1:9" in line
    assert not (tmp_path / "out" / "rows.jsonl").exists()


def test_a_server_that_dies_stops_the_run_and_what_was_answered_stays(
    service: Service, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(rag, "GONE", 2)
    for text in ("Which sea?", "Which moon?", "Which river?"):
        service.failing[text] = Unavailable("no server at 127.0.0.1:9")
    assert run() == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
    (first, *_) = rows_of(tmp_path / "out")
    assert first["judged"]["right"] == 1
    service.failing.clear()
    assert run() == 0


def test_an_answer_server_that_is_down_is_not_taken_for_ours(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rag, "GONE", 1)
    for kind, helps in ((AnswerServerUnavailable, False), (Unavailable, True)):
        for text in ("Which sea?", "Which moon?", "Which river?"):
            service.failing[text] = kind("the model's server: Connection refused")
        assert run() == 1
        assert ("`condensery serve`" in capsys.readouterr().err) is helps


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--model", "nobody"), "nobody"),
        (("--concurrency", "0"), "concurrency"),
        (("--min-relevance", "2"), "min_relevance"),
        (("--count", "0"), "count"),
    ],
)
def test_what_would_fail_for_every_question_is_refused_at_once(
    service: Service, run: Run, capsys: pytest.CaptureFixture[str], more: tuple[str, ...],
    named: str,
) -> None:  # fmt: skip
    assert run(*more) == 1
    assert named in capsys.readouterr().err
    assert not service.asked


def test_an_index_that_is_not_there_is_named(
    service: Service, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(index="nowhere") == 1
    assert "nowhere" in capsys.readouterr().err


def test_a_sample_of_the_questions_is_the_same_each_time(
    service: Service, run: Run, tmp_path: Path
) -> None:
    assert run("--count", "2", "--seed", "1") == 0
    first = [row["question"]["id"] for row in rows_of(tmp_path / "out")]
    assert len(first) == 2
    service.asked.clear()
    assert run("--count", "2", "--seed", "1") == 0
    assert not service.asked
