"""A running generator: prompts to text, token by token.

What was shown never changes, and what is shown piece by piece joins to the whole answer: a
character, a blank or the beginning of a stop string is held back until it is certain.
"""

import asyncio
from collections import abc
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from condensery.errors import CondenseryError, DeadlineExceeded, InputError
from condensery.networks.caching import BLOCK
from condensery.networks.oscar_interface import PromptPart
from condensery.networks.quoting import Quotes
from condensery.networks.stepping import Stepper, StepperNetwork
from condensery.question import (
    GREEDY,
    MAX_STOP_CHARS,
    MAX_STOPS,
    FinishReason,
    GeneratedToken,
    Likely,
    Sampling,
    TokenLogprob,
)
from condensery.request_context import RequestContext, current_request, loop_deadline
from condensery.runtime.engine import Engine
from condensery.runtime.queue import BatchLimits
from condensery.runtime.scheduler import GeneratorLimits, KVCacheConfig, kv_cache_config
from condensery.runtime.sequence import GenerationRequest, Sequence, TokenEvent
from condensery.runtime.workers import Workers
from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics


# What a decoder puts in the place of bytes that are no whole character (yet).
REPLACEMENT_CHARACTER = "\ufffd"
NO_SPACE_BEFORE = frozenset(".,;:!?%)]}'’”-–—/°")
NO_SPACE_AFTER = frozenset("([{$£€#-–—/'’“")
AFTER_APOSTROPHE = frozenset({"s", "t", "d", "m", "re", "ve", "ll"})
NO_GENERATOR_LIMITS = GeneratorLimits()


def as_tensor(memory: Floats) -> Tensor:
    """Return memory vectors as torch has them, without a copy where it can be."""
    # torch warns of arrays that can't be written, as those are that come from elsewhere; nothing
    # writes to these either way.
    return torch.from_numpy(memory if memory.flags.writeable else memory.copy())


class IncrementalDetokenizer(Protocol):
    """One answer's text, as its tokens come."""

    def push(self, token: int) -> str:
        """Return the text that ``token`` adds; it may be empty, and come with a later one."""
        ...

    def rest(self) -> str:
        """Return what was held back, once no token follows."""
        ...


class WordPieceDetokenizer:
    """Of BERT's word pieces; each blank is decided by the pieces before it alone.

    BERT's pieces are lower-case and know no blanks: "african - american", "1 . 5", "u . s .".
    Hyphens, apostrophes, numbers and initials are put together again.

    Args:
        piece_of: Word piece of an id.
    """

    def __init__(self, piece_of: Callable[[int], str]) -> None:
        self._piece_of = piece_of
        self._last = ""
        self._before_last = ""
        self._quoted = False

    def push(self, token: int) -> str:
        """Return the text that ``token`` adds, its leading blank included."""
        piece = self._piece_of(token)
        if piece.startswith("##"):
            piece, joined = piece[2:], True
        else:
            joined = not self._last or self._closes(piece)
        self._before_last, self._last = self._last, piece
        if piece == '"':
            self._quoted = not self._quoted
        return piece if joined else " " + piece

    def rest(self) -> str:
        """Return nothing: nothing is held back."""
        return ""

    def _closes(self, piece: str) -> bool:
        """Return whether ``piece`` follows the last one without a blank."""
        last, before = self._last, self._before_last
        if '"' in {piece, last} and self._quoted:
            return True  # opened: its text follows, or its end
        if piece in NO_SPACE_BEFORE:
            return True
        if last == ",":  # "10 , 000" and "53 , 42 ##3", but "may 7 , 2016"
            return before.isdigit() and piece.isdigit() and max(len(before), len(piece)) <= 3
        if last in {".", ":"} and before[-1:].isdigit() and piece[:1].isdigit():
            return True  # "1 . 5", "11 : 28"
        if last == ".":  # "u . s . army"
            return len(before) == len(piece) == 1 and before.isalpha() and piece.isalpha()
        if last in {"'", "’"} and before.endswith("s"):  # "the mongols ' army", "ross ' s"
            return piece in AFTER_APOSTROPHE
        return last in NO_SPACE_AFTER


class DecodingDetokenizer:
    """Of any tokenizer: by decoding the last tokens with and without the new one.

    A character may take several tokens of bytes; it is shown when it is whole. The tokens
    decoded begin one delta early, since decoders drop a leading blank.

    Args:
        decode: Text of token ids, special ones left out.
    """

    def __init__(self, decode: Callable[[abc.Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._known = 0  # tokens, at the beginning, whose text is shown
        self._shown = ""  # theirs

    def push(self, token: int) -> str:
        """Return the text that ``token`` adds."""
        self._ids.append(token)
        text = self._decode(self._ids)
        # A token that is no character ever, at worst, is shown when the next whole one is.
        if text.endswith(REPLACEMENT_CHARACTER) or len(text) <= len(self._shown):
            return ""
        return self._show(text)

    def rest(self) -> str:
        """Return what was held back, broken characters as their sign."""
        return self._show(self._decode(self._ids)) if self._ids else ""

    def _show(self, text: str) -> str:
        delta = text[len(self._shown) :]
        self._ids = self._ids[self._known :]
        self._known = len(self._ids)
        self._shown = self._decode(self._ids)
        return delta


class StopStrings:
    """Ends a text before the first of some strings, and shows no part of one meanwhile.

    Raises:
        InputError: One is empty or too long, or there are too many.
    """

    def __init__(self, stops: abc.Sequence[str] = ()) -> None:
        if len(stops) > MAX_STOPS:
            raise InputError.at(
                "stop", f"{len(stops)} strings, over the limit of {MAX_STOPS}", len(stops)
            )
        for place, stop in enumerate(stops):
            if not 0 < len(stop) <= MAX_STOP_CHARS:
                raise InputError(
                    f"stop[{place}] has {len(stop)} characters, not 1 to {MAX_STOP_CHARS}",
                    field=f"stop[{place}]",
                    value=len(stop),
                )
        self._stops = tuple(stops)
        self._unshown = ""

    def push(self, delta: str) -> tuple[str, bool]:
        """Return what may be shown now, and whether the text has ended."""
        if not self._stops:
            return delta, False
        text = self._unshown + delta
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self._unshown = ""
            return text[: min(places)], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._unshown = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def rest(self) -> str:
        """Return what was held back, once nothing follows."""
        rest, self._unshown = self._unshown, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Return how many of the last characters of ``text`` begin ``stop``, all of it not counted."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0


class TokenGenerator(Protocol):
    """What continues a pair's prompts: ``Generator`` here, ``GeneratorServer`` on another server.

    Attributes:
        writer: The model's name on another server; None: it is here.
        unready: Why it can't be used now, though it may later; None: it can.
    """

    @property
    def writer(self) -> str | None:  # noqa: D102  as the class says
        ...

    @property
    def unready(self) -> str | None:  # noqa: D102  as the class says
        ...

    @property
    def busy(self) -> bool:
        """Whether answers are under way, or wait."""
        ...

    async def start(self) -> bool:
        """See whether it can be used; called in the event loop, before the first answer."""
        ...

    def watch(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``unready`` is another than before."""
        ...

    def free_positions(self, prompt: abc.Sequence[PromptPart], size: int, max_tokens: int) -> int:
        """Return the positions that a prompt and its answer leave free; negative: too long."""
        ...

    def expected_seconds(self, positions: int) -> float:
        """Return about how many seconds a prompt takes to its first token; 0 if unknown."""
        ...

    def generate(
        self,
        prompt: abc.Sequence[Floats | PromptPart],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: abc.Sequence[str] = (),
        quotes: Quotes | None = None,
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Continue a prompt."""
        ...

    def close(self) -> None:
        """Refuse new answers."""
        ...


class AnswerText:
    """One answer's text, as its tokens come.

    Args:
        name: Text of one token, for reports of log-probabilities.
    """

    def __init__(
        self, detokenizer: IncrementalDetokenizer, stops: StopStrings, name: Callable[[int], str]
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._name = name

    def show(self, event: TokenEvent, waited: float = 0.0) -> GeneratedToken:
        """Turn a token into what may be shown once it is there; ``waited`` as GeneratedToken's."""
        finish, text, stopped, choice = event.finish, "", False, event.token
        logprob = None
        if finish != "stop":  # what stops is no part of the answer
            text, stopped = self._stops.push(self._detokenizer.push(choice.id))
            if choice.logprob is not None:
                top = tuple(Likely(self._name(token), value) for token, value in choice.top)
                logprob = TokenLogprob(self._name(choice.id), choice.logprob, top)
        if finish is not None and not stopped:
            rest, stopped = self.rest()
            text += rest
        ended = "stop" if stopped else finish
        return GeneratedToken(text, event.count, ended, choice.id, logprob, waited)

    def rest(self) -> tuple[str, bool]:
        """Return what was held back, once no token follows, and whether a stop string is in it."""
        rest, stopped = self._stops.push(self._detokenizer.rest())
        return rest if stopped else rest + self._stops.rest(), stopped


@dataclass(frozen=True, slots=True)
class GeneratorBounds:
    """What a generator has room for.

    Attributes:
        longest: Positions of the longest prompt with its answer.
        cache_positions: Of its key/value cache, whole blocks.
    """

    longest: int
    cache_positions: int

    def free_positions(self, prompt: abc.Sequence[PromptPart], size: int, max_tokens: int) -> int:
        """Return the positions that a prompt and its answer leave free; negative: too long.

        Args:
            size: Positions that it takes, separators included.
        """
        # The engine reserves one for a separator after each part; the last token is never read.
        reserved = GenerationRequest(prompt, max_tokens).prompt_positions + max_tokens - 1
        return min(self.longest - size - max_tokens, self.cache_positions - reserved)


class Generator:
    """Streams answers; all that are under way share each step (``Engine``).

    Args:
        network: The pair's generator; its backbone's attention is replaced.
        detokenizer: Makes one answer's text of its tokens.
        stop_ids: Tokens that end an answer.
        name: Text of one token, for reports of log-probabilities.
        prefix: Ids of tokens that prompts begin with.
        cache: What may run at the same time; by default what suits, within ``generator_limits``.
        generator_limits: What the operator allows the generator to hold.

    Attributes:
        bounds: What it has room for.

    Raises:
        CorruptModel: The backbone does not run in steps.
        SettingError: The limits leave no room for a cache.
    """

    writer: None = None
    unready: None = None

    def __init__(
        self,
        network: StepperNetwork,
        detokenizer: Callable[[], IncrementalDetokenizer],
        stop_ids: frozenset[int],
        workers: Workers,
        *,
        model: str,
        name: Callable[[int], str] = str,
        prefix: abc.Sequence[int] = (),
        limits: BatchLimits | None = None,
        cache: KVCacheConfig | None = None,
        generator_limits: GeneratorLimits = NO_GENERATOR_LIMITS,
        metrics: "Metrics | None" = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._model = model
        self._stop_ids = stop_ids
        self._name = name
        stepper = Stepper(network)
        cache = cache or kv_cache_config(stepper, generator_limits)
        self.bounds = GeneratorBounds(stepper.longest, cache.positions // BLOCK * BLOCK)
        self._engine = Engine(
            *(stepper, workers),
            model=model,
            limits=limits,
            cache=cache,
            prefix=prefix,
            metrics=metrics,
        )

    async def start(self) -> bool:
        """Return True: it is here."""
        return True

    def watch(self, callback: Callable[[], None]) -> None:
        """Never call ``callback``: it is here, and stays."""

    def free_positions(self, prompt: abc.Sequence[PromptPart], size: int, max_tokens: int) -> int:
        """Return the positions that a prompt and its answer leave free; negative: too long.

        Args:
            size: Positions that it takes, separators included.
        """
        return self.bounds.free_positions(prompt, size, max_tokens)

    def expected_seconds(self, positions: int) -> float:
        """Return about how many seconds a prompt takes to its first token, as measured so far.

        0 if too little has run yet. What waits before it is left out.
        """
        return self._engine.expected_seconds(positions)

    async def generate(
        self,
        prompt: abc.Sequence[Floats | PromptPart],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: abc.Sequence[str] = (),
        quotes: Quotes | None = None,
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Continue a prompt.

        Args:
            prompt: Parts in order: memory vectors (vectors, hidden), or token ids.
            stop: Strings that end the answer; neither they nor what follows is shown.
            quotes: What the answer has to be a stretch of; None: it may be anything.

        Raises:
            InputError: A stop string is empty, or the answer would not fit.
            Overloaded: Too much waits before it.
            DeadlineExceeded: The caller's time ran out, before or between steps.
            ModelFault: A step failed.
            Unavailable: Closed.
        """
        call = current_request()
        shown_text = AnswerText(self._detokenizer(), StopStrings(stop), self._name)
        parts = [as_tensor(part) if isinstance(part, np.ndarray) else part for part in prompt]
        sequence = self._engine.begin(
            GenerationRequest(parts, max_tokens, self._stop_ids, sampling, quotes)
        )
        finish: FinishReason | None = None
        shown = 0
        try:
            while True:
                event = await _next_event(sequence, call)
                shown = event.count
                token = shown_text.show(event, sequence.waited)
                finish = token.finish
                if finish is not None:  # by a stop string, perhaps: the engine knows of none
                    self._engine.leave(sequence)
                yield token
                if finish is not None:
                    return
        except DeadlineExceeded:
            self._engine.leave(sequence, "deadline")
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._engine.leave(sequence, "deadline" if call.seconds_left <= 0 else "client")
            raise
        finally:
            self._engine.leave(sequence)
            sequence.end_trace(self._model, finish, shown)

    @property
    def busy(self) -> bool:
        """Whether answers are under way, or wait."""
        return self._engine.busy

    def close(self) -> None:
        """Refuse new answers, and end those under way."""
        self._engine.close()


async def _next_event(sequence: Sequence, call: RequestContext) -> TokenEvent:
    """Wait for a sequence's next token, no longer than its caller has time."""
    try:
        async with asyncio.timeout_at(loop_deadline(call)):
            event = await sequence.events.get()
    except TimeoutError:
        raise call.expired() from None
    if isinstance(event, CondenseryError):
        raise event
    return event
