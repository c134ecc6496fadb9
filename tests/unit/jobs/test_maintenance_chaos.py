"""Everything at once: what is done to whole indexes, beside writes and queries, calls cut short.

Two indexes are kept: nothing that is done to them (rebuilds, cancels, snapshots, aliases) may lose
a write or refuse a query. Two others come and go, are restored over and dropped.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jobs.chaos import ALIASES, KEPT, OP, Chaos, Op

from condensery.index.store import IndexStore
from condensery.jobs import indexes, maintenance
from condensery.jobs.services import Services
from condensery.values import AliasAction

SEEDS = [int(item) for item in os.environ.get("CHAOS_SEEDS", "1,2").split(",")]
SECONDS = float(os.environ.get("CHAOS_SECONDS", "1.2"))


def check_files(data_dir: Path, names: set[str]) -> None:
    """Assert that no unfinished change has left a folder."""
    assert {path.name for path in (data_dir / "indexes").iterdir()} == {*names, "aliases.json"}
    for name in names:
        folder = data_dir / "indexes" / name
        assert len(list(folder.glob("gen-*"))) == (folder / "current").exists(), list(
            folder.iterdir()
        )
        assert not (folder / "rebuild.json").exists()
    left = [path.name for path in (data_dir / "snapshots").glob("*/*")]
    assert not [item for item in left if item.endswith((".partial", ".removed"))], left


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each call know of its threads and tasks, which go on where it was cut short."""
    with ThreadPoolExecutor(16) as registry:

        async def counted(work: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
            op = OP.get() or Op(0)
            loop = asyncio.get_running_loop()

            op.threads += 1
            under_way = registry.submit(copy_context().run, partial(work, *args, **options))
            under_way.add_done_callback(lambda _: loop.call_soon_threadsafe(op.less))
            return await asyncio.wrap_future(under_way)

        real = asyncio.create_task

        def counted_task(work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
            task = real(work, **options)
            if (op := OP.get()) is not None:
                op.threads += 1
                task.add_done_callback(lambda _: op.less())
            return task

        monkeypatch.setattr(asyncio, "to_thread", counted)
        monkeypatch.setattr(asyncio, "create_task", counted_task)
        yield


def fail_now_and_then(monkeypatch: pytest.MonkeyPatch, draw: random.Random, share: float) -> None:
    """Let the disk refuse a share of what is asked of it, but for what SQLite asks.

    Not twice on end: what is put back after a refusal is.
    """
    left = 0

    def refuse(chance: float) -> None:
        nonlocal left
        left -= 1
        if left < 0 and draw.random() < chance:
            left = 10
            raise OSError(5, "refused")

    def failing(real: Callable[..., Any], before: float) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            refuse(share * before)
            result = real(*args, **options)
            refuse(share * (1 - before))
            return result

        return operation

    monkeypatch.setattr(os, "fsync", failing(os.fsync, 0.5))
    for name in ("rename", "replace", "mkdir"):
        monkeypatch.setattr(Path, name, failing(getattr(Path, name), 1))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("disk_fails", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
async def test_all_at_once_keeps_every_promise(
    services: Services,
    registry: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    disk_fails: bool,
) -> None:
    chaos = Chaos(services, seed, disk_fails)
    for encoder in registry.encoders.values():
        encoder.delay = 0.001
    for name in KEPT:
        await indexes.create_index(services, name)
    await maintenance.update_index_aliases(
        services, [AliasAction("create", alias, KEPT[0]) for alias in ALIASES]
    )
    with monkeypatch.context() as patch:
        if disk_fails:
            fail_now_and_then(patch, random.Random(seed), 0.02)
        until = time.monotonic() + SECONDS
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(chaos.one_of_many(until))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            print(f"seed {seed}: {chaos.calls} calls, {chaos.refused}")
        await chaos.settled()
    await chaos.quiet()
    await chaos.check(services)
    names = {info.name for info in services.indexes.list()}
    assert not services.indexes.broken
    if not disk_fails:  # else leftovers go at the next start
        check_files(tmp_path, names)
    await services.rebuilds.close()
    services.indexes.close()
    with IndexStore(tmp_path) as store:
        assert {info.name for info in store.list()} == names
        assert not store.broken
        await chaos.check(Services(registry=registry, indexes=store, metrics=services.metrics))
        check_files(tmp_path, names)
