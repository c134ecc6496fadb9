"""What one answer's reading takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from condensery.answers import CompressedPassage
from condensery.runtime.pair import Pair
from condensery.runtime.pair_texts import CheckedTexts
from condensery.values import Floats


@dataclass(frozen=True, slots=True)
class ReadingCost:
    """What one answer took: FLOPs from config dimensions, tokens as counted.

    Attributes:
        prompt_tokens: Tokens of the generator's prompt that are text, plain passages included.
        context_vectors: Memory vectors in it.
        positions: Positions that the prompt takes: both, and what stands between its parts.
        flops_used: Compression (of all that was read for it) and generation.
        flops_plain: Generation from the text of the passages in context.
        question_tokens: Tokens of the question as asked.
        question_limit: Tokens of it that were read at most.
    """

    prompt_tokens: int
    context_vectors: int
    positions: int
    flops_used: int
    flops_plain: int
    question_tokens: int
    question_limit: int


def cost_of_answer(
    pair: Pair,
    texts: CheckedTexts,
    question: str,
    read: Sequence[CompressedPassage],
    context: Sequence[Floats | str],
    kept: Sequence[str],
    *,
    completion: int,
) -> ReadingCost:
    """Count what an answer took; see ``Reader.cost``."""
    asked = texts.asked(question)
    prompt = texts.prompt_now(question, context)
    plain = texts.prompt_now(question, kept)
    used = pair.cost.generate(prompt.size, completion)
    if read:
        window = pair.window or pair.texts.text_tokens - texts.beside(question)
        for passage in read:
            # One in several windows: each is full, so the windows' tokens can be told.
            size = min(passage.tokens_in, window)
            used += passage.windows * pair.cost.compress(asked.read, size)
    return ReadingCost(
        prompt_tokens=prompt.text,
        context_vectors=prompt.vectors,
        positions=prompt.size,
        flops_used=used,
        flops_plain=pair.cost.generate(plain.size, completion),
        question_tokens=asked.tokens,
        question_limit=asked.limit,
    )
