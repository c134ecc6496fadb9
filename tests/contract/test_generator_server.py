"""A server whose pair generates on a second one: by every door, well and broken."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from command_line import run
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.conftest import LiveServer, serving
from tiny_stored_pair import store_causal_pair
from vllm_server import VllmServer, listening

from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.errors import AnswerServerFault, AnswerServerUnavailable, CondenseryError
from condensery.question import Answer, Delta, Retrieved
from condensery.store.exporting import export_generator
from condensery.store.importing import import_minilm
from condensery.store.store import ModelStore

PAIR = "oscar-mini"  # so that it is the default one
QUESTION = "How long is the river?"
PASSAGES = ["The mill stands by the river.", "It is 1,200 kilometres long."]
HOW: dict[str, Any] = {"documents": PASSAGES, "max_tokens": 12, "min_relevance": 0.0}
KEY = "the-key-of-the-generator"


@dataclass(frozen=True)
class Both:
    front: LiveServer
    behind: VllmServer
    port: int
    another: Path  # directory of another generator


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Both]:
    """Start the front while nothing is behind it yet."""
    if pytestconfig.getoption("--ray"):
        pytest.skip("pairs on a Ray cluster generate there: the setting is refused")
    root = tmp_path_factory.mktemp("front")
    store = ModelStore(None, root / "models")
    import_minilm(store)
    directories = [root / "right", root / "wrong"]
    for seed, directory in enumerate(directories):
        # Another one is in a store of its own.
        where = store if seed == 0 else ModelStore(None, root / "other")
        export_generator(store_causal_pair(where, root / f"{seed}", PAIR, seed=seed), directory)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    behind = VllmServer(PAIR, directories[0])
    flags = (
        "--generator-servers",
        f"{PAIR}=http://127.0.0.1:{port},minilm-l6=http://[::1]:9",
        "--dtype",
        "float32",
    )
    flags += ("--answer-retries", "0", "--answer-timeout", "20")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONDENSERY_ANSWER_KEY", KEY)
        with serving(store.own, root, *flags) as front:
            yield Both(front, behind, port, directories[1])


@pytest.fixture
def behind(both: Both) -> Iterator[VllmServer]:
    """Run what generates, and wait until it is used."""
    with listening(both.behind, both.port):
        wait_for(lambda: readiness(both)[0] == 200)
        yield both.behind
        both.behind.fault = ""


@pytest.fixture(params=["rest", "grpc"])
def door(request: pytest.FixtureRequest, both: Both) -> Iterator[Client | GrpcClient]:
    made = Client(both.front.url) if request.param == "rest" else GrpcClient(both.front.grpc)
    with made:
        yield made


def readiness(both: Both) -> tuple[int, str]:
    reply = httpx.get(f"{both.front.url}/readyz", timeout=60)
    return reply.status_code, reply.text


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_it_all_but_answers_work_and_readiness_says_why(
    both: Both, door: Client | GrpcClient
) -> None:
    status, text = readiness(both)
    assert status == 503
    assert "generator_servers" in text
    assert "could not be reached" in text
    with pytest.raises(AnswerServerUnavailable, match="could not be reached"):
        door.answer(QUESTION, **HOW)
    assert len(door.embed(["a river"])) == 1
    assert len(door.compress(QUESTION, PASSAGES).documents) == 2
    with Client(both.front.url) as rest:
        ready = httpx.get(f"{both.front.url}/v2/models/{PAIR}/ready", timeout=60)
        assert ready.status_code == 503
        assert rest.compress(QUESTION, PASSAGES).documents[0].relevance_score is not None
    told = run("models", "status", "--url", both.front.url).stdout
    assert "could not be reached" in told
    with grpc.insecure_channel(both.front.grpc) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[no-untyped-call]
        statuses = [
            check(health_pb2.HealthCheckRequest(service=name), timeout=60).status
            for name in (PAIR, "")
        ]
    assert statuses == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2


def test_once_it_is_there_it_writes_every_answer(
    both: Both, behind: VllmServer, door: Client | GrpcClient
) -> None:
    whole = door.answer(QUESTION, **HOW)
    assert whole.generator == whole.model == PAIR
    assert (whole.compression.status, whole.usage.completion_tokens) == ("applied", 12)
    assert whole.compression.vectors_out == 16
    first, *deltas, last = door.answer_stream(QUESTION, **HOW)
    assert isinstance(first, Retrieved)
    assert isinstance(last, Answer)
    assert first.generator == last.generator == PAIR
    assert "".join(d.text for d in deltas if isinstance(d, Delta)) == last.text == whole.text
    assert behind.bodies[-1]["shape"][1] == 64
    likely = door.answer(QUESTION, logprobs=2, **HOW).logprobs
    assert likely is not None
    assert all(len(token.top) == 2 for token in likely)
    ready = httpx.get(f"{both.front.url}/v2/models/{PAIR}/ready", timeout=60)
    assert ready.status_code == 200


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("out of memory", AnswerServerUnavailable), ("rubbish", AnswerServerFault)],
)
def test_what_it_does_wrong_is_told_and_the_next_answer_is_whole(
    both: Both,
    behind: VllmServer,
    door: Client | GrpcClient,
    fault: str,
    kind: type[CondenseryError],
) -> None:
    wanted = door.answer(QUESTION, **HOW).text
    behind.fault = fault
    with pytest.raises(kind, match="generator_servers"):
        door.answer(QUESTION, **HOW)
    behind.fault = ""
    wait_for(lambda: readiness(both)[0] == 200)  # it may have been looked at just before
    assert door.answer(QUESTION, **HOW).text == wanted


def test_a_stream_that_is_cut_ends_with_the_error_after_its_words(
    behind: VllmServer, door: Client | GrpcClient
) -> None:
    behind.fault = "cut"
    came: list[Any] = []
    with pytest.raises(AnswerServerFault, match="broke off in the middle"):
        read_into(came, door.answer_stream(QUESTION, **HOW))
    assert isinstance(came[0], Retrieved)
    assert "".join(event.text for event in came[1:]), "no words came before it"


def read_into(came: list[Any], stream: Iterator[Any]) -> None:
    for event in stream:
        came.append(event)  # noqa: PERF402  a list would be lost with the error


def test_who_leaves_a_stream_ends_the_work_behind(behind: VllmServer, both: Both) -> None:
    behind.left.clear()
    behind.fault, behind.cut_after = "silent", 1
    body = {"query": QUESTION, "documents": PASSAGES, "stream": True, "min_relevance": 0.0}
    url = f"{both.front.url}/v1/rag/answer"
    before = len(behind.bodies)
    with httpx.stream("POST", url, json=body, timeout=60) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()  # once that is let go of, the reply is closed
        next(lines)
        wait_for(lambda: len(behind.bodies) > before)
    assert behind.left.wait(60)
    behind.cut_after = 2


def test_openais_client_and_the_command_line_hear_the_same(both: Both, behind: VllmServer) -> None:
    how: dict[str, Any] = {
        "model": PAIR,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 12,
        "extra_body": {"documents": PASSAGES, "min_relevance": 0.0},
    }
    url = f"{both.front.url}/v1"
    ask = ("ask", QUESTION, "--url", both.front.url, "--index", "samples", "--json")
    ask += ("--min-relevance", "0", "--max-tokens", "8", "--top-n", "3")
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**how)
        assert whole.condensery["generator"] == PAIR  # type: ignore[attr-defined]  # our own
        chunks = list(client.chat.completions.create(stream=True, **how))
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert said == whole.choices[0].message.content
        assert json.loads(run(*ask).stdout)["generator"] == PAIR
        behind.fault = "out of memory"
        with pytest.raises(openai.InternalServerError, match="EngineCore") as broken:
            client.chat.completions.create(**how)
        assert broken.value.status_code == 503
        assert "EngineCore" in run(*ask, status=1).stderr


def test_another_model_in_its_place_is_refused_until_the_right_one_is_back(
    both: Both, behind: VllmServer, door: Client | GrpcClient
) -> None:
    right = behind.directory
    behind.serve(both.another)
    behind.fault = "cut"  # as a process that dies
    with pytest.raises(AnswerServerFault):
        door.answer(QUESTION, **HOW)
    behind.fault = ""
    wait_for(lambda: "another model" in readiness(both)[1])
    with pytest.raises(AnswerServerFault, match="holds another model"):
        door.answer(QUESTION, **HOW)
    behind.serve(right)
    wait_for(lambda: readiness(both)[0] == 200)
    assert door.answer(QUESTION, **HOW).generator == PAIR


def test_the_key_goes_there_and_is_in_no_log(both: Both) -> None:
    log = both.front.log.read_text()
    assert f"the generator of {PAIR} is at http://127.0.0.1:{both.port}/v1" in log
    assert "no pair 'minilm-l6' is loaded" in log
    assert KEY not in log
