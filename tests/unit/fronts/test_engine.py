"""Front processes that can't begin, and the port that several share."""

import asyncio
import shutil
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from condensery.api.ports import listen, listen_together, reserve_shared
from condensery.errors import PortTaken, StartError
from condensery.fronts import engine
from condensery.fronts.channel import OtherVersion, Pong, Ready
from condensery.fronts.engine import Fronts
from condensery.settings import Settings


async def test_a_start_fails_once_a_front_has_ended_several_times(
    monkeypatch: pytest.MonkeyPatch, services: Any
) -> None:
    monkeypatch.setattr(engine.sys, "executable", shutil.which("false"))
    monkeypatch.setattr(engine, "FIRST_PAUSE_SECONDS", 0.01)
    fronts = Fronts(
        Settings(), listen_together("127.0.0.1", 0, 1), reserve_shared("127.0.0.1", 0, "grpc_port")
    )
    folder = fronts.grpc_path.parent
    try:
        fronts.begin()
        async with asyncio.timeout(60):
            with pytest.raises(StartError, match=r"ended 3 times before it was ready \(status 1\)"):
                await fronts.serve(services)
    finally:
        await fronts.close()
    assert not folder.exists()


def test_the_folder_of_its_socket_is_its_owners_alone() -> None:
    fronts = Fronts(Settings(), [], reserve_shared("127.0.0.1", 0, "grpc_port"))
    try:
        folder = fronts.grpc_path.parent
        assert folder.stat().st_mode & 0o077 == 0
        with fronts.listen():
            assert [path.is_socket() for path in folder.iterdir()] == [True]
    finally:
        asyncio.run(fronts.close())


def test_a_port_that_is_shared_is_still_one_servers() -> None:
    sockets = listen_together("127.0.0.1", 0, 3)
    port = sockets[0].getsockname()[1]
    try:
        assert {one.getsockname()[1] for one in sockets} == {port}
        for take in (listen, lambda host, port: listen_together(host, port, 2)):
            with pytest.raises(PortTaken):
                take("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass
    finally:
        for one in sockets:
            one.close()


async def test_tokens_are_embedded_for_the_version_that_they_were_made_for() -> None:
    class Encoder:
        info = SimpleNamespace(name="small", fingerprint="sha256:2")

        async def embed_tokenized(self, texts: Any, characters: int, **options: Any) -> Any:
            return texts, characters, options

    texts = [([1, 2], False), ([3], True)]
    given, characters, options = await engine._embed_tokenized(
        Encoder(), "sha256:2", texts, 9, normalize=True
    )
    assert [(text.ids, text.truncated) for text in given] == texts
    assert (characters, options) == (9, {"normalize": True})
    with pytest.raises(OtherVersion):
        await engine._embed_tokenized(Encoder(), "sha256:1", texts, 9)


async def test_a_process_that_is_not_ready_hears_nothing_but_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could not answer yet, and would end."""
    fronts = Fronts(Settings(), [], reserve_shared("127.0.0.1", 0, "grpc_port"))
    with socket.socket() as listener:
        front = engine._Front(fronts, 0, listener)
        heard: list[Any] = []

        class Channel:
            def send(self, message: Any) -> None:
                heard.append(message)

        front._channel = Channel()  # type: ignore[assignment]
        monkeypatch.setattr(fronts, "note_ready", lambda: None)
        front.send("state")
        assert not front.ping()
        front.welcome("begin")  # type: ignore[arg-type]
        assert heard == ["begin"]
        front._receive(Ready())
        front.send("state")
        assert heard == ["begin", "state"]
        for _ in range(engine.MOST_UNANSWERED):
            assert not front.ping()
        assert front.ping()
        front._receive(Pong({}))
        assert not front.ping()
    await fronts.close()
