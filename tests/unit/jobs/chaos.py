"""Calls of every kind at once, some cut short, and what must hold in the end."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tests.unit.conftest import vector_of
from tests.unit.jobs.test_maintenance_rebuild import assert_whole, document, held

from condensery.errors import (
    Conflict,
    IndexAliased,
    IndexNotFound,
    NotFound,
    RebuildNotFound,
    RebuildRunning,
    SnapshotNotFound,
    StorageError,
)
from condensery.jobs import indexes, maintenance, retrieval
from condensery.jobs.services import Services
from condensery.values import AliasAction

KEPT = ("kept-1", "kept-2")
WILD = ("wild-1", "wild-2")
ALIASES = ("live", "next")  # always of kept ones
HANGS = 60  # seconds
GONE = float("inf")


@dataclass
class Op:
    """A call: when it began, and when the last of its threads and tasks was done."""

    began: float
    threads: int = 0
    ended: float = GONE
    returned: bool = False

    def less(self) -> None:
        self.threads -= 1
        self.settle()

    def settle(self) -> None:
        if self.returned and not self.threads:
            self.ended = time.monotonic()


@dataclass
class Written:
    """What a document may be in its index, and the last call that wrote it."""

    may: list[str | None]
    op: Op


OP: ContextVar[Op | None] = ContextVar("OP", default=None)


@dataclass
class Chaos:
    """What was done, by whom it was cut short, and what must hold in the end."""

    services: Services
    seed: int
    disk_fails: bool = False
    calls: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    written: dict[str, dict[int, Written]] = field(default_factory=dict)
    discards: dict[str, list[Op]] = field(default_factory=dict)
    open_ops: list[Op] = field(default_factory=list)
    next_id: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.written = {name: {} for name in (*KEPT, *WILD)}
        self.discards = {name: [] for name in (*KEPT, *WILD)}

    async def call(
        self, work: Coroutine[Any, Any, Any], may: tuple[type[Exception], ...] = (), op: Any = None
    ) -> tuple[bool, Any]:
        """Make a call, which is cut short now and then; returns whether it came back, and what."""
        op = op or Op(time.monotonic())
        self.calls += 1
        self.open_ops = [open_op for open_op in self.open_ops if open_op.ended == GONE] + [op]
        token = OP.set(op)
        task = asyncio.create_task(work)
        OP.reset(token)
        if self.draw.random() < 0.15:
            await asyncio.wait({task}, timeout=self.draw.choice([0, 0.0005, 0.002, 0.01, 0.03]))
            task.cancel()
        done, _ = await asyncio.wait({task}, timeout=HANGS)
        assert done, f"hangs: {work}"
        op.returned = True
        op.settle()
        if task.cancelled():
            return False, None
        error = task.exception()
        if error is None:
            return True, task.result()
        kind = type(error).__name__
        self.refused[kind] = self.refused.get(kind, 0) + 1
        if isinstance(error, may) or (self.disk_fails and isinstance(error, StorageError)):
            return False, error
        raise AssertionError(f"seed {self.seed}: {work.__qualname__} raised {error!r}") from error

    def known(self, name: str) -> str:
        """Name an index, by an alias now and then."""
        return self.draw.choice(ALIASES) if self.draw.random() < 0.2 else name

    def any_index(self) -> tuple[str, tuple[type[Exception], ...]]:
        if self.draw.random() < 0.5:
            return self.draw.choice(KEPT), ()
        return self.draw.choice(WILD), (IndexNotFound,)

    async def write(self) -> None:
        name, may = self.any_index()
        mine = self.written[name]
        old = [key for key, known in mine.items() if len(known.may) == 1]
        if old and self.draw.random() < 0.5:
            number = self.draw.choice(old)
        else:
            self.next_id += 1
            number = self.next_id
        known = mine.get(number)
        before = known.may if known is not None else [None]
        gone = self.draw.random() < 0.3
        version = self.draw.randrange(10**6)
        after = None if gone else document(number, version).text
        op = Op(time.monotonic())
        # in doubt while it is under way, and for ever if it never said how it ended
        mine[number] = Written([*before, after], op if known is None else known.op)
        if gone:
            work: Any = indexes.delete_documents(self.services, name, [f"d{number}"])
        else:
            work = indexes.upsert_documents(self.services, name, [document(number, version)])
        done, error = await self.call(work, may, op)
        if done:
            mine[number] = Written([after], op)
        elif error is not None and known is not None:
            mine[number] = known
        elif error is not None:
            del mine[number]

    async def ask(self) -> None:
        name, may = self.any_index()
        if not may:
            name = self.known(name)
        text = f"number {self.draw.randrange(1 + self.next_id)} as of 0"
        works: list[Callable[[], Any]] = [
            lambda: retrieval.query_index(self.services, name, text, mode="dense"),
            lambda: retrieval.query_index(self.services, name, text, mode="bm25"),
            lambda: retrieval.query_index(self.services, name, text, mode="hybrid"),
            lambda: indexes.scroll_documents(self.services, name, limit=5),
            lambda: indexes.count_documents(self.services, name),
            lambda: indexes.get_documents(self.services, name, ["d1", "d2"]),
            lambda: indexes.get_index(self.services, name),
        ]
        done, hits = await self.call(self.draw.choice(works)(), may)
        if done and isinstance(hits, list) and hits and hasattr(hits[0], "passage"):
            assert len({hit.passage.id for hit in hits}) == len(hits)

    async def list_all(self) -> None:
        _, aliases = await self.call(maintenance.list_index_aliases(self.services))
        for entry in aliases or ():
            assert entry.index in KEPT, entry
        _, listed = await self.call(indexes.list_indexes(self.services))
        if listed is not None:
            assert {item.name for item in listed} >= set(KEPT)

    async def point(self) -> None:
        action = AliasAction("create", self.draw.choice(ALIASES), self.draw.choice(KEPT))
        await self.call(maintenance.update_index_aliases(self.services, [action]))

    async def rebuild(self) -> None:
        name, may = self.any_index()
        work = maintenance.rebuild_index(
            self.services, name,
            encoder=self.draw.choice(("words", "other")),
            kind=self.draw.choice(("flat", "hnsw")),
        )  # fmt: skip
        await self.call(work, (RebuildRunning, *may))

    async def cancel(self) -> None:
        name, may = self.any_index()
        await self.call(maintenance.cancel_rebuild(self.services, name), (RebuildNotFound, *may))

    async def snapshot(self) -> None:
        name, may = self.any_index()
        await self.call(maintenance.create_snapshot(self.services, name), may)

    async def _some_snapshot(self) -> tuple[str, str] | None:
        name = self.draw.choice((*KEPT, *WILD))
        done, listing = await self.call(
            maintenance.list_snapshots(self.services, name), (IndexNotFound,)
        )
        if not done:
            return None
        assert not listing.refused, listing.refused
        return (name, self.draw.choice(listing.found).id) if listing.found else None

    async def unsnapshot(self) -> None:
        if (some := await self._some_snapshot()) and self.draw.random() < 0.5:
            await self.call(maintenance.delete_snapshot(self.services, *some), (SnapshotNotFound,))

    async def restore(self) -> None:
        if some := await self._some_snapshot():
            into, op = self.draw.choice(WILD), Op(time.monotonic())
            self.discards[into].append(op)
            work = maintenance.restore_snapshot(self.services, *some, into=into)
            await self.call(work, (SnapshotNotFound, RebuildRunning, Conflict, NotFound), op)

    async def drop(self) -> None:
        name, op = self.draw.choice(WILD), Op(time.monotonic())
        self.discards[name].append(op)
        await self.call(indexes.drop_index(self.services, name), (IndexNotFound,), op)

    async def drop_aliased(self) -> None:
        done, error = await self.call(
            indexes.drop_index(self.services, self.draw.choice(ALIASES)), (IndexAliased,)
        )
        assert not done, error

    async def create(self) -> None:
        await self.call(
            indexes.create_index(self.services, self.draw.choice(WILD), encoder="words"),
            (Conflict,),
        )

    async def one_of_many(self, until: float) -> None:
        steps = {
            self.write: 40, self.ask: 25, self.list_all: 4, self.point: 6, self.rebuild: 8,
            self.cancel: 4, self.snapshot: 6, self.unsnapshot: 4, self.restore: 6, self.drop: 4,
            self.drop_aliased: 1, self.create: 8,
        }  # fmt: skip
        # a machine with other work makes few in that time, of which none may tell anything
        while time.monotonic() < until or self.calls < 300:
            (step,) = self.draw.choices(list(steps), list(steps.values()))
            await step()
            await asyncio.sleep(0)

    async def settled(self) -> None:
        """Wait until no thread and no task is left of any call."""
        async with asyncio.timeout(HANGS):
            while any(open_op.ended == GONE for open_op in self.open_ops):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def quiet(self) -> None:
        """Wait until nothing is being rebuilt."""
        for item in self.services.indexes.list():
            run = self.services.rebuilds.runs.get(item.name)
            if run is not None and run.task is not None:
                await asyncio.wait({run.task}, timeout=HANGS)
                assert run.state != "running"
            with contextlib.suppress(RebuildNotFound):
                await maintenance.cancel_rebuild(self.services, item.name)

    async def check(self, services: Services) -> None:
        """What was acknowledged is there, once, and can be asked for."""
        for item in services.indexes.list():
            there = held(services, item.name)
            assert_whole(services, there, item.name)
            sure = 0
            for number, known in self.written[item.name].items():
                if all(op.ended < known.op.began for op in self.discards[item.name]):
                    sure += len(known.may) == 1
                    assert there.get(f"d{number}") in known.may, (item.name, number, known)
            if item.name in KEPT:
                assert sure
            await retrieval.query_index(
                services, item.name, vector=vector_of("x"), fingerprint=item.fingerprint
            )
        for alias in await maintenance.list_index_aliases(services):
            assert alias.index in KEPT
