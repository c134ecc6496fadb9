"""How the REST server shuts down: no request that has reached it is lost."""

import asyncio
import contextlib
import json
import os
import select
import socket
import subprocess
import sys

import pytest
from tests.unit.api.rest.wire import connected, post, read_reply, until

from condensery.api.ports import has_arrived, refuse_new_connections
from condensery.api.rest.http import RestServer

ROUNDS = 4
# Connects, asks, reads until the end, from many threads at once, until it is refused; then tells
# what became of all that. Not in this process, whose loop would never be amid anything then.
NEWCOMERS = """
import collections, json, socket, sys, threading
ends = collections.Counter()
def come():
    while True:
        with socket.socket() as own:
            own.settimeout(60)
            try:
                own.connect(("127.0.0.1", int(sys.argv[1])))
            except OSError:
                ends["refused"] += 1
                return
            try:
                own.sendall(sys.argv[2].encode())
                ends[own.recv(12).decode() or "empty"] += 1
            except OSError as error:
                ends[type(error).__name__] += 1
threads = [threading.Thread(target=come) for _ in range(24)]
for thread in threads: thread.start()
print("came", flush=True)
for thread in threads: thread.join()
print(json.dumps(ends))
"""


@contextlib.asynccontextmanager
async def running(services):
    """Run a server that the test ends; yields it and its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    listener.setblocking(False)
    rest = RestServer(services, listener)
    await rest.started()
    try:
        yield rest, listener.getsockname()[1]
    finally:
        await asyncio.wait_for(rest.stop(0), 30)


async def test_of_those_who_keep_coming_while_it_ends_each_is_answered_or_refused(services):
    ends = {}
    for _ in range(ROUNDS):
        async with asyncio.timeout(60), running(services) as (rest, port):
            asking = str(port), post("/embed").decode()
            newcomers = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", NEWCOMERS, *asking), stdout=subprocess.PIPE
            )
            assert newcomers.stdout is not None
            await newcomers.stdout.readline()
            await asyncio.sleep(0.2)
            await rest.stop(20)
            counts = json.loads(await newcomers.stdout.read())
            await newcomers.wait()
        assert counts.pop("refused") == 24
        ends |= counts
    assert set(ends) == {"HTTP/1.1 200"}, ends


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no packet can be dropped")
def test_who_waits_can_be_taken_after_newcomers_are_refused():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket() as before,
        socket.socket() as after,
    ):
        before.connect(listener.getsockname())
        before.sendall(b"asked")
        refuse_new_connections(listener)
        after.setblocking(False)
        after.connect_ex(listener.getsockname())
        begun = select.poll()
        begun.register(after.fileno(), select.POLLOUT)
        assert not begun.poll(200), "one more came in"
        taken, _ = listener.accept()
        assert not has_arrived(listener)
        listener.close()
        with taken:
            assert taken.recv(10) == b"asked"
            taken.sendall(b"answered")
            assert before.recv(10) == b"answered"
        assert begun.poll(10_000)
        assert after.connect_ex(("127.0.0.1", 1)) != 0, "who came after is refused, not cut off"


async def test_a_request_that_is_unread_or_in_part_when_it_ends_is_answered(services):
    request = post("/embed")
    async with (
        asyncio.timeout(30),
        running(services) as (rest, port),
        connected(port) as (unread, first),
        connected(port) as (in_part, second),
        connected(port) as (idle, third),
    ):
        for reader, writer in ((unread, first), (in_part, second), (idle, third)):
            writer.write(request)
            assert (await read_reply(reader))[1].get("connection") != "close"
        connections = rest._server.server_state.connections
        second.write(request[:30])
        await until(lambda: sum(item._head_begun for item in connections) == 1)
        os.write(first.get_extra_info("socket").fileno(), request)
        for connection in tuple(connections):
            connection.shutdown()
        second.write(request[30:])
        for reader in (unread, in_part):
            status, headers, _ = await read_reply(reader)
            assert (status, headers["connection"]) == (200, "close")
            assert await reader.read() == b""
        assert await idle.read() == b""


async def test_while_it_settles_each_reply_ends_its_connection(services):
    """Then no client sends its next request into the end."""
    async with (
        asyncio.timeout(30),
        running(services) as (_, port),
        connected(port) as (reader, writer),
    ):
        services.health.drain()
        writer.write(post("/embed"))
        status, headers, _ = await read_reply(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""
