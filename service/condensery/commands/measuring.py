"""A server of our own, each kind of request sent to it, and what that cost: ``bench rates``."""

import http.client
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from condensery.capacity import machine
from condensery.capacity.plan import is_short
from condensery.capacity.rates import MeasuredModel, Memory, Point, Together
from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.commands.common import print_note
from condensery.errors import InputError, StartError, shorten
from condensery.settings import variable_of
from condensery.values import Document

START_SECONDS = 600.0
STOP_SECONDS = 60.0
REPLY_SECONDS = 120.0
LEAST_REQUESTS = 3  # of a kind, and one of each caller, whatever the time
WARM_REQUESTS = 4  # before those that count
BODIES = 16  # different requests of one kind, sent in turn
LIST = 16  # texts of the longer requests
LENGTHS = (8, 32, 128)  # tokens, and as many as a model reads
PAIR_LENGTHS = (32, 96)  # of passages; and as many as fit beside a question
QUESTION_ROOM = 35
ANSWER_PASSAGES, ANSWER_LENGTH, ANSWER_TOKENS = 5, 96, 32
WRITE_LENGTH = 85
SHORTEST_TOKENS = 32
TOGETHER_SHARE = 0.1  # of the time, in which all kinds are sent at once
CHARACTERS = 7  # of a token, at most in the mean
MEASURED_KINDS = ("encoder", "oscar-pair", "reranker")
SAME = ("name", "kind", "version", "fingerprint", "dtype", "device", "max_tokens")  # as served
INDEX = "rates"
LEAST_INDEX = 1000
FILL = 1000  # passages a write
WRITTEN = "rates-written"
# Settings that a server of ours has of its own, whatever flags and environment say.
OWN = ("host", "port", "grpc_port", "keys_file", "tls_cert", "tls_key", "data_dir", "samples")


def concurrency_of(cores: int) -> int:
    """Return how many callers keep so many cores busy, with requests that wait for each other."""
    return min(64, max(8, 4 * cores))


@dataclass(frozen=True)
class RunningServer:
    """A server that is measured, on this machine."""

    pid: int
    port: int
    grpc: str
    client: Client


def open_connection(server: RunningServer) -> http.client.HTTPConnection:
    """Return a connection to a server's REST port, which is opened when it is used."""
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=REPLY_SECONDS)


def send_post(connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
    """Send a request over a connection that is kept, and return the reply's body.

    Raises:
        StartError: There is no reply, or it is no 200: what is measured would be something else.
    """
    for again in (True, False):
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
            break
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            # One that was idle for some seconds, while other callers got ready, may be closed.
            if again and isinstance(error, ConnectionError):
                continue
            name = type(error).__name__
            raise StartError(f"POST {path} failed while it was measured: {name} {error}") from error
    if reply.status != 200:
        text = shorten(content.decode(errors="replace"))
        raise StartError(f"POST {path} got {reply.status} while it was measured: {text}")
    return content


@contextmanager
def running_server(flags: Sequence[str], log: Path) -> Iterator[RunningServer]:
    """Start ``condensery serve`` with flags, on free ports; ended after the block.

    Raises:
        StartError: It did not start; the message has the end of what it printed.
    """
    program = "import sys; from condensery.cli import main; sys.exit(main())"
    where = ["--no-samples", "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0"]
    command = [sys.executable, "-c", program, "serve", *flags, *where]
    kept = {name: value for name, value in os.environ.items() if not _is_left(name)}
    print_note("starting a server")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=kept)
    try:
        deadline = time.monotonic() + START_SECONDS
        while "condensery: try:" not in (text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise StartError(f"the server to measure did not start: {text[-1500:].strip()}")
            time.sleep(0.1)
        (port,) = re.findall(r"REST on http://\S+:(\d+)", text)
        (grpc,) = re.findall(r"gRPC on (\S+)", text)
        with Client(f"http://127.0.0.1:{port}", timeout=REPLY_SECONDS) as client:
            yield RunningServer(process.pid, int(port), grpc, client)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_left(name: str) -> bool:
    return name in {variable_of(setting) for setting in (*OWN, "api_key")}


def find_models(server: RunningServer) -> tuple[list[MeasuredModel], str]:
    """Return the models that serve, defaults first; and the device.

    Raises:
        InputError: There is none to measure.
    """
    infos = [info for info in server.client.models() if info.alias_of is None]
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
        metrics = reply.read().decode()
    models = []
    for info in infos:
        if info.kind not in MEASURED_KINDS:
            print_note(f"{info.name} is a {info.kind}: what those cost is not measured")
            continue
        weights = rf'^condensery_model_memory_bytes{{.*model="{re.escape(info.name)}".*}} (.*)$'
        scores = info.kind == "reranker" or bool(info.pair and info.pair.scores)
        size = int(sum(map(float, re.findall(weights, metrics, re.MULTILINE))))
        same = {name: getattr(info, name) for name in SAME}
        models.append(MeasuredModel(**same, dims=info.dims or 0, scores=scores, bytes=size))
    if not models:
        raise InputError.at("--models", "no encoder, pair or reranker is among them")
    if not any(info.kind == "encoder" for info in infos):
        raise InputError.at("--models", "no encoder is among them, whose tokenizer counts tokens")
    return models, models[0].device


class Texts:
    """Questions and passages of the samples, cut to lengths by the default encoder's tokenizer."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        folder = files("condensery.samples")
        questions, passages = (
            [json.loads(line) for line in folder.joinpath(f"{name}.jsonl").read_text().splitlines()]
            for name in ("questions", "passages")
        )
        self.questions: list[str] = [line["question"] for line in questions[:BODIES]]
        self._whole = " ".join(line["text"] for line in passages)

    def lists(self, tokens: int, count: int) -> list[list[str]]:
        """Return ``BODIES`` lists of so many texts, of so many tokens each, special ones too."""
        number, size = BODIES * count, CHARACTERS * tokens + 40
        whole = self._whole * (1 + size // len(self._whole))
        step = (len(whole) - size) // number
        texts = [whole[n * step :][:size].partition(" ")[2] for n in range(number)]
        texts = [text for n in range(0, number, 64) for text in self._cut(texts[n:][:64], tokens)]
        return [texts[n : n + count] for n in range(0, number, count)]

    def _cut(self, texts: Sequence[str], tokens: int) -> Iterator[str]:
        """Cut each after the last token that leaves room for the special ones."""
        connection = open_connection(self._server)
        body = json.dumps({"inputs": list(texts)}).encode()
        found = json.loads(send_post(connection, "/tokenize", body))
        connection.close()
        for text, pieces in zip(texts, found, strict=True):
            ends = [piece["stop"] for piece in pieces if not piece["special"]]
            room = max(1, tokens - (len(pieces) - len(ends)))
            yield text[: ends[min(room, len(ends)) - 1]]


# A kind of request that is measured: what it is, its path, and bodies that are sent in turn.
Probe: TypeAlias = tuple[Point, str, Sequence[Any]]
# A request: its path and its body.
Request: TypeAlias = tuple[str, bytes]
# Called with a request's place among those sent in turn, its seconds, and its reply.
Note: TypeAlias = Callable[[int, float, bytes], None]


def measure_all(
    server: RunningServer, models: Sequence[MeasuredModel], seconds: float, index_passages: int
) -> tuple[list[Point], Memory, Together]:
    """Measure every kind of request that the models can do, in about so many seconds.

    Raises:
        StartError: A request failed.
    """
    start, _ = machine.memory_bytes(server.pid)
    encoders = [model for model in models if model.kind == "encoder"]
    texts = Texts(server)
    callers_at_once = concurrency_of(len(os.sched_getaffinity(0)))
    probes = [probe for model in models for probe in probes_of(model, texts)]
    asked = [{"inputs": question} for question in texts.questions]
    probes.append((Point("door"), "/tokenize", asked))
    if encoders:
        probes += write_probes(server, encoders[0], texts)
    searches = 2 if encoders else 0
    each = (1 - TOGETHER_SHARE) * seconds / (2 * (len(probes) + searches))
    points: list[Point] = []
    held: dict[int, int] = {}  # by callers, once answers were measured
    for probe in probes:
        for callers in (1, callers_at_once):
            points.append(measure(server, probe, callers, each))
            if probe[0].task == "answer":
                held[callers] = machine.memory_bytes(server.pid)[0]
    _, peak = machine.memory_bytes(server.pid)
    passage = 0
    for before, size in ((0, LEAST_INDEX), (LEAST_INDEX, index_passages))[:searches]:
        empty, _ = machine.memory_bytes(server.pid)
        fill_index(server, encoders[0], before, size)
        full, _ = machine.memory_bytes(server.pid)
        passage = max(0, full - empty) // max(1, size - before)
        searched = [{"query": question, "top_k": 10} for question in texts.questions]
        point = Point("query", encoders[0].name, passages=size)
        probes.append((point, f"/v1/indexes/{INDEX}/query", searched))
        points += [measure(server, probes[-1], callers, each) for callers in (1, callers_at_once)]
    stream = max(0, held[callers_at_once] - held[1]) // (callers_at_once - 1) if held else 0
    pairs = list(zip(points[::2], points[1::2], strict=True))  # alone, and concurrent
    together = measure_together(
        server, list(zip(probes, pairs, strict=True)), callers_at_once, TOGETHER_SHARE * seconds
    )
    return points, Memory(start, peak, stream, passage), together


def probes_of(model: MeasuredModel, texts: Texts) -> Iterator[Probe]:
    """Yield what a model can do."""
    named = {"model": model.name}
    if model.kind == "encoder":
        for tokens, count in _sizes(LENGTHS, model.max_tokens):
            bodies = [{**named, "input": some} for some in texts.lists(tokens, count)]
            yield Point("embed", model.name, count, tokens), "/v1/embeddings", bodies
        return

    def ask(count: int, tokens: int, **how: Any) -> list[dict[str, Any]]:
        asked = zip(texts.questions, texts.lists(tokens, count), strict=True)
        return [{**named, **how, "query": query, "documents": some} for query, some in asked]

    longest = max(1, model.max_tokens - QUESTION_ROOM)
    for tokens, count in _sizes(PAIR_LENGTHS, longest):
        if model.scores:
            yield Point("rerank", model.name, count, tokens), "/v1/rerank", ask(count, tokens)
        if model.kind == "oscar-pair":
            bodies = ask(count, tokens, **{"return": "stats"})
            yield Point("compress", model.name, count, tokens), "/v1/compress", bodies
    if model.kind == "oscar-pair":
        point = Point("answer", model.name, ANSWER_PASSAGES, min(ANSWER_LENGTH, longest))
        for most in (1, ANSWER_TOKENS):
            bodies = ask(point.count, point.tokens, max_tokens=most, min_relevance=0)
            yield point, "/v1/rag/answer", bodies


def _sizes(lengths: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
    """Yield lengths that a model reads, and the longest, of one text and of several."""
    few = {length for length in lengths if length < longest}
    yield from itertools.product(sorted({*few, longest}), (1, LIST))


def write_probes(server: RunningServer, encoder: MeasuredModel, texts: Texts) -> Iterator[Probe]:
    """Yield writes of documents that the server embeds, over and over the same ids."""
    server.client.create_index(WRITTEN, encoder=encoder.name)
    length = min(WRITE_LENGTH, encoder.max_tokens)
    for count in (1, LIST):
        bodies = [
            {"documents": [{"id": f"{n}-{place}", "text": text} for place, text in enumerate(some)]}
            for n, some in enumerate(texts.lists(length, count))
        ]
        point = Point("write", encoder.name, count, length)
        yield point, f"/v1/indexes/{WRITTEN}/documents", bodies


def fill_index(server: RunningServer, encoder: MeasuredModel, first: int, last: int) -> None:
    """Write passages of these numbers, their vectors random: a flat search looks at all alike."""
    if not first:
        server.client.create_index(INDEX, encoder=encoder.name)
    chance = np.random.default_rng(first)
    with GrpcClient(server.grpc, timeout=REPLY_SECONDS) as client:
        for begin in range(first, last, FILL):
            ids = range(begin, min(begin + FILL, last))
            vectors = chance.standard_normal((len(ids), encoder.dims)).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            documents = [Document(str(number), f"passage {number}") for number in ids]
            client.upsert(INDEX, documents, vectors=vectors, fingerprint=encoder.fingerprint)


@dataclass(frozen=True)
class Spent:
    """What a server spent while requests were sent to it: by the clock, of cores, of its loop."""

    seconds: float
    core_seconds: float
    loop_seconds: float


def send_in_turn(
    server: RunningServer, requests: Sequence[Request], callers: int, seconds: float, note: Note
) -> Spent:
    """Let so many callers send requests, each the next one as soon as it has its reply.

    Raises:
        StartError: A request failed.
    """
    least = -(-LEAST_REQUESTS // callers)
    failures: list[Exception] = []
    turn = itertools.count()
    began: list[Spent] = []

    def read_clocks() -> Spent:
        used = machine.cpu_seconds(server.pid), machine.loop_seconds(server.pid)
        return Spent(time.perf_counter(), *used)

    # The last caller to be ready reads the clocks, before any goes on.
    ready = threading.Barrier(callers, action=lambda: began.append(read_clocks()))

    def call() -> None:
        try:
            connection = open_connection(server)
            for _ in range(-(-WARM_REQUESTS // callers)):  # a new shape prepares its products
                send_post(connection, *requests[next(turn) % len(requests)])
            ready.wait()
            until, count = began[0].seconds + seconds, 0
            while count < least or time.perf_counter() < until:
                place = next(turn) % len(requests)
                sent = time.perf_counter()
                reply = send_post(connection, *requests[place])
                note(place, time.perf_counter() - sent, reply)
                count += 1
        except threading.BrokenBarrierError:  # another's request failed
            return
        except Exception as failure:  # whatever it is, the others must not wait for this caller
            failures.append(failure)
            ready.abort()

    threads = [threading.Thread(target=call, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    then, now = began[0], read_clocks()
    return Spent(
        now.seconds - then.seconds,
        max(now.core_seconds - then.core_seconds, 1e-6),
        now.loop_seconds - then.loop_seconds,
    )


def measure(server: RunningServer, probe: Probe, callers: int, seconds: float) -> Point:
    """Let so many callers send a kind of request one after another, and say what it cost.

    Raises:
        StartError: A request failed.
    """
    kind, path, bodies = probe
    times: list[float] = []  # appending is whole, from many threads
    written: list[int] = []

    def note(_: int, taken: float, reply: bytes) -> None:
        times.append(taken)
        if kind.task == "answer":
            written.append(json.loads(reply)["usage"]["completion_tokens"])

    requests = [(path, json.dumps(body).encode()) for body in bodies]
    spent = send_in_turn(server, requests, callers, seconds, note)
    mean, count = statistics.fmean(times), len(times)
    point = replace(
        kind,
        callers=callers,
        requests=count,
        seconds=mean,
        p95_seconds=sorted(times)[min(count - 1, int(0.95 * count))],
        scv=statistics.pvariance(times) / mean**2,
        throughput=count / spent.seconds,
        core_seconds=spent.core_seconds / count,
        loop_seconds=spent.loop_seconds / count,
        output=statistics.fmean(written) if written else 0.0,
    )
    print(
        f"{point.label}, {callers} at once: {point.requests} requests,"
        f" {1000 * point.core_seconds:.2f} core-ms, {1000 * mean:.2f} ms",
        flush=True,
    )
    return point


def _is_shortest(point: Point) -> bool:
    """Whether nearly all that a request takes beside batches is waiting for them."""
    return is_short(point) and point.count * point.tokens <= SHORTEST_TOKENS


def measure_together(
    server: RunningServer,
    measured: Sequence[tuple[Probe, tuple[Point, Point]]],
    callers: int,
    seconds: float,
) -> Together:
    """Let so many callers send requests of all kinds, and say what that does to each.

    Of each model and task the shortest requests, and those of middle length.

    Args:
        server: The same as was measured.
        measured: Probes, and what was measured of each, alone and concurrent.
        callers: As many as with the concurrent ones.
        seconds: About how long.

    Raises:
        StartError: A request failed.
    """
    by_task: dict[tuple[str, str], list[tuple[Probe, tuple[Point, Point]]]] = {}
    for one in measured:
        by_task.setdefault((one[0][0].task, one[0][0].model), []).append(one)
    chosen = []
    for several in by_task.values():
        several.sort(key=lambda one: (one[0][0].count * one[0][0].tokens, one[0][0].passages))
        chosen += [several[place] for place in sorted({0, len(several) // 2})]
    sent: list[tuple[Request, tuple[Point, Point]]] = [
        ((path, json.dumps(body).encode()), pair)
        for (_, path, bodies), pair in chosen
        for body in bodies
    ]
    random.Random(0).shuffle(sent)
    times: list[tuple[int, float]] = []
    requests = [request for request, _ in sent]
    spent = send_in_turn(
        server, requests, callers, seconds, lambda place, taken, _: times.append((place, taken))
    )
    among_its_like = sum(sent[place][1][1].core_seconds for place, _ in times)
    pairs = [(sent[place][1][0], taken) for place, taken in times]
    delays = [taken - alone.seconds for alone, taken in pairs if _is_shortest(alone)]
    together = Together(
        requests=len(times),
        work=spent.core_seconds / among_its_like,
        delay=max(0.0, statistics.fmean(delays)) if delays else 0.0,
    )
    print(
        f"all kinds, {callers} at once: {together.requests} requests, {together.work:.3f} times"
        f" their core-ms; the shortest take {1000 * together.delay:.1f} ms longer than alone",
        flush=True,
    )
    return together
