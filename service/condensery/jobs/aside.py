"""Work that counts tokens, kept out of the event loop's way where there is much of it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

# About a millisecond of tokenising; under it, a thread costs others more than it spares them.
INLINE_CHARACTERS = 2_000

Found = TypeVar("Found")


async def aside(texts: Iterable[str], work: Callable[[], Found]) -> Found:
    """Do ``work`` on texts: at once where they are short, else in a thread."""
    if sum(map(len, texts)) <= INLINE_CHARACTERS:
        return work()
    return await asyncio.to_thread(work)
