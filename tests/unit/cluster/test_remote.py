"""Models behind replicas in this process: what crosses is pickled, as Ray pickles it."""

import asyncio
import pickle
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery.cluster.calling import Remote, ReplicaLost
from condensery.cluster.messages import COUNTED, NOT_ADDED, SHOWN, Call, ModelId, Reply
from condensery.cluster.remote import RemoteEncoder, RemotePair, remote_model
from condensery.cluster.replica import Replica
from condensery.errors import (
    CondenseryError,
    DeadlineExceeded,
    InputError,
    ModelFault,
    Unavailable,
)
from condensery.metrics import Metrics
from condensery.question import Sampling
from condensery.request_context import RequestContext, serving_request
from condensery.store.store import ModelStore

TEXTS = ["", "an old mill", "a much longer text than the others are " * 20, "Łódź, 東京 😀"]
PASSAGES = ["The Rhine passes through Lake Constance.", "Bread is baked at night. " * 40]
QUESTION = "Which lake does the Rhine pass through?"
SETTINGS = {"device": "cpu", "dtype": "float32", "workers": 1}


class InProcess:
    """``remote.Replicas`` around one ``Replica``: each call and reply goes through a pickle.

    Attributes:
        lose: Called with each call's number; True loses the replica before it replies.
        lose_after: Replies of a stream after which it is lost.
        hold: While set, no reply comes.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.calls: list[Call] = []
        self.lose: Callable[[int], bool] = lambda number: False
        self.lose_after: int | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.down: str | None = None
        self.closed: list[ModelId] = []

    def check(self) -> None:
        if self.down:
            raise Unavailable(self.down)

    async def call(self, call: Call) -> Reply:
        self.calls.append(call)
        if self.lose(len(self.calls)):
            raise ReplicaLost("killed")
        reply = await self.replica.call(pickle.loads(pickle.dumps(call)))
        await self.hold.wait()
        copied: Reply = pickle.loads(pickle.dumps(reply))
        return copied

    async def stream(self, call: Call) -> AsyncGenerator[Reply, None]:
        self.calls.append(call)
        if self.lose(len(self.calls)):
            raise ReplicaLost("killed")
        count = 0
        async with aclosing(self.replica.stream(pickle.loads(pickle.dumps(call)))) as replies:
            async for reply in replies:
                if self.lose_after is not None and count >= self.lose_after:
                    raise ReplicaLost("killed")
                count += 1
                yield pickle.loads(pickle.dumps(reply))

    def close(self, model: ModelId) -> None:
        self.closed.append(model)


async def make_replica(store: Path, *names: str) -> tuple[Replica, dict[str, ModelId]]:
    models = {}
    for name in names:
        stored = ModelStore(None, store).open(name)
        models[name] = ModelId(name, stored.version, stored.manifest.fingerprint)
    replica = Replica.__new__(Replica)
    await replica.__init__(list(models.values()), SETTINGS, str(store), "o")  # type: ignore[misc]
    return replica, models


@pytest.fixture
async def replica(store_with_pair: Path) -> AsyncIterator[tuple[Replica, dict[str, ModelId]]]:
    made = await make_replica(store_with_pair, "minilm-l6", "oscar-mini")
    yield made
    made[0]._watchdog.close()
    for loaded in made[0]._loaded.values():
        loaded.model.close()
    for workers in made[0]._loader.workers.all():
        workers.close(1.0)


@pytest.fixture
def threads() -> Any:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
async def remotes(
    replica: tuple[Replica, dict[str, ModelId]], store_with_pair: Path, threads: ThreadPoolExecutor
) -> tuple[InProcess, RemoteEncoder, RemotePair, Any, Any]:
    """The replicas, an encoder and a pair behind them, and the same two as they run there."""
    there, models = replica
    replicas = InProcess(there)
    facts = (await there.describe()).models
    store = ModelStore(None, store_with_pair)
    encoder, pair = (
        remote_model(
            Remote(models[name], replicas),
            store.open(name),
            pickle.loads(pickle.dumps(facts[models[name]])),
            threads,
            None,
        )
        for name in ("minilm-l6", "oscar-mini")
    )
    assert isinstance(encoder, RemoteEncoder)
    assert isinstance(pair, RemotePair)
    own = [there.model(models[name]) for name in ("minilm-l6", "oscar-mini")]
    return replicas, encoder, pair, own[0], own[1]


async def test_an_encoder_elsewhere_says_what_it_says_there(remotes: Any) -> None:
    _, encoder, _, own, _ = remotes
    there, here = await own.embed(TEXTS), await encoder.embed(TEXTS)
    assert np.abs(there.vectors - here.vectors).max() < 1e-5
    assert (there.tokens, there.truncated) == (here.tokens, here.truncated)
    assert encoder.info == own.info
    for text in TEXTS:
        assert encoder.offsets(text) == own.offsets(text)
        assert encoder.pieces(text) == own.pieces(text)
    whole = await encoder.embed_tokens(TEXTS[1:2])
    assert np.abs(whole.vectors[0] - (await own.embed_tokens(TEXTS[1:2])).vectors[0]).max() < 1e-5


async def test_a_pair_elsewhere_compresses_and_answers_as_there(remotes: Any) -> None:
    _, _, pair, _, own = remotes
    there, here = await own.compress(QUESTION, PASSAGES), await pair.compress(QUESTION, PASSAGES)
    for one, other in zip(there, here, strict=True):
        assert np.abs(one.memory - other.memory).max() < 1e-4
        assert (one.tokens_in, one.windows, one.end) == (other.tokens_in, other.windows, other.end)
    context = [here[0].memory, PASSAGES[1]]
    prompt, other = (of.make_prompt(QUESTION, context) for of in (own, pair))
    assert (prompt.text, prompt.vectors, prompt.size) == (other.text, other.vectors, other.size)
    assert own.free_positions(prompt, 16) == pair.free_positions(other, 16)
    assert own.count_positions(context) == pair.count_positions(context)
    assert own.generator_share == pair.generator_share
    kept = [PASSAGES[0]]
    cost = [
        of.count_answer(QUESTION, asked, kept).cost(here, completion_tokens=3)
        for of, asked in ((own, prompt), (pair, other))
    ]
    assert cost[0] == cost[1]
    sampling = Sampling(logprobs=2)
    answers = []
    for of, asked in ((own, prompt), (pair, other)):
        answer = of.generate_from_prompt(asked, max_tokens=12, sampling=sampling, stop=["zzz"])
        answers.append([(token.text, token.id, token.finish) async for token in answer])
    assert answers[0] == answers[1]
    assert answers[0][-1][2] is not None
    assert pair.expected_ms(100, 8, 20, 2) > 0  # measured there, told here


async def test_a_wrong_text_gets_the_error_that_it_gets_there(remotes: Any) -> None:
    _, encoder, pair, _, _ = remotes
    with pytest.raises(InputError, match=r"texts\[1\] has \d+ tokens") as caught:
        await encoder.embed(["a", TEXTS[2] * 9], truncate=False, field="texts")
    assert caught.value.field == "texts[1]"
    with pytest.raises(InputError, match="stop"):
        async for _ in pair.generate(QUESTION, [], max_tokens=2, stop=[""]):
            pass


async def test_where_its_time_went_is_the_requests_own(remotes: Any) -> None:
    _, encoder, _, _, _ = remotes
    with serving_request(RequestContext()) as request:
        embedded = await encoder.embed(TEXTS)
    stats = request.stats
    assert (stats.inputs, stats.tokens) == (len(TEXTS), embedded.tokens)
    assert stats.device == "cpu"
    assert stats.forward_seconds > 0
    assert stats.wait_seconds >= 0
    assert request.work_begun


async def test_a_call_whose_replica_is_lost_is_asked_once_more(remotes: Any) -> None:
    replicas, encoder, pair, _, _ = remotes
    replicas.lose = lambda number: number % 2 == 1
    assert (await encoder.embed(["a"])).vectors.shape == (1, 384)
    assert len((await pair.score(QUESTION, PASSAGES)).scores) == 2
    answer = [token async for token in pair.generate(QUESTION, PASSAGES[:1], max_tokens=4)]
    assert answer[-1].finish is not None
    assert len(replicas.calls) == 6


async def test_a_call_that_is_lost_twice_is_unavailable_and_may_be_retried(remotes: Any) -> None:
    replicas, encoder, _, _, _ = remotes
    replicas.lose = lambda number: True
    with pytest.raises(Unavailable, match=r"minilm-l6.*lost.*killed") as caught:
        await encoder.embed(["a"])
    assert len(replicas.calls) == 2
    assert caught.value.retry_after_seconds == 1.0
    assert not encoder.busy


async def test_an_answer_is_not_begun_anew_once_a_token_was_shown(remotes: Any) -> None:
    replicas, _, pair, _, _ = remotes
    replicas.lose_after = 1
    answer = pair.generate(QUESTION, PASSAGES[:1], max_tokens=40)
    assert (await anext(answer)).count == 1
    with pytest.raises(Unavailable, match="lost"):
        await anext(answer)
    assert len(replicas.calls) == 1


async def test_nothing_is_sent_while_no_replica_is_up(remotes: Any) -> None:
    replicas, encoder, _, _, _ = remotes
    replicas.down = "No replica is up: it starts."
    with pytest.raises(Unavailable, match="it starts"):
        await encoder.embed(["a"])
    assert replicas.calls == []


async def test_a_replica_that_does_not_answer_is_waited_for_no_longer_than_the_caller_has(
    remotes: Any,
) -> None:
    replicas, encoder, _, _, _ = remotes
    replicas.hold.clear()
    loop = asyncio.get_running_loop()
    request = RequestContext(deadline=RequestContext().started + 0.2)
    began = loop.time()
    with serving_request(request), pytest.raises(DeadlineExceeded):
        await encoder.embed(["a"])
    assert loop.time() - began < 60
    assert len(replicas.calls) == 1
    left = replicas.calls[0].caller.seconds_left
    assert left is not None
    assert left <= 0.2


async def test_a_caller_who_leaves_cancels_what_runs_for_them(remotes: Any) -> None:
    replicas, _, pair, _, own = remotes
    go_on = threading.Event()
    steps: list[int] = []

    def hold(*_: Any) -> None:
        steps.append(1)
        assert len(steps) < 8 or go_on.wait(60)

    network = own.generator._engine._stepper._network
    hook = network.register_forward_pre_hook(hold)
    async with aclosing(pair.generate(QUESTION, PASSAGES[:1], max_tokens=60)) as answer:
        await anext(answer)
        async with asyncio.timeout(60):
            while len(steps) < 8:  # noqa: ASYNC110  there is no event for it
                await asyncio.sleep(0.01)
        assert own.busy
    go_on.set()
    async with asyncio.timeout(60):
        while own.busy:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)
    hook.remove()
    assert len(steps) < 60, "it was written to its end"
    assert replicas.replica.record_autoscaling_stats() == {"tokens_in_hand": 0.0}


async def test_tokens_in_hand_are_counted_until_they_are_answered(remotes: Any) -> None:
    replicas, encoder, _, _, _ = remotes
    seen = []
    asking = asyncio.create_task(encoder.embed(TEXTS * 8))
    while not asking.done():
        seen.append(replicas.replica.record_autoscaling_stats()["tokens_in_hand"])
        await asyncio.sleep(0)
    await asking
    assert max(seen) > 8 * 200
    assert replicas.replica.record_autoscaling_stats() == {"tokens_in_hand": 0.0}


async def test_a_closed_model_takes_no_calls_and_lets_its_replicas_go_once(remotes: Any) -> None:
    replicas, encoder, pair, _, _ = remotes
    pair.close()
    assert [model.name for model in replicas.closed] == ["oscar-mini"]
    encoder.close()
    encoder.close()
    assert len(replicas.closed) == 2
    with pytest.raises(Unavailable, match="unloaded"):
        await encoder.embed(["a"])


async def test_a_replica_refuses_a_store_that_holds_another_model(store_with_pair: Path) -> None:
    replica = Replica.__new__(Replica)
    wrong = ModelId("minilm-l6", "1", "sha256:other")
    with pytest.raises(ModelFault, match="another one in this machine's store"):
        await replica.__init__([wrong], SETTINGS, str(store_with_pair), "o")  # type: ignore[misc]


async def test_a_replica_refuses_calls_of_a_version_that_it_does_not_hold(remotes: Any) -> None:
    replicas, encoder, _, _, _ = remotes
    other = ModelId("minilm-l6", "7", "sha256:other")
    with pytest.raises(Unavailable, match="holds no 'minilm-l6' version 7"):
        await Remote(other, replicas).call("embed", ["a"], tokens=1)
    assert isinstance(encoder, RemoteEncoder)


def test_our_errors_pickle_whole() -> None:
    error = InputError("x[1]: wrong", field="x[1]", value=3, retry_after_seconds=2.5)
    copied = pickle.loads(pickle.dumps(error))
    assert isinstance(copied, CondenseryError)
    assert type(copied) is InputError
    assert vars(copied) == vars(error)


def test_what_replicas_count_has_names_that_there_are() -> None:
    names = {family.name for family in Metrics(tei=True).registry.collect()}
    for prefix in (*COUNTED, *SHOWN, *NOT_ADDED):
        assert any(f"{name}_total".startswith(prefix) for name in names), prefix
