"""Shadows of a real pair, small and untrained, in a real engine: what stand-ins can't show."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.unit.questions import make_question
from tiny_pair import pair_files, text_of, tiny_pair

from condensery.jobs.answer import answer_whole
from condensery.jobs.comparison import compare_answers
from condensery.jobs.services import Services
from condensery.jobs.shadows import Shadows
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import prepare_for_inference
from condensery.runtime.workers import Workers
from condensery.values import Document

WAIT = 300.0  # for what must happen, however busy the machine is
DOCUMENTS = [Document(str(place), text_of(6 + place, seed=place)) for place in range(3)]
QUESTIONS = ["who is in the old mill?", "what is the river?", "where is the bread of the town?"]


@pytest.fixture
def pair():
    return prepare_for_inference(tiny_pair())


@pytest.fixture
async def real(services, registry, pair, tmp_path) -> Iterator[Services]:
    """Services whose default pair computes, on one worker, all its answers a second time too."""
    workers = Workers(1)
    parts = (services.registry, services.admission, services.health, services.metrics)
    shadows = Shadows(1.0, None, *parts, quiet_seconds=0.0)
    with ThreadPoolExecutor(1) as threads:
        oscar = OscarModel.of(
            *(pair, pair_files(tmp_path, pair), workers),
            name="pair",
            threads=threads,
            metrics=services.metrics,
        )
        registry.pairs = {"pair": oscar}
        yield replace(services, shadows=shadows)
        await shadows.close()
        oscar.close()
        workers.close()


def ask(query: str = QUESTIONS[0], **how):
    return make_question(query, **{"documents": DOCUMENTS, "top_n": 0, "max_tokens": 8, **how})


def sample(services, name, **labels):
    return services.metrics.registry.get_sample_value(
        f"condensery_{name}", {"model": "pair", **labels}
    )


async def until_it_is(wanted: float, services, name: str, **labels: str) -> None:
    async with asyncio.timeout(WAIT):
        while sample(services, name, **labels) != wanted:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.002)


async def test_agreement_is_that_of_a_comparison_and_callers_metrics_are_callers_alone(real):
    unwatched, sums = replace(real, shadows=None), [0.0, 0.0]
    stage = {"stage": "queue"}
    for count, query in enumerate(QUESTIONS, 1):
        compared = await compare_answers(unwatched, ask(query))
        sums = [sums[0] + compared.agreement.f1, sums[1] + compared.agreement.exact]
        steps = sample(real, "step_tokens_count"), sample(real, "inter_token_seconds_count")
        waits = sample(real, "stage_duration_seconds_count", **stage)
        with real.admission.admit(0):
            whole = await answer_whole(real, ask(query))
            taken = (
                sample(real, "step_tokens_count"),
                sample(real, "inter_token_seconds_count"),
                sample(real, "stage_duration_seconds_count", **stage),
            )
        assert (whole.text, whole.usage) == (compared.compressed.text, compared.compressed.usage)
        assert all(now > before for now, before in zip(taken, (*steps, waits), strict=True))
        await until_it_is(count, real, "shadows_total", outcome="done")
        assert taken == (
            sample(real, "step_tokens_count"),
            sample(real, "inter_token_seconds_count"),
            sample(real, "stage_duration_seconds_count", **stage),
        )
    assert sample(real, "shadow_agreement_sum") == pytest.approx(sums[0])
    assert sample(real, "shadow_exact_total") == sums[1]


async def test_a_caller_who_comes_amid_a_shadows_step_has_the_same_answer(real, pair):
    alone = await answer_whole(replace(real, shadows=None), ask(QUESTIONS[1]))
    reached, opened = threading.Event(), threading.Event()

    def hold(module, args):
        reached.set()
        assert opened.wait(WAIT)

    with real.admission.admit(0):
        await answer_whole(real, ask())
        hook = pair.generator.register_forward_pre_hook(hold)
    try:
        assert await asyncio.to_thread(reached.wait, WAIT)
        with real.admission.admit(0):
            await until_it_is(1, real, "shadows_total", outcome="busy")
            task = asyncio.create_task(answer_whole(replace(real, shadows=None), ask(QUESTIONS[1])))
            opened.set()
            whole = await asyncio.wait_for(task, WAIT)
    finally:
        hook.remove()
        opened.set()
    assert (whole.text, whole.usage) == (alone.text, alone.usage)
    await until_it_is(0, real, "cache_positions", state="used")
    assert sample(real, "shadow_agreement_count") == 0
    for stage in ("queue", "generate"):
        assert sample(real, "cancelled_total", stage=stage, cause="client") == 0
