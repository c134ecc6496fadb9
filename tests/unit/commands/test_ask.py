"""What ``condensery ask`` asks, and how it prints what comes."""

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from condensery.cli import main
from condensery.client.questions import make_question
from condensery.commands.ask import describe_compression, describe_flops
from condensery.errors import AnswerServerFault
from condensery.question import (
    Agreement,
    Answer,
    Citation,
    Comparison,
    Compression,
    Delta,
    Question,
    Snippet,
    Timings,
    Usage,
)

BLOCK = Compression("auto", "applied", 1, 60, 4, 3_000_000_000, 1_000_000_000, 12.3)
ANSWER = Answer(
    id="ans_1",
    model="pair",
    answer="Lake Constance",
    finish_reason="stop",
    citations=(Citation(0, "rhine#0", "rhine", "The Rhine\npasses through it.", 0, 27, 0.9123),),
    compression=BLOCK,
    usage=Usage(10, 4, 3),
    timings=Timings(1, 2, 3, 4, 5),
)
LINES = [
    "",
    "  0.912  rhine#0  The Rhine passes through it.",
    (
        "compression: applied, 1 passages, 60 tokens read, 4 vectors kept (15.0 tokens a vector)"
        ", 12 ms"
    ),
]


def make_asked(**how: Any) -> Question:
    return make_question("why?", **how)


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["ask", "why?", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ([], make_asked(index="samples")),
        (["--index", "kb"], make_asked(index="kb")),
        (["--context", "ctx_1"], make_asked(context="ctx_1")),
        (
            ["--search", "bm25", "--top-k", "7", "--top-n", "0", "--model", "m", "--rate", "16"],
            make_question(
                "why?", index="samples", search="bm25", top_k=7, top_n=0, model="m", rate=16
            ),
        ),
        (
            ["--filter", '{"must": [{"has_id": ["a"]}]}'],
            make_asked(index="samples", filter={"must": [{"has_id": ["a"]}]}),
        ),
        (
            ["--min-relevance", "0", "--max-tokens", "9", "--stop", ".", "--stop", "\n"],
            make_question(
                "why?", index="samples", min_relevance=0.0, max_tokens=9, stop=[".", "\n"]
            ),
        ),
        (
            ["--temperature", "0.5", "--seed", "7", "--no-compress"],
            make_asked(index="samples", mode="off", temperature=0.5, seed=7),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_its_arguments_are_the_question(
    client: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], asked: Question
) -> None:
    client.reply = ANSWER
    lines_of(capsys, "--no-stream", *arguments)
    ((_, (text,), how),) = client.asked
    wanted = make_question(text, **how)
    assert replace(wanted, stop=list(wanted.stop)) == replace(asked, stop=list(asked.stop))


def test_an_answer_is_followed_by_its_passages_and_what_compression_did(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    client.reply = ANSWER
    assert lines_of(capsys, "--no-stream") == ["Lake Constance", *LINES]
    client.reply = [Delta("Lake"), Delta(" Constance"), ANSWER]
    assert lines_of(capsys) == ["Lake Constance", *LINES]
    assert [name for name, _, _ in client.asked] == ["answer", "answer_stream"]


def lake(text: str, answer: str, start: int) -> Citation:
    """Return a citation that begins at ``start`` of its document, and has the answer."""
    at = start + text.index(answer)
    end = at + len(answer)
    return Citation(0, "lake#1", "lake", text, start, start + len(text), 0.9, {}, at, end)


def test_the_sentence_that_the_answer_stands_in_is_shown_with_the_answer_marked(
    client: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = lake("LAKE CONSTANCE is a lake.", "LAKE CONSTANCE", 0)
    text = "It is cold. The Rhine\npasses through Lake Constance, too. It is long."
    citations = (others, lake(text, "Lake Constance", 100))
    client.reply = replace(ANSWER, citations=citations, grounded=True)
    place = lines_of(capsys, "--no-stream")[2:4]
    assert place == [
        "  The Rhine passes through **Lake Constance**, too.",
        "  lake, characters 137 to 151",
    ], "of several the one is shown whose letters the answer has"

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "through \x1b[1mLake Constance\x1b[0m, too." in lines_of(capsys, "--no-stream")[2]
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert "**Lake Constance**" in lines_of(capsys, "--no-stream")[2]


def test_that_the_words_stand_nowhere_is_said(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    client.reply = replace(ANSWER, grounded=False)
    answer, blank, line, *rest = lines_of(capsys, "--no-stream")
    assert (answer, blank, rest) == ("Lake Constance", "", LINES)
    assert line.startswith("grounded: false")


def test_where_none_is_found_the_nearest_sentences_are_shown_and_the_status_is_3(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    near = Snippet(0, "danube#0", "danube", "It ends\nin the Black Sea.", 7, 32, 0.1234)
    whole = replace(ANSWER, answer="None.", finish_reason="not_found", snippets=(near,))
    for reply, how in ((whole, "--no-stream"), ([Delta("None."), whole], "--stream")):
        client.reply = reply
        assert main(["ask", "why?", how]) == 3
        printed = capsys.readouterr().out.splitlines()
        assert printed[0] == "None."
        assert "  0.123  It ends in the Black Sea." in printed
        assert printed[-3].strip() == "danube, characters 7 to 32"
        assert printed[-1] == LINES[-1]
    client.reply = whole
    assert main(["ask", "why?", "--json"]) == 3
    (snippet,) = json.loads(capsys.readouterr().out)["snippets"]
    assert snippet["document_id"] == "danube"
    # A comparison is made all the same.
    client.reply = Comparison(whole, ANSWER, Agreement(False, 0.0, None), 1.0)
    assert main(["ask", "why?", "--compare"]) == 0


def test_where_the_server_fails_amid_an_answer_its_beginning_stands_and_the_status_is_1(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*said: str) -> Iterator[Delta]:
        yield from map(Delta, said)
        raise AnswerServerFault("The server that writes answers broke off.")

    for said, printed in (("Lake", " Con"), "Lake Con\n"), ((), ""):
        client.reply = failing(*said)
        assert main(["ask", "why?"]) == 1
        out, err = capsys.readouterr()
        assert out == printed
        assert "broke off" in err


def test_a_comparison_prints_both_answers_their_agreement_and_the_time(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = replace(ANSWER, answer="It is Lake Constance")
    client.reply = Comparison(ANSWER, plain, Agreement(False, 0.667, 0.914), 2.345)
    assert lines_of(capsys, "--compare") == [
        "compressed: Lake Constance",
        "plain:      It is Lake Constance",
        *LINES,
        "agreement: F1 0.67, cosine 0.91",
        "speedup: 2.35 (plain's time over compressed's), of the generator alone 1.00",
        "GFLOPs, analytic: 2.00 saved of plain's 3.00",
    ]
    client.reply = Comparison(ANSWER, ANSWER, Agreement(True, 1.0, None), 0.5)
    assert "agreement: the same answer, F1 1.00" in lines_of(capsys, "--compare")
    assert [name for name, _, _ in client.asked] == ["compare", "compare"]


def test_json_has_all_that_came(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    client.reply = ANSWER
    (line,) = lines_of(capsys, "--json")
    printed = json.loads(line)
    assert (printed["text"], printed["logprobs"]) == ("Lake Constance", None)
    assert printed["compression"]["left_out"] == []
    client.reply = Comparison(ANSWER, ANSWER, Agreement(True, 1.0, None), 0.5)
    (line,) = lines_of(capsys, "--compare", "--json")
    printed = json.loads(line)
    assert printed["plain"]["text"] == printed["compressed"]["text"] == "Lake Constance"
    assert (printed["exact"], printed["speedup"]) == (True, 0.5)


def test_passages_that_were_not_read_as_vectors_are_counted() -> None:
    block = replace(BLOCK, status="partial", reason="no time", fallback_docs=(0, 2), left_out=(1,))
    assert describe_compression(block) == (
        "compression: partial (no time), 1 passages, 2 read as text, 1 left out, 60 tokens read, "
        "4 vectors kept (15.0 tokens a vector), 12 ms"
    )


def test_what_compression_cost_more_than_it_saved_is_said_as_such() -> None:
    block = replace(BLOCK, flops_used=48_500_000_000)
    assert describe_flops(block) == "GFLOPs, analytic: 45.50 more than plain's 3.00"


def test_a_dash_is_the_question_on_standard_input(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Which lake?\n")))
    client.reply = ANSWER
    assert main(["ask", "-", "--json"]) == 0
    assert [args for _, args, _ in client.asked] == [("Which lake?",)]
