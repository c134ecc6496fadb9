"""How a client shows who it is, and knows the server."""

import ssl
from pathlib import Path

from condensery.errors import InputError

# How long the caller waits, in whole milliseconds: the server drops what nobody waits for.
TIMEOUT = "x-request-timeout-ms"


def headers_of(api_key: str | None) -> dict[str, str]:
    """Return the headers, or metadata, that show the key; none without one.

    Raises:
        InputError: The key has characters that no header carries.
    """
    if api_key is None:
        return {}
    if not (api_key.isascii() and api_key.isprintable()) or not api_key.strip():
        raise InputError("api_key: a key is printable ASCII, and not empty.", field="api_key")
    return {"authorization": f"Bearer {api_key}"}


def read_ca(ca: str | Path) -> bytes:
    """Return the certificates in a PEM file, those of whom a server's must be signed by.

    Raises:
        InputError: There are none.
    """
    try:
        content = Path(ca).read_bytes()
        trust(content)
    except (ssl.SSLError, ValueError) as error:
        raise InputError(
            f"ca: {str(ca)!r} holds no certificate in PEM.", field="ca", value=str(ca)
        ) from error
    except OSError as error:
        raise InputError(
            f"ca: {str(ca)!r} can't be read: {error.strerror}.", field="ca", value=str(ca)
        ) from error
    return content


def trust(ca: bytes) -> ssl.SSLContext:
    """Return how to check a server's certificate by those of ``ca``, and no others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
    return context


def milliseconds(seconds: float) -> str:
    """Write seconds as ``TIMEOUT`` has them."""
    return str(max(1, round(min(seconds * 1000, 1e15))))
