"""Each setting once: its range, its default, and what it is."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from condensery.errors import SettingError
from condensery.keys import parse_key
from condensery.origins import read_hosts, read_networks, read_origins
from condensery.questions import SearchMode
from condensery.upkeep import Caps

# Where --help, `condensery settings` and docs/operating.md list a setting.
_ADDRESSES: JsonDict = {"group": "addresses"}
_MODELS: JsonDict = {"group": "models and data"}
_LIMITS: JsonDict = {"group": "limits"}
LOCKS = "keys and TLS"
_KEYS: JsonDict = {"group": LOCKS}
_LIFE: JsonDict = {"group": "start and shutdown"}
_LOGGING: JsonDict = {"group": "logging and metrics"}
_CAPS = Caps()
# What is allowed where no type says it.
PROXIES = "addresses or networks, commas between them"
ORIGINS = "origins such as https://app.example.com:8443, commas between them, or *"
HOSTS = "names or addresses without a port, commas between them, *.example.com, or *"


def default_data_dir() -> Path:
    """Return where a user's data goes on this platform: ``$XDG_DATA_HOME/condensery``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "condensery"


class Settings(BaseModel):
    """How the server runs.

    Each is ``CONDENSERY_<NAME>`` in the environment, and ``--<name>`` on the command line unless it
    is a secret: command lines are seen by all users of a machine.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )

    host: str = Field(default="127.0.0.1", min_length=1, json_schema_extra=_ADDRESSES)
    """Address that both doors listen on; 0.0.0.0 is every one of this machine."""
    port: int = Field(default=8080, ge=0, le=65535, json_schema_extra=_ADDRESSES)
    """REST port; 0 takes a free one."""
    grpc_port: int = Field(default=8081, ge=0, le=65535, json_schema_extra=_ADDRESSES)
    """gRPC port; 0 takes a free one."""
    trusted_proxies: str | None = Field(
        default=None,
        json_schema_extra=_ADDRESSES | {"allowed": PROXIES},
    )
    """Proxies before the REST port, whose X-Forwarded-For tells who asks; nobody else's does."""
    cors_origin: str | None = Field(
        default=None,
        json_schema_extra=_ADDRESSES | {"allowed": ORIGINS},
    )
    """Origins whose web pages may use the REST port; pages of no other origin may."""
    allowed_hosts: str | None = Field(
        default=None,
        json_schema_extra=_ADDRESSES | {"allowed": HOSTS},
    )
    """Names that the REST port may be asked by, beside localhost; by default, off loopback, all."""

    data_dir: Path = Field(default_factory=default_data_dir, json_schema_extra=_MODELS)
    """Indexes and own models; by default condensery/ in $XDG_DATA_HOME or in ~/.local/share."""
    store: Path | None = Field(default=None, json_schema_extra=_MODELS)
    """Own model store; by default models/ in the data directory."""
    device: str = Field(
        default="auto",
        pattern="^(auto|cpu|cuda(:[0-9]+)?)$",
        examples=["auto", "cpu", "cuda", "cuda:1"],
        json_schema_extra=_MODELS,
    )
    """What computes; auto is CUDA where there is one."""
    compressor_device: str | None = Field(
        default=None,
        pattern="^(auto|cpu|cuda(:[0-9]+)?)$",
        examples=["auto", "cpu", "cuda", "cuda:1"],
        json_schema_extra=_MODELS,
    )
    """What computes pairs' compressors; by default `device`."""
    generator_device: str | None = Field(
        default=None,
        pattern="^(auto|cpu|cuda(:[0-9]+)?)$",
        examples=["auto", "cpu", "cuda", "cuda:1"],
        json_schema_extra=_MODELS,
    )
    """What computes pairs' generators; by default `device`."""
    dtype: Literal["auto", "float32", "bfloat16"] = Field(default="auto", json_schema_extra=_MODELS)
    """What models compute in; auto is bfloat16 where the hardware is fast at it."""
    workers: int = Field(default=0, ge=0, le=1024, json_schema_extra=_MODELS)
    """Threads for forward passes; 0 decides by the device."""
    generator_sequences: int = Field(default=0, ge=0, le=65536, json_schema_extra=_MODELS)
    """Most answers that each pair generates at once; 0 decides by the device."""
    generator_cache_mib: int = Field(default=0, ge=0, le=2**20, json_schema_extra=_MODELS)
    """MiB of keys and values that each pair's generator keeps; 0 decides by the device."""
    samples: bool = Field(default=True, json_schema_extra=_MODELS)
    """Make the index `samples` on first start."""
    search: SearchMode = Field(default="dense", json_schema_extra=_MODELS)
    """How an index is searched where a request does not say: by vectors, by words, or by both."""

    max_body_bytes: int = Field(default=8 * 2**20, ge=1024, le=2**30, json_schema_extra=_LIMITS)
    """Longest request, REST body and gRPC message alike."""
    max_header_bytes: int = Field(default=16 * 2**10, ge=1024, le=2**20, json_schema_extra=_LIMITS)
    """Longest headers, or metadata, of one request."""
    max_json_depth: int = Field(default=64, ge=4, le=512, json_schema_extra=_LIMITS)
    """Most objects and lists within each other in one body."""
    max_items: int = Field(default=2048, ge=1, le=1_000_000, json_schema_extra=_LIMITS)
    """Most texts in one request."""
    max_requests: int = Field(default=4096, ge=1, le=1_000_000, json_schema_extra=_LIMITS)
    """Most requests inside at once; more are told to come back later."""
    max_connections: int = Field(default=4096, ge=1, le=1_000_000, json_schema_extra=_LIMITS)
    """Most REST connections at once; never over three in four files that the process may open."""
    max_inflight_bytes: int = Field(
        default=64 * 2**20, ge=1024, le=2**40, json_schema_extra=_LIMITS
    )
    """Most bytes of requests inside at once, at least max_body_bytes; more come back later."""
    max_queue_tokens: int = Field(default=1_000_000, ge=1, le=10**12, json_schema_extra=_LIMITS)
    """Most tokens that wait for one model; more come back later."""
    max_queue_seconds: float = Field(default=10.0, ge=0.01, le=3600, json_schema_extra=_LIMITS)
    """Longest wait for one model; who would wait longer is told at once to come back later."""
    max_context_bytes: int = Field(
        default=256 * 2**20, ge=2**20, le=2**40, json_schema_extra=_LIMITS
    )
    """Most bytes of compressed contexts held for later answers; one caller gets a quarter."""
    max_indexes: int = Field(default=_CAPS.indexes, ge=1, le=1_000_000, json_schema_extra=_LIMITS)
    """Most indexes; those that are there already are all opened."""
    max_aliases: int = Field(default=_CAPS.aliases, ge=1, le=1_000_000, json_schema_extra=_LIMITS)
    """Most aliases of indexes."""
    max_snapshots: int = Field(
        default=_CAPS.snapshots, ge=1, le=1_000_000, json_schema_extra=_LIMITS
    )
    """Most snapshots, of all indexes together."""
    request_timeout_seconds: float = Field(
        default=300.0, ge=0.01, le=86_400, json_schema_extra=_LIMITS
    )
    """A request's time, where its caller names none or a longer one."""

    api_key: SecretStr | None = Field(default=None, json_schema_extra=_KEYS)
    """A key that may do everything, under the name `default`; as it is, or sha256: and its hash."""
    keys_file: Path | None = Field(default=None, json_schema_extra=_KEYS)
    """File of keys and what each may do; read again on SIGHUP."""
    make_key: bool = Field(default=False, json_schema_extra=_KEYS)
    """Where no key is given, make one at the first start, and keep it in api-key in data_dir."""
    allow_no_keys: bool = Field(default=False, json_schema_extra=_KEYS)
    """Serve other machines without any key: whoever reaches `host` may use and change all."""
    open_metrics: bool = Field(default=False, json_schema_extra=_KEYS)
    """Answer /metrics without a key even where keys are set."""
    tls_cert: Path | None = Field(default=None, json_schema_extra=_KEYS)
    """Certificate chain, PEM; both doors then speak TLS only."""
    tls_key: Path | None = Field(default=None, json_schema_extra=_KEYS)
    """The certificate's private key, PEM, without a password."""

    start_timeout_seconds: float = Field(default=300.0, ge=1, le=86_400, json_schema_extra=_LIFE)
    """Longest start: ready by then, or the process ends."""
    worker_stall_seconds: float = Field(default=1.5, ge=0.1, le=3600, json_schema_extra=_LIFE)
    """A forward pass that takes longer, and five times what it should, makes the server unready."""
    settle_seconds: float = Field(default=5.0, ge=0, le=3600, json_schema_extra=_LIFE)
    """After SIGTERM: unready, and still serving, until all who send requests have seen it."""
    grace_seconds: float = Field(default=30.0, ge=0, le=3600, json_schema_extra=_LIFE)
    """After that: new requests are refused, and those in flight have this long to finish."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", json_schema_extra=_LOGGING
    )
    """Least level that is logged."""
    slow_ms: int = Field(default=10_000, ge=0, le=86_400_000, json_schema_extra=_LOGGING)
    """Milliseconds from which a request is logged with its stages, one a second; 0 logs none."""
    tei_metrics: bool = Field(default=True, json_schema_extra=_LOGGING)
    """Tell /metrics under TEI's names too (te_*), for dashboards that were made for it."""

    @property
    def own_store(self) -> Path:
        """The root that imported and own models go to."""
        return self.store or self.data_dir / "models"

    @property
    def store_is_private(self) -> bool:
        """Whether the own store is inside the data directory; one outside may be a group's."""
        return self.own_store.resolve().is_relative_to(self.data_dir.resolve())

    @field_validator("api_key")
    @classmethod
    def _is_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            try:
                parse_key(key.get_secret_value())
            except ValueError as error:
                raise _wrong(str(error)) from None
        return key

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, proxies: str | None) -> str | None:
        return _list(proxies, read_networks, PROXIES)

    @field_validator("cors_origin")
    @classmethod
    def _are_origins(cls, origins: str | None) -> str | None:
        return _list(origins, read_origins, ORIGINS)

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, hosts: str | None) -> str | None:
        return _list(hosts, read_hosts, HOSTS)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.port and self.port == self.grpc_port:
            raise self._clash("grpc_port", "other than", "port", "other than")
        if self.max_inflight_bytes < self.max_body_bytes:
            raise self._clash("max_inflight_bytes", "at least", "max_body_bytes", "at most")
        if self.tls_cert and self.tls_key:
            try:
                read_pair(self.tls_cert, self.tls_key)
            except SettingError as error:
                raise _wrong(error.message, error.field) from None
        elif self.tls_cert or self.tls_key:
            given, missing = "tls_cert", "tls_key"
            if self.tls_key:
                given, missing = missing, given
            raise _wrong(f"it needs {missing} beside it", given)
        return self

    def _clash(self, name: str, rule: str, other: str, reverse: str) -> PydanticCustomError:
        if name not in self.model_fields_set:  # so that what is blamed is what somebody set
            name, rule, other = other, reverse, name
        return _wrong(f"it must be {rule} {other}, {getattr(self, other)}", name)


def read_pair(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """Return a certificate and its private key, as they are in their files.

    Raises:
        SettingError: A file can't be read, or the two make no pair; the message is the bare
            problem, the field ``tls_cert`` or ``tls_key``.
    """
    found = []
    for field, path in (("tls_cert", cert), ("tls_key", key)):
        try:
            found.append(path.read_bytes())
        except OSError as error:
            raise SettingError(f"it can't be read: {error.strerror}", field=field) from error
    try:
        # Without a password of ours OpenSSL would ask for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:  # which says little: "PEM lib"
        problem = f"it must be the key of the certificate in {cert}, both PEM, without a password"
        raise SettingError(problem, field="tls_key") from error
    return found[0], found[1]


def _list(text: str | None, read: Callable[[str], Any], allowed: str) -> str | None:
    """Return a list with commas between its parts, each of which can be read."""
    if text is None:
        return None
    try:
        if not read(text):
            raise ValueError("it is empty")
    except ValueError as error:
        raise _wrong(f"{error}; it must be {allowed}") from None
    return ",".join(one.strip() for one in text.split(","))


def _wrong(problem: str, field: str | None = None) -> PydanticCustomError:
    return PydanticCustomError("wrong", "{problem}", {"problem": problem, "field": field})
