import asyncio
import copy
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager

import numpy as np
import pytest
import torch
from tiny_pair import SPECIALS, VOCABULARY, tiny_pair
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from condensery.errors import DeadlineExceeded, InputError, ModelFault, Unavailable
from condensery.metrics import Metrics
from condensery.networks.oscar import OscarPair
from condensery.networks.quoting import Quotes
from condensery.question import GeneratedToken, Sampling
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.generator import (
    Generator,
    WordPieceDetokenizer,
)
from condensery.runtime.oscar_pair import prepare_for_inference
from condensery.runtime.workers import Workers
from condensery.values import Floats

Prompt = list[Floats | list[int]]
NEVER = -1  # no token stops


@pytest.fixture(scope="module")
def pair() -> OscarPair:
    return prepare_for_inference(tiny_pair(seed=3))


@pytest.fixture(scope="module")
def plain() -> OscarPair:
    """The same pair before its parts are replaced by those that infer fast."""
    return tiny_pair(seed=3)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    started = Workers(2)
    yield started
    started.close()


def make(
    pair: OscarPair, workers: Workers, stop_id: int = NEVER, metrics: Metrics | None = None
) -> Generator:
    return Generator(
        *(
            pair.generator,
            lambda: WordPieceDetokenizer(VOCABULARY.__getitem__),
            frozenset({stop_id}),
            workers,
        ),
        model="tiny",
        metrics=metrics,
    )


def prompt_of(seed: int, passages: int = 2, question: int = 4) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    memory = [torch.randn(3, 32, generator=generator).numpy() for _ in range(passages)]
    ids = torch.randint(4, len(VOCABULARY), (question,), generator=generator).tolist()
    return [*memory, [SPECIALS.start, *ids, SPECIALS.end]]


def embeds_of(prompt: Prompt, pair: OscarPair) -> Tensor:
    """Embed a prompt anew: parts in order, a separator after each but the last."""
    rows: list[Tensor] = []
    for number, part in enumerate(prompt):
        if number:
            rows.append(pair.generator.separator[None])
        if isinstance(part, np.ndarray):
            rows.append(torch.from_numpy(part))
        else:
            rows.append(pair.generator.words[part])
    return torch.cat(rows)[None].detach()


def reference(prompt: Prompt, pair: OscarPair, count: int) -> list[int]:
    """Decode greedily by reading everything again at each step, in transformers' eager fp32."""
    network = pair.generator
    llama = type(network.backbone)(copy.deepcopy(network.backbone.config))
    del llama.embed_tokens
    llama.load_state_dict(network.backbone.state_dict())
    llama.set_attn_implementation("eager")
    embeds, chosen = embeds_of(prompt, pair), []
    with torch.inference_mode():
        for _ in range(count):
            last = llama.eval()(inputs_embeds=embeds).last_hidden_state[0, -1]
            scores = network.output_scale * (network.words @ (network.output.weight @ last))
            chosen.append(int((scores + network.output_bias).argmax()))
            embeds = torch.cat([embeds, network.words[chosen[-1]][None, None]], dim=1)
    return chosen


def text_of(ids: list[int]) -> str:
    return "".join(map(WordPieceDetokenizer(VOCABULARY.__getitem__).push, ids))


async def collect(generator: Generator, prompt: Prompt, max_tokens: int) -> list[GeneratedToken]:
    return [token async for token in generator.generate(prompt, max_tokens=max_tokens)]


@pytest.mark.parametrize("seed", range(4))
async def test_cached_steps_choose_what_reading_it_all_again_chooses(
    pair: OscarPair, plain: OscarPair, workers: Workers, seed: int
) -> None:
    prompt = prompt_of(seed, passages=seed, question=1 + seed)
    tokens = await collect(make(pair, workers), prompt, 12)
    wanted = reference(prompt, plain, 12)
    assert len(set(wanted)) > 2, "a weak test: one token over and over"
    assert "".join(token.text for token in tokens) == text_of(wanted)


def as_transformers_has_it(plain: OscarPair) -> LlamaForCausalLM:
    """The generator with its head as transformers' own model."""
    network = plain.generator
    config = LlamaConfig(**{**network.backbone.config.to_dict(), "vocab_size": len(VOCABULARY)})
    config.use_cache = True
    model = LlamaForCausalLM(config).eval()
    model.model.load_state_dict(
        {**network.backbone.state_dict(), "embed_tokens.weight": network.words}
    )
    head = torch.nn.Linear(32, len(VOCABULARY))
    with torch.no_grad():
        head.weight.copy_(network.output_scale * network.words @ network.output.weight)
        head.bias.copy_(network.output_bias)
    model.lm_head = head
    return model


async def test_answers_are_those_of_transformers_generate(
    pair: OscarPair, plain: OscarPair, workers: Workers
) -> None:
    prompt = prompt_of(11)
    ids = as_transformers_has_it(plain).generate(
        inputs_embeds=embeds_of(prompt, plain), max_new_tokens=10, do_sample=False, pad_token_id=0
    )
    tokens = await collect(make(pair, workers), prompt, 10)
    assert "".join(token.text for token in tokens) == text_of(ids[0].tolist())


def stretches(texts: list[list[int]], said: list[int]) -> set[int]:
    """What may follow, by search: every token behind a place that says so from a word on; the end
    where a word ends."""
    following = set()
    for text in texts:
        for first in range(len(text)):
            behind = first + len(said)
            if VOCABULARY[text[first]].startswith("##") or text[first:behind] != said:
                continue
            whole = behind == len(text) or not VOCABULARY[text[behind]].startswith("##")
            following |= {SPECIALS.end} if said and whole else set()
            following |= set(text[behind : behind + 1])
    return following


def whole_words(
    text: list[int], continues: np.ndarray, rng: random.Random
) -> tuple[int, int] | None:
    """Choose a stretch of whole words."""
    begins = [at for at, token in enumerate(text) if not continues[token]]
    if not begins:
        return None
    first = rng.choice(begins)
    return first, rng.choice([at for at in (*begins, len(text)) if at > first][:4])


class HeldToTexts(LogitsProcessor):
    """Gives the end its probability, and the rest to what may follow, in proportion.

    What begins as a stretch that is pointed at ends where it ends.
    """

    def __init__(self, texts: list[list[int]], pointed: list[list[int]]) -> None:
        self.texts, self.pointed = texts, pointed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        said = input_ids[0].tolist()
        may = stretches(self.texts, said)
        begun = [words for words in self.pointed if said and words[: len(said)] == said]
        if said in begun and not any(len(words) > len(said) for words in begun):
            may = {SPECIALS.end}
        elif begun and said not in begun:
            may -= {SPECIALS.end}
        likely = scores[0].double().softmax(0)
        held = torch.zeros_like(likely)
        words = sorted(may - {SPECIALS.end})
        end = float(likely[SPECIALS.end]) if SPECIALS.end in may else 0.0
        if words:
            held[words] = (1 - end) * likely[words] / likely[words].sum()
            held[SPECIALS.end] = end
        else:
            held[SPECIALS.end] = 1.0
        return held.log().float()[None]


@pytest.mark.parametrize("pointing", [False, True])
@pytest.mark.parametrize("seed", range(6))
async def test_answers_held_to_texts_are_those_of_transformers_held_to_them(
    pair: OscarPair, plain: OscarPair, workers: Workers, seed: int, pointing: bool
) -> None:
    rng = random.Random(seed)
    letters = len(VOCABULARY) // 2
    texts = [[rng.randrange(4, letters) for _ in range(rng.randint(3, 30))] for _ in range(2)]
    continues = np.array([word.startswith("##") for word in VOCABULARY])
    places = [whole_words(text, continues, rng) for text in texts] if pointing else []
    pointed = [text[slice(*at)] for text, at in zip(texts, places, strict=False) if at]
    prompt = prompt_of(seed)
    made = as_transformers_has_it(plain).generate(
        inputs_embeds=embeds_of(prompt, plain),
        max_new_tokens=10,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=SPECIALS.end,
        logits_processor=LogitsProcessorList([HeldToTexts(texts, pointed)]),
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = made.sequences[0].tolist()
    wanted = ids[: ids.index(SPECIALS.end)] if SPECIALS.end in ids else ids
    quotes = Quotes.of(texts, continues, places)
    generator = make(pair, workers, SPECIALS.end)
    wish = Sampling(temperature=0, logprobs=5)
    tokens = [
        token
        async for token in generator.generate(prompt, max_tokens=10, sampling=wish, quotes=quotes)
    ]
    assert "".join(token.text for token in tokens) == text_of(wanted)
    likely = [t.logprob for t in tokens if t.logprob is not None]
    assert all(np.isfinite(top.logprob) for logprob in likely for top in logprob.top)
    expected = [float(of_step[0, id_]) for of_step, id_ in zip(made.scores, wanted, strict=False)]
    assert [logprob.logprob for logprob in likely] == pytest.approx(expected, abs=1e-3)


async def test_what_can_go_on_in_one_way_only_takes_no_step(
    pair: OscarPair, workers: Workers
) -> None:
    continues = np.array([word.startswith("##") for word in VOCABULARY])
    begins, goes_on = np.flatnonzero(~continues).tolist()[6:], np.flatnonzero(continues).tolist()
    long_word = [begins[0], *goes_on[:5]]
    generator, steps = make(pair, workers, SPECIALS.end), list[int]()
    hook = pair.generator.register_forward_pre_hook(lambda _, args: steps.append(args[0].shape[1]))
    wish = Sampling(temperature=0, logprobs=2)

    async def answer(text: list[int], most: int = 20) -> list[GeneratedToken]:
        steps.clear()
        quotes = Quotes.of([text], continues)
        made = generator.generate(prompt_of(1), max_tokens=most, sampling=wish, quotes=quotes)
        return [token async for token in made]

    try:
        tokens = await answer(long_word)
        assert "".join(token.text for token in tokens) == text_of(long_word)
        assert len(steps) == 1, "the prompt alone: nothing is left to choose after it"
        assert tokens[-1].finish == "stop"
        assert [t.logprob.logprob for t in tokens[1:-1] if t.logprob] == [0.0] * 5
        assert [t.logprob.top[0].logprob for t in tokens[1:-1] if t.logprob] == [0.0] * 5
        tokens = await answer(long_word, 3)
        assert [token.finish for token in tokens] == [None, None, "length"]
        # It begins with the second word of one text and the first of the other. Behind that it
        # ends, or goes on, which takes a step that reads all of the word.
        short_word = [begins[1], goes_on[0]]
        tokens = await answer([*long_word, *short_word])
        assert "".join(token.text for token in tokens) == text_of(short_word)
        assert len(steps) == 1
        tokens = await answer([*short_word, *long_word])
        assert "".join(token.text for token in tokens).startswith(text_of(short_word))
        assert steps[1] == len(short_word)
    finally:
        hook.remove()


def test_of_nothing_to_quote_there_are_no_quotes() -> None:
    continues = np.array([word.startswith("##") for word in VOCABULARY])
    goes_on = int(continues.argmax())
    assert Quotes.of([], continues) is None
    assert Quotes.of([[], [goes_on]], continues) is None
    assert Quotes.of([[5]], continues) is not None


async def test_sequences_side_by_side_get_what_each_gets_alone(
    pair: OscarPair, workers: Workers
) -> None:
    generator = make(pair, workers)
    prompts = [prompt_of(seed, passages=seed % 3) for seed in range(6)]
    alone = [await collect(generator, prompt, 8) for prompt in prompts]
    together = await asyncio.gather(*(collect(generator, prompt, 8) for prompt in prompts))
    assert list(together) == alone
    assert len({tuple(tokens) for tokens in alone}) == len(prompts)


async def test_an_answer_ends_at_the_stop_token_which_is_not_part_of_it(
    pair: OscarPair, plain: OscarPair, workers: Workers
) -> None:
    prompt = prompt_of(2)
    ids = reference(prompt, plain, 12)
    place = next(i for i in range(1, 12) if ids[i] not in ids[:i])
    tokens = await collect(make(pair, workers, stop_id=ids[place]), prompt, 12)
    assert [token.finish for token in tokens] == [None] * place + ["stop"]
    assert tokens[-1] == GeneratedToken("", place, "stop", id=ids[place])
    assert "".join(token.text for token in tokens) == text_of(ids[:place])


async def test_an_answer_ends_at_its_most_tokens(pair: OscarPair, workers: Workers) -> None:
    tokens = await collect(make(pair, workers), prompt_of(2), 5)
    assert [token.count for token in tokens] == [1, 2, 3, 4, 5]
    assert [token.finish for token in tokens] == [None] * 4 + ["length"]


async def test_a_nan_fails_its_own_sequence_and_the_others_go_on(
    pair: OscarPair, workers: Workers
) -> None:
    generator = make(pair, workers)
    good, bad = prompt_of(1), prompt_of(1)
    bad[0] = np.full((3, 32), np.nan, np.float32)
    answers = await asyncio.gather(
        *(collect(generator, prompt, 6) for prompt in (good, bad, good)), return_exceptions=True
    )
    assert isinstance(answers[1], ModelFault)
    assert "tiny" in answers[1].message
    assert answers[0] == answers[2] == await collect(generator, good, 6)


@contextmanager
def holding(pair: OscarPair, passing: int) -> Iterator[Callable[[], object]]:
    """Let ``passing`` steps through and hold the next one until the yielded function is called."""
    let_go, left = threading.Event(), [passing]

    def before(*_: object) -> None:
        left[0] -= 1
        assert left[0] >= 0 or let_go.wait(30)

    with pair.generator.register_forward_pre_hook(before):
        try:
            yield let_go.set
        finally:
            let_go.set()


async def test_who_leaves_early_is_not_generated_for_any_more(
    pair: OscarPair, workers: Workers
) -> None:
    metrics = Metrics()
    generator = make(pair, workers, metrics=metrics)

    def sample(name: str, **labels: str) -> float:
        sample_value = metrics.registry.get_sample_value(
            f"condensery_{name}", {"model": "tiny", **labels}
        )
        return sample_value or 0.0

    async def until(runs: bool) -> None:
        last = time.monotonic() + 30
        while bool(sample("cache_positions", state="used")) != runs:
            assert time.monotonic() < last
            await asyncio.sleep(0.001)  # not 0: a loop that spins keeps the worker from its turn

    with holding(pair, 5) as let_go:
        async with aclosing(generator.generate(prompt_of(1), max_tokens=80)) as tokens:
            async for token in tokens:
                if token.count == 3:
                    break
        let_go()
        await until(runs=False)
    assert sample("cancelled_total", stage="generate", cause="client") == 1
    assert sample("step_tokens_count") <= 6

    with holding(pair, 5) as let_go:
        task = asyncio.create_task(collect(generator, prompt_of(1), 80))
        await until(runs=True)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        let_go()
        await until(runs=False)
    assert sample("cancelled_total", stage="generate", cause="client") == 2

    await collect(generator, prompt_of(1), 5)
    assert sample("cancelled_total", stage="generate", cause="client") == 2, "it ended by itself"


async def test_an_answer_whose_time_runs_out_ends_and_is_counted_once(
    pair: OscarPair, workers: Workers
) -> None:
    metrics = Metrics()
    generator = make(pair, workers, metrics=metrics)
    call, steps = RequestContext(), list[int]()

    def before(*_: object) -> None:
        steps.append(len(steps))
        if len(steps) == 3:
            call.deadline = time.monotonic()

    hooked = pair.generator.register_forward_pre_hook(before)
    with hooked, serving_request(call), pytest.raises(DeadlineExceeded):
        await collect(generator, prompt_of(1), 80)
    assert len(steps) == 3
    labels = {"model": "tiny", "stage": "generate", "cause": "deadline"}
    assert metrics.registry.get_sample_value("condensery_cancelled_total", labels) == 1


async def test_an_answer_ends_before_a_stop_string(pair: OscarPair, workers: Workers) -> None:
    metrics = Metrics()
    generator = make(pair, workers, metrics=metrics)
    whole = "".join([token.text for token in await collect(generator, prompt_of(2), 30)])
    stop = whole[len(whole) // 2 :][:5]
    stream = generator.generate(prompt_of(2), max_tokens=30, stop=["never", stop])
    tokens = [token async for token in stream]
    assert "".join([token.text for token in tokens]) == whole[: whole.index(stop)]
    assert [token.finish for token in tokens] == [None] * (len(tokens) - 1) + ["stop"]
    assert len(tokens) < 30
    async with aclosing(generator.generate(prompt_of(2), max_tokens=30, stop=[stop])) as again:
        async for token in again:
            if token.finish:
                break
    left = {"model": "tiny", "stage": "generate", "cause": "client"}
    assert not metrics.registry.get_sample_value("condensery_cancelled_total", left)
    stream = generator.generate(prompt_of(2), max_tokens=30, stop=[whole + "x", whole[-2:] + "x"])
    assert "".join([token.text async for token in stream]) == whole, "held back, and shown at last"
    with pytest.raises(InputError, match=r"stop\[0\]"):
        await anext(generator.generate(prompt_of(2), max_tokens=30, stop=[""]))


async def test_log_probabilities_come_with_their_tokens(pair: OscarPair, workers: Workers) -> None:
    generator = make(pair, workers)
    wish = Sampling(logprobs=3)
    tokens = [t async for t in generator.generate(prompt_of(2), max_tokens=5, sampling=wish)]
    plain = await collect(generator, prompt_of(2), 5)
    assert [token.id for token in tokens] == [token.id for token in plain]
    for token in tokens:
        assert token.logprob is not None
        best = token.logprob.top[0]
        assert tuple(best) == (str(token.id), token.logprob.logprob), "greedy: the likeliest"
        likeliest = [value for _, value in token.logprob.top]
        assert len(likeliest) == 3
        assert likeliest == sorted(likeliest, reverse=True)
    assert plain[0].logprob is None


async def test_a_closed_generator_refuses(pair: OscarPair, workers: Workers) -> None:
    generator = make(pair, workers)
    generator.close()
    with pytest.raises(Unavailable, match="tiny"):
        await collect(generator, prompt_of(1), 2)
