"""No text of users is in the log, whatever fails or takes long."""

import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from tests.unit.conftest import StandInRegistry

from condensery.api.grpc.server import start_server
from condensery.api.rest.app import build_app
from condensery.errors import InputError
from condensery.jobs import indexes, maintenance
from condensery.jobs.services import Services
from condensery.logs import EventFormatter, SlowRequests, describe_exception
from condensery.request_context import RequestContext
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.values import Document, RebuildPlan

MARK = "what-Ada-asked-in-private"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The log as it is written, of every logger, all that there is."""
    held = io.StringIO()
    handler = logging.StreamHandler(held)
    handler.setFormatter(EventFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield held
    root.removeHandler(handler)
    root.setLevel(level)


def fail_with_a_users_text() -> None:
    try:
        {}[MARK]
    except KeyError:
        error = ValueError(f"{MARK} is not a number")
        error.add_note(MARK)
        raise error from InputError(f"text: {MARK!r} is wrong.", field="text", value=MARK)


def test_an_exception_is_told_by_its_type_and_stack_and_never_by_its_message() -> None:
    def described(error: BaseException) -> str:
        text = describe_exception(error)
        assert MARK not in text
        return text

    with pytest.raises(ValueError, match=MARK) as caught:
        fail_with_a_users_text()
    error = caught.value
    text = described(error)
    assert text.index("condensery.errors.InputError") < text.index("builtins.ValueError")
    assert "in fail_with_a_users_text" in text
    error.__cause__ = None
    error.__suppress_context__ = False
    assert "builtins.KeyError" in described(error)
    group = described(ExceptionGroup(MARK, [error, OSError(28, MARK, MARK)]))
    assert "ExceptionGroup" in group
    assert "builtins.OSError: No space left on device" in group
    error.__context__ = ExceptionGroup(MARK, [error])  # a circle, of which Python keeps some away
    assert "ValueError" in described(error)


async def test_no_text_is_logged_where_a_bug_quotes_it_on_any_path(
    services: Services, registry: StandInRegistry, written: io.StringIO
) -> None:
    def quotes(kind: type[Exception]) -> Exception:
        error = kind(f"{MARK!r} can't be read")
        error.__cause__ = UnicodeError(MARK)
        return error

    await indexes.create_index(services, "kb")
    await indexes.upsert_documents(services, "kb", [Document("d1", "one two")])
    bugs = 0

    def logged(event: str) -> None:
        nonlocal bugs
        bugs += 1
        assert written.getvalue().count("Traceback") >= bugs, (event, written.getvalue())
        assert event in written.getvalue()

    app = httpx.ASGITransport(build_app(services), raise_app_exceptions=False)
    server = await start_server(services, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.port}"
    async with (
        httpx.AsyncClient(transport=app, base_url="http://x") as client,
        grpc.aio.insecure_channel(address) as channel,
    ):
        registry.encoders["words"].fails = quotes(RuntimeError)
        for path, body in (
            ("/embed", {"inputs": MARK}),
            ("/v1/embeddings", {"input": MARK}),
            ("/v1/indexes/kb/query", {"query": MARK}),
            ("/v1/indexes/kb/documents", {"documents": [{"id": MARK, "text": MARK}]}),
        ):
            assert (await client.post(path, json=body)).status_code == 500, path
            logged("internal_error")
        request = pb.EmbedBatchRequest(texts=[MARK]).SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/condensery.v1.Embedding/EmbedBatch")(request, timeout=30)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        logged("internal_error")
        registry.encoders["words"].fails = None

        registry.pairs["pair"].breaks = quotes(ValueError)  # while it compresses
        asked = {"query": MARK, "documents": [MARK]}
        await client.post("/v1/rag/answer", json=asked)
        logged("compression_failed")
        registry.pairs["pair"].breaks = None
        registry.pairs["pair"].generate_from_prompt = _generate_and_fail  # type: ignore[method-assign]
        reply = await client.post("/v1/rag/answer", json={**asked, "stream": True})
        assert "internal_error" in reply.text
        logged("internal_error")
        answer = pb.AnswerRequest(query=MARK, documents=[pb.Document(id="a", text=MARK)])
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in channel.unary_stream("/condensery.v1.Rag/AnswerStream")(
                answer.SerializeToString(), timeout=30
            ):
                pass
        logged("internal_error")
    await server.stop(0)

    registry.encoders["other"].fails = quotes(RuntimeError)
    await indexes.upsert_documents(services, "kb", [Document(MARK, MARK)])
    await maintenance.rebuild_index(services, "kb", encoder="other")
    run = services.rebuilds.runs["kb"]
    assert run.task is not None
    await run.task
    logged("rebuild_broke")
    assert "rebuild_failed" in written.getvalue()
    assert MARK not in written.getvalue()


async def _generate_and_fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError(f"no answer to {MARK}")
    yield


def test_a_rebuild_whose_reason_names_a_document_is_logged_by_its_code(
    written: io.StringIO,
) -> None:
    run = maintenance.RebuildRun(RebuildPlan("kb", "words", "sha256:one", "flat", "ip", {}, 1, 0.0))
    run.fail(f"document {MARK!r} has no text", "texts_missing")
    maintenance._log_rebuild_end(run)
    assert "rebuild_failed index='kb'" in written.getvalue()
    assert "code='texts_missing'" in written.getvalue()
    assert MARK not in written.getvalue()


def test_what_nobody_catches_is_logged_as_well_in_any_thread_and_in_the_loop() -> None:
    script = f"""
import asyncio, threading
from condensery.logs import configure_logging, log_loop_fault

configure_logging("info")

def fail(*_):
    raise ValueError("{MARK}")

class Dies:
    def __del__(self):
        fail()

async def later():
    fail()

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_fault)
    loop.call_soon(fail, "{MARK}")
    task = asyncio.create_task(later(), name="{MARK}")
    await asyncio.sleep(0.01)
    del task
    loop.call_exception_handler({{"message": "odd"}})

thread = threading.Thread(target=fail)
thread.start()
thread.join()
Dies()
asyncio.run(main())
fail()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    events = [line.split()[2] for line in done.stderr.splitlines() if line[:2] == "20"]
    assert sorted(events) == sorted(
        ["thread_failed", "unraisable", "loop_fault", "loop_fault", "loop_fault", "uncaught"]
    )
    assert done.stderr.count("builtins.ValueError") == 5
    assert MARK not in done.stderr


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def logged_ids(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.request_id for record in caplog.records]  # type: ignore[attr-defined]


def test_a_long_request_is_told_with_its_stages_and_counts(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    call = RequestContext("mine", started=clock.now)
    stats = call.stats
    stats.inputs, stats.passages, stats.tokens, stats.generated = 20, 20, 2500, 64
    stats.tokenizing, stats.queued = 0.25, 4.0
    stats.count_forward_pass("cpu", 1.0, 5.0, 7.5)
    stats.stages = {"compress": 6.75, "generate": 3.0, "tokenize": 0.125}
    clock.now += 10.5
    SlowRequests(10_000, clock).log(call, transport="grpc", route="/rag/Answer", status="OK")
    (event,) = caplog.records
    assert (event.levelno, event.getMessage()) == (logging.WARNING, "slow_request")
    wanted = {
        "request_id": "mine", "door": "grpc", "route": "/rag/Answer", "status": "OK",
        "ms": 10_500.0, "queue_ms": 4000.0, "tokenize_ms": 250.0, "forward_ms": 2500.0,
        "compress_ms": 6750.0, "generate_ms": 3000.0, "items": 20, "passages": 20,
        "tokens": 2500, "tokens_generated": 64, "slow_unlogged": 0,
    }  # fmt: skip
    assert {name: getattr(event, name) for name in wanted} == wanted


def test_only_what_is_long_enough_is_told_and_nothing_where_none_is_wanted(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    slow, none = SlowRequests(100, clock), SlowRequests(0, clock)
    call = RequestContext("mine", started=clock.now)
    for seconds in (0.0, 0.0625):
        clock.now += seconds
        slow.log(call, transport="rest", route="/embed", status=200)
    assert logged_ids(caplog) == []
    clock.now += 0.0625
    none.log(call, transport="rest", route="/embed", status=200)
    assert logged_ids(caplog) == []
    slow.log(call, transport="rest", route="/embed", status=200)
    assert logged_ids(caplog) == ["mine"]


def test_one_a_second_is_told_and_how_many_were_not(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    slow = SlowRequests(100, clock)
    for number in range(25):
        call = RequestContext(str(number), started=clock.now - 5)
        slow.log(call, transport="rest", route="/embed", status=200)
        clock.now += 0.125
    assert logged_ids(caplog) == ["0", "8", "16", "24"]
    assert [record.slow_unlogged for record in caplog.records] == [0, 7, 7, 7]  # type: ignore[attr-defined]


def test_what_a_library_puts_to_every_record_is_not_shown(written: io.StringIO) -> None:
    logging.getLogger("condensery.jobs").error(
        "event", extra={"index": "kb", "_ray_timestamp_ns": 17}
    )
    assert "error event index='kb'\n" in written.getvalue()
