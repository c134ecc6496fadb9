"""What is said of an index's prompts, by every door and on the command line."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.index.conftest import database_of, to_format_4

from condensery.api.grpc.server import start_server
from condensery.api.rest.http import RestServer
from condensery.cli import main
from condensery.client.grpc import GrpcClient
from condensery.client.rest import Client
from condensery.index.store import IndexStore
from condensery.jobs import indexes, maintenance
from condensery.jobs.services import Services
from condensery.values import Document, IndexPrompts, IndexSpec

NOMIC = {"search_query": "search_query: ", "search_document": "search_document: "}
KNOWN = IndexPrompts(*NOMIC.values())


@pytest.fixture(autouse=True)
def older_index(registry: Any, tmp_path: Any) -> None:
    """An index of encoder words from before prompts were kept, made before the store is opened."""
    for encoder in registry.encoders.values():
        encoder.prompts = NOMIC
    own: dict[str, Any] = {"fingerprint": "sha256:words", "dims": 8, "metric": "ip", "kind": "flat"}
    with IndexStore(tmp_path) as store:
        store.create("notes", IndexSpec(encoder="words", **own))
    to_format_4(database_of(tmp_path, "notes"))


@pytest.fixture
async def doors(older_index: None, services: Services) -> AsyncIterator[tuple[str, str]]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    rest, grpc = RestServer(services, listener), await start_server(services, "127.0.0.1", 0)
    await rest.started()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", f"127.0.0.1:{grpc.port}"
    await rest.stop(0)
    await grpc.stop(0)


async def test_every_door_says_which_prompts_an_index_has_and_lacks(
    doors: tuple[str, str], services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    url, address = doors

    def ask() -> None:
        for client in (Client(url), GrpcClient(address)):
            with client:
                (old,) = (info for info in client.list_indexes() if info.name == "notes")
                assert (old.prompts, old.prompts_outdated) == (IndexPrompts("", ""), True)
                assert client.create_index("notes", encoder="words") == old
                fresh = client.create_index("fresh", encoder="words")
                assert (fresh.prompts, fresh.prompts_outdated) == (KNOWN, False)
        for door in (("--url", url), ("--grpc", address)):
            for command in (("list",), ("create", "notes", "--encoder", "words")):
                assert main(["index", *command, *door]) == 0
                message = capsys.readouterr().err
                assert "condensery index rebuild notes" in message
                assert "fresh" not in message

    await indexes.upsert_documents(services, "notes", [Document("a", "alpha")])
    await asyncio.to_thread(ask)
    await maintenance.rebuild_index(services, "notes")
    async with asyncio.timeout(60):
        while (await maintenance.get_rebuild(services, "notes")).state == "running":  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)

    def ask_again() -> None:
        for client in (Client(url), GrpcClient(address)):
            with client:
                (now,) = (info for info in client.list_indexes() if info.name == "notes")
                assert (now.prompts, now.prompts_outdated) == (KNOWN, False)
        assert main(["index", "list", "--url", url]) == 0
        assert capsys.readouterr().err == ""

    await asyncio.to_thread(ask_again)
    await services.rebuilds.close()


async def test_an_index_whose_encoder_does_not_run_says_that_nobody_knows(
    doors: tuple[str, str], registry: Any
) -> None:
    del registry.encoders["words"]

    def ask() -> None:
        for client in (Client(doors[0]), GrpcClient(doors[1])):
            with client:
                (old,) = client.list_indexes()
                assert (old.prompts, old.prompts_outdated) == (None, False)

    await asyncio.to_thread(ask)
