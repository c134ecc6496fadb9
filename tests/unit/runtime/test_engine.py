"""The engine: any mix of sequences gives what each would give alone."""

import asyncio
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.runtime.engines import (
    ANSWER,
    REFERENCES,
    STEPPERS,
    WAIT,
    Gate,
    Served,
    prompt_of,
)
from tiny_generators import KINDS, VOCABULARY, Reference
from torch import Tensor

from condensery.errors import (
    InputError,
    ModelFault,
    Overloaded,
    Unavailable,
)
from condensery.networks.caching import BLOCK
from condensery.networks.decoding import Decoder
from condensery.networks.stepping import Stepper
from condensery.question import GREEDY, Sampling
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.queue import BatchLimits, default_limits
from condensery.runtime.scheduler import KVCacheConfig, default_kv_cache_config
from condensery.runtime.sequence import GenerationRequest

FATES = st.one_of(
    st.just(("stays", 0)),
    st.tuples(st.just("leaves"), st.integers(0, 10)),  # after so many tokens
    st.tuples(st.just("fails"), st.integers(0, 10)),  # its step, at so many tokens
)


MIXES = st.lists(
    st.tuples(
        st.integers(0, 30),  # whose prompt
        st.integers(1, 40),  # its tokens
        st.integers(1, 12),  # tokens generated
        st.integers(0, 20),  # milliseconds before it joins
        FATES,
    ),
    min_size=1,
    max_size=10,
)


class Faults:
    """Fails each step that has a marked vector among its rows."""

    def __init__(self) -> None:
        self.marked: list[Tensor] = []

    def __call__(self, rows: Tensor) -> None:
        for vector in list(self.marked):
            if (rows == vector).all(dim=-1).any():
                raise RuntimeError("a fault")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    mix=MIXES,
    cache=st.sampled_from(
        [KVCacheConfig(64, 4096, 256), KVCacheConfig(3, 4096, 7), KVCacheConfig(64, 112, 20)]
    ),
    workers=st.sampled_from([1, 3]),
    fixed=st.booleans(),
)
def test_any_mix_of_sequences_gives_what_transformers_gives_alone(
    kind: str,
    mix: list[tuple[int, int, int, int, tuple[str, int]]],
    cache: KVCacheConfig,
    workers: int,
    fixed: bool,
) -> None:
    faults = Faults()

    async def run_request(
        served: Served, seed: int, size: int, count: int, after: int, fate: tuple[str, int]
    ) -> None:
        prompt, (what, when) = prompt_of(seed, size), fate
        await asyncio.sleep(after / 1000)
        if what == "fails":
            # A vector of its own, in the prompt: it fails wherever that is read.
            vector = torch.randn(1, 32, generator=torch.Generator().manual_seed(seed * 100 + when))
            faults.marked.append(vector[0])
            generation = served.engine.begin(GenerationRequest([prompt[: when + 1], vector], count))
            with pytest.raises(ModelFault, match="a step failed"):
                await served.rest(generation)
            return
        generation = served.begin(prompt, count)
        if what == "stays":
            assert await served.rest(generation) == REFERENCES[kind](prompt, count)
            return
        for _ in range(min(when, count)):
            event = await asyncio.wait_for(generation.events.get(), WAIT)
            assert event.token.id == REFERENCES[kind](prompt, count)[event.count - 1]
        served.engine.leave(generation, "client")

    async def all_of_them() -> None:
        limits = BatchLimits(batch_tokens=50)
        stepper = STEPPERS[kind]
        served = Served(stepper, workers=workers, cache=cache, limits=limits, fixed=fixed)
        try:
            with served.before_each_step(faults):
                await asyncio.gather(*(run_request(served, *each) for each in mix))
                await served.empty()
            blocks = served.engine._blocks
            assert blocks.free == blocks.count
            assert blocks.take(blocks.count) == list(range(blocks.count)), "one twice, or none"
        finally:
            served.close()

    asyncio.run(all_of_them())


async def test_steps_of_single_tokens_run_in_fixed_shapes_once_they_are_ready() -> None:
    served = Served(fixed=True, cache=KVCacheConfig(5, 4096, 256))
    try:
        prompts = [prompt_of(i, 3 + 11 * i) for i in range(7)]
        answers = await asyncio.gather(*(served.answer(item, 20) for item in prompts))
        assert list(answers) == [ANSWER(prompt, 20) for prompt in prompts]
        decoder = served.engine._fixed.decoder
        assert decoder.sizes == [1, 2, 4, 8]
        assert decoder.runs > 20
        assert served.sample("decode_graphs", model="m") == 0, "not on a CPU"
        assert served.sample("decode_graph_failures_total", model="m") == 0
    finally:
        served.close()


async def test_where_fixed_shapes_fail_steps_run_without_them_and_it_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Decoder) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Decoder, "prepare", fail)
    served = Served(fixed=True)
    try:
        assert await served.answer(prompt_of(0), 6) == ANSWER(prompt_of(0), 6)
        assert served.engine._fixed.decoder is None
        assert served.sample("decode_graph_failures_total", model="m") == 1
        assert "decode_graphs_failed" in caplog.text
    finally:
        served.close()


async def test_sequences_share_steps_and_join_those_that_run(served: Served) -> None:
    sizes: list[int] = []
    gate = Gate()
    with (
        served.before_each_step(gate),
        served.before_each_step(lambda rows: sizes.append(len(rows))),
    ):
        first = served.begin(prompt_of(0, 5), 4)
        await gate.wait()
        others = [served.begin(prompt_of(i, 5), 3) for i in (1, 2)]
        gate.opened.set()
        await asyncio.gather(*(served.rest(item) for item in (first, *others)))
    # Its prompt; its token and two prompts; three tokens, twice.
    assert sizes == [5, 1 + 5 + 5, 3, 3]
    assert served.sample("step_tokens_sum", model="m") == sum(sizes)
    assert served.sample("step_tokens_count", model="m") == 4
    assert served.sample("inter_token_seconds_count", model="m") == 3 + 2 + 2


async def test_prompts_of_one_token_share_a_step_with_longer_ones(served: Served) -> None:
    sizes: list[int] = []
    with served.before_each_step(lambda rows: sizes.append(len(rows))):
        with served.workers.changed:  # no worker takes one without the others
            asked = [served.begin(prompt_of(i, size), 2) for i, size in enumerate((5, 1, 3))]
        answers = await asyncio.gather(*map(served.rest, asked))
    assert answers == [ANSWER(prompt_of(i, size), 2) for i, size in enumerate((5, 1, 3))]
    assert sizes == [9, 3], "one that fails is tried again in halves"


async def test_a_long_prompt_is_read_in_pieces_and_stalls_no_stream() -> None:
    served = Served(cache=KVCacheConfig(64, 4096, 10), limits=BatchLimits(batch_tokens=40))
    sizes: list[int] = []
    gate = Gate()
    try:
        with (
            served.before_each_step(gate),
            served.before_each_step(lambda rows: sizes.append(len(rows))),
        ):
            stream = served.begin(prompt_of(0, 4), 8)
            await gate.wait()
            late = served.begin(prompt_of(1, 60), 2)
            gate.opened.set()
            answers = await asyncio.gather(served.rest(stream), served.rest(late))
        # A token of the stream in each step, and a piece of the prompt; none once it has ended.
        assert sizes == [4, *[10] * 6, 1 + 6, 1]
        assert list(answers) == [ANSWER(prompt_of(0, 4), 8), ANSWER(prompt_of(1, 60), 2)]
        sizes.clear()
        with served.before_each_step(lambda rows: sizes.append(len(rows))):
            await served.answer(prompt_of(2, 100), 1)
        assert sizes == [40, 40, 20], "nobody waits: larger pieces"
    finally:
        served.close()


async def test_what_ends_makes_room_for_what_waits() -> None:
    served = Served(cache=KVCacheConfig(64, 4 * BLOCK, 256))
    gate = Gate()
    try:
        with served.before_each_step(gate):
            long = served.begin(prompt_of(0, 40), 8)  # 47 and a separator's place: 3 blocks
            await gate.wait()
            short = served.begin(prompt_of(1, 20), 4)
            assert served.used == 3 * BLOCK
            assert (served.running(), served.running("waiting")) == (1, 1)
            gate.opened.set()
            answers = await asyncio.gather(served.rest(long), served.rest(short))
        assert list(answers) == [ANSWER(prompt_of(0, 40), 8), ANSWER(prompt_of(1, 20), 4)]
        await served.empty()
    finally:
        served.close()


async def test_what_could_never_fit_is_refused_naming_the_field() -> None:
    served = Served(cache=KVCacheConfig(64, 4 * BLOCK, 256))
    try:
        served.begin(prompt_of(0, 40), 4 * BLOCK - 40)
        with pytest.raises(InputError, match=r"max_tokens=25 .* room for: 64") as caught:
            served.begin(prompt_of(0, 40), 4 * BLOCK - 39)
        assert (caught.value.field, caught.value.value) == ("max_tokens", 25)
    finally:
        served.close()


async def test_what_the_model_has_no_positions_for_is_refused(served: Served) -> None:
    assert len(await served.answer(prompt_of(0, 250), 7)) == 7
    with pytest.raises(InputError, match="256 that m reads"):
        await served.answer(prompt_of(0, 250), 8)
    await served.empty()


async def test_an_answer_ends_at_a_stop_token_which_is_not_part_of_it(served: Served) -> None:
    wanted = ANSWER(prompt_of(3), 12)
    stop = next(
        token for place, token in enumerate(wanted) if place and token not in wanted[:place]
    )
    generation = served.begin(prompt_of(3), 12, stop_ids=frozenset({stop}))
    assert await served.rest(generation) == wanted[: wanted.index(stop)]
    await served.empty()


async def test_callers_take_turns_for_room() -> None:
    served = Served(cache=KVCacheConfig(1, 4096, 256))
    gate, order = Gate(), []

    async def ask(name: str, seed: int) -> None:
        with serving_request(RequestContext(caller=name)):
            generation = served.begin(prompt_of(seed), 2)
        await served.rest(generation)
        order.append(name)

    try:
        with served.before_each_step(gate):
            asked = [asyncio.create_task(ask("greedy", 0))]
            await gate.wait()
            for seed in range(1, 5):
                asked.append(asyncio.create_task(ask("greedy", seed)))
                await asyncio.sleep(0)
            asked.append(asyncio.create_task(ask("meek", 9)))
            await asyncio.sleep(0)
            gate.opened.set()
            await asyncio.gather(*asked)
        assert order.index("meek") == 2, order
    finally:
        served.close()


async def test_too_much_waiting_is_refused_by_positions_and_by_time() -> None:
    limits = BatchLimits(queue_tokens=3 * BLOCK, queue_seconds=0.5)
    served = Served(cache=KVCacheConfig(1, 4096, 256), limits=limits)
    gate = Gate()
    try:
        with served.before_each_step(gate):
            running = served.begin(prompt_of(0, 200), 4)
            await gate.wait()
            big = served.begin(prompt_of(1, 200), 4)  # nobody waits: no size is refused
            with pytest.raises(Overloaded, match="over the limit of 48") as caught:
                served.begin(prompt_of(2), 4)
            assert caught.value.retry_after_seconds == 1
            served.engine.leave(big)
            served.begin(prompt_of(2), 4)
            await asyncio.sleep(0.6)
            gate.opened.set()
            await served.rest(running)
        await served.empty()
        gate = Gate()
        with served.before_each_step(gate):
            # 208 positions in 0.6 s or more: an equal request waits for those of the one before.
            left = [served.begin(prompt_of(0, 20), 4)]
            await gate.wait()
            left.append(served.begin(prompt_of(1, 200), 4))
            served.engine._limits = BatchLimits(queue_seconds=0.1)
            with pytest.raises(Overloaded, match=r"would wait \d+ s for room"):
                served.begin(prompt_of(2, 200), 4)
            gate.opened.set()
            await asyncio.gather(*(served.rest(item) for item in left))
        assert served.sample("rejected_total", reason="queue_tokens") == 1
        assert served.sample("rejected_total", reason="queue_seconds") == 1
    finally:
        served.close()


async def test_a_step_that_takes_long_lets_short_requests_overtake_and_a_quick_one_does_not(
    served: Served,
) -> None:
    for seconds, long in ((0.2, True), (0.0001, False)):
        for _ in range(100):  # a rate is a mean of those before
            served.engine._step_times.record(1, 0, seconds)
            served.engine._step_times.record(0, 9, 2 * seconds)
        with served.workers.changed:  # or a worker takes it first
            generation = served.begin(prompt_of(1), 1)
            job = served.engine.take(1, express=False)
        assert job is not None
        assert job.long == long
        await asyncio.to_thread(job.run)
        await served.rest(generation)


async def test_what_there_is_room_for_is_not_refused_however_slowly_room_came_back(
    served: Served,
) -> None:
    served.engine._step_times.note_start(0.0)
    served.engine._step_times.note_end(BLOCK, 1000.0, idle=True)
    gate = Gate()
    with served.before_each_step(gate):
        asked = [served.begin(prompt_of(0), 3)]
        await gate.wait()
        asked += [served.begin(prompt_of(i, 100), 3) for i in range(1, 6)]
        with pytest.raises(Overloaded, match="for room"):
            served.begin(prompt_of(6, 200), 3700)
        gate.opened.set()
        await asyncio.gather(*map(served.rest, asked))


async def test_a_seed_gives_the_same_answer_whatever_else_runs(served: Served) -> None:
    warm = Sampling(temperature=1.5, top_p=0.95, seed=11)
    alone = await served.answer(prompt_of(0), 12, sampling=warm)
    others = [
        served.begin(prompt_of(i), 3 + i, sampling=wish)
        for i, wish in enumerate((GREEDY, Sampling(temperature=1.0), GREEDY))
    ]
    assert await served.answer(prompt_of(0), 12, sampling=warm) == alone
    await asyncio.gather(*map(served.rest, others))
    assert alone != ANSWER(prompt_of(0), 12)
    other = await served.answer(prompt_of(0), 12, sampling=Sampling(1.5, 0.95, seed=12))
    assert other != alone


async def test_a_seed_gives_the_same_answer_in_however_many_pieces_a_prompt_is_read() -> None:
    warm, prompt = Sampling(temperature=1.5, top_p=0.95, seed=11), prompt_of(0, 200)
    answers = []
    for batch_tokens in (2048, 60):
        limits = replace(default_limits(torch.device("cpu")), batch_tokens=batch_tokens)
        served = Served(limits=limits)
        try:
            answers.append(await served.answer(prompt, 12, sampling=warm))
            pieces = served.sample("step_tokens_count", model="m") - 11
        finally:
            served.close()
        assert (pieces > 1) == (batch_tokens == 60)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_prompts_begin_with_is_read_once_and_changes_no_answer(kind: str) -> None:
    prefix = prompt_of(77, 20)
    served = Served(STEPPERS[kind], prefix=tuple(prefix))
    prompts = [
        *([*prefix, *prompt_of(i, 3 + 40 * i)] for i in range(3)),
        prefix,  # no more than that
        [*prefix[:-1], (prefix[-1] + 1) % VOCABULARY, 5],  # another beginning
        prompt_of(8, 7),
    ]
    rows: list[int] = []
    try:
        with served.before_each_step(lambda embeds: rows.append(len(embeds))):
            answers = await asyncio.gather(*(served.answer(prompt, 6) for prompt in prompts))
        assert answers == [REFERENCES[kind](prompt, 6) for prompt in prompts]
        read = sum(rows) - len(prompts) * 5
        assert read == sum(map(len, prompts)) - 3 * len(prefix)
    finally:
        served.close()


async def test_a_step_that_fails_is_tried_again_behind_what_prompts_begin_with() -> None:
    prefix = prompt_of(77, 20)
    served = Served(prefix=tuple(prefix))
    failures = iter((True, False, False))

    def once(_: Tensor) -> None:
        if next(failures, False):
            raise RuntimeError("a passing fault")

    prompts = [[*prefix, *prompt_of(i, 9)] for i in range(2)]
    gate = Gate()
    try:
        with served.before_each_step(gate):
            first = served.begin(prompt_of(9, 4), 3)  # holds the worker, so that both share a step
            await gate.wait()
            both = [served.begin(prompt, 5) for prompt in prompts]
            with served.before_each_step(once):
                gate.opened.set()
                answers = [await served.rest(one) for one in both]
            await served.rest(first)
        assert answers == [ANSWER(prompt, 5) for prompt in prompts]
    finally:
        served.close()


async def test_closing_ends_what_waits_and_what_runs(served: Served) -> None:
    served.engine._cache_config = KVCacheConfig(1, 4096, 256)
    gate = Gate()
    with served.before_each_step(gate):
        running = served.begin(prompt_of(0), 200)
        await gate.wait()
        waiting = served.begin(prompt_of(1), 200)
        served.engine.close()
        for item in (running, waiting):
            with pytest.raises(Unavailable, match="m: shutting down"):
                await served.rest(item)
        gate.opened.set()
        await served.empty()
    with pytest.raises(Unavailable):
        served.begin(prompt_of(0), 1)


async def test_bf16_runs_and_holds_one_long_sequence_at_least() -> None:
    stepper = Stepper(Reference().network.bfloat16())
    cache = default_kv_cache_config(stepper)
    assert cache.positions >= stepper.longest
    served = Served(stepper, workers=2, cache=cache)
    try:
        prompts = [prompt_of(i, 5 * i + 1) for i in range(6)]
        answers = await asyncio.gather(*(served.answer(prompt, 6) for prompt in prompts))
        assert [len(item) for item in answers] == [6] * 6
    finally:
        served.close()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_graphs_give_what_transformers_gives(kind: str) -> None:
    async def answers(served: Served, prompts: list[list[int]]) -> list[list[int]]:
        return list(await asyncio.gather(*(served.answer(prompt, 12) for prompt in prompts)))

    stepper = Stepper(Reference(kind).network.to("cuda"))
    served = Served(stepper, cache=KVCacheConfig(6, 4096, 64), fixed=True)
    try:
        prompts = [prompt_of(i, 4 + 9 * i) for i in range(9)]
        wanted = [REFERENCES[kind](prompt, 12) for prompt in prompts]
        assert asyncio.run(answers(served, prompts)) == wanted
        decoder = served.engine._fixed.decoder
        assert decoder is not None, "capturing failed: see the log"
        assert decoder.runs > 12
        assert served.sample("decode_graphs", model="m") == 4
    finally:
        served.close()


async def test_what_waits_for_room_says_how_long_and_the_metrics_have_it_as_the_queue() -> None:
    served = Served(cache=KVCacheConfig(1, 4096, 256))  # one at a time
    queue = {"model": "m", "stage": "queue"}
    gate = Gate()
    try:
        with served.before_each_step(gate), serving_request(RequestContext()) as call:
            first = served.begin(prompt_of(1), 3)
            await gate.wait()
            second = served.begin(prompt_of(2), 3)
            began = time.perf_counter()
            await asyncio.sleep(0.05)
            held = time.perf_counter() - began
            assert second.waited == 0, "it waits still"
            gate.opened.set()
            await served.rest(first)
            await served.rest(second)
        assert second.waited >= held
        assert served.sample("stage_duration_seconds_count", **queue) == 2
        waited = first.waited + second.waited
        assert served.sample("stage_duration_seconds_sum", **queue) == pytest.approx(waited)
        assert held <= call.stats.queued <= waited + 1
    finally:
        gate.opened.set()
        served.close()


async def test_what_nobody_waits_for_gives_the_same_and_is_in_no_measurement(
    served: Served,
) -> None:
    prompt, gate = prompt_of(0, 80), Gate()
    with serving_request(RequestContext(background=True)):
        assert await served.answer(prompt, 5) == ANSWER(prompt, 5)
        with served.before_each_step(gate):
            leaves = served.begin(prompt, 5)
            await gate.wait()
            served.engine.leave(leaves, "client")
            gate.opened.set()
            await served.empty()
    assert served.dropped("generate", "client") == 0
    stage = {"model": "m", "stage": "queue"}
    assert served.sample("stage_duration_seconds_count", **stage) == 0
    for name in ("step_tokens_count", "inter_token_seconds_count"):
        assert served.sample(name, model="m") == 0
    assert served.engine.expected_seconds(10) == 0, "what callers are told goes by callers alone"
    assert await served.answer(prompt, 5) == ANSWER(prompt, 5)
    assert served.sample("step_tokens_count", model="m") == 5


async def test_a_caller_goes_before_what_nobody_waits_for(served: Served) -> None:
    gate, steps = Gate(passing=1), []
    with (
        served.before_each_step(lambda rows: steps.append(len(rows))),
        served.before_each_step(gate),
    ):
        with serving_request(RequestContext(background=True)):
            shadow = served.begin(prompt_of(0, 80), 3)
        await gate.wait()  # in the second piece of its prompt
        asked = served.begin(prompt_of(1, 9), 3)
        gate.opened.set()
        assert await served.rest(asked) == ANSWER(prompt_of(1, 9), 3)
        assert await served.rest(shadow) == ANSWER(prompt_of(0, 80), 3)
    assert steps == [64, 16, 9, 1, 1, 1, 1]
