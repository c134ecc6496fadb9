"""Starts: how long until a server is ready, and what is resident then.

Each server is started in turn, on one data directory and warm files, until it is ready; three
seconds later its memory is read, and it ends.

    python loadtests/start.py [--rounds 5] [--models minilm-l6,oscar-mini] [--before OLDER/service]

`all` loads every shipped model, `named` those of --models. An older version has no such flag, and
loads all.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

from servers import Server, begin, keep, serving, source, take_out, tell_run, workplace

SETTLING_SECONDS = 3.0
MIB = 2**20


def start(folder: Path, flags: list[str], before: Path | None) -> dict[str, float]:
    """Start a server and end it; returns seconds, and MiB of its memory, resident and its own."""
    began = time.perf_counter()
    with source(before), serving(folder, flags) as server:
        seconds = time.perf_counter() - began
        used = server.cpu_seconds()
        time.sleep(SETTLING_SECONDS)
        return {
            "seconds": seconds,
            "cpu_seconds": used,
            "resident_mib": server.memory() / MIB,
            "anonymous_mib": anonymous(server) / MIB,
        }


def anonymous(server: Server) -> int:
    """Return the bytes resident that are in no file."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="minilm-l6,oscar-mini", help="those of `named`")
    parser.add_argument("--before", type=Path, metavar="OLDER/service", help="an older checkout's")
    take_out(parser)
    args = parser.parse_args()
    recording = begin("start.py")
    servers: dict[str, tuple[list[str], Path | None]] = {
        "all": ([], None),
        "named": (["--models", args.models], None),
    }
    if args.before is not None:
        servers["all, before"] = ([], args.before.resolve())
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    with workplace() as folder:
        start(folder, [], None)  # imports the default encoder, and reads all files once
        for _ in range(args.rounds):
            for name, (flags, before) in servers.items():
                rows[name].append(start(folder, flags, before))
    medians = {
        name: {key: statistics.median(row[key] for row in some) for key in some[0]}
        for name, some in rows.items()
    }
    run = recording.about()
    print(f"{tell_run(run)}; medians of {args.rounds}\n")
    print("| models | seconds to ready | processor seconds | resident MiB | of that in no file |")
    print("|---|---|---|---|---|")
    for name, row in medians.items():
        print(
            f"| {name} | {row['seconds']:.2f} | {row['cpu_seconds']:.1f}"
            f" | {row['resident_mib']:.0f} | {row['anonymous_mib']:.0f} |"
        )
    keep({"medians": medians, "starts": rows}, recording, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
