"""What the engine's process and a front process say to each other, and the socket that carries it.

One pair of sockets a front process, made before it begins: nobody else can reach either end, so
that what comes is trusted, and pickled. What is said in one turn of the loop goes as one frame:
where many callers ask at once, a frame is many calls.
"""

import asyncio
import pickle
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from condensery.auth import Key
from condensery.cluster.messages import Call, ModelId, Reply
from condensery.errors import CondenseryError
from condensery.metrics import SampleKey
from condensery.settings import Settings
from condensery.values import ModelInfo, ModelRole

LENGTH_BYTES = 4
# A frame is cut here, so that a reply of many vectors does not wait for all others of its turn.
FRAME_MESSAGES = 256


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that serves, as a front process has to know it.

    Attributes:
        tokenizer: Of an encoder, the folder of its ``tokenizer.json``.
    """

    id: ModelId
    info: ModelInfo
    roles: frozenset[ModelRole]
    prompts: Mapping[str, str]
    default_prompt: str | None
    tokenizer: Path | None


@dataclass(frozen=True, slots=True)
class EngineState:
    """What front processes go by; sent whole whenever any of it changes.

    Attributes:
        aliases: Other names of models, those left out that carry an index.
        defaults: By role, the model that serves those who name none.
        missing: Why none does, in the other roles.
        refusals: Why stored models do not serve, by name.
        reason: Why the engine is ready or not, for people.
    """

    models: tuple[ServedModel, ...]
    aliases: Mapping[str, str]
    defaults: Mapping[ModelRole, str]
    missing: Mapping[ModelRole, CondenseryError]
    refusals: Mapping[str, str]
    keys: tuple[Key, ...]
    draining: bool
    refusing: bool
    reason: str


class OtherVersion(CondenseryError):
    """Tokens came for a version of a model that does not serve any more: send the texts."""


# From the engine


class Begin(NamedTuple):
    """The first message: listen, and serve; ``Ready`` is the answer.

    Attributes:
        fronts: How many there are, which share the limits that are of the whole server.
        rest: Path of the Unix socket on which the engine serves REST.
        grpc: And of that on which it serves gRPC.
        grpc_port: The port at which callers find gRPC.
    """

    settings: Settings
    fronts: int
    rest: str
    grpc: str
    grpc_port: int
    state: EngineState


class Answered(NamedTuple):
    """What became of a call."""

    number: int
    reply: Reply


class Ping(NamedTuple):
    """Answer with ``Pong``."""


class Stop(NamedTuple):
    """End, as ``RestServer.stop``."""

    grace: float


class Hurry(NamedTuple):
    """End now."""


# From a front process


class Ready(NamedTuple):
    """It accepts connections."""


class Asked(NamedTuple):
    """A call of a model, to be answered under its number.

    Attributes:
        deadline: Seconds of ``time.monotonic``, which is one clock for a machine's processes.
    """

    number: int
    call: Call
    deadline: float


class Dropped(NamedTuple):
    """Nobody waits for a call any more."""

    number: int


class Pong(NamedTuple):
    """It works, and these are its samples."""

    samples: Mapping[SampleKey, float]


class Broken(NamedTuple):
    """It can't begin, for this reason."""

    reason: str


class Channel(asyncio.Protocol):
    """One end of a pair of sockets.

    Args:
        on_message: Called with each message, in order.
        on_lost: Called once the other end is gone.
    """

    def __init__(self, on_message: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Any] = []
        self._received = bytearray()

    @classmethod
    async def open(
        cls, sock: socket.socket, on_message: Callable[[Any], None], on_lost: Callable[[], None]
    ) -> "Channel":
        """Use one of two connected sockets."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        _, channel = await loop.create_unix_connection(lambda: cls(on_message, on_lost), sock=sock)
        return channel

    def send(self, message: Any) -> None:
        """Send a message, with all others of this turn of the loop; none once the end is gone."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(message)

    def close(self) -> None:
        """Send what waits, and no more."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        messages, self._waiting = self._waiting, []
        if self._transport is None:
            return
        for first in range(0, len(messages), FRAME_MESSAGES):
            data = pickle.dumps(messages[first : first + FRAME_MESSAGES], pickle.HIGHEST_PROTOCOL)
            self._transport.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole."""
        received = self._received
        received += data
        first = 0
        while len(received) - first >= LENGTH_BYTES:
            begin = first + LENGTH_BYTES
            end = begin + int.from_bytes(received[first:begin], "big")
            if len(received) < end:
                break
            messages = pickle.loads(memoryview(received)[begin:end])
            first = end
            for message in messages:
                self._on_message(message)
        del received[:first]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that the other end is gone."""
        self._transport = None
        self._on_lost()
