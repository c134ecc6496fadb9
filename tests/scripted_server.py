"""An HTTP server on loopback that replies what a test says, byte by byte, and sees who leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

CUT = "cut"  # the connection, without an end
HOLD = "hold"  # until the client leaves
COMMENTS = "comments"  # of a stream, until the client leaves

# A step: bytes to send; an event to wait for; or one of the words above.
Step = bytes | asyncio.Event | str


def head(status: str = "200 OK", media: str = "text/event-stream", **more: str) -> bytes:
    """Return a reply's head; its body ends with the connection."""
    headers = {"content-type": media, "connection": "close", **more}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def event(content: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(content).encode()


def say(text: str | None, finish: str | None = None) -> bytes:
    """Return a chunk of a chat, as OpenAI has it."""
    delta = {} if text is None else {"content": text}
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage(prompt: Any, completion: Any) -> bytes:
    return event(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    )


DONE = b"data: [DONE]\n\n"


def answer(*words: str, finish: str = "stop") -> list[Step]:
    """Return the script of a good reply."""
    return [head(), *map(say, words), say(None, finish), usage(11, 7), DONE]


def refuse(status: str, content: Any = None, **headers: str) -> list[Step]:
    """Return the script of an error, as JSON."""
    return [head(status, "application/json", **headers), json.dumps(content).encode()]


@dataclass
class Asked:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class ScriptedServer:
    """Plays a script a request; the last one again, once all are played.

    Attributes:
        left: Set once a client has left while it was held.
    """

    scripts: Sequence[Sequence[Step]]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._play(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        top, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        sent = await reader.readexactly(int(headers["content-length"]))
        kept = dict(line.split(": ", 1) for line in lines)  # values as they are
        keyed = {name.lower(): value for name, value in kept.items()}
        self.asked.append(Asked(top.split()[1], keyed, json.loads(sent)))
        script = self.scripts[min(len(self.asked), len(self.scripts)) - 1]
        for step in script:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, asyncio.Event):
                await step.wait()
            elif step == CUT:
                writer.transport.abort()
            else:
                await self._hold(reader, writer, comments=step == COMMENTS)

    async def _hold(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, comments: bool
    ) -> None:
        gone = asyncio.create_task(reader.read())
        try:
            while not gone.done():
                if comments:
                    writer.write(b": still here\n\n")
                await asyncio.wait({gone}, timeout=0.01 if comments else None)
        finally:
            gone.cancel()
            self.left.set()


@asynccontextmanager
async def scripted(*scripts: Sequence[Step]) -> AsyncIterator[ScriptedServer]:
    """Run a server; its ``url`` is of the API's root."""
    playing = ScriptedServer(scripts)
    server = await asyncio.start_server(playing.serve, "127.0.0.1", 0)
    playing.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield playing
    finally:
        server.close()
        await server.wait_closed()


async def unused_url() -> str:
    """Return the address of a server that is down."""
    async with scripted() as server:
        return server.url
