"""What `condensery plan` foretells beside what a load test measures: the capacity, and p95.

    python benchmarks/plan.py [--rates FILE] [--mix mix] [--seconds 60] [--share 0.65]
        [--out FILE.json] [--flags "..."]

Without --rates it measures them first (`condensery bench rates`, two and a half minutes). Then a
server of its own, with the index of samples, is loaded by the doors, texts and checks of the load
tests (REST and gRPC by halves, every reply checked):

1. closed loop, callers that each draw from the mix: their requests a second are the capacity, which
   is held against the plan's;
2. open loop, at random times (Poisson), at --share of the plan's capacity: p95 of each kind and of
   all, held against the plan's for that rate.

The load runs on the same cores. What a request costs it is measured in 1, and the plan is told
(`--elsewhere-ms`). Exits with 1 where the capacity, or p95 of all requests, is off by more than
--within.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "loadtests"))

from profiles import JOBS, MIXES, Job
from recording import tell_machine, tell_others
from rest_and_grpc import DOORS, WRITTEN
from servers import Neighbours, Server, begin, keep, own_cpu_seconds, serving, workplace
from wire import percentile

from condensery.capacity.plan import Target, capacity_of, cost_of_kind, row_of
from condensery.capacity.rates import Rates, read_rates
from condensery.capacity.traffic import Traffic, traffic_of
from condensery.client.rest import Client

CALLERS = 16
MOST_AT_ONCE = 256
WARM_SECONDS = 5.0


class Load:
    """Requests of a mix to a server, over both doors, and how long each took.

    Args:
        jobs: Shares, a row of ``MIXES``.
    """

    def __init__(self, server: Server, jobs: dict[Job, int]) -> None:
        self.doors = [make(server.url, server.grpc) for make in DOORS.values()]
        self.jobs = jobs
        self.chance = random.Random(0)
        self.times: dict[Job, list[float]] = {job: [] for job in jobs}
        self.lock = threading.Lock()
        self.faults: list[str] = []

    def draw(self) -> tuple[Any, Job]:
        with self.lock:
            door = self.chance.choice(self.doors)
            (job,) = self.chance.choices(list(self.jobs), list(self.jobs.values()))
        return door, job

    def send(self, door: Any, job: Job, came: float) -> None:
        """Send a request, and count from when it came."""
        try:
            door.run(job)
        except Exception as fault:  # whatever a library raises is a reply that did not come
            with self.lock:
                self.faults.append(f"{door.name} {job}: {fault}")
            return
        with self.lock:
            self.times[job].append(time.perf_counter() - came)

    def closed(self, seconds: float) -> float:
        """Let callers send one after another; returns requests a second."""
        until = time.perf_counter() + seconds

        def call() -> None:
            while time.perf_counter() < until:
                self.send(*self.draw(), time.perf_counter())

        return self._timed(lambda: _together([call] * CALLERS))

    def open(self, rate: float, seconds: float) -> float:
        """Send at random times, whatever comes back; returns requests a second."""

        def run() -> None:
            due = began = time.perf_counter()
            with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
                while due < began + seconds:
                    time.sleep(max(0.0, due - time.perf_counter()))
                    pool.submit(self.send, *self.draw(), due)
                    due += self.chance.expovariate(rate)

        return self._timed(run)

    def _timed(self, run: Callable[[], None]) -> float:
        for times in self.times.values():
            times.clear()
        began = time.perf_counter()
        run()
        took = time.perf_counter() - began
        if self.faults:
            sys.exit(f"{len(self.faults)} replies were wrong or missing: {self.faults[0]}")
        return sum(map(len, self.times.values())) / took


def _together(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure_rates(flags: Sequence[str], models: Sequence[str], seconds: float) -> Rates:
    """Run `condensery bench rates` as its users do."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rates.json"
        command = [str(Path(sys.executable).with_name("condensery")), "bench", "rates"]
        command += ["--out", str(out), "--seconds", str(seconds), *flags]
        command += ["--models", *models]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return read_rates(out)


def foretell(
    rates: Rates, traffic: Sequence[Traffic], elsewhere: float
) -> tuple[float, Callable[[float], tuple[float, float, tuple[float, ...]]]]:
    """Return the plan's capacity, and what gives utilisation and p95s at a rate, seconds."""
    target = Target(elsewhere=elsewhere, grpc_share=0.5)
    kinds = [cost_of_kind(rates, line.kind, target) for line in traffic]
    capacity, _ = capacity_of(kinds, traffic, rates.servers)
    whole = sum(line.rate for line in traffic)

    def at(rate: float) -> tuple[float, float, tuple[float, ...]]:
        lines = [replace(line, rate=line.rate * rate / whole) for line in traffic]
        row = row_of(kinds, lines, rates.servers, 1)
        return row.utilisation, row.all_p95, row.p95

    return capacity, at


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rates", type=Path, help="measured already, by the same flags")
    parser.add_argument("--rates-seconds", type=float, default=150.0)
    parser.add_argument(
        "--models", nargs="+", default=["minilm-l6", "oscar-mini"], help="those that the mix asks"
    )
    parser.add_argument("--mix", choices=sorted(MIXES), default="mix")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of the two loads")
    parser.add_argument("--share", type=float, default=0.65, help="of the capacity, in the second")
    parser.add_argument("--within", type=float, default=0.2, help="off by so much is a failure")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep the figures")
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    args = parser.parse_args()
    recording = begin("../benchmarks/plan.py")
    flags, jobs = args.flags.split(), MIXES[args.mix]
    rates = (
        read_rates(args.rates)
        if args.rates
        else measure_rates(flags, args.models, args.rates_seconds)
    )
    # The capacity is wanted, and no refusals before it.
    patient = ["--samples", "--max-queue-seconds", "600", *flags]
    with workplace() as folder, serving(folder, patient) as server:
        with Client(server.url) as client:
            client.create_index(WRITTEN)
        load = Load(server, jobs)
        load.closed(WARM_SECONDS)
        neighbours, own, cores = Neighbours(server), own_cpu_seconds(), server.cpu_seconds()
        capacity = load.closed(args.seconds)
        sent = sum(map(len, load.times.values()))
        elsewhere = (own_cpu_seconds() - own) / sent
        each = (server.cpu_seconds() - cores) / sent
        traffic = traffic_of(jobs, 1.0)
        ours, at = foretell(rates, traffic, elsewhere)
        rate = args.share * ours
        cores = server.cpu_seconds()
        sent_rate = load.open(rate, args.seconds)
        each_below = (server.cpu_seconds() - cores) / sum(map(len, load.times.values()))
        foreign = neighbours.cores()
    utilisation, all_p95, p95 = at(sent_rate)
    kinds = {line.kind: seconds for line, seconds in zip(traffic, p95, strict=True)}
    rows = [
        ("capacity, requests/s", ours, capacity),
        (
            "the server's core-ms a request then",
            1000 * (rates.servers / ours - elsewhere),
            1000 * each,
        ),
        (
            f"and at {args.share:.0%} of it",
            1000 * (utilisation * rates.servers / sent_rate - elsewhere),
            1000 * each_below,
        ),
        ("p95 of all, ms", 1000 * all_p95, 1000 * percentile(_all(load.times), 0.95)),
    ]
    for job, times in load.times.items():
        rows.append((f"p95 of {job}, ms", 1000 * kinds[JOBS[job]], 1000 * percentile(times, 0.95)))
    print(f"\nrates of {rates.date}; the load's own work {1000 * elsewhere:.2f} core-ms a request;")
    print(f"other processes used {foreign:.2f} cores meanwhile;")
    print(f"then {sent_rate:.1f} requests/s, {args.share:.0%} of the capacity foretold\n")
    print("| | plan | load test | plan / load test |\n|---|---|---|---|")
    for name, planned, measured in rows:
        print(f"| {name} | {planned:.1f} | {measured:.1f} | {planned / measured:.2f} |")
    about = recording.about()
    print(f"\n{tell_machine(about)}; {tell_others(about)}")
    figures = {
        "mix": args.mix,
        "rates": {"date": rates.date, "foreign_cores": rates.foreign_cores},
        "elsewhere_ms": 1000 * elsewhere,
        "foreign_cores": foreign,
        "rate": sent_rate,
        "rows": [dict(zip(("what", "plan", "load_test"), row, strict=True)) for row in rows],
    }
    keep(figures, recording, args.out)
    off = [
        f"{name}: {planned / measured - 1:+.0%}"
        for name, planned, measured in (rows[0], rows[3])
        if abs(planned / measured - 1) > args.within
    ]
    for line in off:
        print(f"OFF by more than {args.within:.0%}: {line}")
    return 1 if off else 0


def _all(times: dict[Job, list[float]]) -> list[float]:
    return [value for some in times.values() for value in some]


if __name__ == "__main__":
    sys.exit(main())
