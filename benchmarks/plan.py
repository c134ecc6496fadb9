"""What `condensery plan` foretells beside what a load measures: the capacity, and p95 below it.

    python benchmarks/plan.py [--rates FILE] [--mix mix] [--seconds 60] [--share 0.65]
        [--out FILE.json] [--flags "..."]

Without --rates it measures them first (`condensery bench rates`, two and a half minutes). Then a
server of its own, with the index of samples, is loaded by the doors, texts and checks of the load
tests, over REST: first by callers that each send one request of the mix after another
(their requests a second are the capacity), then at random times (Poisson), at --share of the
capacity that the plan has. The load runs on the same cores: what a request costs it is measured,
and told to the plan (`--elsewhere-ms`). Exits with 1 where the capacity, or p95 of all requests, is
off by more than --within.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "loadtests"))

from profiles import JOBS, MIXES, Job
from recording import Recording, tell_machine, tell_others
from rest_and_grpc import WRITTEN, RestDoor
from servers import Server, keep, own_cpu_seconds, serving, workplace
from wire import percentile

from condensery.capacity.plan import Target, capacity_of, cost_of_kind, row_of
from condensery.capacity.rates import Rates, read_rates
from condensery.capacity.traffic import traffic_of
from condensery.client.rest import Client

CALLERS = 16
MOST_AT_ONCE = 256
WARM_SECONDS = 5.0
MODELS = ("minilm-l6", "oscar-mini")  # that the mixes ask


class Load:
    """Requests of a mix to a server, and how long each took, seconds."""

    def __init__(self, server: Server, jobs: dict[Job, int]) -> None:
        self.server = server
        self.door = RestDoor(server.url, server.grpc)
        self.jobs = jobs
        self.chance = random.Random(0)
        self.times: list[tuple[Job, float]] = []  # appending is whole, from many threads
        self.faults: list[str] = []

    def draw(self) -> Job:
        return self.chance.choices(list(self.jobs), list(self.jobs.values()))[0]

    def send(self, job: Job, came: float) -> None:
        """Send a request, and count from when it came."""
        try:
            self.door.run(job)
            self.times.append((job, time.perf_counter() - came))
        except Exception as fault:  # whatever a library raises is a reply that did not come
            self.faults.append(f"{job}: {fault}")

    def run(self, seconds: float, rate: float = 0.0) -> tuple[float, float, float]:
        """Send at random times at a rate; 0: callers send one request after another.

        Returns:
            Requests a second, and core-seconds a request of the server and of this process.
        """
        self.times.clear()
        server, own = self.server.cpu_seconds(), own_cpu_seconds()
        due = began = time.perf_counter()

        def call() -> None:
            while time.perf_counter() < began + seconds:
                self.send(self.draw(), time.perf_counter())

        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            while rate and due < began + seconds:
                time.sleep(max(0.0, due - time.perf_counter()))
                pool.submit(self.send, self.draw(), due)
                due += self.chance.expovariate(rate)
            for _ in range(0 if rate else CALLERS):
                pool.submit(call)
        took, count = time.perf_counter() - began, len(self.times)
        if self.faults:
            sys.exit(f"{len(self.faults)} replies were wrong or missing: {self.faults[0]}")
        server, own = self.server.cpu_seconds() - server, own_cpu_seconds() - own
        return count / took, server / count, own / count


def measure_rates(flags: list[str], seconds: float) -> Rates:
    """Run `condensery bench rates` as its users do."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rates.json"
        command = [str(Path(sys.executable).with_name("condensery")), "bench", "rates", *flags]
        command += ["--out", str(out), "--seconds", str(seconds), "--models", ",".join(MODELS)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return read_rates(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rates", type=Path, help="measured already, by the same flags")
    parser.add_argument("--rates-seconds", type=float, default=150.0)
    parser.add_argument("--mix", choices=sorted(MIXES), default="mix")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of the two loads")
    parser.add_argument("--share", type=float, default=0.65, help="of the capacity, in the second")
    parser.add_argument("--within", type=float, default=0.2, help="off by more is a failure")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep the figures")
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    args = parser.parse_args()
    recording = Recording("benchmarks/plan.py", "condensery", "torch", "transformers")
    flags, jobs = args.flags.split(), MIXES[args.mix]
    rates = read_rates(args.rates) if args.rates else measure_rates(flags, args.rates_seconds)
    # The capacity is wanted, and no refusals before it.
    patient = ["--samples", "--max-queue-seconds", "600", *flags]
    with workplace() as folder, serving(folder, patient) as server:
        with Client(server.url) as client:
            client.create_index(WRITTEN)
        load = Load(server, jobs)
        load.run(WARM_SECONDS)
        capacity, each, elsewhere = load.run(args.seconds)
        target = Target(elsewhere=elsewhere)
        kinds = [cost_of_kind(rates, line.kind, target) for line in traffic_of(jobs, 1.0)]
        ours, _ = capacity_of(kinds, traffic_of(jobs, 1.0), rates.servers)
        rate, each_below, _ = load.run(args.seconds, args.share * ours)
    row = row_of(kinds, traffic_of(jobs, rate), rates, 1)
    p95 = {kind.kind: seconds for kind, seconds in zip(kinds, row.p95, strict=True)}
    work, below = rates.servers / ours, row.utilisation * rates.servers / rate
    rows = [
        ("capacity, requests/s", ours, capacity),
        ("the server's core-ms a request then", 1000 * (work - elsewhere), 1000 * each),
        (f"and at {args.share:.0%} of it", 1000 * (below - elsewhere), 1000 * each_below),
    ]
    for name, foretold, some in [
        ("all", row.all_p95, set(jobs)),
        *((job, p95[JOBS[job]], {job}) for job in jobs),
    ]:
        times = [seconds for job, seconds in load.times if job in some]
        rows.append((f"p95 of {name}, ms", 1000 * foretold, 1000 * percentile(times, 0.95)))
    print(
        f"\nthe load's own work is {1000 * elsewhere:.2f} core-ms a request; p95 at {rate:.1f}/s\n"
    )
    print("| | plan | load | plan / load |\n|---|---|---|---|")
    for what, planned, measured in rows:
        print(f"| {what} | {planned:.1f} | {measured:.1f} | {planned / measured:.2f} |")
    about = recording.about()
    print(f"\n{tell_machine(about)}; {tell_others(about)}")
    figures = {
        "mix": args.mix,
        "rates_foreign_cores": rates.foreign_cores,
        "elsewhere_ms": 1000 * elsewhere,
        "rate": rate,
        "rows": [dict(zip(("what", "plan", "load"), row, strict=True)) for row in rows],
    }
    keep(figures, recording, args.out)
    off = [row for row in (rows[0], rows[3]) if abs(row[1] / row[2] - 1) > args.within]
    for what, planned, measured in off:
        print(f"OFF by more than {args.within:.0%}: {what}: {planned / measured - 1:+.0%}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
