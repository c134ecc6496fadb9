"""Health over gRPC: asked once, or watched."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from condensery.api import ports
from condensery.api.grpc import health, streaming
from condensery.api.grpc.server import SPARE_CALLS, start_server
from condensery.api.grpc.streaming import FRONT_METADATA, HEALTH_SHARE, MessageReaders
from condensery.errors import Overloaded
from condensery.jobs import models
from condensery.jobs.services import Admission, Health, Services
from condensery.stubs import condensery_v1_pb2 as pb
from condensery.stubs import condensery_v1_pb2_grpc as stubs

Reply = health_pb2.HealthCheckResponse


def watch(channel: grpc.aio.Channel, service: str = "") -> Any:
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))


async def next_of(watching: Any) -> int:
    reply = await asyncio.wait_for(watching.read(), 30)
    return int(reply.status)


async def test_the_server_and_each_service_have_a_health(
    services: Services, channel: grpc.aio.Channel
) -> None:
    check = health_pb2_grpc.HealthStub(channel).Check
    names = [f"condensery.v1.{name}" for name in pb.DESCRIPTOR.services_by_name]
    names += [f"tei.v1.{name}" for name in ("Info", "Embed", "Rerank", "Tokenize")]
    names += ["words", "pair"]  # models
    assert len(names) == 13
    for name in ("", *names):
        status = await check(health_pb2.HealthCheckRequest(service=name))
        assert status.status == Reply.SERVING
    services.health.fault("a device worker hangs")
    for name in ("", *names):
        status = await check(health_pb2.HealthCheckRequest(service=name))
        assert status.status == Reply.NOT_SERVING


async def test_each_model_and_alias_has_a_health_that_can_be_watched(
    services: Services, registry: Any, channel: grpc.aio.Channel
) -> None:
    check = health_pb2_grpc.HealthStub(channel).Check
    await models.set_model_aliases(services, {"best": "other"})
    for name in ("words", "pair", "other", "best"):
        status = await check(health_pb2.HealthCheckRequest(service=name))
        assert status.status == Reply.SERVING
    status = await check(health_pb2.HealthCheckRequest(service="broken"))
    assert status.status == Reply.NOT_SERVING
    watched = {name: watch(channel, name) for name in ("other", "best", "later")}
    first = {name: await next_of(stream) for name, stream in watched.items()}
    assert first == {"other": 1, "best": 1, "later": Reply.SERVICE_UNKNOWN}
    registry.encoders["later"] = registry.encoders.pop("other")
    registry.encoders["later"].info = replace(registry.encoders["later"].info, id="later")
    for notify in registry.watchers:
        notify()
    then = {name: await next_of(stream) for name, stream in watched.items()}
    expected = {"other": Reply.SERVICE_UNKNOWN, "best": Reply.NOT_SERVING, "later": Reply.SERVING}
    assert then == expected
    for stream in watched.values():
        stream.cancel()


async def test_health_follows_that_of_the_services(services: Services) -> None:
    services = replace(services, health=Health())
    server = await start_server(services, "127.0.0.1", 0)
    health = services.health
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watching = watch(channel)
        assert await next_of(watching) == Reply.NOT_SERVING, "before it has started"
        for change, status in (
            (health.start, Reply.SERVING),
            (lambda: health.fault("a device worker hangs"), Reply.NOT_SERVING),
            (lambda: health.fault(None), Reply.SERVING),
            (health.drain, Reply.NOT_SERVING),
        ):
            change()
            assert await next_of(watching) == status
        watching.cancel()
    await server.stop(0)


async def test_what_no_model_here_can_do_does_not_serve_until_one_comes(
    channel: grpc.aio.Channel, registry: Any, classifier_of: Callable[..., Any]
) -> None:
    check = health_pb2_grpc.HealthStub(channel).Check
    for name in ("tei.v1.Predict", "broken"):  # that model was refused
        status = await check(health_pb2.HealthCheckRequest(service=name))
        assert status.status == Reply.NOT_SERVING
    watching = watch(channel, "tei.v1.Predict")
    assert await next_of(watching) == Reply.NOT_SERVING
    registry.classifiers["nli"] = classifier_of("nli", "a", "b")
    for notify in registry.watchers:
        notify()
    assert await next_of(watching) == Reply.SERVING
    watching.cancel()
    assert (await check(health_pb2.HealthCheckRequest(service="nli"))).status == Reply.SERVING


async def test_an_unknown_service_is_not_found_and_watched_as_unknown(
    channel: grpc.aio.Channel,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="nope")
        )
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "nope" in (caught.value.details() or "")
    watching = watch(channel, "nope")
    assert await next_of(watching) == Reply.SERVICE_UNKNOWN
    watching.cancel()


async def test_a_malformed_health_check_is_refused(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_every_watcher_hears_each_change_also_after_another_left(
    services: Services, channel: grpc.aio.Channel
) -> None:
    leaving, staying = watch(channel), watch(channel)
    for stream in (leaving, staying):
        assert await next_of(stream) == Reply.SERVING
    leaving.cancel()
    await asyncio.sleep(0.1)
    late = watch(channel)
    assert await next_of(late) == Reply.SERVING
    services.health.drain()
    for stream in (staying, late):
        assert await next_of(stream) == Reply.NOT_SERVING
        stream.cancel()


async def test_watchers_hear_the_end_and_do_not_hold_it_up(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = asyncio.Event()  # grpc's client drops replies that it has not handed out at the end

    async def until_heard(_: float) -> None:
        await heard.wait()

    monkeypatch.setattr(ports, "wait_for_last", until_heard)
    server = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watching = watch(channel)
        assert await next_of(watching) == Reply.SERVING
        started = time.perf_counter()
        stopping = asyncio.create_task(server.stop(60))
        assert await next_of(watching) == Reply.NOT_SERVING
        heard.set()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await next_of(watching)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        await stopping
        assert time.perf_counter() - started < 50


async def test_what_is_in_flight_at_the_end_is_finished(
    services: Services, registry: Any, until: Callable[..., Any]
) -> None:
    registry.encoders["words"].delay = 0.5
    server = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(texts=["a"]))
        await until(lambda: registry.encoders["words"].waiting)
        await server.stop(30)
        assert (await call).dims == 8


async def test_an_end_that_waits_can_be_hastened(
    services: Services, registry: Any, until: Callable[..., Any]
) -> None:
    registry.encoders["words"].delay = 60
    server = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = stubs.EmbeddingStub(channel).EmbedBatch(pb.EmbedBatchRequest(texts=["a"]))
        await until(lambda: registry.encoders["words"].waiting)
        stopping = asyncio.create_task(server.stop(60))
        await asyncio.sleep(0.1)
        assert not stopping.done()
        await server.stop(0)
        await asyncio.wait_for(stopping, 30)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert not registry.encoders["words"].waiting


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, 30)
    return caught.value


async def test_watchers_take_no_place_of_calls_and_are_bounded(
    services: Services, until: Callable[..., Any]
) -> None:
    """They need no key: as many of them as there may be calls once shut out all others."""
    services = replace(services, admission=Admission(2, 10_000, services.metrics))
    server = await start_server(services, "127.0.0.1", 0)
    most = health.WATCHERS_PER_ADDRESS
    assert most > 2 + SPARE_CALLS
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watching = [watch(channel) for _ in range(most)]
        assert {await next_of(item) for item in watching} == {Reply.SERVING}
        error = await refusal(watch(channel).read())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{most} from one address" in (error.details() or "")
        check = health_pb2_grpc.HealthStub(channel).Check
        assert (await check(health_pb2.HealthCheckRequest(), timeout=30)).status == Reply.SERVING
        embed = stubs.EmbeddingStub(channel).EmbedBatch
        assert (await embed(pb.EmbedBatchRequest(texts=["a"]), timeout=30)).dims == 8
        watching[0].cancel()
        async with asyncio.timeout(30):
            while True:  # until the server has heard that it left
                late = watch(channel)
                if await late.read() is not grpc.aio.EOF and not late.done():
                    break
        for stream in (late, *watching):
            stream.cancel()
    await server.stop(0)


async def test_watchers_are_bounded_in_all_and_checks_too(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "WATCHERS", 1)
    monkeypatch.setattr(health, "CHECKS_PER_ADDRESS", 1)
    server = await start_server(services, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        watching = watch(channel)
        assert await next_of(watching) == Reply.SERVING
        error = await refusal(watch(channel).read())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "5000"
        # One that sends no message; a call that comes later is served after it has begun.
        path = f"/{health.HEALTH_SERVICE}/Check"
        silent = channel.stream_unary(path)()
        async with asyncio.timeout(30):
            while await channel.unary_unary(path)(b"").code() is grpc.StatusCode.OK:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        silent.cancel()
        watching.cancel()
    await server.stop(0)


def test_of_ipv6_a_network_counts_as_one_address() -> None:
    places = health.AddressLimits("watchers", 100, 2)

    class Context:
        def __init__(self, peer: str, front: str = "") -> None:
            self.peer = lambda: peer
            self.invocation_metadata = lambda: [(FRONT_METADATA, front)] if front else []

    def enter(*peers: str) -> None:
        with ExitStack() as stack:
            for peer in peers:
                stack.enter_context(places.enter(streaming.caller_address(Context(peer))))

    enter("ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2", "ipv4:10.0.0.2:1", "ipv4:10.0.0.2:1")
    enter("ipv6:%5B2001:db8::1%5D:1", "ipv6:%5B2001:db8::2%5D:1", "ipv6:%5B2001:db8:0:1::%5D:1")
    mapped = [f"ipv6:%5B::ffff:10.0.0.{host}%5D:1" for host in (1, 1, 2, 2)]
    enter(*mapped, "unix:", "unix:")
    for peers in (["ipv4:10.0.0.1:1"] * 3, [f"ipv6:%5B2001:db8::{n}%5D:1" for n in (1, 2, 3)]):
        with pytest.raises(Overloaded):
            enter(*peers)
    with pytest.raises(Overloaded):
        enter(*mapped[:2], mapped[0])
    # What front processes pass on is their callers'; who comes by a port can't say who it is.
    with ExitStack() as stack:
        for host in (1, 1, 2, 2):
            context = Context("unix:", f"10.0.0.{host}")
            stack.enter_context(places.enter(streaming.caller_address(context)))
        with pytest.raises(Overloaded):
            places.enter(streaming.caller_address(Context("unix:", "10.0.0.1"))).__enter__()
    assert streaming.caller_address(Context("ipv4:10.0.0.9:1", "10.0.0.1")) == "10.0.0.9"
    assert not places._open


async def test_who_sends_no_message_holds_up_no_other_address() -> None:
    class Caller:
        """One that sends its message, or never does."""

        def __init__(self, address: str, message: bytes | None) -> None:
            self.peer = lambda: f"ipv4:{address}:1"
            self.message = message
            self.reading = False

        async def read(self) -> bytes:
            self.reading = True
            if self.message is None:
                await asyncio.Event().wait()
            assert self.message is not None
            return self.message

    checks = health.HealthService(
        lambda name: True, MessageReaders(1, 1, 600.0, share=HEALTH_SHARE)
    )
    silent = [Caller("10.0.0.1", None) for _ in range(32)]
    tasks = [asyncio.create_task(checks._check(None, item)) for item in silent]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await checks._check(None, Caller("10.0.0.2", b""))
    assert 0 < sum(entry.reading for entry in silent) < MessageReaders(1, 1, 600.0).limit
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
