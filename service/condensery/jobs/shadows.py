"""Shadows: a share of answers computed a second time, from plain text, to see how far both agree.

What compression costs in quality shows only where the same passages are read as text as well. That
is done in idle time alone: while no request is inside. A request that comes ends the shadow that is
under way, and what is left of it to wait for is one short step of a generator (``background`` of
``RequestContext``), or a prompt where that has to be read whole. Nobody hears of a shadow: it is
counted, by model, and its texts are let go.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass

from condensery.agreement import exact_match, f1_score
from condensery.errors import InputError, ModelNotFound, Overloaded, Unavailable
from condensery.jobs.answer import closing
from condensery.jobs.grounding import AnswerWords, PassageRead
from condensery.jobs.interfaces import GeneratorPrompt, ModelRegistry, OscarModel
from condensery.jobs.selection import LIKELY_CHARACTERS, SelectedContext
from condensery.jobs.services import Admission, Health
from condensery.metrics import Metrics, ShadowOutcome
from condensery.question import Answer, Question, says_not_found
from condensery.request_context import RequestContext, serving_request
from condensery.values import ModelInfo

MOST_WAITING = 4
PATIENCE_SECONDS = 60.0  # for idle time; then its texts are let go
MOST_SECONDS = 30.0  # that one may compute
# Without a request, before one begins: a caller who asks one question after another leaves shorter
# gaps, in each of which a shadow would only begin.
QUIET_SECONDS = 0.05
CALLER = "(shadow)"  # no key's name, nor an address

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shadow:
    """An answer that is to be computed again, and what it was read from.

    Attributes:
        model: The pair that answered.
        fingerprint: Its version's.
        passages: As far as they were read, best first.
        expires: When it has waited long enough, seconds of the loop's time.
    """

    model: str
    fingerprint: str
    query: str
    passages: tuple[str, ...]
    max_tokens: int
    stop: tuple[str, ...]
    answer: str
    expires: float


def measure_agreement(answer: str, other: str) -> tuple[bool, float]:
    """Return whether two answers say the same, and the F1 of their words, as SQuAD has both.

    The sentence that there is no answer counts as none: two of these agree, one alone does not.
    """
    one, two = ("" if says_not_found(text) else text for text in (answer, other))
    return bool(exact_match(one, [two])), f1_score(one, [two])


class Shadows:
    """Computes shadows one at a time, while no request is inside and all is well.

    Used in the event loop's thread alone.

    Args:
        share: Of the answers read from vectors, 0 to 1.
        model: The pair that reads the text; None is the one that answered.
        draw: Returns a number from [0, 1) for each answer.
        quiet_seconds: Without a request before a shadow begins.
        most_seconds: That it may compute.
        patience_seconds: That it may wait to begin.
    """

    def __init__(
        self,
        share: float,
        model: str | None,
        registry: ModelRegistry,
        admission: Admission,
        health: Health,
        metrics: Metrics,
        *,
        draw: Callable[[], float] = random.random,
        quiet_seconds: float = QUIET_SECONDS,
        most_seconds: float = MOST_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._share = share
        self._model = model
        self._registry = registry
        self._admission = admission
        self._health = health
        self._metrics = metrics
        self._draw = draw
        self._quiet_seconds = quiet_seconds
        self._most_seconds = most_seconds
        self._patience_seconds = patience_seconds
        self._waiting: deque[Shadow] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._computing: asyncio.Task[ShadowOutcome] | None = None
        self._cause: ShadowOutcome = "late"  # why what computes is cut off, if it is
        self._idle = asyncio.Event()
        self._arrivals = 0  # how often idle time has ended
        admission.watch(self._update)
        health.watch(lambda _: self._update())
        self._update()

    def offer(
        self, pair: ModelInfo, question: Question, selected: SelectedContext, answer: Answer
    ) -> None:
        """Take an answer for a shadow, where it is drawn; its caller waits for nothing of it.

        Only what was read from vectors, and not sampled, has something to compare.
        """
        nothing = answer.finish_reason == "not_found" or not selected.as_vectors
        if nothing or question.temperature > 0 or self._draw() >= self._share:
            return
        if self._health.draining or len(self._waiting) >= MOST_WAITING:
            self._count(pair.name, "draining" if self._health.draining else "busy")
            return
        shadow = Shadow(
            model=pair.name,
            fingerprint=pair.fingerprint,
            query=question.query,
            passages=tuple(selected.texts),
            max_tokens=question.max_tokens,
            stop=tuple(question.stop),
            answer=answer.answer,
            expires=asyncio.get_running_loop().time() + self._patience_seconds,
        )
        self._waiting.append(shadow)
        if self._runner is None or self._runner.done():
            # Not in the caller's context: neither its deadline nor its trace are the shadow's.
            loop = asyncio.get_running_loop()
            self._runner = loop.create_task(self._run(), context=Context())

    async def close(self) -> None:
        """Drop what waits and what computes; returns once nothing does."""
        self._drop_all("draining")
        if self._runner is not None:
            await asyncio.wait({self._runner})

    def _update(self) -> None:
        """Note whether there is idle time, and give way where there is none."""
        if self._admission.requests == 0 and self._health.ready:
            self._idle.set()
        elif self._health.draining:
            self._idle.clear()
            self._drop_all("draining")
        elif self._idle.is_set():
            self._idle.clear()
            self._arrivals += 1
            self._cut_off("busy")

    def _drop_all(self, cause: ShadowOutcome) -> None:
        while self._waiting:
            self._count(self._waiting.popleft().model, cause)
        if self._computing is not None:
            self._cut_off(cause)
        elif self._runner is not None:  # it only waits
            self._runner.cancel()

    def _cut_off(self, cause: ShadowOutcome) -> None:
        if self._computing is not None and self._computing.cancel():
            self._cause = cause

    async def _run(self) -> None:
        """Compute what waits, one after the other."""
        while self._waiting:
            idle = await self._wait_until_idle(self._waiting[0].expires)
            await self._take(idle=idle)  # whose end lets go of the texts

    async def _take(self, *, idle: bool) -> None:
        shadow = self._waiting.popleft()
        self._count(shadow.model, await self._compute(shadow) if idle else "busy")

    async def _wait_until_idle(self, until: float) -> bool:
        """Return once nobody has asked for anything for a moment; False if that does not come."""
        try:
            async with asyncio.timeout_at(until):
                while True:
                    await self._idle.wait()
                    arrivals = self._arrivals
                    await asyncio.sleep(self._quiet_seconds)
                    if self._idle.is_set() and arrivals == self._arrivals:
                        return True
        except TimeoutError:
            return False

    async def _compute(self, shadow: Shadow) -> ShadowOutcome:
        """Compute a shadow, as far as it comes; returns what became of it."""
        self._cause = "late"
        self._computing = task = asyncio.create_task(self._answer(shadow))
        try:
            await asyncio.wait({task}, timeout=self._most_seconds)
            task.cancel()
            await asyncio.wait({task})  # until it has given back what it held
        finally:
            self._computing = None
        if task.cancelled():
            return self._cause
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, Overloaded):
            return "busy"
        if isinstance(error, (ModelNotFound, Unavailable)):
            return "gone"
        _log.warning("shadow_failed", extra={"model": shadow.model}, exc_info=error)
        return "failed"

    async def _answer(self, shadow: Shadow) -> ShadowOutcome:
        """Answer from the same passages as text, and count how far both answers agree.

        Raises:
            Exception: Whatever the pair raises.
        """
        with serving_request(RequestContext(caller=CALLER, background=True)):
            pair = self._registry.pair(self._model or shadow.model)
            if self._model is None and pair.info.fingerprint != shadow.fingerprint:
                return "gone"
            # In threads, since the texts may be long and the loop is the callers'.
            prompt = await asyncio.to_thread(_make_prompt, pair, shadow)
            if prompt is None:
                return "too_long"
            quotes = await asyncio.to_thread(pair.quotes, shadow.passages)
            text, cut = await _generate(pair, prompt, quotes, shadow)
            text = await asyncio.to_thread(_in_the_sources_words, text, shadow, cut=cut)
        exact, f1 = measure_agreement(shadow.answer, text)
        self._metrics.shadow_agreement.labels(shadow.model).observe(f1)
        self._metrics.shadow_exact.labels(shadow.model).inc(exact)
        return "done"

    def _count(self, model: str, outcome: ShadowOutcome) -> None:
        self._metrics.shadows.labels(model, outcome).inc()


def _make_prompt(pair: OscarModel, shadow: Shadow) -> GeneratorPrompt | None:
    """Return the prompt with all passages as text; None where they do not fit.

    With fewer passages than the answer was read from, it would be these that are compared.
    """

    def make(passages: Sequence[str]) -> tuple[GeneratorPrompt, int]:
        prompt = pair.make_prompt(shadow.query, passages)
        return prompt, pair.free_positions(prompt, shadow.max_tokens)

    try:
        _, free = make([])
        if sum(map(len, shadow.passages)) > LIKELY_CHARACTERS * max(0, free):
            return None  # not worth the tokenising
        prompt, free = make(shadow.passages)
    except InputError:  # another pair takes shorter texts
        return None
    return prompt if free >= 0 else None


async def _generate(
    pair: OscarModel, prompt: GeneratorPrompt, quotes: object, shadow: Shadow
) -> tuple[str, bool]:
    """Return what the pair writes, held to ``quotes``, and whether that may end within a word."""
    texts, cut = [], True
    stream = pair.generate_from_prompt(
        prompt, max_tokens=shadow.max_tokens, stop=shadow.stop, quotes=quotes
    )
    async with closing(stream) as tokens:
        async for token in tokens:
            texts.append(token.text)
            cut = token.finish != "stop" or bool(shadow.stop)
    return "".join(texts), cut


def _in_the_sources_words(text: str, shadow: Shadow, *, cut: bool) -> str:
    """Return an answer as its caller would see it."""
    words = AnswerWords(shadow.query, [PassageRead(passage) for passage in shadow.passages])
    words.push(text)
    return words.end(cut=cut, stop=shadow.stop)[1].text
