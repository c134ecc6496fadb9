"""Whose web pages may use the REST port, and by which names it may be asked.

A browser sends what a page asks for from the machine of whoever reads the page: to 127.0.0.1, and
into networks that strangers don't reach. Three headers, which no page can set, distinguish such
requests from others:

- ``Origin`` names the page's scheme, host and port, with all that can write and all that a page can
  read the reply of;
- ``Sec-Fetch-Site: cross-site`` comes with the rest, an image or a link of a foreign page;
- ``Host`` is the name that was asked for. A page can let a name of its own lead to 127.0.0.1 once
  it is loaded (DNS rebinding), and is then no foreign page to the browser; but the name is its own.

A request without the first two is from no page, and is not checked for one.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from condensery.errors import Forbidden, shorten

Headers = Iterable[tuple[bytes, bytes]]

ANY_ORIGIN = "*"
DEFAULT_PORTS = {"http": 80, "https": 443}  # those that an address need not name
# How long a browser may go by the answer to a preflight.
PREFLIGHT_SECONDS = 600

_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#@]+)")
# Names of headers, as a preflight lists them.
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]*")


class Authority(NamedTuple):
    """A host, in one spelling, and a port if one is named."""

    host: str
    port: int | None


@dataclass(frozen=True, slots=True)
class Origins:
    """What the server takes from browsers.

    Attributes:
        pages: Origins whose pages may use it, in one spelling; ``*`` among them is every page.
        hosts: Names that it may be asked by, beside those of loopback and the address that a
            connection was made to; ``*`` is every name, ``*.example.com`` each that ends so. None
            does not look at names.
        proxies: Whose ``X-Forwarded-Host`` is trusted for the name it was asked by.
    """

    pages: frozenset[str] = frozenset()
    hosts: frozenset[str] | None = None
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()

    def check(self, headers: Headers, address: str = "", peer: str = "") -> None:
        """Refuse a request of a page that may not use the server, or to a name that is not its own.

        Args:
            address: Where its connection was made to.
            peer: And from where.

        Raises:
            Forbidden: It is refused; the message names the header, its value and the setting.
        """
        hosts, origins, cross, forwarded = [], [], False, b""
        for key, value in headers:
            if key == b"host":
                hosts.append(value)
            elif key == b"origin":
                origins.append(value)
            elif key == b"sec-fetch-site":
                cross = cross or value.strip().lower() == b"cross-site"
            elif key == b"x-forwarded-host":
                forwarded = forwarded or value
        if len(hosts) > 1:
            raise Forbidden.at("host", f"the request has {len(hosts)}, and may have one.")
        names = {"host": hosts[0].decode("latin-1").strip()} if hosts else {}
        if forwarded and self._is_proxy(peer):
            names["x-forwarded-host"] = forwarded.decode("latin-1").partition(",")[0].strip()
        for header, name in names.items():
            if name and self.hosts is not None and not self._is_ours(name, address):
                raise Forbidden.at(
                    header,
                    f"{shorten(name)} is no name of this server; --allowed-hosts "
                    "(CONDENSERY_ALLOWED_HOSTS) lists those that it has beside localhost.",
                    name,
                )
        if (origins or cross) and ANY_ORIGIN not in self.pages:
            pages = [origin.decode("latin-1").strip() for origin in origins]
            self._check_page(pages, list(names.values()), cross)

    def _check_page(self, origins: list[str], hosts: list[str], cross: bool) -> None:
        """Refuse a page unless it is named, or this server's own."""
        named = read_origin(origins[0]) if len(origins) == 1 else None
        if named is not None and named in self.pages:
            return
        ours = not origins or (
            named is not None and any(_is_same_origin(named, host) for host in hosts)
        )
        if ours and not cross:
            return
        header, value = "origin", ", ".join(origins)
        way_out = "--cors-origin (CONDENSERY_CORS_ORIGIN) lists those whose pages may."
        if ours:
            header, value = "sec-fetch-site", "cross-site"
            if not origins:  # a link, perhaps: browsers don't say whose
                way_out += " To open an address that another page links to, type it."
        raise Forbidden.at(
            header,
            f"{shorten(value)}: pages of other origins may not use this server; {way_out}",
            value,
        )

    def reply_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return what lets a page that may use the server read the reply to its request."""
        if not self.pages:
            return []
        anyone = ANY_ORIGIN in self.pages
        reply = [] if anyone else [(b"vary", b"Origin")]  # for caches, also where no page asks
        origins = [value for name, value in headers if name == b"origin"]
        if len(origins) == 1 and (
            anyone or read_origin(origins[0].decode("latin-1")) in self.pages
        ):
            reply.append((b"access-control-allow-origin", b"*" if anyone else origins[0].strip()))
            reply.append((b"access-control-expose-headers", b"*"))
        return reply

    def preflight_headers(self, headers: Headers, methods: Iterable[str]) -> dict[str, str] | None:
        """Return what answers a browser that asks what a page may send; None if none does so."""
        asked = {name: value for name, value in headers if name.startswith((b"access-", b"origin"))}
        if not self.pages or not {b"origin", b"access-control-request-method"} <= asked.keys():
            return None
        answer = {
            "access-control-allow-methods": ", ".join(methods),
            "access-control-max-age": str(PREFLIGHT_SECONDS),
        }
        wanted = asked.get(b"access-control-request-headers", b"")
        if wanted and _HEADER_NAMES.fullmatch(wanted):  # a header gives no right but by a key in it
            answer["access-control-allow-headers"] = wanted.decode()
        return answer

    def _is_ours(self, text: str, address: str) -> bool:
        asked = read_authority(text)
        if asked is None:
            return ANY_ORIGIN in (self.hosts or ())
        # An address can't be made to lead elsewhere: probes of a container ask by its own.
        if is_loopback(asked.host) or asked.host == _normalise_host(address):
            return True
        return any(_matches_host(asked.host, name) for name in self.hosts or ())

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ip_address(_normalise_host(peer))
        except ValueError:
            return False
        return any(address in network for network in self.proxies)


@lru_cache(256)
def read_authority(text: str) -> Authority | None:
    """Read ``host``, ``host:port`` or ``[v6]:port``; None if it is none of them."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    host = match[1].strip("[]")
    port = int(match[2]) if match[2] else None
    if ":" in host:
        try:
            ip_address(host)
        except ValueError:
            return None
    return None if port is not None and port > 65535 else Authority(_normalise_host(host), port)


@lru_cache(256)
def read_origin(text: str) -> str | None:
    """Return an origin in one spelling; None if it is not an origin, as ``null``."""
    match = _ORIGIN.fullmatch(text.strip())
    authority = read_authority(match[2]) if match else None
    if match is None or authority is None:
        return None
    scheme = match[1].lower()
    host = f"[{authority.host}]" if ":" in authority.host else authority.host
    default = authority.port in (None, DEFAULT_PORTS.get(scheme))
    return f"{scheme}://{host}" if default else f"{scheme}://{host}:{authority.port}"


def read_origins(text: str) -> frozenset[str]:
    """Read origins with commas between them; ``*`` is every one.

    Raises:
        ValueError: One can't be read.
    """
    origins = set()
    for entry in _split_list(text):
        origin = ANY_ORIGIN if entry == ANY_ORIGIN else read_origin(entry)
        if origin is None:
            raise ValueError(f"{entry!r} is no origin")
        origins.add(origin)
    return frozenset(origins)


def read_hosts(text: str) -> frozenset[str]:
    """Read names or addresses with commas between them; ``*`` is every one.

    Raises:
        ValueError: One can't be read, or names a port.
    """
    hosts = set()
    for entry in _split_list(text):
        bare = f"[{entry}]" if entry.count(":") > 1 and not entry.startswith("[") else entry
        stem = bare.removeprefix("*.")
        authority = read_authority(stem)
        if entry == ANY_ORIGIN:
            hosts.add(ANY_ORIGIN)
        elif authority is None:
            raise ValueError(f"{entry!r} is no host")
        elif authority.port is not None or bare.endswith(":"):
            raise ValueError(f"{entry!r} names a port, and a host holds at every port")
        else:
            hosts.add(f"*.{authority.host}" if stem != bare else authority.host)
    return frozenset(hosts)


def read_networks(text: str | None) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read addresses or networks with commas between them.

    Raises:
        ValueError: One can't be read.
    """
    return tuple(ip_network(entry) for entry in _split_list(text or ""))


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Whether a host is this machine to itself, whatever a name server says."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(_normalise_host(host)).is_loopback
    except ValueError:
        return False


def _split_list(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")] if text.strip() else []


@lru_cache(256)
def _normalise_host(host: str) -> str:
    """Return a host as all its spellings are: ``::ffff:127.0.0.1`` and ``LOCALHOST.`` are not."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower().removesuffix(".")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _matches_host(host: str, name: str) -> bool:
    return name in (ANY_ORIGIN, host) or (name.startswith("*.") and host.endswith(name[1:]))


def _is_same_origin(origin: str, host: str) -> bool:
    """Whether a page of an origin asks the host that it is from.

    By host and port, not by scheme: before the server there may be a proxy that ends TLS.
    """
    scheme, _, rest = origin.partition("://")
    page, asked = read_authority(rest), read_authority(host)
    if scheme not in DEFAULT_PORTS or page is None or asked is None:
        return False
    default = DEFAULT_PORTS[scheme]
    return (page.host, page.port or default) == (asked.host, asked.port or default)
