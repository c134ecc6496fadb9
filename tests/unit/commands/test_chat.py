"""What ``condensery chat`` asks, line by line, and what ends it."""

import io
import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from condensery.cli import main
from condensery.errors import InputError, Unavailable
from condensery.question import Answer, Compression, Delta, Timings, Usage

ANSWER = Answer(
    "ans", "Lake Constance", "oscar-mini", "stop", (),
    Compression("auto", "applied", 1, 60, 4, 3_000_000_000, 1_000_000_000, 12.3),
    Usage(10, 4, 3), Timings(1, 2, 3, 4, 5), grounded=False,
)  # fmt: skip


@pytest.fixture(autouse=True)
def answers(client: Any) -> None:
    client.reply = [Delta("Lake "), Delta("Constance"), ANSWER]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO(b"Which lake?\n\n Wo? \n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content))


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who asks two questions and leaves."""
    typed = iter(["Which lake?", "", "Wo?"])

    def read(_: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)


def questions_of(client: Any) -> list[str]:
    return [args[0].strip() for _, args, _ in client.asked]


@pytest.mark.parametrize("way", ["pipe", "prompt"])
def test_each_line_is_a_question_and_empty_ones_are_none(
    client: Any, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    request.getfixturevalue(way)
    assert main(["chat", "--index", "notes", "--top-k", "3"]) == 0
    assert questions_of(client) == ["Which lake?", "Wo?"]
    assert {(how["index"], how["top_k"]) for *_, how in client.asked} == {("notes", 3)}
    assert capsys.readouterr().out.count("Lake Constance\n") == 2


def test_as_json_each_answer_is_an_object(
    client: Any, pipe: None, capsys: pytest.CaptureFixture[str]
) -> None:
    client.reply = ANSWER
    assert main(["chat", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert first["answer"] == ANSWER.answer


@pytest.mark.parametrize("error", [InputError("query: is too long"), KeyboardInterrupt()])
def test_at_a_prompt_the_chat_goes_on_after_a_question_that_is_not_answered(
    client: Any, prompt: None, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    asked = []

    def answer_stream(question: str, **_: Any) -> Any:
        asked.append(question)
        if len(asked) == 1:
            raise error
        yield replace(ANSWER, answer="Bodensee")

    monkeypatch.setattr(client, "answer_stream", answer_stream)
    assert main(["chat"]) == 0
    assert asked == ["Which lake?", "Wo?"]


def test_from_a_pipe_the_first_error_ends_it(
    client: Any, pipe: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer_stream(*_: Any, **__: Any) -> Any:
        raise InputError("query: is too long")

    monkeypatch.setattr(client, "answer_stream", answer_stream)
    assert main(["chat"]) == 1
    assert capsys.readouterr().err == "condensery: query: is too long\n"


def test_a_server_that_is_gone_ends_it_at_a_prompt_too(
    client: Any, prompt: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answer_stream(question: str, **_: Any) -> Any:
        asked.append(question)
        raise Unavailable("Connection refused")

    monkeypatch.setattr(client, "answer_stream", answer_stream)
    assert main(["chat"]) == 1
    assert asked == ["Which lake?"]
