"""Load a service by a profile, and judge it: `make load`.

    python loadtests/load.py [--profile smoke|ramp|spike|soak|overload]
        [--mix mix|embed|rerank|answer|write] [--rate R] [--seconds S] [--doors rest,grpc]
        [--host URL --grpc HOST:PORT] [--out FOLDER] [--flags "..."]

A server that answers at --host is loaded; where none does, one of its own is started, with the
index of samples, and ended again. What is written goes into an index `load-test`, which is dropped.
A server with keys wants one with the scope index-write, in CONDENSERY_API_KEY.
In --out: report.html (locust's: requests a second, failures, latencies and load over time) and
figures.json. Exits with 1 if a reply was wrong or missing, a bound of the profile was broken, or
(of a server of its own) memory grew too much.
"""

import argparse
import contextlib
import csv
import statistics
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from profiles import MIXES, PROFILES
from rest_and_grpc import KEY, WRITTEN
from servers import Server, begin, keep, serving, workplace

HERE = Path(__file__).resolve().parent
DEFAULT_HOST = "http://127.0.0.1:8080"
MIB = 2**20
SAMPLE_SECONDS = 2.0
LONG_SECONDS = 300.0
STOP_SECONDS = 65  # for the last replies; users themselves wait a little less


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def send(url: str, method: str) -> None:
    """Make or drop the index that is written to."""
    request = urllib.request.Request(
        f"{url}/v1/indexes/{WRITTEN}",
        b"{}" if method == "PUT" else None,
        {"content-type": "application/json", **KEY},
        method=method,
    )
    with contextlib.suppress(urllib.error.HTTPError):  # it is there, or is not
        urllib.request.urlopen(request, timeout=60).close()


@contextlib.contextmanager
def watching(server: Server | None, samples: list[int]) -> Iterator[None]:
    """Note the server's memory in this block."""
    over = threading.Event()

    def watch() -> None:
        while server is not None and not over.wait(SAMPLE_SECONDS):
            with contextlib.suppress(OSError):
                samples.append(server.memory())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def tell_memory(samples: list[int], seconds: float) -> dict[str, float]:
    """Return how memory went: its growth between the thirds of a run, and by the hour."""
    third = max(1, len(samples) // 3)
    first, last = (statistics.mean(part) / MIB for part in (samples[:third], samples[-third:]))
    slope = 0.0  # of a short run it says nothing
    if seconds >= LONG_SECONDS:
        times = [place * SAMPLE_SECONDS / 3600 for place in range(len(samples))]
        slope = statistics.linear_regression(times, [sample / MIB for sample in samples]).slope
    return {
        "first_mib": first,
        "last_mib": last,
        "growth_mib": last - first,
        "mib_an_hour": slope,
        "seconds": seconds,
    }


def by_minute(history: Path, mib: Sequence[float]) -> list[dict[str, float]]:
    """Return how a load went, a row a minute: requests a second, percentiles (ms), memory (MiB).

    Args:
        history: What locust wrote, a row a second of all requests; percentiles are of all so
            far.
        mib: The server's memory, every ``SAMPLE_SECONDS``; empty where it is not ours.
    """
    with history.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["Name"] == "Aggregated"]
    each = int(60 / SAMPLE_SECONDS)
    minutes = []
    for minute, row in enumerate(rows[59::60], start=1):
        figures = {
            "minute": minute,
            "requests_per_second": float(row["Requests/s"]),
            **{f"p{part}_ms": _number(row[f"{part}%"]) for part in (50, 95, 99)},
            "failed": float(row["Total Failure Count"]),
        }
        if len(mib) >= minute * each:
            figures["mib"] = round(mib[minute * each - 1], 1)
        minutes.append(figures)
    return minutes


def _number(text: str) -> float:
    return 0.0 if text == "N/A" else float(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="smoke")
    parser.add_argument("--mix", choices=sorted(MIXES), default="mix")
    parser.add_argument("--rate", type=float, default=0.0, help="the highest, requests a second")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--doors", default="rest,grpc")
    parser.add_argument("--p95-ms", type=float, default=0.0)
    parser.add_argument("--host", default=DEFAULT_HOST)
    parser.add_argument("--grpc", default="", help="by default port 8081 of the host")
    parser.add_argument("--out", type=Path, default=Path("load-report"), help="a folder")
    parser.add_argument("--flags", default="", help="of the server that is started")
    args = parser.parse_args()
    profile = PROFILES[args.profile].changed(args.rate, args.seconds, args.p95_ms)
    args.out.mkdir(parents=True, exist_ok=True)
    recording, samples = begin("load.py"), list[int]()
    with contextlib.ExitStack() as stack:
        server: Server | None = None
        url = args.host.rstrip("/")
        address = args.grpc or f"{urlsplit(url).hostname}:8081"
        if not answers(url):
            if args.host != DEFAULT_HOST:
                sys.exit(f"no server is ready at {url}")
            print("no server runs: starting one")
            folder = stack.enter_context(workplace())
            server = stack.enter_context(serving(folder, ["--samples", *args.flags.split()]))
            url, address = server.url, server.grpc
        send(url, "PUT")
        stack.callback(send, url, "DELETE")
        command = [sys.executable, "-m", "locust", "-f", str(HERE / "locustfile.py"), "--headless"]
        command += ["--host", url, "--grpc", address, "--html", str(args.out / "report.html")]
        command += ["--load-profile", args.profile, "--mix", args.mix, "--doors", args.doors]
        command += ["--rate", str(args.rate), "--seconds", str(args.seconds)]
        command += ["--p95-ms", str(args.p95_ms), "--only-summary", "--csv", str(args.out / "load")]
        command += ["--csv-full-history"]  # else its percentiles are of all requests so far
        command += ["--stop-timeout", str(STOP_SECONDS)]
        print(f"loading {url} and {address}: {args.profile}, {profile.seconds:g} s")
        with watching(server, samples):
            status = subprocess.run(command, check=False).returncode
    figures: dict[str, object] = {"profile": args.profile, "status": status}
    history = args.out / "load_stats_history.csv"
    if history.exists():  # or the load never began, and its status says so
        figures["minutes"] = by_minute(history, [sample / MIB for sample in samples])
    if samples:
        memory = tell_memory(samples, profile.seconds)
        figures["memory"] = memory
        print(
            f"memory {memory['first_mib']:.0f} to {memory['last_mib']:.0f} MiB"
            f" ({memory['mib_an_hour']:+.0f} MiB an hour)"
        )
        if profile.growth_mib and memory["growth_mib"] > profile.growth_mib:
            print(f"BROKEN: memory grew by more than {profile.growth_mib:g} MiB")
            status = 1
    keep(figures, recording, args.out / "figures.json")
    print(f"report: {args.out / 'report.html'}")
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
