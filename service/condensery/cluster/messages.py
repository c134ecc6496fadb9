"""What crosses between the doors and the replicas: plain values, pickled by Ray.

Arrays travel as buffers beside the pickle, and are read-only where they arrive. No torch, no Ray.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from condensery import request_context
from condensery.errors import CondenseryError
from condensery.request_context import RequestContext, RequestStats
from condensery.values import ModelInfo


@dataclass(frozen=True, slots=True)
class ModelId:
    """A stored model in one version; ``fingerprint`` is over all that changes its numbers."""

    name: str
    version: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and how long they wait; ``seconds_left`` is None where they wait for ever."""

    request_id: str
    caller: str
    seconds_left: float | None
    background: bool

    @classmethod
    def of(cls, request: RequestContext) -> "Caller":
        """Return what a replica has to know of a request."""
        left = request.seconds_left
        return cls(
            request.request_id,
            request.caller,
            None if left == float("inf") else left,
            request.background,
        )

    def request(self) -> RequestContext:
        """Return the request as the replica serves it, by its own clock."""
        request = RequestContext(
            self.request_id, self.caller, work_begun=False, background=self.background
        )
        if self.seconds_left is not None:
            request.deadline = time.monotonic() + self.seconds_left
        return request


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model.

    Attributes:
        method: Of the running model, one of ``replica.METHODS``.
        tokens: About how many it brings, for the autoscaling.
    """

    model: ModelId
    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    caller: Caller
    tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a call's time went in the replica, on what; seconds, as ``RequestStats`` has them."""

    device: str = ""
    inputs: int = 0
    characters: int = 0
    tokens: int = 0
    tokenizing: float = 0.0
    queued: float = 0.0
    wait_seconds: float = 0.0
    forward_seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, stats: RequestStats) -> "Timing":
        """Return what a request's stages took here."""
        return cls(
            stats.device,
            stats.inputs,
            stats.characters,
            stats.tokens,
            stats.tokenizing,
            stats.queued,
            stats.wait_seconds,
            stats.forward_seconds,
            dict(stats.stages),
        )

    def add_to(self, request: RequestContext, model: str) -> None:
        """Count it as the request's own; its forward passes are taken to have ended just now."""
        stats = request.stats
        stats.inputs += self.inputs
        stats.characters += self.characters
        stats.tokens += self.tokens
        stats.tokenizing += self.tokenizing
        stats.queued += self.queued
        for stage, seconds in self.stages.items():
            stats.stages[stage] = stats.stages.get(stage, 0.0) + seconds
        if not self.device:
            return
        ended = time.perf_counter()
        began = ended - self.forward_seconds
        stats.count_forward_pass(self.device, began - self.wait_seconds, began, ended)
        if request.trace is not None:
            fields = {request_context.MODEL_FIELD: model, "condensery.device": self.device}
            request.trace.add("queue", began - self.queued, began, fields)
            request.trace.add("forward", began, ended, fields)


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a call: a value, or one of our errors; of a stream one of these an item.

    Attributes:
        work_begun: Whether a forward pass had begun for it.
        rates: Of a pair, as measured so far.
    """

    value: Any = None
    error: CondenseryError | None = None
    timing: Timing = Timing()
    work_begun: bool = False
    rates: "Rates | None" = None


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a pair's halves are, in seconds; 0 while that is unknown.

    Attributes:
        compressor: For ``RATED_TOKENS`` tokens of passages.
        few: For a prompt of one position.
        many: For a prompt of ``RATED_TOKENS`` positions.
    """

    compressor: float = 0.0
    few: float = 0.0
    many: float = 0.0

    def compressing(self, tokens: int) -> float:
        """Return about how many seconds so many tokens of passages take."""
        return self.compressor * tokens / RATED_TOKENS

    def prompting(self, positions: int) -> float:
        """Return about how many seconds a prompt takes to its first token."""
        if not self.few:
            return 0.0
        return self.few + max(0.0, self.many - self.few) * positions / RATED_TOKENS


def plain_error(error: CondenseryError) -> CondenseryError:
    """Return an error that pickles, whatever the value was that it is about."""
    if not isinstance(error.value, (str, int, float, type(None))):
        error.value = None
    return error


RATED_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class PairNumbers:
    """Of a pair, what its texts do not tell.

    Attributes:
        cost: An ``InferenceCosts``.
        window, separators: As ``RunnablePair`` has them.
        longest, cache_positions: As ``GeneratorBounds`` has them.
    """

    cost: Any
    window: int
    separators: int
    longest: int
    cache_positions: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the doors have to know of a model that only a loaded one tells.

    Attributes:
        info: As ``/v1/models`` shows it.
        memory: Bytes of its weights, by device.
        seconds: That loading it took.
    """

    info: ModelInfo
    memory: dict[str, int]
    seconds: float
    pair: PairNumbers | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A replica's models, why it refuses others, and the options that it was deployed with."""

    models: dict[ModelId, ModelFacts]
    refused: dict[ModelId, str]
    options: str


# What a model's runtime counts. All else is the doors': they know of all replicas.
COUNTED = (
    "condensery_batch_",
    "condensery_cancelled_total",
    "condensery_decode_graph_failures_total",
    "condensery_forward",
    "condensery_input_tokens",
    "condensery_inter_token_seconds",
    "condensery_oom_total",
    "condensery_rejected_total",
    "condensery_stage_duration_seconds",
    "condensery_step_tokens",
    "condensery_truncated_inputs",
    "condensery_worker_restarts_total",
    "te_batch_",
)
# What it shows of the moment: gone with the replica.
SHOWN = (
    "condensery_cache_positions",
    "condensery_decode_graphs",
    "condensery_queue_",
    "condensery_sequences",
    "te_queue_size",
)
NOT_ADDED = ("condensery_queue_tokens_limit",)


def is_read(name: str) -> bool:
    """Whether a replica's sample of this name is added to the doors'."""
    return name.startswith((*COUNTED, *SHOWN)) and not name.startswith(NOT_ADDED)
