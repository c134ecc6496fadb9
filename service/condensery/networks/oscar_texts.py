"""A causal pair's texts: what the compressor reads, and the generator's prompt."""

from collections.abc import Sequence
from itertools import groupby

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from condensery.networks.oscar_bert import BertWindows
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape, GeneratorShape
from condensery.networks.oscar_interface import (
    Characters,
    PassageWindow,
    PromptPart,
    SpecialTokenEscaper,
    cut_windows,
)
from condensery.networks.oscar_shape import longest_question


class CompressorTexts:
    """Question and passages as the compressor's tokenizer reads them.

    Args:
        tokenizer: The compressor's, without truncation or padding.
        shape: The compressor's.

    Attributes:
        query_tokens: Tokens of a question that are read at most; None where it reads none.
    """

    def __init__(self, tokenizer: Tokenizer, shape: CompressorShape) -> None:
        self._tokenizer = tokenizer
        self._shape = shape
        self._neutral = SpecialTokenEscaper(tokenizer)
        # Special tokens that follow the second text of a pair.
        numbers = tokenizer.encode("a", "a").sequence_ids
        self._trailing = next((i for i, n in enumerate(reversed(numbers)) if n is not None), 0)
        self.query_tokens: int | None = None
        if shape.question:
            self.query_tokens = longest_question(shape.text_tokens, self._beside())

    def cut(self, question: str) -> tuple[str, int]:
        """Return the question as far as it is read, and how many tokens it has in whole."""
        encoding = self._tokenizer.encode(self._neutral(question), add_special_tokens=False)
        limit = self.query_tokens
        if limit is None or len(encoding.ids) <= limit:
            return question, len(encoding.ids)
        return question[: encoding.offsets[limit - 1][1]], len(encoding.ids)

    def _beside(self) -> int:
        """Count the tokens of a text that are neither the question's nor the passage's."""
        if self._shape.layout == "pair":
            return len(self._tokenizer.encode("", "").ids)
        special = self._shape.layout != "enclosed"
        return len(self._tokenizer.encode("".join(self._around("")), add_special_tokens=special))

    def make_windows(self, question: str, passages: Sequence[str]) -> list[list[PassageWindow]]:
        """Return the windows of each passage.

        Raises:
            ValueError: The question leaves no room for a passage.
        """
        escaped = self._neutral(question)
        texts = [self._neutral(passage) for passage in passages]
        if self._shape.layout == "pair" and self._shape.question:
            encodings = self._tokenizer.encode_batch([(escaped, text) for text in texts])
            spans = [_second(encoding, self._trailing) for encoding in encodings]
            return [self._cut(*pair, 0) for pair in zip(encodings, spans, strict=True)]
        before, after = self._around(escaped)
        special = self._shape.layout != "enclosed"  # which names its special tokens itself
        encodings = self._tokenizer.encode_batch(
            [f"{before}{text}{after}" for text in texts], add_special_tokens=special
        )
        start = len(before)
        spans = [_inner(e, start, start + len(t)) for e, t in zip(encodings, texts, strict=True)]
        return [self._cut(*pair, start) for pair in zip(encodings, spans, strict=True)]

    def _around(self, question: str) -> tuple[str, str]:
        before = after = ""
        if self._shape.question:
            if self._shape.layout == "lines":
                before = f"Query: {question}\n Document: "
            elif self._shape.layout != "pair":
                # No line break before "Document": the reference has none.
                before = f"\nQuery:\n{question}Document:\n"
        if self._shape.layout == "enclosed":
            before, after = f"{self._shape.text_before}{before}", self._shape.text_after
        return before, after

    def _cut(self, encoding: Encoding, span: tuple[int, int], shift: int) -> list[PassageWindow]:
        """Cut an encoding into windows.

        Args:
            encoding: Of the whole text.
            span: The passage's tokens in it.
            shift: Characters before the passage.
        """
        ids, offsets, (first, last) = encoding.ids, encoding.offsets, span
        head, tail = ids[:first], ids[last:]
        room = self._shape.text_tokens - len(head) - len(tail)
        if room < 1:
            raise ValueError(
                f"the question leaves no room for a passage: {len(head) + len(tail)} tokens "
                f"of {self._shape.text_tokens}"
            )
        windows = []
        for a, b in cut_windows(last - first, room):
            text = [*head, *ids[first + a : first + b], *tail]
            start = offsets[first + a][0] - shift if b > a else 0
            end = offsets[first + b - 1][1] - shift if b > a else 0
            windows.append(
                PassageWindow(
                    ids=text,
                    head=len(head),
                    tail=len(tail),
                    memory=self._shape.memory_of(len(text)),
                    # The first token may hold characters from before the passage too.
                    start=max(start, 0),
                    end=end,
                    first=a,
                )
            )
        return windows


def _second(encoding: Encoding, trailing: int) -> tuple[int, int]:
    """Return which tokens are the second text of a pair, which ``trailing`` tokens follow."""
    end = len(encoding.ids) - trailing
    return end - encoding.sequence_ids.count(1), end


def _inner(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """Return which tokens hold characters ``start`` to ``end``."""
    own = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    before = [i for i in own if encoding.offsets[i][1] <= start]
    inside = [i for i in own if encoding.offsets[i][1] > start and encoding.offsets[i][0] < end]
    if inside:
        return inside[0], inside[-1] + 1
    leading = next((i for i, s in enumerate(encoding.special_tokens_mask) if not s), len(encoding))
    place = before[-1] + 1 if before else leading
    return place, place


class GeneratorTexts:
    """The generator's prompt, and its answers' text.

    Args:
        tokenizer: The generator's, the memory tokens and separators among its special tokens.
        shape: The generator's.

    Raises:
        ValueError: The tokenizer lacks a memory token, or every token that ends an answer.
    """

    def __init__(self, tokenizer: Tokenizer, shape: GeneratorShape) -> None:
        self._tokenizer = tokenizer
        self._shape = shape
        self._neutral = SpecialTokenEscaper(tokenizer)
        ids = {name: tokenizer.token_to_id(name) for name in shape.memory}
        if missing := sorted(name for name, number in ids.items() if number is None):
            raise ValueError(f"the generator's tokenizer has no {', '.join(missing)}")
        if not any(tokenizer.id_to_token(number) for number in shape.stop):
            raise ValueError(f"the generator's tokenizer has no token {list(shape.stop)} (stop)")
        self._memory = frozenset(ids.values())

    def prompt(self, question: str, context: Sequence[Tensor | str]) -> list[PromptPart]:
        """Return the prompt; each passage is memory vectors (vectors, hidden), or its text."""
        ids = self._encode(question, [self._passage(passage) for passage in context])
        memories = (passage for passage in context if isinstance(passage, Tensor))
        vectors = (vector for memory in memories for vector in memory)
        parts: list[PromptPart] = []
        for is_slot, run in groupby(ids, key=self._memory.__contains__):
            tokens = list(run)
            parts.append(torch.stack([next(vectors) for _ in tokens]) if is_slot else tokens)
        return parts

    def decode(self, ids: Sequence[int]) -> str:
        """Return an answer's text, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _passage(self, passage: Tensor | str) -> str:
        if isinstance(passage, str):
            return f"{self._neutral(passage)}{self._shape.plain_after}"
        names = self._shape.memory
        slots = "".join(names[i % len(names)] for i in range(len(passage)))
        return f"{slots}{self._shape.passage_after}"

    def _encode(self, question: str, passages: Sequence[str]) -> list[int]:
        shape = self._shape
        numbered = (
            f"{shape.passage_before.replace('{number}', str(number))}{text}"
            for number, text in enumerate(passages)
        )
        escaped = self._neutral(question.strip() if shape.strip else question)
        text = f"{shape.before}{''.join(numbered)}{shape.between}{escaped}{shape.after}"
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class CausalTexts:
    """Both halves' texts; see ``oscar_interface.PairTexts``."""

    def __init__(
        self,
        compressor: CompressorTexts | BertWindows,
        generator: GeneratorTexts,
        shape: CausalShape,
    ) -> None:
        self._compressor = compressor
        self._generator = generator
        self._shape = shape
        self.stop = frozenset(shape.generator.stop)
        self.positions = shape.generator.positions
        self.query_tokens = compressor.query_tokens
        self.text_tokens = shape.compressor.text_tokens
        self.vectors = shape.compressor.vectors
        self.rates = shape.compressor.rates
        self.scores = shape.compressor.rerank
        self.cut = compressor.cut
        self.make_windows = compressor.make_windows
        self.prompt = generator.prompt
        self.decode = generator.decode

    def quotes(self, texts: Sequence[str], pointed: Sequence[Characters | None] = ()) -> None:
        """Hold no answer to anybody's words: a language model writes its own."""
