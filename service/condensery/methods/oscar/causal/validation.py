"""How a pair in training does on rows that it is not trained on."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import fmean

import torch

from condensery.agreement import exact_match, f1_score
from condensery.methods.oscar.causal.building import Bases
from condensery.methods.oscar.causal.items import Item, Questions, Source
from condensery.methods.oscar.causal.losses import run_forward
from condensery.methods.oscar.causal.network import merged
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.trainer.questions import TrainingQuestion
from condensery.networks.oscar_causal import CausalPair
from condensery.question import CompressedPassage
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import pair_info, runnable_causal_pair
from condensery.runtime.workers import Workers

ANSWER_TOKENS = 48


def validate(
    pair: CausalPair, bases: Bases, source: Source, recipe: CausalRecipe, *, answers: int
) -> dict[str, object]:
    """Measure a pair in training.

    Args:
        pair: In training.
        bases: Its texts.
        source: Rows held out.
        recipe: How they are read.
        answers: Of how many the pair, as it would serve, answers the question.

    Returns:
        ``label``, the cross-entropy of the labels read from compressed passages; ``rerank``, the
        mean squared error of the relevance, and ``first``, how often the best passage is the
        teacher's too (0 to 1), where rows have scores; ``em`` and ``f1`` in percent.
    """
    count = len(source)
    items = [source.item(number, part=(number + 0.5) / count) for number in range(count)]
    figures: dict[str, object] = {}
    label, errors, first = [], [], []
    for at in range(0, len(items), recipe.rows):
        batch = items[at : at + recipe.rows]
        result = run_forward(pair, batch, bases.texts)
        label += [float(-logprobs.mean()) for logprobs in result.logprobs]
        if result.memories is not None and result.memories.relevance is not None:
            pieces = result.memories.relevance.cpu().split([len(item.readings) for item in batch])
            for relevance, item in zip(pieces, batch, strict=True):
                if item.scores is not None:
                    teacher = torch.tensor(item.scores)
                    errors.append(float((relevance - teacher).square().mean()))
                    first.append(float(relevance.argmax() == teacher.argmax()))
    figures["label"] = fmean(label)
    if errors:
        figures |= {"rerank": fmean(errors), "first": fmean(first)}
    if isinstance(source, Questions) and answers:
        rows = source.rows[:answers]
        texts = answered(pair, bases, items[: len(rows)], rows)
        golds = [row.answers or (row.label,) for row in rows]
        figures |= {
            "em": 100 * fmean(exact_match(a, g) for a, g in zip(texts, golds, strict=True)),
            "f1": 100 * fmean(f1_score(a, g) for a, g in zip(texts, golds, strict=True)),
            "samples": [
                f"{row.question} -> {a} [{row.label}]"
                for row, a in zip(rows[:4], texts, strict=False)
            ],
        }
    return figures


def answered(
    pair: CausalPair, bases: Bases, items: Sequence[Item], rows: Sequence[TrainingQuestion]
) -> list[str]:
    """Answer questions through the reader that serves."""

    async def answer(model: OscarModel, item: Item, row: TrainingQuestion) -> str:
        texts = [
            passage[window.start : window.end]
            for passage, window in zip(row.passages, item.readings, strict=False)
        ]
        memory = []
        for compressed in await model.compress(item.question, texts):
            if not isinstance(compressed, CompressedPassage):
                raise compressed
            memory.append(compressed.memory)
        stream = model.generate(item.question, memory, max_tokens=ANSWER_TOKENS)
        return "".join([token.text async for token in stream])

    async def ask(model: OscarModel) -> list[str]:
        room = asyncio.Semaphore(16)

        async def answer_in_turn(item: Item, row: TrainingQuestion) -> str:
            async with room:
                return await answer(model, item, row)

        return await asyncio.gather(*map(answer_in_turn, items, rows))

    with running(pair, bases) as model:
        return asyncio.run(ask(model))


@contextmanager
def running(pair: CausalPair, bases: Bases) -> Iterator[OscarModel]:
    """Run a copy of a pair in training as it would serve, adapters merged."""
    device = pair.generator.device
    served = CausalPair(bases.shape, *bases.configs).load(
        ((name, weight.clone()) for name, weight in merged(pair)),
        compressor=device,
        generator=device,
        dtype=pair.generator.dtype,
    )
    ready = runnable_causal_pair(served, bases.texts)
    workers = Workers(max(1, torch.get_num_threads()) if device.type == "cpu" else None, device)
    threads = ThreadPoolExecutor(1)
    model = OscarModel(ready, workers, info=pair_info(ready, name="in-training"), threads=threads)
    try:
        yield model
    finally:
        model.close()
        workers.close()
        threads.shutdown()
