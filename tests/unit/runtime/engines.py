"""Engines of tiny models, and what holds or breaks their steps."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tiny_generators import KINDS, VOCABULARY, Reference
from torch import Tensor

from condensery.errors import (
    CondenseryError,
)
from condensery.metrics import Metrics
from condensery.networks.stepping import Stepper
from condensery.runtime.engine import Engine
from condensery.runtime.queue import BatchLimits
from condensery.runtime.scheduler import KVCacheConfig
from condensery.runtime.sequence import GenerationRequest, Sequence
from condensery.runtime.workers import Workers

WAIT = 30.0  # for what must happen, however busy the machine is
REFERENCES = {kind: Reference(kind) for kind in KINDS}
STEPPERS = {kind: Stepper(reference.network) for kind, reference in REFERENCES.items()}
LLAMA = STEPPERS["llama-grouped"]
ANSWER = REFERENCES["llama-grouped"]


def prompt_of(seed: int, size: int = 9) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(VOCABULARY) for _ in range(size)]


class Served:
    """An engine with workers and metrics of its own, and what its steps are doing."""

    def __init__(
        self,
        stepper: Stepper = LLAMA,
        *,
        workers: int = 1,
        cache: KVCacheConfig | None = None,
        limits: BatchLimits | None = None,
        fixed: bool = False,
        prefix: tuple[int, ...] = (),
    ) -> None:
        self.workers = Workers(workers)
        self.metrics = Metrics()
        self.stepper = stepper
        self.engine = Engine(
            *(stepper, self.workers),
            model="m",
            limits=limits,
            cache=cache or KVCacheConfig(64, 4096, 256),
            fixed=fixed,
            prefix=prefix,
            metrics=self.metrics,
        )

    def close(self) -> None:
        self.engine.close()
        self.workers.close()

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"condensery_{name}", labels) or 0.0

    @property
    def used(self) -> float:
        return self.sample("cache_positions", model="m", state="used")

    def running(self, state: str = "running") -> float:
        return self.sample("sequences", model="m", state=state)

    def dropped(self, stage: str, cause: str) -> float:
        return self.sample("cancelled_total", model="m", stage=stage, cause=cause)

    async def empty(self) -> None:
        """Wait until no sequence is left."""
        until = time.monotonic() + WAIT
        while self.used or self.running() or self.running("waiting"):
            assert time.monotonic() < until, "something was never given back"
            await asyncio.sleep(0.002)

    def begin(self, prompt: list[int], count: int, **order: object) -> Sequence:
        return self.engine.begin(GenerationRequest([prompt], count, **order))

    async def rest(self, generation: Sequence) -> list[int]:
        """Return the ids that come until the last one."""
        ids: list[int] = []
        while True:
            event = await asyncio.wait_for(generation.events.get(), WAIT)
            if isinstance(event, CondenseryError):
                raise event
            if event.finish != "stop":
                ids.append(event.token.id)
            if event.finish:
                return ids

    async def answer(self, prompt: list[int], count: int, **order: object) -> list[int]:
        return await self.rest(self.begin(prompt, count, **order))

    @contextmanager
    def before_each_step(self, action: Callable[[Tensor], object]) -> Iterator[None]:
        def hooked(_: torch.nn.Module, args: tuple[Tensor], options: dict[str, Any]) -> None:
            action(args[0][0, : options["step"].total])  # without filler

        hook = self.stepper._network.register_forward_pre_hook(hooked, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()


class Gate:
    """Lets so many steps pass and holds the next one, the first by default, until it is opened."""

    def __init__(self, passing: int = 0) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.passing = passing

    def __call__(self, _: Tensor) -> None:
        if self.passing:
            self.passing -= 1
        elif not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(WAIT)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, WAIT)
