"""A pair's generator on a server: vLLM with prompt embeddings, which this process feeds.

Prompts are embedded here, memory vectors among the words, and go there as one tensor; token ids
come back as a stream, and become text here. So an answer is what the pair's own generator would
have said, token for token, as far as both compute alike.

What the server holds is not taken on trust: see ``networks.known_answers``. It is asked for its
answers before the first request, again after each failure, and regularly, so that a server that
was down, or that holds another model now, is noticed and taken back without a restart. Nobody's
tensors but our own are sent: vLLM loads them with torch, and must be reachable by no one else
(CVE-2025-62164).
"""

import asyncio
import base64
import io
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import torch

from condensery.errors import CondenseryError, DeadlineExceeded, ModelFault, Unavailable
from condensery.networks.known_answers import KnownAnswer, PromptTable
from condensery.networks.oscar_interface import PromptPart
from condensery.networks.quoting import Quotes
from condensery.question import GREEDY, GeneratedToken, Sampling
from condensery.request_context import RequestContext, current_request
from condensery.runtime.event_stream import (
    LAST_SECONDS,
    AskedServer,
    EventStream,
    RequestFailure,
    StreamClient,
    is_done,
)
from condensery.runtime.generator import (
    AnswerText,
    IncrementalDetokenizer,
    StopStrings,
    as_tensor,
)
from condensery.runtime.queue import NO_METRICS
from condensery.runtime.token_reading import TokenReading
from condensery.values import Floats

if TYPE_CHECKING:
    from condensery.metrics import Metrics

CHECK_SECONDS = 5.0  # between looks at whether it is there; vLLM takes longer to start again
PROBE_SECONDS = 60.0  # between probes while all is well
RECHECK_SECONDS = 1.0  # for which a failed check answers every request
# Natural logarithms: bf16 and other kernels move the likeliest tokens' by some hundredths.
TOLERANCE = 0.3
PROBED_TOKENS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GeneratorServerConfig:
    """Where a pair's generator is, and how it is asked.

    Attributes:
        url: Under which ``/models`` and ``/completions`` are.
        key: Its bearer token; None sends none.
        timeout_seconds: Longest wait for its next tokens, the first included.
        retries: Times that it is asked again, before its first token.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 60.0
    retries: int = 2


class GeneratorServer:
    """Generates as ``Generator`` does, on another server (``TokenGenerator``).

    Args:
        config: Where, and how.
        table: Makes vectors of prompts.
        known: Prompts, and what the pair's own weights say to them; the first is of tokens alone.
        detokenizer: Makes one answer's text of its tokens.
        stop_ids: Tokens that end an answer.
        longest: Positions of the longest prompt with its answer; the server may hold fewer.
        model: The pair's name, by which the server knows its generator.
        name: Text of one token, for reports of log-probabilities.
    """

    def __init__(
        self,
        config: GeneratorServerConfig,
        table: PromptTable,
        known: Sequence[KnownAnswer],
        detokenizer: Callable[[], IncrementalDetokenizer],
        stop_ids: frozenset[int],
        *,
        longest: int,
        model: str,
        name: Callable[[int], str] = str,
        metrics: "Metrics | None" = None,
    ) -> None:
        title = f"The server of {model}'s generator (generator_servers)"
        self._server = AskedServer(title, model, config.key, config.timeout_seconds, config.retries)
        self._client = StreamClient(self._server, metrics or NO_METRICS)
        self._url = config.url
        self._table = table
        rows, self._width = table.words.shape
        self._vocabulary = min(rows, *(len(answer.logprobs) for answer in known))
        self._known = tuple(known)
        self._detokenizer = detokenizer
        self._stop_ids = stop_ids
        self._longest = longest
        self._room = longest  # what of it the server holds
        self._model = model
        self._name = name
        self._running = 0
        self._closed = False
        # Why it is not to be used now; as long as it was never asked, for that.
        self._problem: RequestFailure | None = RequestFailure(
            "unavailable", "was not asked yet whether it holds the pair's generator"
        )
        self._checked = -math.inf
        self._probed = -math.inf
        self._check_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._watchers: list[Callable[[], None]] = []

    # As ``Generator`` has it

    @property
    def writer(self) -> str:
        """The model's name there."""
        return self._model

    def free_positions(self, prompt: Sequence[PromptPart], size: int, max_tokens: int) -> int:
        """Return the positions that a prompt and its answer leave free; negative: too long."""
        del prompt
        return min(self._longest, self._room) - size - max_tokens

    def expected_seconds(self, positions: int) -> float:
        """Return 0: how long it takes there hangs on who else asks, and is not known here."""
        del positions
        return 0.0

    @property
    def busy(self) -> bool:
        """Whether answers are under way."""
        return self._running > 0

    async def generate(
        self,
        prompt: Sequence[Floats | PromptPart],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        quotes: Quotes | None = None,
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Continue a prompt; closing the stream ends the work there, too.

        Args:
            prompt: Parts in order: memory vectors (vectors, hidden), or token ids.
            stop: Strings that end the answer; neither they nor what follows is shown.
            quotes: None: no server can be held to texts.

        Raises:
            InputError: A stop string is empty or too long.
            AnswerServerUnavailable: It can't be reached, or is too busy, for all tries.
            AnswerServerSlow: Its next tokens did not come in time.
            AnswerServerFault: It holds another model, refused us, or sent what is no answer.
            DeadlineExceeded: The caller's time is over.
            ModelFault: The prompt is no finite (positions, hidden).
            Unavailable: Closed.
        """
        if quotes is not None:
            raise ModelFault(f"{self._model}: no server can hold an answer to what it quotes")
        call = current_request()
        parts = [as_tensor(part) if isinstance(part, np.ndarray) else part for part in prompt]
        StopStrings(stop)  # refuses before anything is sent
        call.check()
        self._running += 1
        try:
            body = await asyncio.to_thread(self._make_body, parts, max_tokens, sampling)
            reading = self._read(max_tokens, sampling, stop)

            def attempt() -> AsyncGenerator[GeneratedToken, None]:
                nonlocal reading
                reading = self._read(max_tokens, sampling, stop)
                return self._ask(body, reading, call)

            try:
                async with aclosing(self._client.ask(attempt, call)) as tokens:
                    async for token in tokens:
                        yield token
            except RequestFailure as failure:
                rest, _ = reading.text.rest()
                if rest:
                    yield GeneratedToken(rest, reading.count)
                raise (
                    self._shutting_down() if self._closed else failure.error(self._server)
                ) from failure
        finally:
            self._running -= 1

    async def _ask(
        self, body: bytes, reading: TokenReading, call: RequestContext
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Send one request, and read its answer to the end."""
        await self._require_ready(call)
        call.work_begun = True
        metrics, began = self._client.metrics, time.perf_counter()
        url = f"{self._url}/completions"
        try:
            async with self._client.stream(url, body, call, lambda: reading.count) as events:
                while not reading.ended:
                    for event in await events.next():
                        for token in reading.read(event):
                            if reading.first:
                                reading.first = False
                                seconds = time.perf_counter() - began
                                metrics.answer_server_ttft_seconds.observe(seconds)
                            yield token
                        if reading.ended:
                            break
                if reading.theirs:  # it has ended it: what follows leaves the connection in order
                    await _read_to_the_end(events)
        except RequestFailure as failure:
            self._doubt(failure)
            raise

    def _doubt(self, failure: RequestFailure) -> None:
        """Look again what it holds, after a failure that is no mere load."""
        if self._closed or failure.kind in ("slow", "unavailable", "mismatch"):
            return
        self._probed = -math.inf
        if failure.kind in ("connection", "cut"):  # it may come back as another one
            self._settle(failure)
        else:
            self._checking()

    def _read(self, max_tokens: int, sampling: Sampling, stop: Sequence[str]) -> TokenReading:
        return TokenReading(
            AnswerText(self._detokenizer(), StopStrings(stop), self._name),
            max_tokens=max_tokens,
            logprobs=sampling.logprobs,
            stop_ids=self._stop_ids,
            vocabulary=self._vocabulary,
        )

    def _make_body(
        self,
        prompt: Sequence[PromptPart],
        max_tokens: int,
        sampling: Sampling,
        *,
        as_tokens: bool = False,
    ) -> bytes:
        """Return a request's JSON; ``as_tokens`` sends ids, for the server to embed."""
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": max_tokens,
            "stream": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # All that the model's generation_config.json would set else.
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            # What ends an answer is the pair's to say.
            "ignore_eos": True,
            "stop_token_ids": sorted(self._stop_ids),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            # No two requests share a prefix: where prompts have no tokens, servers have mistaken
            # one for another.
            "cache_salt": secrets.token_hex(16),
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.logprobs is not None:
            body["logprobs"] = sampling.logprobs
        if as_tokens:
            body["prompt"] = [token for part in prompt for token in part]
        else:
            body["prompt_embeds"] = self._encode(prompt)
        return orjson.dumps(body)

    def _encode(self, prompt: Sequence[PromptPart]) -> str:
        """Return a prompt's vectors as vLLM reads them: what torch saves, in base64.

        Raises:
            ModelFault: They are not finite, or of another shape than the generator's.
        """
        embeds = self._table.embed(prompt)[0].cpu()
        wanted = sum(map(len, prompt)), self._width
        if tuple(embeds.shape) != wanted or not bool(embeds.isfinite().all()):
            raise ModelFault(
                f"{self._model}: a prompt came out as {tuple(embeds.shape)}, "
                f"finite: {bool(embeds.isfinite().all())}; wanted {wanted}"
            )
        content = io.BytesIO()
        torch.save(embeds.clone(memory_format=torch.contiguous_format), content)
        return base64.b64encode(content.getbuffer()).decode()

    # Whether it holds what it should

    @property
    def unready(self) -> str | None:
        """Why it can't be used now; None: it can."""
        return None if self._problem is None else self._problem.error(self._server).message

    def watch(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``unready`` is another than before."""
        self._watchers.append(callback)

    async def start(self) -> bool:
        """Look for the first time, and regularly from now on; returns whether it can be used."""
        await asyncio.wait({self._checking()})
        if self._watch_task is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._watch_task = loop.create_task(self._keep_watch(), context=Context())
        return self._problem is None

    def close(self) -> None:
        """Refuse new answers. Those under way end with their callers."""
        if self._closed:
            return
        self._closed = True
        for task in (self._watch_task, self._check_task):
            if task is not None:
                task.cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the loop has ended, and its connections with it
            return
        self._closing = loop.create_task(self._client.close())

    def _shutting_down(self) -> Unavailable:
        return Unavailable(f"{self._model}: shutting down")

    async def _keep_watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.wait({self._checking()})

    def _checking(self) -> "asyncio.Task[None]":
        """Return the check under way; begin one if there is none."""
        if self._check_task is None or self._check_task.done():
            loop = asyncio.get_running_loop()
            # Not in a caller's context: its deadline is not the check's.
            self._check_task = loop.create_task(self._check(), context=Context())
        return self._check_task

    async def _require_ready(self, call: RequestContext) -> None:
        """Raise why it can't be used, having looked again; RequestFailure, Unavailable."""
        if self._closed:
            raise self._shutting_down()
        if self._problem is None:
            return
        if time.monotonic() - self._checked >= RECHECK_SECONDS:
            left = None if math.isinf(call.seconds_left) else max(0.0, call.seconds_left)
            await asyncio.wait({self._checking()}, timeout=left)
            call.check()
        if (problem := self._problem) is not None:
            raise problem.unsent()

    async def _check(self) -> None:
        """See whether it is there, and, where that is due, whether it says what it must."""
        call, was_well = current_request(), self._problem is None
        probing = False
        try:
            await self._check_listed(call)
            probing = not was_well or time.monotonic() - self._probed >= PROBE_SECONDS
            if probing:
                for number, known in enumerate(self._known):
                    await self._check_answer(known, call, as_tokens=number == 0)
                self._probed = time.monotonic()
        except RequestFailure as failure:
            # Too busy for a probe is no reason to send it nothing more.
            if not (probing and was_well and failure.kind in ("slow", "unavailable")):
                self._settle(failure)
        except CondenseryError as error:
            self._settle(RequestFailure("mismatch", f"could not be tried: {error.message}"))
        else:
            self._settle(None)
        finally:
            self._checked = time.monotonic()

    def _settle(self, problem: RequestFailure | None) -> None:
        before, self._problem = self.unready, problem
        if self.unready == before:
            return
        if problem is None:
            _log.info("generator_server_ready", extra={"model": self._model})
        else:
            fields = {"model": self._model, "reason": problem.kind, "detail": self.unready}
            _log.warning("generator_server_unready", extra=fields)
        for callback in self._watchers:
            callback()

    async def _check_listed(self, call: RequestContext) -> None:
        content = await self._client.get(f"{self._url}/models", call)
        entries = content.get("data") if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise RequestFailure("malformed", "lists no models under /models")
        cards: dict[str, Mapping[str, Any]] = {
            str(card.get("id")): card for card in entries if isinstance(card, dict)
        }
        if self._model not in cards:
            names = ", ".join(map(repr, sorted(cards)[:5])) or "none"
            problem = f"serves {names}, not {self._model!r} (--served-model-name {self._model})"
            raise RequestFailure("mismatch", problem)
        most = cards[self._model].get("max_model_len")
        self._room = most if type(most) is int and most > 0 else self._longest

    async def _check_answer(
        self, known: KnownAnswer, call: RequestContext, *, as_tokens: bool
    ) -> None:
        """Compare the next token's log-probabilities with what they must be."""
        likely = Sampling(logprobs=PROBED_TOKENS)
        make = self._make_body
        body = await asyncio.to_thread(make, known.parts, 1, likely, as_tokens=as_tokens)
        reading = TokenReading(
            None,
            max_tokens=1,
            logprobs=PROBED_TOKENS,
            stop_ids=frozenset(),
            vocabulary=self._vocabulary,
        )
        url = f"{self._url}/completions"
        stream = self._client.stream(url, body, call, lambda: reading.count, probe=True)
        async with stream as events:
            while not reading.ended:
                for event in await events.next():
                    reading.take(event)
                    if reading.ended:
                        break
            await _read_to_the_end(events)
        if not reading.tokens:
            raise RequestFailure("malformed", "ended its answer to a probe without a token")
        top = dict(reading.tokens[0].top)
        if not top:
            raise RequestFailure("malformed", "sent no likely tokens, and was asked for them")
        apart = [abs(value - float(known.logprobs[token])) for token, value in top.items()]
        # The likeliest must be among them: else only what is rare was compared.
        best = int(known.logprobs.argmax())
        if best in top and max(apart) <= TOLERANCE:
            return
        off = f"{max(apart):.2g} from what the pair's own weights say"
        if as_tokens:
            problem = f"holds another model than {self._model}: log-probabilities are up to {off}"
        else:
            problem = (
                "answers prompts of vectors wrongly, though it holds the right model: "
                f"log-probabilities are up to {off}; is prefix caching off "
                "(--no-enable-prefix-caching)?"
            )
        raise RequestFailure("mismatch", problem)


async def _read_to_the_end(events: EventStream) -> None:
    """Read what follows an answer, so that its connection can be used again; or let go of it."""
    try:
        async with asyncio.timeout(LAST_SECONDS):
            while not any(is_done(event) for event in await events.next()):
                pass
    except (RequestFailure, DeadlineExceeded, TimeoutError):
        pass  # all that was wanted is there
