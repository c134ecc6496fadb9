"""What is read from a call's metadata."""

from collections.abc import Iterable
from urllib.parse import unquote

from condensery.api.asking import presented

Metadata = Iterable[tuple[str, str | bytes]]

OVERHEAD_BYTES = 32  # of an entry beside its name and value, as HTTP/2 counts


def find(metadata: Metadata, name: str) -> str | None:
    """Return the first text of that name; None if there is none."""
    for key, value in metadata:
        if key == name and isinstance(value, str):
            return value
    return None


def key_of(metadata: Metadata) -> str | None:
    """Return the key that came, if one did."""
    return presented(find(metadata, "authorization"), find(metadata, "x-api-key"))


def size_of(metadata: Metadata) -> int:
    """Return the bytes of the metadata, as HTTP/2 counts them."""
    return sum(len(name) + len(value) + OVERHEAD_BYTES for name, value in metadata)


def host_of(peer: str) -> str:
    """Return an address without its port: ``10.0.0.7`` of ``ipv4:10.0.0.7:52114``."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return unquote(address).rpartition(":")[0].strip("[]")
