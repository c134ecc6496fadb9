"""No false alarm: a loaded server on a machine whose cores others take, and then a real hang.

As many processes as are asked for do nothing but compute, at the server's own priority, while
callers of both doors go on as they mix (`mix.py`). A forward pass then takes many times what it
should, and no worker hangs: not once may health say so, and none may be replaced. At the end a
worker does hang, while the machine is as crowded, and that must be noticed as soon as ever.

    python loadtests/crowded.py [--seconds 600] [--others 4] [--rate 4] [--out FILE]

Exits with 1 if a promise is broken (docs/reliability.md).
"""

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from callers import Callers
from doors import GrpcDoor, RestDoor
from mix import RightReplies
from servers import Neighbours, Server, begin, keep, serving, take_out, workplace
from watching import HealthWatch

# Unless said otherwise; a probe's reply may itself wait for a core.
UNREADY_SECONDS = 2.0 + 1.0
# A request that has no reply in time, on such a machine, is slow and no promise is broken.
RECORD = ("right", "refused", "failed", "lost", "worker")
LOOKS_SECONDS = 0.1


@contextlib.contextmanager
def crowd(others: int) -> Iterator[None]:
    """Take the machine's cores with so many processes."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


async def oldest(server: Server, ages: list[float]) -> None:
    """Note how long the oldest forward pass has been running, again and again."""
    while True:
        metrics = await asyncio.to_thread(server.metrics)
        ages.append(metrics.get("condensery_heartbeat_age_seconds", 0.0))
        await asyncio.sleep(LOOKS_SECONDS)


async def run(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    doors = (RestDoor(server.url), GrpcDoor(server.grpc))
    known = RightReplies()
    await known.learn(doors[0])
    callers = Callers(doors, known, args.rate, random.Random(args.seed), hurried=0)
    watch = HealthWatch(server.url, doors[1])
    neighbours, ages = Neighbours(server), [0.0]
    figures: dict[str, Any] = {"broken": []}

    def expect(holds: bool, otherwise: str) -> None:
        if not holds:
            figures["broken"].append(otherwise)

    with crowd(args.others):
        watching = asyncio.create_task(watch.run())
        looking = asyncio.create_task(oldest(server, ages))
        looking.add_done_callback(lambda task: task.cancelled() or task.exception())
        began, used = time.monotonic(), server.cpu_seconds()
        await callers.run("crowded", args.seconds)
        await callers.settle()
        looking.cancel()
        took = time.monotonic() - began
        alarms = [change for change in watch.after(began) if "hang" in change.reason]
        restarts = (await asyncio.to_thread(server.metrics)).get(
            "condensery_worker_restarts_total", 0.0
        )
        figures |= {
            "seconds": took,
            "others_cores": neighbours.cores(),
            "server_cores": (server.cpu_seconds() - used) / took,
            "oldest_pass_seconds": max(ages),
            "outcomes": {name: callers.records.count()[name] for name in RECORD},
            "alarms": len(alarms),
            "restarts": restarts,
        }
        expect(not alarms, f"{len(alarms)} times a worker was said to hang, and none did")
        expect(not restarts, f"{restarts:g} workers were replaced, and none hung")
        wrong = callers.records.find(outcome="failed")
        expect(
            not wrong, f"{len(wrong)} replies were wrong: {[record.note for record in wrong[:3]]}"
        )
        at = time.monotonic()
        server.inject(hang=None)
        await callers.run("hang", 15)
        unready = next((change for change in watch.after(at) if change.ready == 503), None)
        expect(unready is not None, "a real hang was not noticed")
        if unready is not None:
            figures["hang_noticed_seconds"] = took = unready.at - at
            expect(took <= args.unready_seconds, f"noticed after {took:.1f} s")
        await callers.settle()
        watching.cancel()
    for door in doors:
        await door.close()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--others", type=int, default=2 * len(os.sched_getaffinity(0)))
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--unready-seconds", type=float, default=UNREADY_SECONDS, help="allowed")
    parser.add_argument("--seed", type=int, default=1)
    take_out(parser)
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    args = parser.parse_args()
    recording = begin("crowded.py")
    with workplace() as folder, serving(folder, args.flags.split(), faulty=True) as server:
        try:
            figures = asyncio.run(run(server, args))
        except OSError as error:  # nobody is there any more to tell its metrics
            figures = {"broken": [f"the process ended by itself with {server.wait()} ({error})"]}
    for name, value in figures.items():
        if name != "broken":
            print(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    for broken in figures["broken"]:
        print(f"BROKEN: {broken}")
    keep(figures, recording, args.out)
    return 1 if figures["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
