"""Texts to token ids, limits checked, cut to length, off the event loop. No torch."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tokenizers import Tokenizer

from condensery.errors import CorruptModel, InputError, shorten
from condensery.values import TextToken, TruncationDirection, fill_prompt

Returned = TypeVar("Returned")

TOKENIZER = "tokenizer.json"
# A text over this many characters for each token the model reads is refused, not truncated.
MAX_CHARACTERS_PER_TOKEN = 250
# A long text is cut to this many characters a token before it is tokenised (prose has 4 to 5):
# else a text 50 times too long takes 50 times the work, only to be thrown away.
CUT_CHARACTERS_PER_TOKEN = 8
# About what prose has; a request's cost is guessed by it before it is tokenised.
TYPICAL_CHARACTERS_PER_TOKEN = 4
# Fewer characters than this are tokenised in the loop itself: a hop to a thread and back takes
# 60 us and tokenising a query 50 us. 512 characters take about 200 us.
INLINE_CHARACTERS = 512
MAX_TOKEN_ID = 2**32  # what tokenizers count in


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text, or a pair of texts, as the model reads it.

    Attributes:
        ids: Token ids, special ones included, at most the tokenizer's ``max_tokens``.
        truncated: Whether some of it was cut.
    """

    ids: list[int]
    truncated: bool

    @property
    def count(self) -> int:
        """Tokens read, special ones included."""
        return len(self.ids)


class Truncation(NamedTuple):
    """Whether what is too long is cut, and where."""

    truncate: bool
    side: TruncationDirection


class TextTokenizer:
    """A model's tokenizer, with its limits.

    Padding and truncation that its file asks for are switched off: packed sequences have no
    padding, and truncation has to be reported.

    Args:
        max_tokens: Longest sequence, tokens, special ones included.
        threads: Where longer texts are tokenised; shared between models. None makes two.

    Attributes:
        folder: That it was read from, if it was.
    """

    folder: Path | None = None

    def __init__(
        self, tokenizer: Tokenizer, max_tokens: int, threads: ThreadPoolExecutor | None = None
    ) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self._threads = threads or ThreadPoolExecutor(2, thread_name_prefix="tokenizer")
        special: list[int] = tokenizer.encode("a").special_tokens_mask
        self.special_tokens = sum(special)
        # Special tokens stand before and after the text's: [CLS] ... [SEP].
        self._first_special = special.index(0) if 0 in special else len(special)
        self._last_special = special[::-1].index(0) if 0 in special else 0

    @classmethod
    def load(
        cls, path: Path, max_tokens: int, threads: ThreadPoolExecutor | None = None
    ) -> "TextTokenizer":
        """Read ``tokenizer.json`` in the directory ``path``.

        Raises:
            CorruptModel: It is missing or unreadable.
        """
        try:
            tokenizer = Tokenizer.from_file(str(path / TOKENIZER))
        except Exception as error:  # tokenizers raises bare Exception
            raise CorruptModel(f"{path.name}: {TOKENIZER} can't be read: {error}") from error
        made = cls(tokenizer, max_tokens, threads)
        made.folder = path
        return made

    @property
    def max_characters(self) -> int:
        """The longest text that is taken at all."""
        return self.max_tokens * MAX_CHARACTERS_PER_TOKEN

    def check(self, texts: Sequence[str], field: str = "input") -> int:
        """Check that each text can be tokenised; returns how many characters there are.

        Raises:
            InputError: One is over ``max_characters``, or no valid Unicode.
        """
        return sum(
            check_text(text, f"{field}[{place}]", self.max_characters)
            for place, text in enumerate(texts)
        )

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "input",
    ) -> list[TokenizedText]:
        """Tokenise each text with ``prompt`` before it, in this thread.

        Args:
            texts: What to tokenise; "" is the special tokens alone.
            prompt: Put before each text, or round it (``fill_prompt``); cut as one with it, at its
                end, or on the left at its beginning.
            field: The request's field that holds the texts, for messages.

        Raises:
            InputError: A text is over the limits, no valid Unicode, too long and ``truncate`` is
                false, or without any token.
        """
        self.check(texts, field)
        return self._encode(texts, prompt, truncate, side, field)

    async def tokenise(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        truncate: bool = True,
        side: TruncationDirection = "right",
        field: str = "input",
        first: int = 0,
    ) -> list[TokenizedText]:
        """Do what ``encode`` does, in a thread of its own unless the texts are short.

        Texts must have passed ``check``; ``first`` is the place of the first one in the request.
        """
        characters = sum(map(len, texts)) + len(prompt) * len(texts)
        encode = partial(self._encode, texts, prompt, truncate, side, field, first)
        return await run_tokenizing(encode, characters, self._threads)

    def pieces(self, text: str, *, special: bool = True) -> list[TextToken]:
        """Return every token of ``text``, however long it is.

        Args:
            text: That has passed ``check``.
            special: With the special tokens round it.
        """
        encoding: Any = self.tokenizer.encode(text, add_special_tokens=special)
        columns = (encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets)
        return [
            TextToken(number, token, True, None, None)
            if is_special
            else TextToken(number, text[start:end], False, start, end)
            for number, token, is_special, (start, end) in zip(*columns, strict=True)
        ]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True, field: str = "ids") -> str:
        """Return the text of token ids.

        Raises:
            InputError: One is no token's; the tokenizer itself would leave it out.
        """
        for number in dict.fromkeys(ids):
            if not 0 <= number < MAX_TOKEN_ID or self.tokenizer.id_to_token(number) is None:
                raise InputError.at(field, f"{number} is not a token id of the model's.", number)
        text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special)
        return text

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the character span of each token of ``text``, special tokens left out.

        Raises:
            InputError: The text is no valid Unicode.
        """
        if not text.isascii():
            _check_unicode(text, "text")
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return [(int(start), int(end)) for start, end in encoding.offsets]

    def _encode(
        self,
        texts: Sequence[str],
        prompt: str,
        truncate: bool,
        side: TruncationDirection,
        field: str,
        first: int = 0,
    ) -> list[TokenizedText]:
        whole = [fill_prompt(prompt, text) for text in texts] if prompt else list(texts)
        cut = self.max_tokens * CUT_CHARACTERS_PER_TOKEN if truncate else self.max_characters * 2
        short = [text for text in whole if len(text) <= cut]
        # The fast variant leaves out offsets, which only a cut text needs.
        encodings = iter(self.tokenizer.encode_batch_fast(short))
        tokens = []
        for place, text in enumerate(whole):
            if len(text) > cut and (part := self._part(text, cut, side)) is not None:
                tokens.append(TokenizedText(part, truncated=True))
                continue
            encoding = self.tokenizer.encode(text) if len(text) > cut else next(encodings)
            ids: list[int] = encoding.ids
            over = len(ids) > self.max_tokens
            if not ids:  # a language model's tokenizer may add neither a first nor a last token
                where = f"{field}[{first + place}]"
                raise InputError(
                    f"{where} {shorten(text)} has no tokens, and this model's tokenizer adds none "
                    "of its own",
                    field=where,
                    value=shorten(text),
                )
            if over and not truncate:
                where = f"{field}[{first + place}]"
                raise InputError(
                    f"{where} has {len(ids)} tokens, over the model's {self.max_tokens}, "
                    "and truncate is false",
                    field=where,
                    value=len(ids),
                )
            tokens.append(TokenizedText(self._shorten(ids, side) if over else ids, truncated=over))
        return tokens

    def _part(self, text: str, characters: int, side: TruncationDirection) -> list[int] | None:
        """Return the ids that are left of a long text, from so many of its characters alone.

        None if those do not settle it: they have too few tokens, or the outermost kept token
        belongs to the word that the cut may have gone through.
        """
        part = text[:characters] if side == "right" else text[-characters:]
        encoding: Any = self.tokenizer.encode(part)
        if len(encoding.ids) <= self.max_tokens:
            return None
        words = encoding.word_ids
        if side == "right":
            kept, outermost = self.max_tokens - self._last_special - 1, -self._last_special - 1
        else:
            kept, outermost = self._first_special - self.max_tokens, self._first_special
        if words[kept] is None or words[kept] == words[outermost]:
            return None
        return self._shorten(encoding.ids, side)

    def _shorten(self, ids: list[int], side: TruncationDirection) -> list[int]:
        if side == "right":
            end = len(ids) - self._last_special
            return ids[: self.max_tokens - self._last_special] + ids[end:]
        first = self._first_special
        return ids[:first] + ids[first - self.max_tokens :]


async def run_tokenizing(
    work: Callable[[], Returned], characters: int, threads: ThreadPoolExecutor
) -> Returned:
    """Call what tokenises so many characters: in a thread, or in the loop itself if it is short."""
    if characters <= INLINE_CHARACTERS:
        return work()
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def check_text(text: object, where: str, most: int) -> int:
    """Check that a text can be tokenised; returns its characters.

    Args:
        where: The request's field that holds it, for messages.
        most: Characters that it may have.

    Raises:
        InputError: It is no text, too long, or no valid Unicode.
    """
    if not isinstance(text, str):
        raise InputError(
            f"{where} is {shorten(text)}, not a text", field=where, value=shorten(text)
        )
    if len(text) > most:
        raise InputError(
            f"{where} has {len(text)} characters, over the limit of {most}",
            field=where,
            value=len(text),
        )
    if not text.isascii():
        _check_unicode(text, where)
    return len(text)


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} holds a lone surrogate {text[error.start]!r} at character {error.start}",
            field=where,
            value=repr(text[error.start]),
        ) from None
