"""Questions asked of a running pair, as the service would, and what each took."""

import asyncio
import math
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from condensery.errors import CondenseryError
from condensery.question import CompressedPassage
from condensery.runtime.oscar import OscarModel
from condensery.values import Floats

ANSWER_TOKENS = 24


async def run_concurrently(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them; one that fails, or a caller who leaves, ends the others first."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer, and what it took.

    Attributes:
        answer: Its text.
        given: Passages that there were.
        read: Those that the generator read.
        left_out: Those that it should have read and had no room for.
        relevance: Of the best scored passage, 0 to 1; None where nothing is scored.
        first: Which passage that is, -1 for none.
        vectors: Memory vectors in the prompt.
        positions: Positions of the prompt, vectors included.
        flops: Of compressing what was given and generating the answer, analytic.
        place: Which question it is.
        elapsed: Seconds that this setting had taken when the answer was there.
    """

    answer: str
    given: int
    read: int
    left_out: int
    relevance: float | None
    first: int
    vectors: int
    positions: int
    flops: int
    place: int = -1
    elapsed: float = 0.0


async def ask(
    model: OscarModel,
    question: str,
    passages: Sequence[str],
    *,
    keep: int | None = None,
    plain: bool = False,
    scored: bool = True,
    max_tokens: int = ANSWER_TOKENS,
) -> Outcome:
    """Answer a question from its passages.

    Args:
        model: The running pair.
        question: What is asked.
        passages: In the order of retrieval.
        keep: How many the generator reads, the first or the best; None for all.
        plain: Read their tokens instead of memory vectors; nothing is compressed then.
        scored: Order them by the pair's own scores, best first; else they keep their order.
        max_tokens: Most tokens of the answer.

    Raises:
        CondenseryError: A passage could not be compressed, or the question not be answered: an
            evaluation that leaves some out measures something else.
    """
    compressed = [] if plain else await _compress(model, question, passages)
    scores = [passage.relevance or 0.0 for passage in compressed]
    best = sorted(range(len(compressed)), key=lambda place: -scores[place])
    rates = compressed and compressed[best[0]].relevance is not None
    order = best if scored and rates else range(len(compressed))
    context: list[Floats | str] = (
        list(passages[:keep])
        if plain
        else [compressed[place].memory for place in list(order)[:keep]]
    )
    wanted = len(context)
    context = context[: count_fitting(model, question, context, max_tokens)]
    read = len(context)
    if compressed and not rates:  # all windows of long passages, as the service reads them
        kept = list(order)[:read]
        windows = [memory for place in kept for memory in compressed[place].memories]
        if model.free_positions_for(question, windows, max_tokens) >= 0:
            context = list(windows)
    taken = [] if plain else [(compressed[place], passages[place]) for place in order][:read]
    texts = list(passages[:read]) if plain else [read_text(*passage) for passage in taken]
    pointed = [_read_pointer(passage) for passage, _ in taken]
    text, count = "", 0
    stream = model.generate(question, context, max_tokens=max_tokens, texts=texts, pointed=pointed)
    async for token in stream:
        text += token.text
        count = token.count
    cost = model.count_cost(question, compressed, context, [], completion_tokens=count)
    return Outcome(
        answer=text,
        given=len(passages),
        read=read,
        left_out=wanted - read,
        relevance=sigmoid(scores[best[0]]) if rates else None,
        first=best[0] if rates else -1,
        vectors=cost.context_vectors,
        positions=cost.positions,
        flops=cost.flops_used,
    )


def read_text(compressed: CompressedPassage, passage: str) -> str:
    """Return what is read of a passage: of several scored windows, the best."""
    return passage[compressed.start : compressed.end] if _reads_one(compressed) else passage


def _read_pointer(compressed: CompressedPassage) -> tuple[int, int] | None:
    """Return the characters of what is read of a passage that its memory points at."""
    if compressed.pointer is None:
        return None
    first = compressed.start if _reads_one(compressed) else 0
    return compressed.pointer[0] - first, compressed.pointer[1] - first


def _reads_one(compressed: CompressedPassage) -> bool:
    """Whether of several windows the best one alone is read."""
    return compressed.windows > 1 and compressed.relevance is not None


async def _compress(
    model: OscarModel, question: str, passages: Sequence[str]
) -> list[CompressedPassage]:
    if not passages:
        return []
    return [compressed_or_raise(passage) for passage in await model.compress(question, passages)]


def compressed_or_raise(result: CompressedPassage | CondenseryError) -> CompressedPassage:
    """Return a compressed passage, or raise its error."""
    if isinstance(result, CondenseryError):
        raise result
    return result


def count_fitting(
    model: OscarModel, question: str, context: Sequence[Floats | str], max_tokens: int
) -> int:
    """Return how many passages, from the first, fit the generator beside question and answer.

    Like the service, an evaluation leaves out the last ones where there is no room for all.
    """
    least, most = 0, len(context)
    tried = most
    while least < most:
        if model.free_positions_for(question, context[:tried], max_tokens) >= 0:
            least = tried
        else:
            most = tried - 1
        tried = (least + most + 1) // 2
    return least


def sigmoid(score: float) -> float:
    """Return a raw score as the service shows it, 0 to 1."""
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))
