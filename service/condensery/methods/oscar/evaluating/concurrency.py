"""Several things done side by side, so that one that fails ends all."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def run_concurrently(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them; one that fails, or a caller who leaves, ends the others first."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
