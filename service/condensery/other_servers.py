"""The other servers that this one is told to use, opened for it; and what to say of them."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from condensery.api.ports import is_reachable
from condensery.index.vector_database import DatabaseConfig, VectorDatabases
from condensery.jobs.services import Health
from condensery.metrics import Metrics
from condensery.settings import Settings, read_generator_servers

if TYPE_CHECKING:
    from condensery.runtime.answer_server import RemoteGenerator
    from condensery.runtime.registry import ModelRegistry

Say = Callable[[str], None]


def open_databases(settings: Settings, say: Say) -> VectorDatabases:
    """Return where indexes have their vectors beside FAISS; a server is not asked yet."""
    if settings.index_database is None:
        return VectorDatabases()
    key = settings.index_database_key
    config = DatabaseConfig(
        settings.index_backend,
        settings.index_database,
        key=None if key is None else key.get_secret_value(),
        timeout_seconds=settings.index_database_timeout,
        prefix=settings.index_database_prefix,
    )
    databases = VectorDatabases(config, settings.index_backend)
    say(f"new indexes' vectors are in {config.backend} at {config.url}")
    if key is not None:
        _warn_if_read_by_others(say, "its key goes", config.url, "index_database")
    return databases


def watch_databases(databases: VectorDatabases, health: Health, metrics: Metrics) -> None:
    """Let readiness, and a metric, follow whether indexes' vectors can be had."""
    loop = asyncio.get_running_loop()

    def note(fault: str | None) -> None:
        health.set_unreachable(fault)
        metrics.index_database_up.set(fault is None)

    def tell(fault: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # of a thread, when the loop has ended
            loop.call_soon_threadsafe(note, fault)

    databases.watch(tell)


def open_answer_server(
    settings: Settings, stack: AsyncExitStack, metrics: Metrics, say: Say
) -> "RemoteGenerator | None":
    """Return what asks the server that writes answers, if one is set; it is not asked yet."""
    from condensery.runtime.answer_server import AnswerServerConfig, RemoteGenerator

    if settings.answer_with is None or settings.answer_model is None:
        return None
    key = settings.answer_key
    config = AnswerServerConfig(
        url=f"{settings.answer_with}/chat/completions",
        model=settings.answer_model,
        key=None if key is None else key.get_secret_value(),
        timeout_seconds=settings.answer_timeout,
        retries=settings.answer_retries,
        passages=settings.answer_passages,
        context_tokens=settings.answer_context_tokens,
    )
    server = RemoteGenerator(config, metrics)
    stack.push_async_callback(server.close)
    say(f"answers are written by {config.model!r} at {settings.answer_with}")
    if key is not None:
        _warn_if_read_by_others(say, "its key goes", settings.answer_with, "answer_with")
    return server


def tell_generators(settings: Settings, registry: "ModelRegistry", say: Say) -> None:
    """Say which pairs' generators run on other servers, and what is wrong with that."""
    servers = read_generator_servers(settings.generator_servers or "")
    pairs = {info.name for info in registry.models("oscar-pair")}
    for name, url in servers.items():
        say(f"the generator of {name} is at {url}")
        if name not in pairs | set(registry.refusals()):  # it may be imported later
            say(f"warning: generator_servers: no pair {name!r} is loaded")
        elif reason := registry.unready(name):
            say(f"warning: {reason}")
        what = "texts go" if settings.answer_key is None else "its key and texts go"
        _warn_if_read_by_others(say, what, url, "its url")


def _warn_if_read_by_others(say: Say, what: str, url: str, setting: str) -> None:
    """Warn where a setting's URL lets those read what goes there who are on the way."""
    host = urlsplit(url).hostname or ""
    if url.startswith("http:") and is_reachable(host):
        say(f"warning: {what} to {host} unencrypted ({setting} is no https)")
