"""A pair whose generator is on a server: the same tokens, and every way in which that fails."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stored_pair import store_causal_pair
from transformers import AutoModelForCausalLM
from vllm_server import VllmServer, vllm_server

from condensery.errors import (
    AnswerServerFault,
    AnswerServerSlow,
    AnswerServerUnavailable,
    CondenseryError,
    ContextTooLong,
    DeadlineExceeded,
    ModelFault,
)
from condensery.metrics import Metrics
from condensery.question import CompressedPassage, GeneratedToken, Sampling
from condensery.request_context import RequestContext, serving_request
from condensery.runtime import event_stream, generator_server
from condensery.runtime.generator_server import GeneratorServerConfig
from condensery.runtime.oscar import OscarModel
from condensery.runtime.registry import ModelRegistry
from condensery.store.exporting import export_generator
from condensery.store.store import ModelStore
from condensery.values import Floats

QUESTION = "How long is the river?"
PASSAGES = [
    "The mill stands by the river.",
    "It is 1,200 kilometres long; nobody knows who built the bridge.",
]
FAMILIES = ("causal", "bert-causal")
HOW: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32, "workers": 1}


@dataclass(frozen=True)
class Pairs:
    """A store of pairs, and a directory of each one's generator."""

    store: ModelStore
    generators: dict[str, Path]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    root = tmp_path_factory.mktemp("pairs")
    store, generators = ModelStore(None, root / "store"), {}
    for name, how in {
        **{family: {"family": family} for family in FAMILIES},
        "another": {"seed": 9},
        "narrow": {"hidden_size": 32},
    }.items():
        stored = store_causal_pair(store, root / name, name, **how)
        generators[name] = root / f"{name}-generator"
        export_generator(stored, generators[name])
    # One that always says the same next token as the right one, and is surer of it.
    model = AutoModelForCausalLM.from_pretrained(generators["causal"], dtype=torch.float32)
    with torch.no_grad():
        model.base_model.norm.weight.mul_(1.5)
    generators["surer"] = root / "surer"
    model.save_pretrained(generators["surer"])
    return Pairs(store, generators)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass between two tries, nor between two looks."""
    monkeypatch.setattr(event_stream, "BACK_OFF_SECONDS", 0.0)
    monkeypatch.setattr(generator_server, "RECHECK_SECONDS", 0.0)
    monkeypatch.setattr(generator_server, "CHECK_SECONDS", 3600.0)


@contextmanager
def registry(pairs: Pairs, **servers: GeneratorServerConfig) -> Iterator[ModelRegistry]:
    names = {name.replace("_", "-"): config for name, config in servers.items()}
    models = ModelRegistry.load(
        pairs.store, generator_servers=names, metrics=Metrics(tei=False), **HOW
    )
    try:
        yield models
    finally:
        models.close()


@asynccontextmanager
async def opened(
    pairs: Pairs, url: str, name: str = "causal", **how: Any
) -> AsyncIterator[OscarModel]:
    """Load a pair whose generator is at ``url``, and try it as at the start of a server."""
    config = GeneratorServerConfig(url, **{"retries": 0, **how})
    with registry(pairs, **{name: config}) as models:
        assert models.refusals() == {}
        pair = models.pair(name)
        await pair.warm_up()
        yield pair


@pytest.fixture
def served(pairs: Pairs) -> Iterator[VllmServer]:
    with vllm_server(pairs.generators["causal"], "causal") as server:
        yield server


@pytest.fixture
def warn_always() -> Iterator[None]:
    """Let torch warn each time, and not the first time only."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


async def compress(pair: OscarModel) -> list[Floats | str]:
    results = await pair.compress(QUESTION, PASSAGES)
    return [item.memory for item in results if isinstance(item, CompressedPassage)]


async def write(
    pair: OscarModel, context: Sequence[Floats | str] | None = None, **how: Any
) -> list[GeneratedToken]:
    context = await compress(pair) if context is None else context
    stream = pair.generate(QUESTION, context, **{"max_tokens": 16, **how})
    return [token async for token in stream]


async def write_into(
    got: list[GeneratedToken], pair: OscarModel, context: Sequence[Floats | str]
) -> None:
    async for token in pair.generate(QUESTION, context, max_tokens=16):
        got.append(token)  # noqa: PERF401  a comprehension would lose them with the error


def text_of(tokens: Sequence[GeneratedToken]) -> str:
    return "".join(token.text for token in tokens)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  what changes is in another thread
            await asyncio.sleep(0.01)


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


# The same answers


@pytest.mark.parametrize("family", FAMILIES)
async def test_answers_are_those_of_the_pairs_own_generator_token_for_token(
    pairs: Pairs, family: str
) -> None:
    with registry(pairs) as models, vllm_server(pairs.generators[family], family) as server:
        own = models.pair(family)
        async with opened(pairs, server.url, family) as there:
            assert (own.unready, own.writer) == (there.unready, None)
            assert there.writer == family
            assert there.info.device == "cpu, generator's server"
            memory = await compress(own)
            contexts: list[Sequence[Floats | str]] = [
                memory,
                PASSAGES,
                [memory[0], PASSAGES[1]],
                [],
            ]
            said = set()
            for context in contexts:
                for how in ({}, {"max_tokens": 1}, {"sampling": Sampling(logprobs=3)}):
                    wanted = await write(own, context, **how)
                    got = await write(there, context, **how)
                    assert [token.id for token in got] == [token.id for token in wanted]
                    assert text_of(got) == text_of(wanted)
                    assert (got[-1].finish, got[-1].count) == (wanted[-1].finish, wanted[-1].count)
                    said.add(text_of(got))
                for one, other in zip(got, wanted, strict=True):
                    assert (one.logprob is None) == (other.logprob is None)
                    if one.logprob is not None and other.logprob is not None:
                        assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-3)
                        names = [
                            [likely.text for likely in of.top]
                            for of in (one.logprob, other.logprob)
                        ]
                        assert names[0] == names[1]
            assert len(said) > len(contexts), "all prompts say the same"


@pytest.mark.usefixtures("warn_always")
async def test_vectors_that_may_not_be_written_to_are_sent_all_the_same(
    pairs: Pairs, served: VllmServer
) -> None:
    async with opened(pairs, served.url) as pair:
        memory = [item for item in await compress(pair) if not isinstance(item, str)]
        held = [item.copy() for item in memory]
        for item in held:
            item.flags.writeable = False
        answers = [
            text_of([token async for token in pair.generator.generate(prompt, max_tokens=6)])
            for prompt in (memory, held)
        ]
    assert answers[0] == answers[1]


async def test_a_token_that_stops_ends_an_answer_and_is_no_part_of_it(pairs: Pairs) -> None:
    with registry(pairs) as models, vllm_server(pairs.generators["causal"], "causal") as server:
        own = models.pair("causal")
        async with opened(pairs, server.url) as there:
            context = await compress(own)
            ids = [token.id for token in await write(own, context)]
            for pair in (own, there):  # an end that a random model never says
                pair.generator._stop_ids = frozenset({ids[3]})  # type: ignore[attr-defined]
            wanted, got = await write(own, context), await write(there, context)
    assert [token.id for token in got] == [token.id for token in wanted] == ids[:4]
    assert (got[-1].finish, got[-1].count, text_of(got)) == ("stop", 3, text_of(wanted))


async def test_a_stop_string_ends_an_answer_here_and_the_work_there(
    pairs: Pairs, served: VllmServer
) -> None:
    async with opened(pairs, served.url) as pair:
        whole = await write(pair, max_tokens=24)
        stop = text_of(whole)[4:6]
        cut = await write(pair, max_tokens=400, stop=[stop])
    assert text_of(cut) == text_of(whole)[: text_of(whole).index(stop)]
    assert cut[-1].finish == "stop"
    await asyncio.to_thread(served.left.wait, 60)
    assert served.left.is_set()


async def test_a_seed_draws_the_same_again_there(pairs: Pairs, served: VllmServer) -> None:
    async with opened(pairs, served.url) as pair:
        context = await compress(pair)
        drawn = [
            text_of(await write(pair, context, sampling=Sampling(1.5, seed=seed)))
            for seed in (1, 1, 2)
        ]
    assert drawn[0] == drawn[1] != drawn[2]


async def test_what_is_sent_leaves_nothing_to_the_servers_defaults(
    pairs: Pairs, served: VllmServer
) -> None:
    async with opened(pairs, served.url) as pair:
        await write(pair)
        await write(pair, sampling=Sampling(0.5, 0.9, 3))
    first, second = served.bodies[-2:]
    assert first["shape"] == (served.bodies[-1]["shape"][0], 64)
    assert first["cache_salt"] != second["cache_salt"]
    assert "prompt" not in first
    wanted = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
    assert wanted.items() <= first.items()
    assert (first["temperature"], first["top_p"]) == (0.0, 1.0)
    assert (second["temperature"], second["top_p"], second["seed"]) == (0.5, 0.9, 3)


async def test_a_prompt_that_is_not_finite_is_never_sent(pairs: Pairs, served: VllmServer) -> None:
    async with opened(pairs, served.url) as pair:
        memory = await compress(pair)
        before = len(served.bodies)
        broken = memory[0] * float("nan")  # type: ignore[operator]
        with pytest.raises(ModelFault, match="finite: False"):
            await write(pair, [broken])
    assert len(served.bodies) == before


async def test_what_the_server_has_no_room_for_is_refused_before_it_is_sent(pairs: Pairs) -> None:
    with vllm_server(pairs.generators["causal"], "causal", max_model_len=300) as server:
        async with opened(pairs, server.url) as pair:
            before = len(server.bodies)
            with pytest.raises(ContextTooLong, match="the generator has 300"):
                await write(pair, max_tokens=280)
            assert len(server.bodies) == before


# What it must hold


async def test_a_server_that_takes_one_prompt_for_another_is_found_out(pairs: Pairs) -> None:
    directory = pairs.generators["causal"]
    with vllm_server(directory, "causal", mixes_prefixes=True) as server:
        async with opened(pairs, server.url) as pair:
            assert pair.unready is not None
            assert "prefix caching" in pair.unready
            with pytest.raises(AnswerServerFault, match="no-enable-prefix-caching"):
                await write(pair)
            server.mixes_prefixes = False  # switched off
            assert await write(pair)
            assert pair.unready is None


@pytest.mark.parametrize("other", ["another", "narrow", "surer"])
async def test_another_model_is_refused_and_sent_no_vectors(pairs: Pairs, other: str) -> None:
    with vllm_server(pairs.generators[other], "causal") as server:
        async with opened(pairs, server.url) as pair:
            with pytest.raises(AnswerServerFault, match="holds another model than causal"):
                await write(pair)
            assert pair.unready is not None
            assert len(await compress(pair)) == 2, "it must compress all the same"
        assert server.bodies
        assert all("prompt" in body for body in server.bodies)


async def test_a_model_of_another_name_is_refused(pairs: Pairs) -> None:
    with vllm_server(pairs.generators["causal"], "llama") as server:
        async with opened(pairs, server.url) as pair:
            with pytest.raises(AnswerServerFault, match="serves 'llama', not 'causal'"):
                await write(pair)
        assert not server.bodies


async def test_a_server_without_prompt_embeddings_is_refused_in_its_own_words(
    pairs: Pairs,
) -> None:
    with vllm_server(pairs.generators["causal"], "causal", embeds=False) as server:
        async with opened(pairs, server.url) as pair:
            with pytest.raises(AnswerServerFault, match="--enable-prompt-embeds"):
                await write(pair)


async def test_a_pair_that_quotes_generates_here_only(
    tmp_path: Path, store_with_pair: Path
) -> None:
    config = GeneratorServerConfig(unused_url())
    store = ModelStore(None, store_with_pair)
    models = ModelRegistry.load(store, generator_servers={"oscar-mini": config}, **HOW)
    try:
        assert "generates here only" in models.refusals()["oscar-mini"]
        assert models.models("encoder"), "others must serve"
    finally:
        models.close()


# Faults

FAULTS: dict[str, tuple[type[CondenseryError], str, int]] = {
    "out of memory": (AnswerServerUnavailable, "replied 500.*EngineCore encountered an issue", 0),
    "out of memory in the stream": (AnswerServerUnavailable, "error 500.*EngineCore", 0),
    "no stream": (AnswerServerFault, "'application/json', not text/event-stream", 0),
    "no ids": (AnswerServerFault, "no token_ids", 0),
    "rubbish": (AnswerServerFault, "an event that is not JSON", 2),
    "cut": (AnswerServerFault, "broke off in the middle", 2),
    "silent": (AnswerServerSlow, "sent no words for 3 s", 2),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_told_after_what_came_and_the_next_answer_is_whole(
    pairs: Pairs, served: VllmServer, fault: str
) -> None:
    kind, words, before = FAULTS[fault]
    how = {"timeout_seconds": 3.0} if fault == "silent" else {}
    async with opened(pairs, served.url, **how) as pair:
        context = await compress(pair)
        wanted = await write(pair, context)
        served.fault = fault
        got: list[GeneratedToken] = []
        with pytest.raises(kind, match=words):
            await write_into(got, pair, context)
        came = [token.id for token in got if token.id is not None]
        assert came == [token.id for token in wanted[:before]]
        served.fault = ""
        assert [token.id for token in await write(pair, context)] == [t.id for t in wanted]
        assert pair.unready is None


async def test_an_answer_is_tried_again_while_nothing_of_it_was_passed_on(
    pairs: Pairs, served: VllmServer
) -> None:
    async with opened(pairs, served.url, retries=2) as pair:
        context = await compress(pair)
        wanted = await write(pair, context)
        served.fault = "out of memory"
        writing = asyncio.create_task(write(pair, context))
        asked = len(served.bodies)
        await until(lambda: len(served.bodies) > asked)
        served.fault = ""
        try:
            assert await writing == wanted
        except AnswerServerUnavailable:  # three tries were faster than the test
            assert len(served.bodies) == asked + 3


async def test_the_callers_time_goes_before_the_servers(pairs: Pairs, served: VllmServer) -> None:
    async with opened(pairs, served.url) as pair:
        context = await compress(pair)
        served.fault = "silent"
        with (
            serving_request(RequestContext(deadline=time.monotonic() + 3)),
            pytest.raises(DeadlineExceeded),
        ):
            await write(pair, context)
    await asyncio.to_thread(served.left.wait, 60)
    assert served.left.is_set(), "the work there went on"


async def test_who_leaves_ends_the_work_there(pairs: Pairs, served: VllmServer) -> None:
    served.cut_after = 1
    async with opened(pairs, served.url) as pair:
        context = await compress(pair)
        served.fault = "silent"
        async with aclosing(pair.generate(QUESTION, context, max_tokens=400)) as tokens:
            await anext(tokens)
            assert pair.busy
        await asyncio.to_thread(served.left.wait, 60)
        assert served.left.is_set()
        assert not pair.busy


async def test_a_server_that_comes_later_is_used_without_a_restart(pairs: Pairs) -> None:
    url = unused_url()
    async with opened(pairs, url) as pair:
        changes: list[str | None] = []
        pair.watch(lambda: changes.append(pair.unready))
        assert pair.unready is not None
        assert "could not be reached" in pair.unready
        with pytest.raises(AnswerServerUnavailable, match="could not be reached") as refused:
            await write(pair)
        assert refused.value.retry_after_seconds > 0
        port = int(url.split(":")[2].split("/")[0])
        with vllm_server(pairs.generators["causal"], "causal", port):
            wanted = await write(pair)
            assert (pair.unready, changes) == (None, [None])
        with pytest.raises(AnswerServerUnavailable):
            await write(pair)
        assert pair.unready is not None
        with vllm_server(pairs.generators["causal"], "causal", port):
            assert await write(pair) == wanted
        assert changes[1] is not None
        assert changes[2] is None


async def test_a_server_that_comes_back_with_another_model_is_noticed(
    pairs: Pairs, served: VllmServer
) -> None:
    async with opened(pairs, served.url, retries=2) as pair:
        assert await write(pair)
        served.fault = "cut"  # it dies, and is another when it is there again
        with pytest.raises(AnswerServerFault, match="broke off"):
            await write(pair)
        served.fault = ""
        served.serve(pairs.generators["another"])
        with pytest.raises(AnswerServerFault, match="another model"):
            await write(pair)


async def test_another_model_is_noticed_by_looking_regularly(
    pairs: Pairs, served: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator_server, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(generator_server, "PROBE_SECONDS", 0.0)
    async with opened(pairs, served.url) as pair:
        assert pair.unready is None
        served.serve(pairs.generators["another"])
        await until(lambda: pair.unready is not None)
        served.serve(pairs.generators["causal"])
        await until(lambda: pair.unready is None)


async def test_a_closed_pair_refuses(pairs: Pairs, served: VllmServer) -> None:
    async with opened(pairs, served.url) as pair:
        context = await compress(pair)
        pair.close()
        with pytest.raises(CondenseryError, match="shutting down"):
            await write(pair, context)
