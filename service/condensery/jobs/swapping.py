"""Work on an index goes on though another index takes its place meanwhile."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from condensery.errors import EncoderMismatch, IndexClosed, IndexNotFound
from condensery.jobs.services import Services

P = ParamSpec("P")
T = TypeVar("T")

SOON = 0.005  # seconds
# What a text is embedded for, of an index's description.
EMBEDDED_FOR = ("name", "fingerprint", "prompts")

Job = Callable[Concatenate[Services, str, P], Coroutine[Any, Any, T]]


def across_swaps(job: Job[P, T]) -> Job[P, T]:
    """Do a job again where its index was replaced under it: by an alias, a restore, a rebuild.

    What a text was embedded for may be an index of another encoder, or of other prompts, by the
    time that it is asked, or be gone; the caller named neither. A job that failed for that has
    done nothing yet.
    """

    @functools.wraps(job)
    async def steady(services: Services, name: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            before = services.indexes.info(name)
            try:
                return await job(services, name, *args, **kwargs)
            except IndexClosed:
                services.indexes.info(name)  # raises if it was dropped
                await asyncio.sleep(SOON)  # it is about to be: closed, and not gone yet
            except (EncoderMismatch, IndexNotFound):
                after = services.indexes.info(name)
                if all(getattr(after, one) == getattr(before, one) for one in EMBEDDED_FOR):
                    raise

    return steady
