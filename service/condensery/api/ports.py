"""The addresses that the doors listen on."""

import errno
import socket

from condensery.errors import PortTaken, StartError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Bind the REST port; it is held from here on.

    Raises:
        PortTaken: Another process listens there, or the address is not ours.
    """
    return _bind(host, port, "port")


def check_free(host: str, port: int, setting: str) -> None:
    """Check that a port that is bound later is free, before seconds are spent on loading.

    Raises:
        PortTaken: It is not.
    """
    if port:
        _bind(host, port, setting).close()


def _bind(host: str, port: int, setting: str) -> socket.socket:
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
        listener.bind(address)
        # Linux lets two sockets bind one port with SO_REUSEADDR until one listens.
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
