"""One answer that is being generated, its part in a step, and the step itself.

A step embeds, runs and samples. What it changes is in the cache alone, so that a step that fails
can be run again, whole or in halves.
"""

import asyncio
import math
import random
import time
from collections import abc
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from condensery.errors import CondenseryError, InputError, ModelFault
from condensery.networks.caching import Cache, CachePositions, Prefix, Span, Step
from condensery.networks.decoding import Decoder
from condensery.networks.oscar_interface import PromptPart
from condensery.networks.quoting import END, Places, Quotes
from condensery.networks.stepping import Stepper
from condensery.question import GREEDY, FinishReason, Sampling
from condensery.request_context import MODEL_FIELD, RequestContext, SpanEvent
from condensery.runtime.queue import QueuedRequest, call_in_loop

NO_POSITIONS: CachePositions = np.zeros(0, dtype=np.int64)
LIKELIEST_END = 1 - 1e-7  # least below 1 in fp32
# Least that fp32 divides by on every device; what is below 1e-45 is 0, and would give NaN.
LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token that was chosen.

    Attributes:
        id: The token's.
        logprob: Natural logarithm of its probability; None if it was not asked for.
        top: The likeliest tokens and their log-probabilities, best first.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample_tokens(
    scores: Tensor, samplings: abc.Sequence[Sampling], numbers: abc.Sequence[float]
) -> list[SampledToken | None]:
    """Choose a token for each row.

    Args:
        scores: (rows, vocabulary), fp32.
        samplings: How, for each row.
        numbers: A random number from [0, 1) for each row; greedy ones need none.

    Returns:
        None where a row's scores are NaN or infinite.
    """
    best, ids = scores.max(dim=-1)
    sampled = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    if sampled:
        at = torch.tensor(sampled, device=scores.device)
        ids[at] = _draw(
            scores[at],
            scores.new_tensor(
                [[max(samplings[row].temperature, LEAST_TEMPERATURE)] for row in sampled]
            ),
            scores.new_tensor([[samplings[row].top_p] for row in sampled]),
            scores.new_tensor([[numbers[row]] for row in sampled]),
        )
    finite = torch.isfinite(best).tolist()
    chosen: list[SampledToken | None] = [
        SampledToken(token) if good else None
        for token, good in zip(ids.tolist(), finite, strict=True)
    ]
    for row, sampling in enumerate(samplings):
        if sampling.logprobs is not None and (choice := chosen[row]) is not None:
            chosen[row] = _with_logprobs(scores[row], choice.id, sampling.logprobs)
    return chosen


def _draw(scores: Tensor, temperature: Tensor, top_p: Tensor, number: Tensor) -> Tensor:
    """Choose by inverse transform, so that a row needs one random number and no other row's."""
    # Less the best: a small temperature must not overflow.
    weights = ((scores - scores.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    sums = kept.cumsum(dim=-1)
    place = torch.searchsorted(sums, number * sums[:, -1:], right=True)
    last = (kept > 0).sum(dim=-1, keepdim=True) - 1
    return order.gather(-1, place.minimum(last).clamp_min(0)).squeeze(-1)


def _with_logprobs(scores: Tensor, chosen: int, count: int) -> SampledToken:
    logprobs = scores.log_softmax(dim=-1)
    best, ids = logprobs.topk(min(count, scores.shape[-1]))
    return SampledToken(
        chosen,
        float(logprobs[chosen]),
        # Of an answer that quotes, most tokens can't come.
        tuple((i, p) for i, p in zip(ids.tolist(), best.tolist(), strict=True) if p > -math.inf),
    )


# Sequences and their part in a step


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What the engine is to generate.

    Attributes:
        parts: The prompt: token ids, or vectors in the place of some.
        max_tokens: Most tokens generated, at least 1.
        stop_ids: Tokens that end an answer, and are no part of it.
        quotes: What the answer has to be a stretch of; None: it may be anything.
    """

    parts: abc.Sequence[PromptPart]
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    quotes: Quotes | None = None

    @property
    def prompt_positions(self) -> int:
        """The most positions that the prompt takes, a separator after each part included."""
        return sum(len(part) + 1 for part in self.parts)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token as its caller gets it.

    Attributes:
        token: What was chosen.
        count: Tokens of the answer so far; one that stops it is not among them.
        finish: Why it was the last.
    """

    token: SampledToken
    count: int
    finish: FinishReason | None = None


SequenceEvent: TypeAlias = TokenEvent | CondenseryError


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer that is being generated.

    Attributes:
        queued: Its place among those that wait, and whether it is wanted still.
        events: What its caller is to get.
        embeds: The prompt's embeddings (positions, hidden), from its first step to its last chunk.
        size: Positions of the prompt; the most there can be until it is embedded.
        done: Positions in the cache.
        count: Tokens chosen.
        unread: Ids of those that are not in the cache yet; the next step reads them.
        blocks: Of the cache, its own; none before it is admitted and once it is over.
        positions: The positions in them.
        in_step: Whether a step is under way with it.
        ended: Nothing more comes of it.
        last_token_at: When its last token was chosen, seconds of ``time.perf_counter``; 0 before.
        quoted: Where in what it quotes its answer may go on; None where it quotes nothing.
        waited: Seconds until it began, when enough blocks were free.
        steps: Those that it took part in, where its request is traced.
    """

    request: GenerationRequest
    queued: "QueuedRequest[Sequence, None]"
    events: "asyncio.Queue[SequenceEvent]" = field(default_factory=asyncio.Queue)
    embeds: Tensor | None = None
    size: int = 0
    done: int = 0
    count: int = 0
    unread: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    positions: CachePositions = field(default_factory=lambda: NO_POSITIONS)
    in_step: bool = False
    ended: bool = False
    last_token_at: float = 0.0
    quoted: Places | None = None
    waited: float = 0.0
    steps: list[SpanEvent] = field(default_factory=list)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.request.prompt_positions
        self.rng = random.Random(self.request.sampling.seed)
        if self.request.quotes is not None:
            self.quoted = self.request.quotes.first()

    @classmethod
    def of(cls, request: GenerationRequest, call: RequestContext) -> "Sequence":
        """Begin a sequence; called in the caller's loop."""
        reply: asyncio.Future[list[None]] = asyncio.get_running_loop().create_future()
        return cls(request, QueuedRequest(reply, call, [None], 1))

    @property
    def reserve(self) -> int:
        """The most positions it takes; the last token is never read."""
        return self.request.prompt_positions + self.request.max_tokens - 1

    @property
    def background(self) -> bool:
        """Whether nobody waits for it."""
        return self.queued.call.background

    @property
    def in_prompt(self) -> bool:
        """Whether a part of its prompt is still to be read."""
        return self.done < self.size

    def note_step(self, positions: int, sequences: int) -> None:
        """Note a step, of so many positions of its own, that it shared with others."""
        if self.queued.call.trace is not None:
            numbers = {"condensery.positions": positions, "condensery.batch.sequences": sequences}
            self.steps.append((time.perf_counter(), "step", numbers))

    def end_trace(self, model: str, finish: FinishReason | None, tokens: int) -> None:
        """Note the whole generation, of so many tokens that were shown, as a stage of its request.

        Its steps are events of it.
        """
        trace, sampling = self.queued.call.trace, self.request.sampling
        if trace is None or not self.steps:
            return
        fields: dict[str, str | int | float | list[str]] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "condensery",
            MODEL_FIELD: model,
            "gen_ai.request.max_tokens": self.request.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.input_tokens": self.size,
            "gen_ai.usage.output_tokens": tokens,
        }
        if finish is not None:
            fields["gen_ai.response.finish_reasons"] = [finish]
        began = self.queued.arrived + self.waited
        trace.add("generate", began, time.perf_counter(), fields, self.steps)

    def choose(self, token: SampledToken) -> TokenEvent:
        """Add a token to the answer, or end it with one."""
        request = self.request
        if token.id in request.stop_ids:
            return TokenEvent(token, self.count, "stop")
        self.unread.append(token.id)
        self.count += 1
        if request.quotes is not None and self.quoted is not None:
            self.quoted = request.quotes.after(self.quoted, token.id)
        return TokenEvent(token, self.count, "length" if self.count == request.max_tokens else None)

    def forced(self) -> SampledToken | None:
        """Return the token that alone may come next, whatever is drawn; None if there are more."""
        request = self.request
        if request.quotes is None or self.quoted is None:
            return None
        only = request.quotes.only(self.quoted, self.count)
        if only == END:
            only = min(request.stop_ids, default=None)
        if only is None:
            return None
        if (likely := request.sampling.logprobs) is None:
            return SampledToken(only)
        return SampledToken(only, 0.0, ((only, 0.0),) if likely else ())

    def seconds_since_last(self) -> float | None:
        """Note that a token was chosen; returns the seconds since the one before, if any."""
        now = time.perf_counter()
        before, self.last_token_at = self.last_token_at, now
        return now - before if before else None


@dataclass(slots=True, eq=False)
class ScheduledChunk:
    """A sequence's part in one step: ``count`` positions from ``start``."""

    sequence: Sequence
    count: int
    start: int = field(init=False)
    _draw: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.start = self.sequence.done

    @property
    def draw(self) -> float:
        """The random number that chooses its token, the same however often a step is tried.

        Only what chooses draws: in how many pieces a prompt is read hangs on what else runs.
        """
        if self._draw is None:
            self._draw = self.sequence.rng.random()
        return self._draw

    @property
    def span(self) -> Span:
        """Its rows."""
        return Span(self.sequence.positions, self.start, self.count)

    @property
    def samples(self) -> bool:
        """Whether a token is chosen after its last row."""
        return self.start + self.count >= self.sequence.size

    def apply(self, outcome: "SampledToken | CondenseryError | None") -> list[SequenceEvent]:
        """Note the step's outcome; returns what the caller is to get of it.

        Where an answer that quotes can go on in one way only, it does so at once: the model has
        no say in that, and the next step reads all of it together.
        """
        if isinstance(outcome, CondenseryError):
            return [outcome]
        sequence = self.sequence
        sequence.done = self.start + self.count
        if outcome is None:
            return []
        sequence.embeds = None
        sequence.unread = []
        events: list[SequenceEvent] = []
        chosen: SampledToken | None = outcome
        while chosen is not None:
            event = sequence.choose(chosen)
            events.append(event)
            chosen = None if event.finish else sequence.forced()
        return events


def send_events(events: abc.Sequence[tuple[Sequence, SequenceEvent]]) -> None:
    """Hand events to the callers of their sequences, from any thread."""
    # One wake-up for each loop, not one a sequence (only tests have more than one loop).
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Sequence, SequenceEvent]]] = {}
    for sequence, event in events:
        by_loop.setdefault(sequence.queued.reply.get_loop(), []).append((sequence, event))
    for loop, theirs in by_loop.items():
        call_in_loop(loop, _put_events, theirs)


def _put_events(events: list[tuple[Sequence, SequenceEvent]]) -> None:
    for sequence, event in events:
        sequence.events.put_nowait(event)


# The step

# None where a prompt is not read to its end yet.
StepOutcome: TypeAlias = SampledToken | CondenseryError | None


@torch.inference_mode()
def run_step(
    stepper: Stepper,
    cache: Cache,
    chunks: abc.Sequence[ScheduledChunk],
    model: str,
    decoder: Decoder | None = None,
    prefix: Prefix | None = None,
) -> list[StepOutcome]:
    """Run a step; returns an outcome for each chunk, in order.

    Args:
        prefix: What prompts begin with, if it was read ahead.
        decoder: Runs a step of single tokens, if there is one.

    Raises:
        Exception: Whatever a forward pass raises.
    """
    outcomes: list[StepOutcome] = [None] * len(chunks)
    going: list[int] = []
    for place, chunk in enumerate(chunks):
        outcomes[place] = _prepare(stepper, chunk, model)
        if outcomes[place] is None and prefix is not None:
            _begin_after(prefix, cache, chunk)
        if outcomes[place] is None:
            going.append(place)
    if not going:
        return outcomes
    # Single rows first (``Step``), and of either kind tokens to look up before pieces of prompts.
    going.sort(
        key=lambda place: (chunks[place].count > 1, chunks[place].sequence.embeds is not None)
    )
    ordered = [chunks[place] for place in going]
    choosing = [row for row, chunk in enumerate(ordered) if chunk.samples]
    scores = _scores(stepper, cache, ordered, choosing, decoder)
    if scores is None:
        return outcomes
    _hold_to_quotes(scores, [ordered[place].sequence for place in choosing])
    samplings = [ordered[row].sequence.request.sampling for row in choosing]
    chosen = sample_tokens(scores, samplings, [ordered[row].draw for row in choosing])
    for row, choice in zip(choosing, chosen, strict=True):
        outcomes[going[row]] = choice or ModelFault(
            f"{model}: the next token's scores are NaN or infinite"
        )
    return outcomes


def _hold_to_quotes(scores: Tensor, sequences: abc.Sequence[Sequence]) -> None:
    """Leave scores (sequences, vocabulary) to what may come next, of answers that quote.

    An answer ends as likely as its generator says, and what it would say beyond the texts goes to
    what they go on with. Were the rest only left out, the end would win against each single word
    of a text that the generator can't foretell, though it is sure that there is more.
    """
    rows: list[int] = []
    allowed: list[int] = []
    ending: list[int] = []  # rows that may end or go on
    going: list[tuple[int, int]] = []  # which of ``allowed`` goes on, and with which of these rows
    stops: frozenset[int] = frozenset()
    for row, sequence in enumerate(sequences):
        quotes, places = sequence.request.quotes, sequence.quoted
        if quotes is None or places is None:
            continue
        tokens, may_end = quotes.allowed(places, sequence.count)
        if may_end and len(tokens):
            stops = sequence.request.stop_ids  # the model's, of every sequence
            going += [(len(allowed) + i, len(ending)) for i in range(len(tokens))]
            ending.append(row)
        of_row = [*tokens.tolist(), *(sequence.request.stop_ids if may_end else ())]
        allowed += of_row
        rows += [row] * len(of_row)
    if not rows:
        return
    # At once for all: on a GPU each operation is a launch, and each copy a wait.
    at = torch.tensor([rows, allowed], device=scores.device)
    kept = scores[at[0], at[1]]
    if ending:
        own = scores[ending].float()
        which, whose = torch.tensor(going, device=scores.device).T
        going_on = _logsumexp(kept[which].float(), whose, len(ending))
        whole, end = own.logsumexp(1), own[:, sorted(stops)].logsumexp(1)
        more = whole + torch.log1p(-(end - whole).exp().clamp(max=LIKELIEST_END)) - going_on
        kept[which] += more[whose].to(kept.dtype)
    scores[at[0].unique()] = -torch.inf
    scores[at[0], at[1]] = kept


def _logsumexp(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return log of the sum of exp of the values of each group, (count,); none is empty."""
    most = values.new_full((count,), -torch.inf).scatter_reduce(0, groups, values, "amax")
    sums = values.new_zeros(count).index_add(0, groups, (values - most[groups]).exp())
    return most + sums.log()


def _scores(
    stepper: Stepper,
    cache: Cache,
    chunks: abc.Sequence[ScheduledChunk],
    choosing: abc.Sequence[int],
    decoder: Decoder | None,
) -> Tensor | None:
    """Run chunks' rows; returns the scores of those that choose, (choosing, vocabulary)."""
    spans = [chunk.span for chunk in chunks]
    rows = _rows(stepper, chunks)
    if decoder is not None and all(
        chunk.sequence.embeds is None and chunk.count == 1 for chunk in chunks
    ):
        scores = decoder.run(rows, spans)
        if scores is not None:
            return scores
    step = Step(cache, spans)
    last = step.last if len(choosing) == len(chunks) else step.last[choosing]
    step.wanted = last
    hidden = stepper.run(rows, step)
    return stepper.logits(hidden.index_select(0, last)) if choosing else None


def _prepare(stepper: Stepper, chunk: ScheduledChunk, model: str) -> CondenseryError | None:
    """Embed a prompt before its first step; only then is its size known."""
    sequence = chunk.sequence
    if sequence.done or sequence.embeds is not None:
        return None
    sequence.embeds = stepper.embed(sequence.request.parts)
    size, request = len(sequence.embeds), sequence.request
    if size > request.prompt_positions:
        return ModelFault(
            f"{model}: a prompt of {size} positions, over the {request.prompt_positions} it has"
        )
    if size + request.max_tokens > stepper.longest + 1:
        return InputError(
            f"max_tokens={request.max_tokens} and a prompt of {size} positions are over the "
            f"{stepper.longest} that {model} reads",
            field="max_tokens",
            value=request.max_tokens,
        )
    sequence.size = size
    chunk.count = min(chunk.count, size)
    return None


def _begin_after(prefix: Prefix, cache: Cache, chunk: ScheduledChunk) -> None:
    """Begin a prompt behind what it has in common with others; again, where a step is tried again.

    A prompt that is no longer than that is read whole: its last row chooses.
    """
    sequence, count = chunk.sequence, len(prefix.ids)
    if sequence.done or sequence.size <= count or not prefix.begins(sequence.request.parts[0]):
        return
    cache.put(sequence.positions[:count], prefix.rows)
    chunk.start = count
    chunk.count = min(chunk.count, sequence.size - count)


def _rows(stepper: Stepper, chunks: abc.Sequence[ScheduledChunk]) -> Tensor:
    """Return the rows of a step, (total, hidden)."""
    going_on = [chunk for chunk in chunks if chunk.sequence.embeds is None]
    ids = [token for chunk in going_on for token in chunk.sequence.unread]
    places = [
        chunk.start - chunk.sequence.size + token
        for chunk in going_on
        for token in range(len(chunk.sequence.unread))
    ]
    looked_up = stepper.said(ids, places) if ids else None
    if looked_up is not None and len(looked_up) == sum(chunk.count for chunk in chunks):
        return looked_up
    rows: list[Tensor] = []
    first = 0
    for chunk in chunks:
        if chunk.sequence.embeds is not None:
            rows.append(chunk.sequence.embeds[chunk.start : chunk.start + chunk.count])
        else:
            assert looked_up is not None
            rows.append(looked_up[first : first + chunk.count])
            first += chunk.count
    return rows[0] if len(rows) == 1 else torch.cat(rows)
