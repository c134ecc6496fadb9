"""The engine with a generator that reads prompts from both sides: whole, and as it would alone."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.unit.runtime.engines import Gate, Served
from tiny_pair import VOCABULARY, tiny_pair

from condensery.networks.caching import Span, Step
from condensery.networks.oscar_interface import PromptPart
from condensery.networks.quoting import Quotes
from condensery.networks.stepping import Stepper
from condensery.runtime.oscar_pair import prepare_for_inference
from condensery.runtime.queue import BatchLimits
from condensery.runtime.scheduler import KVCacheConfig
from condensery.runtime.sequence import GenerationRequest

STEPPER = Stepper(prepare_for_inference(tiny_pair(seed=6, two_way=True)).generator)


def prompt_of(seed: int, passages: int = 2, tokens: int = 9) -> list[PromptPart]:
    source = torch.Generator().manual_seed(seed)
    texts = torch.randint(4, len(VOCABULARY), (passages, tokens), generator=source).tolist()
    return [torch.randn(3, 32, generator=source), *texts, [2, *texts[0][:4], 3]]


@torch.inference_mode()
def alone(prompt: Sequence[PromptPart], count: int) -> list[int]:
    """Decode greedily in a cache of its own, one token a step."""
    cache, places = STEPPER.cache(96), np.arange(96)
    rows, said = STEPPER.embed(prompt), list[int]()
    start = 0
    while len(said) < count:
        hidden = STEPPER.run(rows, Step(cache, [Span(places, start, len(rows))]))
        start += len(rows)
        said.append(int(STEPPER.logits(hidden[-1:]).argmax()))
        rows = STEPPER.said(said[-1:], [len(said) - 1])
    return said


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("fixed", [False, True])
async def test_any_mix_of_sequences_gives_what_each_gives_alone(workers: int, fixed: bool) -> None:
    # Of room for few positions a step: no prompt here fits, and each is read whole all the same.
    served = Served(
        STEPPER,
        workers=workers,
        cache=KVCacheConfig(5, 512, 7),
        limits=BatchLimits(batch_tokens=11),
        fixed=fixed,
    )
    prompts = [prompt_of(seed, passages=1 + seed % 3) for seed in range(12)]
    wanted = [alone(prompt, 4 + seed % 5) for seed, prompt in enumerate(prompts)]
    assert len({tuple(answer) for answer in wanted}) > 6, "a weak test: one answer for all"
    try:

        async def ask(seed: int) -> list[int]:
            await asyncio.sleep(seed / 500)
            request = GenerationRequest(prompts[seed], 4 + seed % 5)
            return await served.rest(served.engine.begin(request))

        assert await asyncio.gather(*map(ask, range(12))) == wanted
    finally:
        served.close()


async def test_a_prompt_is_read_at_once_beside_single_tokens() -> None:
    served = Served(STEPPER, cache=KVCacheConfig(5, 1024, 7), limits=BatchLimits(batch_tokens=11))
    sizes: list[int] = []
    gate = Gate()
    long = prompt_of(1, passages=2, tokens=30)
    assert len(STEPPER.embed(long)) == 72
    try:
        with (
            served.before_each_step(gate),
            served.before_each_step(lambda rows: sizes.append(len(rows))),
        ):
            stream = served.engine.begin(GenerationRequest(prompt_of(0), 8))
            await gate.wait()
            late = served.engine.begin(GenerationRequest(long, 2))
            gate.opened.set()
            answers = await asyncio.gather(served.rest(stream), served.rest(late))
        assert sizes[:2] == [30, 1 + 72]
        assert list(answers) == [alone(prompt_of(0), 8), alone(long, 2)]
    finally:
        served.close()


async def test_words_that_alone_may_follow_have_their_own_places() -> None:
    prompt = prompt_of(3)
    said = alone(prompt, 1)
    # The answer goes on in one way only: three words are read together, then the next is chosen.
    text = [*said, 70, 71, 72]
    begins = np.zeros(len(VOCABULARY), dtype=bool)
    quotes = Quotes.of([[*text, 80], [*text, 81]], begins)
    served = Served(STEPPER)
    try:
        request = GenerationRequest(prompt, 5, frozenset({3}), quotes=quotes)
        answer = await served.rest(served.engine.begin(request))
    finally:
        served.close()
    assert answer[:4] == text
    with torch.inference_mode():
        cache, places = STEPPER.cache(96), np.arange(96)
        rows = STEPPER.embed(prompt)
        STEPPER.run(rows, Step(cache, [Span(places, 0, len(rows))]))
        at = len(rows)
        for place, token in enumerate(text):  # each by itself
            row = STEPPER.said([token], [place])
            hidden = STEPPER.run(row, Step(cache, [Span(places, at + place, 1)]))
        scores = STEPPER.logits(hidden)[0]
    assert answer[4:] == [80 if scores[80] > scores[81] else 81]
