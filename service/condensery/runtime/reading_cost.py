"""What one answer's reading takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from condensery.answers import CompressedPassage
from condensery.networks.accounting import ReadingCosts
from condensery.runtime.pair_texts import Asked, Prompt


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
        question_limit: Tokens of it that the compressor reads at most; None if it cuts none.
    """

    prompt_tokens: int
    context_vectors: int
    positions: int
    flops_used: int
    flops_plain: int
    question_tokens: int
    question_limit: int | None


@dataclass(frozen=True, slots=True)
class Counted:
    """One answer's texts, tokenised and counted: what it takes is arithmetic from here on.

    Attributes:
        flops: The pair's.
        asked: The question, as the compressor reads it.
        prompt: The generator's.
        plain: Positions of a prompt with the text of the same passages.
        window: Tokens of a passage in a full window, beside this question.
    """

    flops: ReadingCosts
    asked: Asked
    prompt: Prompt
    plain: int
    window: int

    def cost(self, read: Sequence[CompressedPassage], *, completion_tokens: int) -> ReadingCost:
        """Count what an answer took.

        Args:
            read: Every passage that the compressor read for it, kept or not.
            completion_tokens: Tokens generated, the one that ends the answer included.
        """
        generating = self.flops.generate(self.prompt.size, completion_tokens)
        return ReadingCost(
            prompt_tokens=self.prompt.text,
            context_vectors=self.prompt.vectors,
            positions=self.prompt.size,
            flops_used=generating + self.compressing(read),
            flops_plain=self.flops.generate(self.plain, completion_tokens),
            question_tokens=self.asked.tokens,
            question_limit=self.asked.limit,
        )

    def compressing(self, read: Sequence[CompressedPassage]) -> int:
        """Return the FLOPs of compressing passages."""
        # One in several windows: each is full, so the windows' tokens can be told.
        return sum(
            one.windows * self.flops.compress(self.asked.read, min(one.tokens_in, self.window))
            for one in read
        )
