"""Answers computed a second time: only in idle time, counted, and never a caller's concern."""

import asyncio
import gc
import logging
import weakref
from dataclasses import replace
from typing import get_args

import pytest
from tests.unit.questions import make_question

from condensery.agreement import f1_score
from condensery.errors import ModelFault, Overloaded, Unavailable
from condensery.jobs.answer import answer, answer_whole
from condensery.jobs.comparison import compare_answers
from condensery.jobs.services import Services
from condensery.jobs.shadows import MOST_WAITING, Shadows, measure_agreement
from condensery.logs import EventFormatter
from condensery.metrics import ShadowOutcome
from condensery.question import NOT_FOUND, Answer
from condensery.request_context import RequestContext, current_request, serving_request
from condensery.values import Document

WAIT = 120.0  # for what must happen, however busy the machine is
DOCUMENTS = [
    Document("plain", "some words here"),
    Document("best", "gold gold gold"),
    Document("good", "gold again"),
]
VECTORS, TEXT = "where? 1 2 ", "where? gold gold gold gold again "


def ask(query: str = "where?", **how):
    return make_question(query, **{"documents": DOCUMENTS, "top_n": 2, **how})


@pytest.fixture
def oscar(registry):
    return registry.pairs["pair"]


@pytest.fixture
async def watch(services):
    """Return services that watch a share of answers; what they compute ends with the test."""
    opened: list[Shadows] = []

    def make(share: float = 1.0, model: str | None = None, **how) -> Services:
        parts = (services.registry, services.admission, services.health, services.metrics)
        opened.append(Shadows(share, model, *parts, **{"quiet_seconds": 0.0, **how}))
        return replace(services, shadows=opened[-1])

    yield make
    for shadows in opened:
        await shadows.close()


@pytest.fixture
def gate(oscar):
    """Hold what the pair writes from text, until it is set; ``begun`` says that it has begun."""
    opened, say = asyncio.Event(), oscar._say
    oscar.begun = asyncio.Event()

    async def held(words, max_tokens):
        if isinstance(oscar.contexts[-1][0], str):
            oscar.begun.set()
            await opened.wait()
        async for token in say(words, max_tokens):
            yield token

    oscar._say = held
    return opened


def sample(services, name, **labels):
    return services.metrics.registry.get_sample_value(
        f"condensery_{name}", {"model": "pair", **labels}
    )


def outcomes(services) -> dict[str, int]:
    """Of each outcome how many shadows, those of none left out."""
    counts = {
        name: int(sample(services, "shadows_total", outcome=name))
        for name in get_args(ShadowOutcome)
    }
    return {name: count for name, count in counts.items() if count}


async def ended(services, count: int = 1) -> dict[str, int]:
    """Wait until so many shadows have ended, and return how."""
    async with asyncio.timeout(WAIT):
        while sum(outcomes(services).values()) < count:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
    return outcomes(services)


async def turn_the_loop() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_agreement_is_that_of_the_same_passages_read_as_text(watch, oscar):
    watched = watch()
    asked = [ask(), ask("gold again?", max_tokens=3), ask(documents=DOCUMENTS[:1])]
    compared = [(await compare_answers(watched, each)).agreement for each in asked]
    for count, each in enumerate(asked, 1):
        await answer_whole(watched, each)
        await ended(watched, count)
        assert oscar.quoted[-1] == oscar.quoted[-2] != (), "held to the same texts"
    assert outcomes(watched) == {"done": 3}
    assert sample(watched, "shadow_agreement_count") == 3
    assert sample(watched, "shadow_agreement_sum") == pytest.approx(sum(a.f1 for a in compared))
    assert 0 < sample(watched, "shadow_agreement_sum") < 3
    assert sample(watched, "shadow_exact_total") == sum(a.exact for a in compared)
    assert oscar.contexts[-1] == ["some words here"]


async def test_it_is_compared_in_the_sources_words_whole_or_streamed(watch, oscar):
    texts = iter(["Old-Mill", "old - mill", "Old-Mill", "old - mill"])

    async def say(words, max_tokens):
        yield type(
            "Step",
            (),
            {"text": next(texts), "count": 1, "finish": "stop", "logprob": None, "waited": 0.0},
        )

    oscar._say = say
    watched, documents = watch(), [Document("a", "gold in the Old-Mill.")]
    await answer_whole(watched, ask(documents=documents))
    await ended(watched)
    async for _ in answer(watched, ask(documents=documents)):
        pass
    assert await ended(watched, 2) == {"done": 2}
    assert sample(watched, "shadow_exact_total") == 2


@pytest.mark.parametrize(
    ("one", "two", "exact", "f1"),
    [
        ("The Mill!", "a mill", True, 1.0),
        ("the old mill", "the new mill", False, 0.5),
        (NOT_FOUND, NOT_FOUND.lower(), True, 1.0),
        (NOT_FOUND, "", True, 1.0),
        (NOT_FOUND, "the passages", False, 0.0),
        ("the passages", NOT_FOUND, False, 0.0),
        ("", "mill", False, 0.0),
    ],
)
def test_agreement_where_an_answer_says_nothing(one, two, exact, f1):
    assert measure_agreement(one, two) == (exact, pytest.approx(f1))


async def test_without_a_share_nothing_more_is_done(services, oscar):
    tasks = asyncio.all_tasks()
    await answer_whole(services, ask())
    assert services.shadows is None
    assert asyncio.all_tasks() == tasks
    assert len(oscar.contexts) == 1
    assert outcomes(services) == {}


async def test_a_share_of_the_answers_is_drawn(watch, oscar):
    draws = iter([0.1, 0.3, 0.9, 0.2, 0.25])
    watched = watch(0.25, draw=lambda: next(draws))
    for count in (1, 1, 1, 2, 2):
        await answer_whole(watched, ask())
        await ended(watched, count)
    await turn_the_loop()
    assert outcomes(watched) == {"done": 2}
    assert len(oscar.contexts) == 5 + 2


@pytest.mark.parametrize(
    "how",
    [
        {"min_relevance": 1.0},
        {"mode": "off"},
        {"temperature": 0.5},
    ],
    ids=["not found", "read as text", "sampled"],
)
async def test_what_was_not_read_from_vectors_or_was_sampled_is_not_drawn(watch, how):
    watched = watch(draw=lambda: pytest.fail("it was drawn"))
    await answer_whole(watched, ask(**how))


async def test_a_fallback_has_nothing_to_compare(watch, oscar):
    oscar.breaks = ModelFault("broken")
    watched = watch(draw=lambda: pytest.fail("it was drawn"))
    assert (await answer_whole(watched, ask())).compression.status == "fallback"


async def test_the_caller_has_the_answer_whatever_becomes_of_its_shadow(watch, oscar, gate):
    watched = watch()
    with watched.admission.admit(0):
        assert (await answer_whole(watched, ask())).text == VECTORS
        await turn_the_loop()
        assert len(oscar.contexts) == 1, "a request is inside"
    await asyncio.wait_for(oscar.begun.wait(), WAIT)
    with watched.admission.admit(0):
        assert await ended(watched) == {"busy": 1}, "it gave way to the next request"
        streamed = [event async for event in answer(watched, ask())]
        assert isinstance(streamed[-1], Answer)
        assert streamed[-1].text == VECTORS
        await turn_the_loop()
        assert len(oscar.contexts) == 3
    gate.set()
    assert await ended(watched, 2) == {"busy": 1, "done": 1}
    assert sample(watched, "shadow_agreement_count") == 1


async def test_it_begins_only_after_a_moment_without_requests(watch, oscar, monkeypatch):
    pauses: list[asyncio.Future[None]] = []
    watched = watch(quiet_seconds=0.25)
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        if seconds != 0.25:
            return await sleep(seconds)
        pauses.append(asyncio.get_running_loop().create_future())
        return await pauses[-1]

    monkeypatch.setattr(asyncio, "sleep", paused)
    await answer_whole(watched, ask())
    await turn_the_loop()
    with watched.admission.admit(0):  # and gone again, before the moment is over
        pass
    pauses[0].set_result(None)
    await turn_the_loop()
    assert len(oscar.contexts) == 1
    pauses[1].set_result(None)
    assert await ended(watched) == {"done": 1}


async def test_few_wait_and_none_for_ever(watch):
    watched = watch()
    with watched.admission.admit(0):
        for _ in range(MOST_WAITING + 2):
            await answer_whole(watched, ask())
        assert outcomes(watched) == {"busy": 2}
    assert await ended(watched, MOST_WAITING + 2) == {"busy": 2, "done": MOST_WAITING}
    impatient = watch(patience_seconds=0.0)
    with watched.admission.admit(0):
        await answer_whole(impatient, ask())
        assert (await ended(watched, MOST_WAITING + 3))["busy"] == 3


async def test_one_that_takes_too_long_is_dropped(watch, oscar, gate):
    watched = watch(most_seconds=0.001)
    await answer_whole(watched, ask())
    assert await ended(watched) == {"late": 1}
    assert sample(watched, "shadow_agreement_count") == 0


async def test_a_server_that_ends_drops_what_waits_and_what_computes(watch, oscar, gate):
    watched = watch()
    await answer_whole(watched, ask())
    await asyncio.wait_for(oscar.begun.wait(), WAIT)
    await answer_whole(watched, ask())  # waits
    watched.health.drain()
    assert await ended(watched, 2) == {"draining": 2}
    await answer_whole(watched, ask())
    assert outcomes(watched) == {"draining": 3}
    await asyncio.wait_for(watched.shadows.close(), WAIT)


async def test_closing_ends_one_that_waits_for_idle_time(watch):
    watched = watch()
    with watched.admission.admit(0):
        await answer_whole(watched, ask())
        await turn_the_loop()
        await asyncio.wait_for(watched.shadows.close(), WAIT)
    assert outcomes(watched) == {"draining": 1}


async def test_while_something_is_broken_nothing_is_computed(watch, oscar, gate):
    watched = watch()
    await answer_whole(watched, ask())
    await asyncio.wait_for(oscar.begun.wait(), WAIT)
    watched.health.fault("a device worker hangs")
    assert await ended(watched) == {"busy": 1}
    await answer_whole(watched, ask())
    await turn_the_loop()
    assert outcomes(watched) == {"busy": 1}
    gate.set()
    watched.health.fault(None)
    assert await ended(watched, 2) == {"busy": 1, "done": 1}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("secret gold"), "failed"),
        (ModelFault("NaN"), "failed"),
        (Overloaded("full", retry_after_seconds=1.0), "busy"),
        (Unavailable("shutting down"), "gone"),
    ],
)
async def test_a_fault_is_counted_and_logged_without_a_text(watch, oscar, caplog, error, outcome):
    generate = oscar.generate_from_prompt

    def broken(prompt, **how):
        if isinstance(prompt.context[0], str):
            raise error
        return generate(prompt, **how)

    oscar.generate_from_prompt = broken
    watched = watch()
    assert (await answer_whole(watched, ask())).text == VECTORS
    assert await ended(watched) == {outcome: 1}
    records = [record for record in caplog.records if record.message == "shadow_failed"]
    assert len(records) == (outcome == "failed")
    logged = "\n".join(map(EventFormatter().format, caplog.records))
    assert not [word for word in ("gold", "where", "secret") if word in logged]
    oscar.generate_from_prompt = generate
    await answer_whole(watched, ask())
    assert (await ended(watched, 2))["done"] == 1, "the next one is computed"


async def test_nothing_of_a_text_is_logged_or_kept(watch, caplog):
    class Text(str):
        """One that can be watched."""

    caplog.set_level(logging.DEBUG)
    query = Text("where? gold")
    kept = weakref.ref(query)
    watched = watch()
    await answer_whole(watched, ask(query))
    await ended(watched)
    del query
    async with asyncio.timeout(WAIT):
        while kept() is not None:  # its task ends just after it is counted
            await asyncio.sleep(0.001)
            gc.collect()
    assert "gold" not in "\n".join(map(EventFormatter().format, caplog.records))


async def test_it_is_nobodys_request(watch, oscar):
    seen = []
    generate = oscar.generate_from_prompt

    def watching(prompt, **how):
        seen.append(current_request())
        return generate(prompt, **how)

    oscar.generate_from_prompt = watching
    watched = watch()
    with serving_request(RequestContext(caller="alice")) as call:
        await answer_whole(watched, ask())
    tokens = call.stats.generated
    answers = sample(watched, "answers_total", finish="stop")
    written = sample(watched, "output_tokens_total")
    assert await ended(watched) == {"done": 1}
    assert [each.caller == "alice" for each in seen] == [True, False]
    assert [each.background for each in seen] == [False, True]
    assert call.stats.generated == tokens
    assert sample(watched, "answers_total", finish="stop") == answers == 1
    assert sample(watched, "output_tokens_total") == written
    assert sample(watched, "ttft_seconds_count") == 1


async def test_what_does_not_fit_as_text_is_not_compared_with_less(watch, oscar):
    oscar.positions = 1 + 4 + 64  # as vectors; as text the two are 5
    watched = watch()
    assert len((await answer_whole(watched, ask())).citations) == 2
    assert await ended(watched) == {"too_long": 1}
    assert len(oscar.contexts) == 1


async def test_another_version_is_not_compared_with_what_the_one_before_said(watch, registry):
    watched, oscar = watch(), registry.pairs["pair"]
    with watched.admission.admit(0):
        await answer_whole(watched, ask())
        oscar.info = replace(oscar.info, fingerprint="sha256:next")
    assert await ended(watched) == {"gone": 1}
    with watched.admission.admit(0):
        await answer_whole(watched, ask())
        del registry.pairs["pair"]
    assert await ended(watched, 2) == {"gone": 2}


async def test_a_second_pair_reads_the_same_passages_and_the_first_is_counted(
    watch, registry, oscar
):
    second = replace(
        oscar, info=replace(oscar.info, id="second", fingerprint="sha256:2"), contexts=[]
    )
    registry.pairs["second"] = second
    watched = watch(model="second")
    whole = await answer_whole(watched, ask())
    assert await ended(watched) == {"done": 1}
    assert (len(oscar.contexts), second.contexts) == (1, [["gold gold gold", "gold again"]])
    assert sample(watched, "shadow_agreement_sum") == pytest.approx(f1_score(whole.text, [TEXT]))


async def test_a_second_pair_that_does_not_serve_is_counted_as_gone(watch):
    watched = watch(model="nobody")
    assert (await answer_whole(watched, ask())).text == VECTORS
    assert await ended(watched) == {"gone": 1}
