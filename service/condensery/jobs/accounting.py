"""Count and time every request, alike over REST and gRPC; measure how busy a model is by that."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from condensery.errors import CondenseryError
from condensery.jobs.services import Services
from condensery.metrics import Task
from condensery.request_context import MODEL_FIELD, Fields, RequestContext, current_request

WireProtocol = Literal["rest", "grpc"]

# The label of requests for models that do not serve: their names are the callers', and endless.
UNKNOWN_MODEL = "unknown"

# How early a loop's timer may end what is late: uvloop's tick in whole milliseconds.
LOOP_TIMER_SECONDS = 0.005


@dataclass(slots=True)
class CountedRequest:
    """A request being counted. The endpoint may name the model once it knows it."""

    model: str


@contextmanager
def count_request(
    services: Services,
    model: str | None,
    task: Task,
    protocol: WireProtocol,
    *,
    index: str | None = None,
) -> Iterator[CountedRequest]:
    """Count the block as one request: ``ok``, or the class of the error that leaves it.

    Args:
        model: As the request names it; None is the default of the task's kind.
        index: The index that it is about, for task ``index``: its encoder is the model.

    Yields:
        The request; set ``model`` on it where the block learns another.
    """
    request = CountedRequest(label_model(services, model, task, index))
    started = time.perf_counter()
    code = "ok"
    try:
        yield request
    except CondenseryError as error:
        code = type(error).__name__
        raise
    except (asyncio.CancelledError, GeneratorExit):
        call = current_request()  # an endpoint cancels what is late, too
        late = call.seconds_left < LOOP_TIMER_SECONDS
        code = type(call.expired()).__name__ if late else "Cancelled"
        raise
    except BaseException:
        code = "InternalError"
        raise
    finally:
        metrics = services.metrics
        metrics.requests.labels(request.model, task, protocol, code).inc()
        seconds = time.perf_counter() - started
        metrics.request_seconds.labels(request.model, task, protocol).observe(seconds)
        call = current_request()
        if metrics.tei is not None:
            metrics.tei.request(task, code, call.stats, seconds)
        if call.trace is not None:
            call.trace.describe(_describe_request(request.model, task, code, call))


def _describe_request(model: str, task: Task, code: str, call: RequestContext) -> Fields:
    """Return what a request was, for its span."""
    fields: dict[str, str | int] = {
        "condensery.task": task,
        "condensery.code": code,
        "condensery.passages": call.stats.passages,
        MODEL_FIELD: model,
        "gen_ai.usage.input_tokens": call.stats.tokens,
    }
    if task == "embed":
        fields |= {"gen_ai.operation.name": "embeddings", "gen_ai.provider.name": "condensery"}
    return fields


@contextmanager
def count_refusals(services: Services, task: Task | None, protocol: WireProtocol) -> Iterator[None]:
    """Count an error that leaves the block as a request that named no model.

    For what is refused before the request is read: no key, over a limit, no message.

    Args:
        task: What the request was for; None is not counted.
    """
    try:
        yield
    except CondenseryError as error:
        if task is not None:
            code = type(error).__name__
            services.metrics.requests.labels(UNKNOWN_MODEL, task, protocol, code).inc()
            if services.metrics.tei is not None:
                services.metrics.tei.request(task, code, current_request().stats, 0.0)
        raise


def label_model(services: Services, model: str | None, task: Task, index: str | None = None) -> str:
    """Return the running model's name, or ``unknown``."""
    try:
        if index is not None:
            model = services.indexes.info(index).encoder
        if task in ("answer", "compare") and model is not None:
            model = services.registry.aliases.resolve(model)  # it may carry an index
        if task in ("answer", "compress", "compare"):
            return services.registry.pair(model).info.name
        if task == "rerank":
            return services.registry.scorer(model).info.name
        if task == "classify":
            return services.registry.classifier(model).info.name
        return services.registry.encoder(model).info.name
    except CondenseryError:  # the job itself raises it again
        return UNKNOWN_MODEL


@dataclass(frozen=True, slots=True)
class Workload:
    """What waits for a model now.

    Attributes:
        waiting: Items in its queue.
        queue_share: Tokens in it, of those that may be, 0 to 1.
        open_requests: Requests that have no reply yet, whatever their model.
        batch_items: Items of a forward pass, on average since the start; 0 before the first.
    """

    waiting: int
    queue_share: float
    open_requests: int
    batch_items: int


def measure_workload(services: Services, model: str) -> Workload:
    """Return how busy a model is."""

    def read(name: str) -> float:
        return services.metrics.registry.get_sample_value(name, {"model": model}) or 0.0

    passes = read("condensery_batch_items_count")
    tokens = read("condensery_queue_tokens")
    return Workload(
        waiting=round(read("condensery_queue_requests")),
        queue_share=min(1.0, tokens / services.limits.max_queue_tokens),
        open_requests=services.admission.requests,
        batch_items=round(read("condensery_batch_items_sum") / passes) if passes else 0,
    )
