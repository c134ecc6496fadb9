"""A million requests, one after another by many callers: does memory grow?

Starts a server of its own with two encoders: the default one, and one of a single narrow layer,
which is asked, so that a million requests take a quarter of an hour and not two. What a request
leaves behind in doors, queues, tokenizers and metrics it leaves with any model. The resident set is
read after every so many; after the first tenth, in which pools and arenas fill, it may grow
by --growth-mib in all.

    python loadtests/growth.py [--requests 1000000] [--connections 64] [--front-processes 0]

Exits with 1 if it grew by more, or if a reply was missing.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from servers import HERE, Server, begin, keep, serving, take_out, tell_run, workplace
from texts import QUESTIONS

sys.path.append(str(HERE.parent / "benchmarks"))

from fronts import NARROW, make_narrow

from condensery.store.importing import MINILM, import_minilm
from condensery.store.store import ModelStore

MIB = 2**20
READINGS = 50
WARMING = 0.1  # of the requests


def memory_of(server: Server) -> dict[str, float]:
    """Return MiB resident: of the server, of that in no file, and of its front processes."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    own = next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))
    fronts = sum(
        int(Path(f"/proc/{child}/statm").read_text().split()[1]) * 4096 / MIB for child in children
    )
    return {"resident_mib": server.memory() / MIB, "anonymous_mib": own, "fronts_mib": fronts}


def ask(server: Server, bodies: Path, connections: int, requests: int) -> int:
    """Send at least so many requests; returns how many, none of which failed."""
    done = 0
    while done < requests:
        # The generator counts seconds, not requests: a few at a time.
        command = [sys.executable, str(HERE.parent / "benchmarks" / "load_generator.py")]
        command += [str(server.port), "/v1/embeddings", str(bodies)]
        command += ["--connections", str(connections), "--seconds", "10"]
        run = subprocess.run(command, capture_output=True, check=True, text=True)
        report = json.loads(run.stdout)
        if report["failures"]:
            sys.exit(f"BROKEN: {report['failures'][:3]}")
        done += report["requests"]
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--front-processes", type=int, default=0)
    parser.add_argument("--growth-mib", type=float, default=32.0, help="that memory may grow")
    take_out(parser)
    args = parser.parse_args()
    recording = begin("growth.py")
    with workplace() as folder:
        store = ModelStore(None, folder / "models")
        import_minilm(store)
        make_narrow(store)
        bodies = folder / "bodies.jsonl"
        lines = (json.dumps({"model": NARROW, "input": text}) for text in QUESTIONS)
        bodies.write_text("".join(f"{line}\n" for line in lines))
        flags = ["--models", f"{MINILM},{NARROW}", "--front-processes", str(args.front_processes)]
        with serving(folder, [*flags, "--settle-seconds", "0"]) as server:
            readings: list[dict[str, Any]] = [{"requests": 0, **memory_of(server)}]
            while (done := readings[-1]["requests"]) < args.requests:
                done += ask(server, bodies, args.connections, args.requests // READINGS)
                readings.append({"requests": done, **memory_of(server)})
                print(
                    f"{done:>9,} requests: {readings[-1]['resident_mib']:.0f} MiB resident, "
                    f"{readings[-1]['anonymous_mib']:.0f} in no file, "
                    f"{readings[-1]['fronts_mib']:.0f} in front processes",
                    flush=True,
                )
    warm = [one for one in readings if one["requests"] >= WARMING * args.requests]
    grew = {
        name: warm[-1][name] - warm[0][name]
        for name in ("resident_mib", "anonymous_mib", "fronts_mib")
    }
    keep({"readings": readings, "grew_mib": grew}, recording, args.out)
    print(tell_run(recording.about()))
    print(
        f"from {warm[0]['requests']:,} to {warm[-1]['requests']:,} requests: "
        f"{grew['resident_mib']:+.1f} MiB resident, {grew['fronts_mib']:+.1f} in front processes"
    )
    if max(grew["resident_mib"], grew["fronts_mib"]) > args.growth_mib:
        print(f"BROKEN: memory grew by more than {args.growth_mib:g} MiB")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
