"""Work that is done whole, also where its caller goes away amid it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def done_whole(work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` does; it goes on where who waits for it is cancelled.

    Its threads would go on anyway: what belongs to them must not be left out.
    """
    # what it waits for (a thread, a lock, a task) holds it: nobody need remember it
    task = asyncio.create_task(work)
    # nobody is left to hear of its refusal, which is no fault for the log
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)
