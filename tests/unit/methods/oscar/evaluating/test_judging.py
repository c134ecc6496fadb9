"""The judge is a real HTTP server on loopback, in a thread."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import CondenseryError, InputError
from condensery.methods.oscar.evaluating.asking import Outcome
from condensery.methods.oscar.evaluating.judging import (
    IN_A_ROW,
    Judge,
    NotJudged,
    judge_all,
    verdict,
)
from condensery.methods.oscar.evaluating.saving import Answers

Row = dict[str, Any]


@dataclass
class Service:
    """Judges by the words of the answer: "right", "partly", else wrong; and fails as it is told.

    ``fails``: status and body that it gives, by a word of the answer; ``busy``: refusals to come
    before it replies.
    """

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    fails: dict[str, tuple[int, str]] = field(default_factory=dict)
    busy: int = 0

    def reply(self, body: dict[str, Any]) -> tuple[int, str]:
        self.asked.append(body)
        if self.busy:
            self.busy -= 1
            return 429, "busy"
        prediction = body["messages"][1]["content"].split("Generated answer: ")[1]
        for word, failure in self.fails.items():
            if word in prediction:
                return failure
        score = "1: Correct" if "right" in prediction else "0.5" if "partly" in prediction else "0"
        return 200, json.dumps({"choices": [{"message": {"content": score}}]})


@pytest.fixture
def service() -> Iterator[Service]:
    served = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["content-length"])))
            served.keys.append(self.headers["authorization"])
            known = self.path == "/v1/chat/completions"
            status, text = served.reply(content) if known else (404, self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield served
        server.shutdown()
        thread.join()


def outcomes(*answers: str) -> list[Outcome]:
    return [
        Outcome(answer, 1, 1, 0, None, -1, 0, 1, 1, place) for place, answer in enumerate(answers)
    ]


def questions(count: int) -> list[Row]:
    return [{"question": f"who is {i}?", "answers": ["Bo", "Bo Li", "Bo"]} for i in range(count)]


async def test_answers_are_judged_with_the_papers_prompt(service: Service, tmp_path: Path) -> None:
    judge = Judge(service.url, "judge-7b", "secret", pause=0)
    to_judge = outcomes("right", "partly", "no")
    judged = await judge_all(judge, Answers(tmp_path, {}), questions(3), [*to_judge, *to_judge])
    assert judged.scores == {(0, "right"): 1.0, (1, "partly"): 0.5, (2, "no"): 0.0}
    assert judged.failed == []
    assert len(service.asked) == 3  # what is said twice is judged once
    (body,) = [request for request in service.asked if "who is 1?" in str(request)]
    assert body["model"] == "judge-7b"
    assert body["temperature"] == 0
    system, user = body["messages"]
    assert system["role"] == "system"
    assert system["content"].startswith("You are an evaluation tool. Answer with one of 1: Correct")
    assert user["content"].endswith(
        "Question: who is 1?. Golden answer: Bo, Bo Li. Generated answer: partly."
    )
    assert service.keys == ["Bearer secret"] * 3


async def test_what_was_judged_is_not_asked_again_and_what_failed_is(
    service: Service, tmp_path: Path
) -> None:
    judge = Judge(f"{service.url}/chat/completions", "j", pause=0)
    service.fails = {"odd": (200, json.dumps({"choices": [{"message": {"content": "Hm, well"}}]}))}
    answers, to_judge = Answers(tmp_path, {}), outcomes("right", "odd", "no")
    judged = await judge_all(judge, answers, questions(3), to_judge)
    assert judged.scores == {(0, "right"): 1.0, (2, "no"): 0.0}
    (failed,) = judged.failed
    assert (failed["question"], failed["answer"]) == ("who is 1?", "odd")
    assert "'Hm, well'" in failed["error"]
    service.fails = {}
    service.asked.clear()
    again = await judge_all(judge, answers, questions(3), to_judge)
    assert len(again.scores) == 3
    assert len(service.asked) == 1
    assert service.keys[-1] is None


async def test_a_busy_judge_is_asked_again(service: Service, tmp_path: Path) -> None:
    service.busy = 2
    judge = Judge(service.url, "j", pause=0)
    judged = await judge_all(judge, Answers(tmp_path, {}), questions(1), outcomes("right"))
    assert judged.scores == {(0, "right"): 1.0}
    assert len(service.asked) == 3


@pytest.mark.parametrize(
    ("status", "body", "says", "tries"),
    [
        (500, "broken", "status 500: 'broken'", 3),
        (400, "no such model", "status 400: 'no such model'", 1),
        (200, "no json", "no chat completion", 1),
        (200, '{"choices": []}', "no chat completion", 1),
        (200, '{"choices": [{"message": {"content": null}}]}', "no chat completion", 1),
    ],
)
async def test_a_failure_is_told_with_its_question(
    service: Service, tmp_path: Path, status: int, body: str, says: str, tries: int
) -> None:
    service.fails = {"odd": (status, body)}
    judge = Judge(service.url, "j", pause=0)
    judged = await judge_all(judge, Answers(tmp_path, {}), questions(2), outcomes("odd", "right"))
    assert judged.scores == {(1, "right"): 1.0}
    assert says in judged.failed[0]["error"]
    assert len(service.asked) == 1 + tries


async def test_a_judge_that_fails_time_after_time_stops_it(
    service: Service, tmp_path: Path
) -> None:
    service.fails = {"odd": (403, "who are you?")}
    judge, many = Judge(service.url, "j", pause=0), 3 * IN_A_ROW
    answers = Answers(tmp_path, {})
    with pytest.raises(CondenseryError, match=f"{IN_A_ROW} times in a row.*who are you"):
        await judge_all(judge, answers, questions(many), outcomes(*["odd"] * many))
    assert len(service.asked) < many


async def test_a_judge_that_is_not_there_is_told(tmp_path: Path) -> None:
    judge = Judge("http://127.0.0.1:9/v1", "j", pause=0)
    judged = await judge_all(judge, Answers(tmp_path, {}), questions(1), outcomes("right"))
    assert "ConnectError" in judged.failed[0]["error"]


def test_an_address_that_is_none_is_refused() -> None:
    for url in ("localhost:8000/v1", "ftp://host/v1", ""):
        with pytest.raises(InputError, match="no http or https URL"):
            Judge(url, "j")


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("1", 1.0),
        ("0", 0.0),
        ("0.5", 0.5),
        (" 1.0.", 1.0),
        ("1: Correct", 1.0),
        ("**0.5**: partially", 0.5),
        ("Correct", 1.0),
        ("Partially correct", 0.5),
        ("Incorrect.", 0.0),
        ("wrong", 0.0),
        ("Yes, it is", 1.0),
        ("No", 0.0),
    ],
)
def test_a_reply_is_read(reply: str, score: float) -> None:
    assert verdict(reply) == score


@pytest.mark.parametrize(
    "reply", ["", "The answer is 1", "2", "10", "0.7", "1912", "1/2", "100%", "nothing", "1st"]
)
def test_a_reply_of_another_kind_is_no_judgement(reply: str) -> None:
    with pytest.raises(NotJudged, match=r"none of 1, 0\.5, 0"):
        verdict(reply)
