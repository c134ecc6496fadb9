"""The addresses that REST and gRPC listen on, and the certificate that they show."""

import asyncio
import contextlib
import ctypes
import errno
import resource
import select
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from condensery.auth import Keys
from condensery.errors import PortTaken, SettingError, StartError
from condensery.origins import is_loopback
from condensery.settings import read_certificate

BACKLOG = 2048
# Of the files that the process may open; the rest is for gRPC's connections, indexes and models.
CONNECTIONS_SHARE = 0.75
# At the end: handshakes that are half done, and requests on their way, arrive in this time from
# almost anywhere. They are answered.
LAST_SECONDS = 0.5
# From linux/socket.h: a classic BPF program says which packets a socket gets.
_ATTACH_FILTER = 26
# Its instructions (code, jump if so, jump if not, value): load the byte of TCP's flags; has it SYN?
# then drop the packet, else take all of it.
_NO_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files by which a port proves that it is the server's.

    Attributes:
        cert: The server's certificate, and after it those that lead to a known one.
        key: Its private key, without a password.
    """

    cert: Path
    key: Path

    def read(self) -> tuple[bytes, bytes]:
        """Return the certificate and the key.

        Raises:
            SettingError: A file can't be read, or the two don't make a pair.
        """
        try:
            return read_certificate(self.cert, self.key)
        except SettingError as error:  # the files have changed since the settings were read
            path = self.cert if error.field == "tls_cert" else self.key
            flag = "--tls-cert" if error.field == "tls_cert" else "--tls-key"
            raise SettingError(
                f"{flag}: {path} is not allowed: {error.message}.", field=error.field, value=path
            ) from error


async def wait_for_last(grace: float) -> None:
    """Wait for calls that are on their way at the end, ``grace`` seconds at most."""
    await asyncio.sleep(min(LAST_SECONDS, grace))


def limit_connections(limit: int) -> int:
    """Return how many connections there may be: ``limit``, or fewer if files are fewer."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limit
    return max(1, min(limit, int(CONNECTIONS_SHARE * files)))


def check_keys_for_host(host: str, keys: Keys, *, allow_no_keys: bool) -> None:
    """Refuse to let other machines in without a key, unless that is allowed explicitly.

    Raises:
        SettingError: ``host`` is no loopback address, and no key is known.
    """
    if allow_no_keys or not keys.open or not is_reachable(host):
        return
    raise SettingError(
        f"--host: other machines can reach {host!r}, and no key is set. Set CONDENSERY_API_KEY, or "
        "name a file of keys with --keys-file, or let --make-key make one; or listen on 127.0.0.1. "
        "To let whoever reaches it use and change everything, set --allow-no-keys.",
        field="host",
        value=host,
    )


def is_reachable(host: str) -> bool:
    """Whether other machines may reach an address, or any of those that a name stands for."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # no address at all: binding it fails with the reason
        return False
    return not all(is_loopback(str(address[0])) for *_, address in addresses)


def listen(host: str, port: int) -> socket.socket:
    """Bind the REST port, and hold it.

    Raises:
        PortTaken: Another process listens there, or the address is not ours.
    """
    return _bind(host, port, "port")


def listen_together(host: str, port: int, processes: int) -> list[socket.socket]:
    """Bind the REST port once for each of several processes, among which the system shares it out.

    Raises:
        PortTaken, StartError: As ``listen``.
    """
    port = _claim(host, port, "port")
    return [_bind(host, port, "port", shared=True) for _ in range(processes)]


def reserve_shared(host: str, port: int, setting: str) -> socket.socket:
    """Bind a port on which several processes will listen, and do not listen there.

    Raises:
        PortTaken, StartError: As ``listen``.
    """
    port = _claim(host, port, setting)
    return _bind(host, port, setting, shared=True, listens=False)


def _claim(host: str, port: int, setting: str) -> int:
    """Return the port's number; bound not to be shared first, or another server would share it."""
    with _bind(host, port, setting) as alone:
        number: int = alone.getsockname()[1]
        return number


def check_free(host: str, port: int, setting: str) -> None:
    """Check that a port that is bound later is free, before seconds are spent on loading.

    Raises:
        PortTaken: It is not.
    """
    if port:
        _bind(host, port, setting).close()


def refuse_new_connections(listener: socket.socket) -> None:
    """Let no connection begin any more, so that those that wait can all be taken.

    Closing a listener resets the connections that wait in it, and while it is open more may come:
    accepting what is there and then closing loses those that arrive in between. So packets that
    begin a connection are dropped; handshakes that are half done are completed. A client that is
    dropped is refused once the listener is closed, at its second try. On other kernels than Linux,
    or where the kernel forbids it, nothing happens, and some connections may be lost then.
    """
    if sys.platform != "linux":
        return
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in _NO_SYN)
    buffer = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("HL", len(_NO_SYN), ctypes.addressof(buffer))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, pointer)


def has_arrived(sock: socket.socket) -> bool:
    """Whether a socket has bytes to read or, of a listener, a connection to accept."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _bind(
    host: str, port: int, setting: str, *, shared: bool = False, listens: bool = True
) -> socket.socket:
    flag = f"--{setting.replace('_', '-')}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartError(
            f"--host: {host!r} is no address of this machine: {error.strerror}.",
            field="host",
            value=host,
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        # Linux lets two sockets bind one port with SO_REUSEADDR until one listens.
        if listens:
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise StartError(
                f"--host: {host!r} is no address of this machine.", field="host", value=host
            ) from error
        why = "is taken by another process" if error.errno == errno.EADDRINUSE else error.strerror
        raise PortTaken(
            f"{flag}: port {port} on {host} {why}; give another with {flag} or "
            f"CONDENSERY_{setting.upper()}.",
            field=setting,
            value=port,
        ) from error
    listener.setblocking(False)
    return listener
