"""One count and one duration for each request, the same for both doors."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from condensery.callers import current
from condensery.errors import CondenseryError
from condensery.jobs.services import Services
from condensery.metrics import Task

Protocol = Literal["rest", "grpc"]

# The label of requests for models that do not serve: their names are the callers', and endless.
UNKNOWN = "unknown"

# How early a loop's timer may end what is late: uvloop's tick in whole milliseconds.
TIMER_SECONDS = 0.005


@dataclass(slots=True)
class Request:
    """A request being counted. The door may name the model once it knows it."""

    model: str


@contextmanager
def account(
    services: Services,
    model: str | None,
    task: Task,
    protocol: Protocol,
    *,
    index: str | None = None,
) -> Iterator[Request]:
    """Count the block as one request: ``ok``, or the class of the error that leaves it.

    Args:
        services: The running parts.
        model: As the request names it; None is the default of the task's kind.
        task: What the request is for.
        protocol: The door.
        index: The index that it is about, for task ``index``: its encoder is the model.

    Yields:
        The request; set ``model`` on it where the block learns another.
    """
    request = Request(label(services, model, task, index))
    started = time.perf_counter()
    code = "ok"
    try:
        yield request
    except CondenseryError as error:
        code = type(error).__name__
        raise
    except (asyncio.CancelledError, GeneratorExit):
        call = current()  # a door cancels what is late, too
        late = call.seconds_left < TIMER_SECONDS
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
        if metrics.tei is not None:
            metrics.tei.request(task, code, current().spent, seconds)


@contextmanager
def counting_refusals(services: Services, task: Task | None, protocol: Protocol) -> Iterator[None]:
    """Count an error that leaves the block as a request that named no model.

    For what a door refuses before it has read what is asked: no key, no room, no message.

    Args:
        services: The running parts.
        task: What the request was for; None is not counted.
        protocol: The door.
    """
    try:
        yield
    except CondenseryError as error:
        if task is not None:
            code = type(error).__name__
            services.metrics.requests.labels(UNKNOWN, task, protocol, code).inc()
            if services.metrics.tei is not None:
                services.metrics.tei.request(task, code, current().spent, 0.0)
        raise


def label(services: Services, model: str | None, task: Task, index: str | None = None) -> str:
    """Return the running model's name, or ``unknown``."""
    pool = services.pool
    try:
        if index is not None:
            model = services.indexes.info(index).encoder
        if task in ("answer", "compress", "compare"):
            return pool.reader(model).info.name
        if task == "rerank":
            return pool.scorer(model).info.name
        if task == "classify":
            return pool.classifier(model).info.name
        return pool.encoder(model).info.name
    except CondenseryError:  # the job itself will say so
        return UNKNOWN
