"""Where a request's time goes, by kind and door, and what gRPC costs beside REST.

One server, one caller: requests of each kind over REST and over gRPC in turn, round by round.
Means, since means add up:

- client and wire: what the caller waited less what the server says a request took
  (`condensery_request_duration_seconds`): the network's and both sides' HTTP, parsing, writing;
- stages as the server's metrics have them (`condensery_stage_duration_seconds`), of which those of
  an answer's compression have its forward passes and most of its tokenising in them;
- the rest of the server: admission, keys, waiting in the queue, hand-overs between threads. A
  list's pieces wait while others run, so that their time in the queue is no part of the sum.

Then several callers: requests a second, and core-seconds of the server a request, by door. And
streamed answers beside whole ones: the event loop's time, which is the door's, for each event.

    python benchmarks/doors.py [--rounds 5] [--seconds 2] [--callers 8] [--out FILE]
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc

sys.path.append(str(Path(__file__).resolve().parents[1] / "loadtests"))

from recording import Recording, raw, tell_machine, tell_others, tell_versions
from servers import Server, serving, workplace

from condensery.atomic_files import write_atomically
from condensery.capacity.machine import loop_seconds
from condensery.stubs import condensery_v1_pb2 as pb

DOORS = ("REST", "gRPC")
STAGES = ("tokenize", "queue", "forward", "compress", "generate", "index", "serialize")
STAGE = "condensery_stage_duration_seconds_sum"
REQUEST = "condensery_request_duration_seconds"
WARM_REQUESTS = 20

Ask = Callable[[], bytes]


@dataclass(frozen=True)
class Kind:
    """One kind of request: its path and body, its method and message."""

    title: str
    path: str
    body: dict[str, Any]
    method: str
    message: Any
    streamed: bool = False


def kinds() -> list[Kind]:
    """Return what is sent."""
    folder = Path(__file__).resolve().parents[1] / "service" / "condensery" / "samples"
    lines = [json.loads(line) for line in (folder / "passages.jsonl").read_text().splitlines()]
    texts = [line["text"] for line in lines]
    first = (folder / "questions.jsonl").read_text().splitlines()[0]
    question = json.loads(first)["question"]
    encoder, pair = "minilm-l6", "oscar-mini"
    made = [
        Kind(
            title,
            "/v1/embeddings",
            {"model": encoder, "input": some, "encoding_format": "base64"},
            "Embedding/EmbedBatch",
            pb.EmbedBatchRequest(model=encoder, texts=some),
        )
        for title, some in (("one question", [question]), ("32 passages", texts[:32]))
    ]
    made.append(
        Kind(
            "100 passages reranked",
            "/v1/rerank",
            {"model": pair, "query": question, "documents": texts[:100]},
            "Rerank/Rerank",
            pb.RerankRequest(model=pair, query=question, passages=texts[:100]),
        )
    )
    documents = [pb.Document(text=text) for text in texts[:10]]
    asked = pb.AnswerRequest(model=pair, query=question, documents=documents)
    body = {"model": pair, "query": question, "documents": texts[:10]}
    path = "/v1/rag/answer"
    made += [
        Kind("answered from 10", path, body, "Rag/Answer", asked),
        Kind(
            "answered from 10, streamed",
            *(path, {**body, "stream": True}, "Rag/AnswerStream", asked),
            streamed=True,
        ),
    ]
    return made


class Caller:
    """One connection of each door."""

    def __init__(self, server: Server) -> None:
        self._http = HTTPConnection("127.0.0.1", server.port, timeout=120)
        self._channel = grpc.insecure_channel(server.grpc)

    def asks(self, kind: Kind) -> dict[str, Ask]:
        """Return what sends a request of a kind, by door: bytes that were made before."""
        body, sent = json.dumps(kind.body).encode(), kind.message.SerializeToString()
        make = self._channel.unary_stream if kind.streamed else self._channel.unary_unary
        call = make(f"/condensery.v1.{kind.method}")

        def rest() -> bytes:
            self._http.request("POST", kind.path, body, {"content-type": "application/json"})
            reply = self._http.getresponse()
            content = reply.read()
            if reply.status != 200:
                sys.exit(f"{kind.path}: {reply.status} {content[:300]!r}")
            return content

        def over_grpc() -> bytes:
            reply = call(sent, timeout=120)
            content: bytes = b"".join(reply) if kind.streamed else reply
            return content

        return {"REST": rest, "gRPC": over_grpc}


def send(asks: Sequence[Ask], seconds: float) -> list[float]:
    """Let each caller send one after another for so long; returns what each request took."""
    taken: list[float] = []

    def call(ask: Ask) -> None:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            ask()
            taken.append(time.perf_counter() - began)

    threads = [threading.Thread(target=call, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def measure_alone(server: Server, ask: Ask, door: str, seconds: float) -> Any:
    """Return a round of one caller: means of its parts, milliseconds, and the event loop's."""
    before, loop = server.metrics(), loop_seconds(server.process.pid)
    taken = send([ask], seconds)
    loop = loop_seconds(server.process.pid) - loop
    after, count = server.metrics(), len(taken)

    def spent(sample: str) -> float:
        return 1000 * (after.get(sample, 0.0) - before.get(sample, 0.0)) / count

    # by label, of whatever model: what answers a question also embeds nothing else here
    request = sum(
        spent(name)
        for name in after
        if name.startswith(f"{REQUEST}_sum{{") and f'protocol="{door.lower()}"' in name
    )
    stages = {
        stage: sum(
            spent(name) for name in after if name.startswith(f"{STAGE}{{") and f'"{stage}"' in name
        )
        for stage in STAGES
    }
    whole = 1000 * statistics.fmean(taken)
    return {
        "requests": count,
        "mean_ms": whole,
        "p50_ms": 1000 * statistics.median(taken),
        "wire_ms": whole - request,
        "stages_ms": stages,
        "loop_ms": 1000 * loop / count,
    }


def measure_together(
    server: Server, kind: Kind, callers: Sequence[Caller], door: str, seconds: float
) -> Any:
    """Return a round of several callers: requests a second, core-milliseconds of the server."""
    used = server.cpu_seconds()
    began = time.perf_counter()
    taken = send([caller.asks(kind)[door] for caller in callers], seconds)
    took = time.perf_counter() - began
    return {
        "requests_per_second": len(taken) / took,
        "p50_ms": 1000 * statistics.median(taken),
        "core_ms": 1000 * (server.cpu_seconds() - used) / len(taken),
    }


def middle(rounds: Sequence[Any]) -> Any:
    """Return the median over rounds of each figure."""
    return {
        key: middle([one[key] for one in rounds])
        if isinstance(rounds[0][key], dict)
        else statistics.median(one[key] for one in rounds)
        for key in rounds[0]
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    flags = ["--workers", "1", *args.flags.split()]
    with workplace() as folder, serving(folder, flags) as server:
        callers = [Caller(server) for _ in range(args.callers)]
        for kind in kinds():
            asks = callers[0].asks(kind)
            for caller in callers:
                for ask in caller.asks(kind).values():
                    for _ in range(-(-WARM_REQUESTS // args.callers)):
                        ask()
            alone: dict[str, list[Any]] = {door: [] for door in DOORS}
            together: dict[str, list[Any]] = {door: [] for door in DOORS}
            for number in range(args.rounds):
                for door in DOORS[:: 1 if number % 2 else -1]:
                    alone[door].append(measure_alone(server, asks[door], door, args.seconds))
                    together[door].append(
                        measure_together(server, kind, callers, door, args.seconds)
                    )
            rows[kind.title] = {
                door: {
                    "alone": middle(alone[door]),
                    "together": middle(together[door]),
                    "rounds": {"alone": alone[door], "together": together[door]},
                }
                for door in DOORS
            }
            events = asks["REST"]().count(b"\n\n") if kind.streamed else 1
            rows[kind.title]["events"] = events
            print(kind.title, flush=True)
    return rows


def parts_of(stages: dict[str, float]) -> dict[str, float]:
    """Return the stages that follow each other, milliseconds."""
    if stages["compress"]:
        return {"tokenize": 0.0, "work": stages["compress"], "generate": stages["generate"]}
    return {"tokenize": stages["tokenize"], "work": stages["forward"], "generate": 0.0}


def render(report: dict[str, Any]) -> str:
    rows, callers = report["rows"], report["callers"]
    head = ["request", "door", "p50", "mean", "tokenized", "forward or compressed", "generated"]
    head += ["serialized", "rest of the server", "client and wire", "overhead"]
    lines = [
        "# Where a request's time goes",
        "",
        (
            f"Milliseconds, one caller, one worker (`--workers 1`); medians over {report['count']}"
            " rounds, the doors in turn. From the third number on a row adds up to its mean."
        ),
        "",
        f"| {' | '.join(head)} |",
        f"|---|---|{'---:|' * (len(head) - 2)}",
    ]
    for title, row in rows.items():
        for door in DOORS:
            one = row[door]["alone"]
            parts = parts_of(one["stages_ms"])
            written = one["stages_ms"]["serialize"]
            rest = one["mean_ms"] - one["wire_ms"] - sum(parts.values()) - written
            figures = [one["p50_ms"], one["mean_ms"], *parts.values()]
            figures += [written, rest, one["wire_ms"]]
            cells = " | ".join(f"{figure:.2f}" for figure in figures)
            over = one["mean_ms"] / (parts["work"] + parts["generate"]) - 1
            lines.append(f"| {title} | {door} | {cells} | {over:.1%} |")
    lines += [
        "",
        "Overhead: what the caller waits beyond forward passes, compressing and generating.",
        "",
        f"## gRPC beside REST, {callers} callers",
        "",
        "| request | REST req/s | gRPC req/s | gRPC of REST | REST core-ms | gRPC core-ms |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for title, row in rows.items():
        rest, other = (row[door]["together"] for door in DOORS)
        share = other["requests_per_second"] / rest["requests_per_second"]
        lines.append(
            f"| {title} | {rest['requests_per_second']:.1f} | {other['requests_per_second']:.1f}"
            f" | {share:.0%} | {rest['core_ms']:.2f} | {other['core_ms']:.2f} |"
        )
    whole, streamed = rows["answered from 10"], rows["answered from 10, streamed"]
    events = streamed["events"]
    lines += ["", "## Streams", ""]
    for door in DOORS:
        more = streamed[door]["alone"]["loop_ms"] - whole[door]["alone"]["loop_ms"]
        lines.append(
            f"{door}: {streamed[door]['alone']['loop_ms']:.2f} ms of the event loop for an answer"
            f" of {events} events, {whole[door]['alone']['loop_ms']:.2f} for a whole one:"
            f" {1000 * more / events:.0f} us an event.\n"
        )
    lines.append(
        f"Made on {report['date']} by `{report['command']}` on {tell_machine(report)};"
        f" {tell_others(report)}; {tell_versions(report)}."
    )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round at a door")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--flags", default="", help="for condensery serve, in one string")
    parser.add_argument("--out", type=Path, metavar="FILE", help="without ending")
    args = parser.parse_args()
    recording = Recording("benchmarks/doors.py", "condensery", "torch", "grpcio", "uvicorn")
    rows = measure(args)
    report = {**recording.about(), "count": args.rounds, "callers": args.callers, "rows": rows}
    page = render(report)
    print(page)
    if args.out:
        write_atomically(args.out.with_suffix(".json"), raw(report))
        write_atomically(args.out.with_suffix(".md"), page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
