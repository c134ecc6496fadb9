"""What running a pair needs of it, whatever its halves are made of.

A pair is three parts: texts (tokens and prompts, no tensors but memory), a compressor and a
generator. ``oscar_bert`` and ``oscar_causal`` have them.

    for windows in texts.make_windows(question, passages): ...   # windows of each passage
    memories = compressor.compress(windows)                  # one forward pass
    embeds = generator.embed(texts.prompt(question, kept))   # then forward and logits, step by step
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from tokenizers import Tokenizer
from torch import Tensor

from condensery.networks.quoting import Quotes

Characters: TypeAlias = tuple[int, int]  # of a text: the first, and the one after the last
# Of a prompt: token ids, or the vectors (vectors, hidden) that stand in the place of some.
PromptPart: TypeAlias = Sequence[int] | Tensor


@dataclass(frozen=True, slots=True)
class PassageWindow:
    """One window of a passage as the compressor reads it, without its memory tokens.

    Attributes:
        ids: Of the whole text.
        head: Tokens before the passage's own: special ones and the question.
        tail: Tokens after it.
        memory: Vectors it becomes.
        start: First character of the passage that the window holds.
        end: After the last one.
        first: Place of the window's first token among the passage's own.
        offsets: Of each of the passage's own tokens its characters of the passage, where a
            compressor points at some; else empty.
    """

    ids: Sequence[int]
    head: int
    tail: int
    memory: int
    start: int
    end: int
    first: int = 0
    offsets: Sequence[tuple[int, int]] = ()

    @property
    def tokens(self) -> int:
        """The passage's own tokens in this window."""
        return len(self.ids) - self.head - self.tail

    def pointed(self, first: int, last: int) -> tuple[int, int] | None:
        """Return the characters of the passage that memory tokens point at; None: at none.

        Args:
            first: The token that the first of them points at, among the passage's own.
            last: The last token of what they point at; before ``first``: they point at nothing.
        """
        return (self.offsets[first][0], self.offsets[last][1]) if last >= first else None


@dataclass(frozen=True, slots=True)
class Memories:
    """What one forward pass gives for several windows.

    Attributes:
        vectors: Of all windows, one after another, (sum of counts, generator hidden size).
        counts: Vectors of each window.
        relevance: Raw score of each, (windows,), fp32; None where the pair has no rerank head.
        pointed: First and last token of the passage that each window's memory tokens point at,
            (windows, 2), the last before the first where they point at none; None where they do
            not point.
    """

    vectors: Tensor
    counts: tuple[int, ...]
    relevance: Tensor | None
    pointed: Tensor | None = None

    def split(self) -> tuple[Tensor, ...]:
        """Return each window's vectors, (its count, generator hidden size)."""
        split: tuple[Tensor, ...] = self.vectors.split(self.counts)
        return split


class PairTexts(Protocol):
    """A pair's tokenizers and prompts; safe to use from several threads."""

    @property
    def stop(self) -> frozenset[int]:
        """Ids that end an answer."""
        ...

    @property
    def positions(self) -> int:
        """Longest prompt with its answer."""
        ...

    @property
    def query_tokens(self) -> int | None:
        """Tokens of a question that the compressor reads at most; None where it reads no question.

        The generator reads all of it.
        """
        ...

    @property
    def text_tokens(self) -> int:
        """Longest text that is compressed at once, question and special tokens included."""
        ...

    @property
    def vectors(self) -> tuple[int, ...]:
        """Memory vectors that a full window may be read at, all of them first.

        Fewer are the first so many of those that the compressor gives.
        """
        ...

    @property
    def rates(self) -> tuple[int, ...]:
        """Tokens a vector, for each of ``vectors``."""
        ...

    @property
    def scores(self) -> bool:
        """Whether the compressor gives relevance too."""
        ...

    def cut(self, question: str) -> tuple[str, int]:
        """Return the question as far as the compressor reads it, and its tokens in whole."""
        ...

    def make_windows(self, question: str, passages: Sequence[str]) -> list[list[PassageWindow]]:
        """Return the windows of each passage, for a question that ``cut`` returned."""
        ...

    def prompt(self, question: str, context: Sequence[Tensor | str]) -> list[PromptPart]:
        """Return the generator's prompt.

        Args:
            question: In whole.
            context: Passages in order, each its memory vectors (vectors, hidden) or its own text.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return an answer's text, special tokens left out."""
        ...

    def quotes(
        self, texts: Sequence[str], pointed: Sequence[Characters | None] = ()
    ) -> Quotes | None:
        """Return what an answer may say that read these texts; None: anything.

        Args:
            texts: As far as they are read.
            pointed: Of each text the characters that its memory vectors point at, None where at
                none, or where its words are read; may be empty.
        """
        ...


class CompressorNetwork(Protocol):
    """Passages, read for a question, to vectors and scores."""

    def compress(self, windows: Sequence[PassageWindow]) -> Memories:
        """Compress and score all of them in one forward pass, without padding."""
        ...

    def cost(self, window: PassageWindow) -> int:
        """Return the positions a window takes, memory tokens included."""
        ...


class GeneratorNetwork(Protocol):
    """A language model over embeddings."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its embeddings."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    def embed(self, parts: Sequence[PromptPart]) -> Tensor:
        """Return a prompt's embeddings, separators included, (1, positions, hidden)."""
        ...

    def said(self, ids: Sequence[int], places: Sequence[int]) -> Tensor:
        """Return the embeddings of an answer's tokens, (tokens, hidden).

        Args:
            ids: The tokens'.
            places: Which token of its answer each is, from 0 on.
        """
        ...

    def __call__(self, embeds: Tensor, **backbone: Any) -> Any:
        """Run the backbone over (batch, positions, hidden); extras go to transformers."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every token after the given states, (..., hidden) to (..., vocabulary)."""
        ...


# What the texts of both kinds of pair do

FULL_WIDTH = 0xFEE0  # from an ASCII character to its full-width twin


def cut_windows(tokens: int, size: int) -> list[tuple[int, int]]:
    """Cut ``tokens`` into windows of at most ``size``, evenly spaced, a quarter overlapping."""
    if tokens <= size:
        return [(0, tokens)]
    count = -(-(tokens - size) // max(1, size * 3 // 4)) + 1
    starts = [round(i * (tokens - size) / (count - 1)) for i in range(count)]
    return [(start, start + size) for start in starts]


class SpecialTokenEscaper:
    """Keeps special tokens out of callers' texts: ``<MEM0>`` in a passage must stay a text.

    Their first character becomes its full-width twin, so that offsets stay as they were.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        names = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
        names.sort(key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names))) if names else None

    def __call__(self, text: str) -> str:
        """Return ``text`` without special tokens, as long as it was."""
        return text if self._pattern is None else self._pattern.sub(self._disguise, text)

    @staticmethod
    def _disguise(match: re.Match[str]) -> str:
        first = ord(match[0][0])
        twin = chr(first + FULL_WIDTH) if 0x21 <= first <= 0x7E else "\ufffd"
        return twin + match[0][1:]
