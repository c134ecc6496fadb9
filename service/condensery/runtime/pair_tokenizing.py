"""Texts and pairs of texts to token ids as a sequence classifier reads them."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from tokenizers import Encoding, Tokenizer

from condensery.errors import InputError
from condensery.runtime.tokenizing import (
    CUT_CHARACTERS_PER_TOKEN,
    INLINE_CHARACTERS,
    TextTokenizer,
    check_text,
)
from condensery.values import Input, Side


@dataclass(frozen=True, slots=True)
class PairTokens:
    """One text, or one pair, as the model reads it.

    Attributes:
        ids: Token ids, special ones included.
        types: As many; 1 for the second text, where the tokenizer tells the two apart.
        cut: Whether the first text was cut, and whether the second was.
    """

    ids: list[int]
    types: list[int]
    cut: tuple[bool, bool]

    @property
    def count(self) -> int:
        """Tokens read, special ones included."""
        return len(self.ids)

    @property
    def truncated(self) -> bool:
        """Whether a text of it was cut."""
        return any(self.cut)


class PairTokenizer:
    """A classifier's tokenizer. What is too long loses tokens of the longer text first.

    That is how sentence-transformers' cross-encoders and TEI cut (``longest_first``).

    Args:
        texts: Tokenises each text by itself.
        threads: Where longer texts are tokenised.
    """

    def __init__(self, texts: TextTokenizer, threads: ThreadPoolExecutor) -> None:
        self._texts = texts
        self._threads = threads
        self.max_tokens = texts.max_tokens
        self._joining: dict[Side, Tokenizer] = {}
        for side in get_args(Side):
            joining = Tokenizer.from_str(texts.tokenizer.to_str())
            joining.no_padding()
            joining.enable_truncation(self.max_tokens, strategy="longest_first", direction=side)
            self._joining[side] = joining
        self._special = [joining.num_special_tokens_to_add(pair) for pair in (False, True)]

    @classmethod
    def load(cls, path: Path, max_tokens: int, threads: ThreadPoolExecutor) -> "PairTokenizer":
        """Read ``tokenizer.json`` in the directory ``path``.

        Raises:
            CorruptModel: It is missing or unreadable.
        """
        return cls(TextTokenizer.load(path, max_tokens, threads), threads)

    def check(self, inputs: Sequence[Input], fields: Sequence[str]) -> int:
        """Check that each text can be tokenised; returns how many characters there are.

        Args:
            inputs: Texts, and pairs.
            fields: What the request calls each text of an input, with ``{}`` for its place.

        Raises:
            InputError: One is over the limit, or no valid Unicode.
        """
        most = self._texts.max_characters
        return sum(
            check_text(text, name.format(place), most)
            for place, one in enumerate(inputs)
            for name, text in zip(fields, _texts(one), strict=False)
        )

    async def tokenise(
        self,
        inputs: Sequence[Input],
        *,
        truncate: bool,
        side: Side = "right",
        field: str,
        first: int = 0,
    ) -> list[PairTokens]:
        """Tokenise what has passed ``check``, in a thread of its own unless it is short.

        Args:
            inputs: Texts, and pairs.
            truncate: Cut what is too long; else refuse it.
            side: Where to cut.
            field: The request's field that holds them, for messages.
            first: The place of the first one in the request.

        Raises:
            InputError: An input is too long, and ``truncate`` is false.
        """
        if sum(len(text) for one in inputs for text in _texts(one)) <= INLINE_CHARACTERS:
            return self._tokenise(inputs, truncate, side, field, first)
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._tokenise, inputs, truncate, side, field, first
        )

    def _tokenise(
        self, inputs: Sequence[Input], truncate: bool, side: Side, field: str, first: int
    ) -> list[PairTokens]:
        different = list(dict.fromkeys(text for one in inputs for text in _texts(one)))
        encoded = dict(zip(different, self._encode(different, truncate, side), strict=True))
        found = []
        for place, one in enumerate(inputs, first):
            parts = [encoded[text] for text in _texts(one)]
            count = sum(map(len, parts)) + self._special[len(parts) - 1]
            if count > self.max_tokens and not truncate:
                where = f"{field}[{place}]"
                raise InputError(
                    f"{where} has {count} tokens, over the model's {self.max_tokens}, and "
                    "truncate is false",
                    field=where,
                    value=count,
                )
            found.append(self._join(parts, side, cut=count > self.max_tokens))
        return found

    def _join(self, parts: Sequence[Encoding], side: Side, *, cut: bool) -> PairTokens:
        joining: Any = self._joining[side]  # whose stubs name each argument
        whole = joining.post_process(*parts)
        parts_cut = [False, False]
        if cut:
            left = whole.sequence_ids
            for number, part in enumerate(parts):
                parts_cut[number] = left.count(number) < len(part)
        return PairTokens(whole.ids, whole.type_ids, (parts_cut[0], parts_cut[1]))

    def _encode(self, texts: Sequence[str], truncate: bool, side: Side) -> list[Encoding]:
        """Tokenise each text without special tokens; of a very long one only what may be read."""
        tokenizer = self._texts.tokenizer
        most = self.max_tokens * CUT_CHARACTERS_PER_TOKEN
        kept = slice(most) if side == "right" else slice(-most, None)
        parts = [text[kept] if truncate else text for text in texts]
        found: list[Encoding] = tokenizer.encode_batch(parts, add_special_tokens=False)
        for place, (text, part) in enumerate(zip(texts, parts, strict=True)):
            # The part tells as much as the text where its outermost word, which the cut may have
            # gone through, lies beyond all that can be read.
            if len(part) < len(text):
                words = found[place].word_ids[:: 1 if side == "right" else -1]
                if len(words) <= self.max_tokens or words[self.max_tokens] == words[-1]:
                    found[place] = tokenizer.encode(text, add_special_tokens=False)
        return found


def _texts(one: Input) -> tuple[str, ...]:
    return (one,) if isinstance(one, str) else one
