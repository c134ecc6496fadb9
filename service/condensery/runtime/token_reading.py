"""One answer of vLLM's, read: events of a stream as tokens, which ids make, and not its text."""

import math
from collections.abc import Mapping
from typing import Any

from condensery.question import FinishReason, GeneratedToken
from condensery.runtime.event_stream import RequestFailure, is_done, parse_event
from condensery.runtime.generator import AnswerText
from condensery.runtime.sequence import SampledToken, TokenEvent

TOKEN_NAME = "token_id:"  # how vLLM names a token, where it is asked for ids


class TokenReading:
    """One answer's tokens being read, event by event.

    Args:
        text: Makes text of them; None where none is wanted.
        logprobs: Likeliest tokens asked for beside each; None: no log-probabilities.
        vocabulary: Tokens that there are.

    Attributes:
        count: Tokens so far, one that stops left out.
        tokens: Those chosen so far.
        first: Whether nothing was seen yet.
        ended: Whether nothing more is wanted.
        theirs: Whether the server has ended it, too.
    """

    def __init__(
        self,
        text: AnswerText | None,
        *,
        max_tokens: int,
        logprobs: int | None,
        stop_ids: frozenset[int],
        vocabulary: int,
    ) -> None:
        self.count = 0
        self.tokens: list[SampledToken] = []
        self.first = True
        self.ended = False
        self.theirs = False
        self._finish: FinishReason = "length"  # as the server says
        self._text = text
        self._max_tokens = max_tokens
        self._logprobs = logprobs
        self._stop_ids = stop_ids
        self._vocabulary = vocabulary

    @property
    def text(self) -> AnswerText:
        """What makes text of the tokens."""
        assert self._text is not None
        return self._text

    def read(self, data: bytes) -> list[GeneratedToken]:
        """Read an event; returns what may be shown of it. Raises as ``take``."""
        shown: list[GeneratedToken] = []
        for event in self.take(data):
            token = self.text.show(event)
            shown.append(token)
            if token.finish is not None:
                self.ended = True
                return shown
        if self.ended:  # by the server, without a token that says why
            rest, _ = self.text.rest()
            shown.append(GeneratedToken(rest, self.count, self._finish))
        return shown

    def take(self, data: bytes) -> list[TokenEvent]:
        """Read an event's tokens.

        Raises:
            RequestFailure: It is no part of an answer.
        """
        if is_done(data):
            raise RequestFailure("cut", "ended its answer without saying why")
        content = parse_event(data, begun=bool(self.tokens))
        if not content["choices"]:
            return []
        choice = content["choices"][0]
        if not isinstance(choice, dict):
            raise RequestFailure("malformed", "sent a choice that is no object")
        finish = choice.get("finish_reason")
        if finish not in (None, "stop", "length"):
            raise RequestFailure("cut", f"ended its answer early, for {finish}")
        events: list[TokenEvent] = []
        for token in self._read_tokens(choice):
            self.tokens.append(token)
            stops = token.id in self._stop_ids
            self.count += not stops
            full = self.count == self._max_tokens
            why: FinishReason | None = "stop" if stops else "length" if full else None
            events.append(TokenEvent(token, self.count, why))
            if why is not None:
                self.ended = True
                break
        if finish is not None:
            self._finish = "stop" if finish == "stop" else "length"
            self.ended = self.theirs = True
        return events

    def _read_tokens(self, choice: Mapping[str, Any]) -> list[SampledToken]:
        ids = choice.get("token_ids")
        if not isinstance(ids, list):
            problem = "sent no token_ids with its text: vLLM has them from 0.10.2 on"
            raise RequestFailure("malformed", problem)
        for token in ids:
            if type(token) is not int or not 0 <= token < self._vocabulary:
                problem = f"sent a token that is none of {self._vocabulary}: {token!r:.40}"
                raise RequestFailure("malformed", problem)
        if self._logprobs is None:
            return [SampledToken(token) for token in ids]
        reported = choice.get("logprobs")
        if not isinstance(reported, dict):
            raise RequestFailure("malformed", "sent no log-probabilities, and was asked for them")
        own, top = reported.get("token_logprobs"), reported.get("top_logprobs")
        if not isinstance(own, list) or not isinstance(top, list):
            raise RequestFailure("malformed", "sent log-probabilities that are no lists")
        if not len(ids) == len(own) == len(top):
            raise RequestFailure("malformed", "sent log-probabilities for other tokens than came")
        return [
            SampledToken(token, _number(value), self._likeliest(others))
            for token, value, others in zip(ids, own, top, strict=True)
        ]

    def _likeliest(self, others: Any) -> tuple[tuple[int, float], ...]:
        if not isinstance(others, dict):
            raise RequestFailure("malformed", "sent likely tokens that are no object")
        pairs: list[tuple[int, float]] = []
        for name, value in others.items():
            number = name.removeprefix(TOKEN_NAME)
            if number == name or not number.isdecimal() or int(number) >= self._vocabulary:
                raise RequestFailure("malformed", f"sent a token's name {name!r:.40}, no token_id")
            pairs.append((int(number), _number(value)))
        # The chosen token is among them, also where it is none of the likeliest.
        pairs.sort(key=lambda pair: -pair[1])
        return tuple(pairs[: self._logprobs])


def _number(value: Any) -> float:
    """Return a log-probability; null is what NaN becomes."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise RequestFailure("malformed", f"sent a log-probability {value!r:.40}")
    return float(value)
