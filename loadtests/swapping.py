"""Models that come and go under load: is a single reply wrong, and does memory come back?

Starts a server of its own with one encoder in two versions, whose vectors differ. Three parts:

    versions  callers on both doors embed without a pause while the versions swap to and fro
    alias     the same by an alias that is set from one model to another and back
    memory    an encoder, and then a pair, is loaded, used and unloaded again and again

Of each reply it is checked that it is the vector of the version that it names, and of no other;
and of each caller that the revision flips once a swap.

    python loadtests/swapping.py [--parts versions alias memory] [--swaps 10] [--cycles 50]

Exits with 1 if a promise is broken (docs/reliability.md).
"""

import argparse
import asyncio
import itertools
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
from safetensors.numpy import load_file, save_file
from servers import Server, begin, keep, serving, take_out, workplace
from texts import QUESTIONS

from condensery.client.rest import AsyncClient
from condensery.store.importing import import_minilm
from condensery.store.store import ModelStore, shipped_store
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

NAME, OTHER, ALIAS, PAIR = "swapped", "swapped-too", "best", "pair-that-goes"
TEXTS = QUESTIONS[:16]
# Alone and in a batch differ by rounding; two versions by far more.
SAME, APART = 2e-3, 2e-2
# After the first cycles, in which each thread's arena grows to what its passes take. What leaks
# does so in every cycle: in the median next to nothing may be left. A worker's arena may still
# grow by a step; in all it is to be less than one model.
MOST_LEFT_MIB = 0.25
SKIPPED_CYCLES = 10
MIB = 2**20


@dataclass
class Seen:
    """What one caller got: the fingerprints in order, and what was wrong."""

    revisions: list[str] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)

    @property
    def flips(self) -> int:
        return sum(a != b for a, b in zip(self.revisions, self.revisions[1:], strict=False))


def publish(store: ModelStore, folder: Path) -> None:
    """Put the models there: two versions of one encoder, another one, and a pair."""
    base = import_minilm(store)
    changed = folder / "changed"
    shutil.copytree(base.path, changed, ignore=shutil.ignore_patterns("model.json"))
    (weights,) = changed.glob("*.safetensors")
    tensors = load_file(weights)
    for name in tensors:
        if name.endswith("layer.5.output.dense.weight"):
            tensors[name] = -tensors[name]
    save_file(tensors, weights, metadata={"format": "pt"})
    files = {name: base.path / name for name in base.manifest.files}
    store.publish(files, base.manifest.model_copy(update={"name": NAME}))
    store.publish(changed, base.manifest.model_copy(update={"name": NAME}))
    store.publish(changed, base.manifest.model_copy(update={"name": OTHER}))
    shipped = ModelStore(shipped_store(), store.own)
    if "oscar-mini" in shipped.names():
        pair = shipped.open("oscar-mini")
        files = {name: pair.path / name for name in pair.manifest.files}
        store.publish(files, pair.manifest.model_copy(update={"name": PAIR}))


class Callers:
    """Ask without a pause, on both doors, and look at every reply."""

    def __init__(self, server: Server, model: str, known: dict[str, np.ndarray[Any, Any]]) -> None:
        self.server = server
        self.model = model
        self.known = known  # by fingerprint, (texts, dims)
        self.seen: list[Seen] = []
        self.over = False

    async def run(self, each: int, meanwhile: Callable[["Callers"], Awaitable[None]]) -> None:
        self.seen = [Seen() for _ in range(2 * each)]
        asks = [
            *(self.rest(caller) for caller in self.seen[:each]),
            *(self.rpc(caller) for caller in self.seen[each:]),
        ]
        callers = [asyncio.create_task(ask) for ask in asks]
        try:
            await meanwhile(self)
        finally:
            self.over = True
            await asyncio.gather(*callers)

    async def settle(self) -> None:
        """Wait until every caller has had some replies more."""
        wanted = [len(caller.revisions) + 3 for caller in self.seen]
        while any(  # noqa: ASYNC110 - what is waited for has no event
            len(caller.revisions) < least and not caller.wrong
            for caller, least in zip(self.seen, wanted, strict=True)
        ):
            await asyncio.sleep(0.01)

    async def rest(self, seen: Seen) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=60, trust_env=False) as http:
            place = 0
            while not self.over and not seen.wrong:
                place = (place + 1) % len(TEXTS)
                body = {"input": TEXTS[place], "model": self.model}
                reply = await http.post("/v1/embeddings", json=body)
                if reply.status_code != 200:
                    seen.wrong[f"REST {reply.status_code}: {reply.text[:200]}"] += 1
                    return
                vector = np.array(reply.json()["data"][0]["embedding"], np.float32)
                self._check(seen, place, vector, reply.headers["x-model-revision"])

    async def rpc(self, seen: Seen) -> None:
        async with grpc.aio.insecure_channel(self.server.grpc) as channel:
            embedding, place = stubs.EmbeddingStub(channel), 0
            while not self.over and not seen.wrong:
                place = (place + 1) % len(TEXTS)
                request = pb.EmbedBatchRequest(model=self.model, texts=[TEXTS[place]])
                try:
                    reply = await embedding.EmbedBatch(request, timeout=60)
                except grpc.aio.AioRpcError as error:
                    seen.wrong[f"gRPC {error.code().name}: {error.details()}"] += 1
                    return
                vector = np.frombuffer(reply.vectors, "<f4")
                self._check(seen, place, vector, reply.fingerprint)

    def _check(self, seen: Seen, place: int, vector: Any, revision: str) -> None:
        seen.revisions.append(revision)
        for fingerprint, vectors in self.known.items():
            apart = float(np.abs(vectors[place] - vector).max())
            if fingerprint == revision and apart > SAME:
                seen.wrong[f"not the vector of the version that it names, by {apart:.3g}"] += 1
            elif fingerprint != revision and apart < APART:
                seen.wrong["the vector of a version that it does not name"] += 1
        if revision not in self.known:
            seen.wrong[f"an unknown revision {revision}"] += 1


async def vectors_of(server: Server, model: str) -> tuple[str, Any]:
    """Return a model's fingerprint, and its vectors of all texts, each alone."""
    async with AsyncClient(server.url) as client:
        rows = [(await client.embed([text], model=model))[0] for text in TEXTS]
        infos = {info.name: info for info in await client.models()}
    return infos[model].fingerprint, np.stack(rows)


async def swap_versions(server: Server, swaps: int, each: int) -> dict[str, Any]:
    known, took = {}, []
    async with AsyncClient(server.url) as client:
        for version in ("2", "1"):
            await client.load_model(NAME, version=version)
            fingerprint, vectors = await vectors_of(server, NAME)
            known[fingerprint] = vectors

        async def swap(callers: Callers) -> None:
            await callers.settle()
            for number in range(swaps):
                loaded = await client.load_model(NAME, version="21"[number % 2])
                took.append(loaded.seconds)
                await callers.settle()

        callers = Callers(server, NAME, known)
        await callers.run(each, swap)
    return figures(callers, swaps, took)


async def swap_alias(server: Server, swaps: int, each: int) -> dict[str, Any]:
    known, took = {}, []
    async with AsyncClient(server.url) as client:
        await client.load_model(NAME, version="1")
        for model in (NAME, OTHER):
            fingerprint, vectors = await vectors_of(server, model)
            known[fingerprint] = vectors
        await client.set_aliases({ALIAS: NAME})

        async def swap(callers: Callers) -> None:
            await callers.settle()
            for number in range(swaps):
                began = time.perf_counter()
                await client.set_aliases({ALIAS: (OTHER, NAME)[number % 2]})
                took.append(time.perf_counter() - began)
                await callers.settle()

        callers = Callers(server, ALIAS, known)
        await callers.run(each, swap)
        await client.set_aliases({ALIAS: None})
    return figures(callers, swaps, took)


def figures(callers: Callers, swaps: int, took: list[float]) -> dict[str, Any]:
    wrong: Counter[str] = sum((caller.wrong for caller in callers.seen), Counter())
    flips = [caller.flips for caller in callers.seen]
    return {
        "callers": len(callers.seen),
        "replies": sum(len(caller.revisions) for caller in callers.seen),
        "swaps": swaps,
        "seconds_a_swap": sorted(took)[len(took) // 2],
        "flips_of_each_caller": flips,
        "wrong": dict(wrong),
        "kept": not wrong and all(flip_count == swaps for flip_count in flips),
    }


async def cycle(server: Server, model: str, cycles: int) -> dict[str, Any]:
    """Load, use and unload a model; returns the resident set after each time, MiB."""
    held: list[float] = []
    loaded_bytes = 0
    async with AsyncClient(server.url) as client:
        await _unload(client, model)
        before = server.memory() / MIB
        for _ in range(cycles):
            loaded = await client.load_model(model)
            loaded_bytes = loaded.memory_bytes
            top = server.memory() / MIB
            if loaded.info.kind == "encoder":
                await client.embed(list(TEXTS), model=model)
            else:
                await client.answer(TEXTS[0], documents=list(TEXTS), model=model, max_tokens=8)
            await client.unload_model(model)
            held.append(server.memory() / MIB)
    tail = held[min(SKIPPED_CYCLES, len(held) // 2) :]
    # Of any two times, and not of neighbours: what is resident goes to and fro by some MiB.
    pairs = itertools.combinations(enumerate(tail), 2)
    slopes = [(last - first) / (end - start) for (start, first), (end, last) in pairs]
    left = float(np.median(slopes)) if slopes else 0.0
    return {
        "model": model,
        "cycles": cycles,
        "model_mib": loaded_bytes / MIB,
        "before_mib": before,
        "while_loaded_mib": top,
        "after_first_mib": held[0],
        "after_last_mib": held[-1],
        "left_mib_a_cycle": left,
        "held_mib": [round(size, 1) for size in held],
        "kept": left < MOST_LEFT_MIB and tail[-1] - tail[0] < loaded_bytes / MIB,
    }


async def _unload(client: AsyncClient, model: str) -> None:
    if any(info.name == model for info in await client.models()):
        await client.unload_model(model)


async def measure(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if "versions" in args.parts:
        figures["versions"] = await swap_versions(server, args.swaps, args.callers)
    if "alias" in args.parts:
        figures["alias"] = await swap_alias(server, args.swaps, args.callers)
    if "memory" in args.parts:
        figures["memory of an encoder"] = await cycle(server, OTHER, args.cycles)
        async with AsyncClient(server.url) as client:
            served = {info.name for info in await client.models()}
        if PAIR in served:
            figures["memory of a pair"] = await cycle(server, PAIR, args.cycles)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ("versions", "alias", "memory")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--swaps", type=int, default=10)
    parser.add_argument("--callers", type=int, default=4, help="on each door")
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--flags", default="", help="for condensery serve")
    take_out(parser)
    args = parser.parse_args()
    recording = begin("swapping.py")
    with workplace() as folder:
        publish(ModelStore(None, folder / "models"), folder)
        with serving(folder, args.flags.split()) as server:
            try:
                figures = asyncio.run(measure(server, args))
            except Exception:
                print(server.log.read_text()[-4000:], file=sys.stderr)
                raise
    print(json.dumps(figures, indent=2))
    keep(figures, recording, args.out)
    return 0 if all(part["kept"] for part in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
