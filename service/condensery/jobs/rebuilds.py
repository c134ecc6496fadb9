"""The rebuilds of a process: what each is doing, and when writes wait for one."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from condensery.jobs.index_ports import Rebuilding
from condensery.upkeep import Rebuild, RebuildPlan, RebuildState

T = TypeVar("T")


@dataclass(slots=True)
class Run:
    """One rebuild, under way or over.

    Attributes:
        plan: What is being made.
        rebuilding: Does it; None where it could not go on after a start.
        code: What the reason is an instance of; holds nothing of a document, as the reason may.
        open: Cleared while writes to the index wait for the new one.
    """

    plan: RebuildPlan
    rebuilding: Rebuilding | None = None
    task: "asyncio.Task[None] | None" = None
    state: RebuildState = "running"
    pending: int = 0
    ended: float | None = None
    reason: str | None = None
    code: str | None = None
    overlap: float | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, state: RebuildState) -> None:
        """It is over, one way or the other."""
        self.state, self.ended = state, round(time.time(), 3)
        self.open.set()

    def fail(self, reason: str, code: str) -> None:
        """It is over, and the old index goes on."""
        self.reason, self.code = reason, code
        self.end("failed")

    def told(self) -> Rebuild:
        """Return how far it has come."""
        plan = self.plan
        return Rebuild(
            index=plan.index,
            encoder=plan.encoder,
            fingerprint=plan.fingerprint,
            kind=plan.kind,
            metric=plan.metric,
            documents=plan.documents,
            began=plan.began,
            state=self.state,
            pending=self.pending,
            ended=self.ended,
            reason=self.reason,
            overlap=self.overlap,
        )


class Rebuilds:
    """What is rebuilt in this process.

    Attributes:
        runs: The last one of each index.
        beginning: Held to begin one, or to give one up.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.beginning = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    async def whole(self, change: Coroutine[Any, Any, T]) -> T:
        """Begin or give up a rebuild, or drop an index, to the end also where its caller leaves.

        Its threads go on anyway: by half, a rebuild would be noted that nobody works on, or worked
        on that is not noted.
        """
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        # What it raises where nobody waits any more is heard, and no mistake of ours.
        task.add_done_callback(lambda one: one.cancelled() or one.exception())
        return await asyncio.shield(task)

    def of_encoder(self, name: str) -> tuple[str, ...]:
        """Name the indexes that are being rebuilt for an encoder."""
        running = [run.plan for run in self.runs.values() if run.state == "running"]
        return tuple(sorted(plan.index for plan in running if plan.encoder == name))

    async def passing(self, index: str) -> None:
        """Wait while an index's rebuild does its last steps, which writes would outrun.

        Nothing hangs on it but that the rebuild comes to its end: a write that does not wait is
        noted, and done once more.
        """
        run = self.runs.get(index)
        if run is not None:
            await run.open.wait()

    async def stop(self, index: str) -> None:
        """Stop working on an index's rebuild, if there is one; it can go on another time."""
        run = self.runs.pop(index, None)
        if run is not None and run.task is not None:
            run.task.cancel()
            await asyncio.wait({run.task})
        if run is not None:
            run.open.set()

    async def close(self) -> None:
        """Stop all; they go on at the next start."""
        if self._changes:
            await asyncio.wait(self._changes)
        for index in list(self.runs):
            await self.stop(index)
