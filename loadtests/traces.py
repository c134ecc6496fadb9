"""What traces cost a request: CPU time of servers side by side, one without traces and one with.

CPU time, not latency: it says the same beside other work. Blocks of requests go to each server in
turn; of each the median over its blocks counts.
"""

import argparse
import contextlib
import http.client
import json
import statistics
import sys
import time
from pathlib import Path

from servers import Server, begin, keep, serving, source, take_out, tell_run, workplace

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from otlp_receiver import collecting_grpc

BODY = json.dumps({"inputs": "How many traits did Mendel study?"}).encode()
HEADERS = {
    "content-type": "application/json",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


def measure(server: Server, requests: int) -> float:
    """Return the microseconds of CPU time that a request takes, of so many one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    began = server.cpu_seconds()
    for _ in range(requests):
        connection.request("POST", "/embed", BODY, HEADERS)
        reply = connection.getresponse()
        content = reply.read()
        assert reply.status == 200, content
    connection.close()
    return 1e6 * (server.cpu_seconds() - began) / requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="of a block")
    parser.add_argument("--blocks", type=int, default=11, help="of each server")
    parser.add_argument("--before", type=Path, help="source root of a version to compare with")
    take_out(parser)
    args = parser.parse_args()
    recording = begin("traces.py")
    with workplace() as folder, collecting_grpc() as collector, contextlib.ExitStack() as stack:
        servers: dict[str, Server] = {}
        if args.before is not None:
            with source(args.before):
                servers["before"] = stack.enter_context(serving(folder))
        servers["off"] = stack.enter_context(serving(folder))
        servers["on"] = stack.enter_context(serving(folder, ["--otlp-endpoint", collector.url]))
        blocks: dict[str, list[float]] = {name: [] for name in servers}
        for server in servers.values():
            measure(server, args.requests)
        for _ in range(args.blocks):
            for name, server in servers.items():
                blocks[name].append(measure(server, args.requests))
        time.sleep(1)
    figures = {}
    for name, values in blocks.items():
        low, middle, high = statistics.quantiles(values, n=4)
        figures[name] = {"median_us": middle, "quartiles_us": [low, high], "least_us": min(values)}
        print(f"{name:6}  {middle:7.0f} us  ({low:.0f} to {high:.0f}; least {min(values):.0f})")
    print(f"{len(collector.spans)} spans came; {tell_run(recording.about())}")
    keep({"cpu_of_a_request": figures, "spans": len(collector.spans)}, recording, args.out)


if __name__ == "__main__":
    main()
