"""The server's settings: each once, with its range, its default and what it is.

Read once from the command line and the environment. An error names the setting, where it was set,
its value (unless it is a secret) and what is allowed.
"""

import difflib
import os
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from condensery.auth import MIN_KEY_CHARACTERS, parse_key
from condensery.errors import SettingError, shorten
from condensery.origins import read_hosts, read_networks, read_origins
from condensery.values import IndexCaps, SearchMode

VARIABLE_PREFIX = "CONDENSERY_"
# Read by the commands that talk to a server, ours or another, and not by the server.
CLIENT_VARIABLES = frozenset(
    {"CONDENSERY_URL", "CONDENSERY_JUDGE_KEY", "CONDENSERY_EMBEDDINGS_KEY"}
)

# Kubernetes sets variables named after each Service in every pod. Beside a Service called
# condensery they look like ours; nobody has set them, and CONDENSERY_PORT=tcp://... is no port.
_SERVICE_LINK = re.compile(
    rf"{VARIABLE_PREFIX}(\w+_)?"
    r"(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*|PORT=\w+://.*)",
    re.DOTALL,
)


def read_names(text: str) -> tuple[str, ...]:
    """Return names with commas between them, each once. Raises ValueError: one is empty."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError("a name is empty")
    return tuple(dict.fromkeys(names))


SECURITY_GROUP = "keys and TLS"
_DEFAULT_CAPS = IndexCaps()
# What reads a list with commas between its parts, by setting.
LIST_READERS: dict[str, Callable[[str], Any]] = {
    "trusted_proxies": read_networks,
    "cors_origin": read_origins,
    "allowed_hosts": read_hosts,
    "models": read_names,
}
# What is allowed where no type says it.
PROXIES_ALLOWED = "addresses or networks, commas between them"
ORIGINS_ALLOWED = "origins such as https://app.example.com:8443, commas between them, or *"
URL_ALLOWED = "an http or https address such as http://127.0.0.1:8000/v1"
OTLP_ALLOWED = "a collector's http or https address such as http://127.0.0.1:4317"
DATABASE_ALLOWED = "an address such as http://127.0.0.1:6333, or file:///path for an embedded one"
ANSWER_KEY_ALLOWED = "printable ASCII without blanks"
GENERATORS_ALLOWED = "PAIR=URL such as my-pair=http://127.0.0.1:8000/v1, commas between them"
MODELS_ALLOWED = "names of models, commas between them"
HOSTS_ALLOWED = "names or addresses without a port, commas between them, *.example.com, or *"


def _group(title: str, **options: Any) -> Any:
    """Return what makes the fields of a group.

    Args:
        title: Under which --help, `condensery settings` and docs/settings.md list them.
    """

    def field(default: Any = None, *, allowed: str | None = None, **own: Any) -> Any:
        extra: Any = {"group": title} | ({} if allowed is None else {"allowed": allowed})
        if "default_factory" not in own:
            own["default"] = default
        return Field(json_schema_extra=extra, **options, **own)

    return field


_address = _group("addresses")
_model = _group("models and data")
_device = _group(
    "models and data",
    pattern="^(auto|cpu|cuda(:[0-9]+)?)$",
    examples=["auto", "cpu", "cuda", "cuda:1"],
)
_vectors = _group("vectors in a database")
_answering = _group("answers by another server")
_quality = _group("quality of answers")
_limit = _group("limits")
_security = _group(SECURITY_GROUP)
_lifetime = _group("start and shutdown")
_logging = _group("logging and metrics")


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

    host: str = _address("127.0.0.1", min_length=1)
    """Address that REST and gRPC listen on; 0.0.0.0 is every one of this machine."""
    port: int = _address(8080, ge=0, le=65535)
    """REST port; 0 takes a free one."""
    grpc_port: int = _address(8081, ge=0, le=65535)
    """gRPC port; 0 takes a free one."""
    front_processes: int = _address(0, ge=0, le=64)
    """Processes that read and write requests before that of the models; 0: that one does it."""
    trusted_proxies: str | None = _address(allowed=PROXIES_ALLOWED)
    """Proxies before the REST port, whose X-Forwarded-For tells who asks; nobody else's does."""
    cors_origin: str | None = _address(allowed=ORIGINS_ALLOWED)
    """Origins whose web pages may use the REST port; pages of no other origin may."""
    allowed_hosts: str | None = _address(allowed=HOSTS_ALLOWED)
    """Names that the REST port may be asked by, beside localhost; by default, off loopback, all."""

    data_dir: Path = _model(default_factory=default_data_dir)
    """Indexes and own models; by default condensery/ in $XDG_DATA_HOME or in ~/.local/share."""
    store: Path | None = _model()
    """Own model store; by default models/ in the data directory."""
    models: str | None = _model(allowed=MODELS_ALLOWED)
    """Those that serve from the start; by default all that are stored. Others can follow later."""
    device: str = _device("auto")
    """What computes; auto is CUDA where there is one."""
    compressor_device: str | None = _device(None)
    """What computes pairs' compressors; by default `device`."""
    generator_device: str | None = _device(None)
    """What computes pairs' generators; by default `device`."""
    dtype: Literal["auto", "float32", "bfloat16"] = _model("auto")
    """What models compute in; auto is bfloat16 where the hardware is fast at it."""
    workers: int = _model(0, ge=0, le=1024)
    """Threads for forward passes; 0 decides by the device."""
    generator_sequences: int = _model(0, ge=0, le=65536)
    """Most answers that each pair generates at once; 0 decides by the device."""
    generator_cache_mib: int = _model(0, ge=0, le=2**20)
    """MiB of keys and values that each pair's generator keeps; 0 decides by the device."""
    encoder_weights: Literal["auto", "float", "int16", "int8"] = _model("auto")
    """What encoders', classifiers', rerankers' weights are held as; auto: int16 with AVX2 alone."""
    compressor_weights: Literal["auto", "float", "int16", "int8"] = _model("auto")
    """What pairs' compressors' weights are held as; auto is as for encoders."""
    generator_weights: Literal["auto", "float", "int8", "int4"] = _model("auto")
    """What pairs' generators' weights are held as, on a CPU; auto is int8 where it costs little."""
    samples: bool = _model(True)
    """Make the index `samples` on first start."""
    search: SearchMode = _model("dense")
    """How an index is searched where a request does not say: by vectors, by words, or by both."""

    index_backend: Literal["faiss", "qdrant", "milvus"] = _vectors("faiss")
    """Where new indexes have their vectors: here, or in a database, whose extra it needs."""
    index_database: str | None = _vectors(allowed=DATABASE_ALLOWED)
    """The database; indexes that are in FAISS already stay there."""
    index_database_key: SecretStr | None = _vectors(allowed=ANSWER_KEY_ALLOWED)
    """The key, or token, that it wants."""
    index_database_timeout: float = _vectors(5.0, ge=0.1, le=600)
    """Seconds that one reply of it may take."""
    index_database_prefix: str = _vectors(
        "condensery",
        pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$",
        allowed="1 to 64 letters, digits and _, no digit first",
    )
    """What names of its collections begin with; servers that share it each need their own."""

    answer_with: str | None = _answering(allowed=URL_ALLOWED)
    """Server of OpenAI's chat completions that writes the answers, from passages found here."""
    answer_model: str | None = _answering(
        min_length=1, max_length=256, allowed="a name of 1 to 256 characters"
    )
    """The model's name there; it stands beside `answer_with`, and in the replies."""
    generator_servers: str | None = _answering(allowed=GENERATORS_ALLOWED)
    """Pairs whose generators run on a vLLM server each, fed with vectors from here."""
    answer_key: SecretStr | None = _answering(allowed=ANSWER_KEY_ALLOWED)
    """The key that it wants, sent as a bearer token."""
    answer_timeout: float = _answering(60.0, ge=0.1, le=3600)
    """Seconds that its next words may take, the first included."""
    answer_retries: int = _answering(2, ge=0, le=10)
    """Times that it is asked again, before its first words, where it is down or too busy."""
    answer_context_tokens: int = _answering(4096, ge=64, le=1_000_000)
    """Most tokens of passages that it is sent, about: 4 bytes each."""
    answer_passages: Literal["prompt", "documents"] = _answering("prompt")
    """How it is sent them: in the prompt, or as `documents`, which another condensery reads."""

    shadow_share: float = _quality(0.0, ge=0, le=1)
    """Share of answers computed again from plain text, in idle time, to see how far both agree."""
    shadow_model: str | None = _quality(min_length=1, max_length=256, allowed="name of a pair")
    """The pair that reads the text; by default the one that answered."""

    max_body_bytes: int = _limit(8 * 2**20, ge=1024, le=2**30)
    """Longest request, REST body and gRPC message alike."""
    max_upload_bytes: int = _limit(256 * 2**20, ge=1024, le=2**40)
    """Longest request of files, which lie on the disk until they are read."""
    max_header_bytes: int = _limit(16 * 2**10, ge=1024, le=2**20)
    """Longest headers, or metadata, of one request."""
    max_json_depth: int = _limit(64, ge=4, le=512)
    """Most objects and lists within each other in one body."""
    max_items: int = _limit(2048, ge=1, le=1_000_000)
    """Most texts in one request."""
    max_requests: int = _limit(4096, ge=1, le=1_000_000)
    """Most requests inside at once; more come back later."""
    max_connections: int = _limit(4096, ge=1, le=1_000_000)
    """Most REST connections at once; at most 75 % of the open-file limit."""
    max_inflight_bytes: int = _limit(64 * 2**20, ge=1024, le=2**40)
    """Most bytes of requests inside at once, at least max_body_bytes; more come back later."""
    max_queue_tokens: int = _limit(1_000_000, ge=1, le=10**12)
    """Most tokens that wait for one model; more come back later."""
    max_queue_seconds: float = _limit(10.0, ge=0.01, le=3600)
    """Longest wait for one model; who would wait longer is refused at once, to come back later."""
    max_context_bytes: int = _limit(256 * 2**20, ge=2**20, le=2**40)
    """Most bytes of compressed contexts held for later answers; one caller gets a quarter."""
    max_indexes: int = _limit(_DEFAULT_CAPS.indexes, ge=1, le=1_000_000)
    """Most indexes; those that are there already are all opened."""
    max_aliases: int = _limit(_DEFAULT_CAPS.aliases, ge=1, le=1_000_000)
    """Most aliases of indexes."""
    max_snapshots: int = _limit(_DEFAULT_CAPS.snapshots, ge=1, le=1_000_000)
    """Most snapshots, of all indexes together."""
    request_timeout_seconds: float = _limit(300.0, ge=0.01, le=86_400)
    """A request's time, where its caller names none or a longer one."""

    api_key: SecretStr | None = _security()
    """A key that may do everything, under the name `default`; as it is, or sha256: and its hash."""
    keys_file: Path | None = _security()
    """File of keys and what each may do; read again on SIGHUP."""
    make_key: bool = _security(False)
    """Where no key is given, make one at the first start, and keep it in api-key in data_dir."""
    allow_no_keys: bool = _security(False)
    """Serve other machines without any key: whoever reaches `host` may use and change all."""
    open_metrics: bool = _security(False)
    """Answer /metrics without a key even where keys are set."""
    tls_cert: Path | None = _security()
    """Certificate chain, PEM; REST and gRPC then speak TLS only."""
    tls_key: Path | None = _security()
    """The certificate's private key, PEM, without a password."""

    start_timeout_seconds: float = _lifetime(300.0, ge=1, le=86_400)
    """Longest start: ready by then, or the process ends."""
    worker_stall_seconds: float = _lifetime(1.5, ge=0.1, le=3600)
    """A forward pass that takes longer, and five times what it should, makes the server unready."""
    settle_seconds: float = _lifetime(5.0, ge=0, le=3600)
    """After SIGTERM: unready, and still serving, until all who send requests have seen it."""
    grace_seconds: float = _lifetime(30.0, ge=0, le=3600)
    """After that: new requests are refused, and those in flight have this long to finish."""

    log_level: Literal["debug", "info", "warning", "error"] = _logging("info")
    """Least level that is logged."""
    slow_ms: int = _logging(10_000, ge=0, le=86_400_000)
    """Milliseconds from which a request is logged with its stages, one a second; 0 logs none."""
    otlp_endpoint: str | None = _logging(allowed=OTLP_ALLOWED)
    """Collector of traces, over gRPC, or over HTTP at port 4318 or a path; needs extra otel."""
    tei_metrics: bool = _logging(True)
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
                raise _wrong_value(str(error)) from None
        return key

    @field_validator("answer_with")
    @classmethod
    def _is_url(cls, text: str | None) -> str | None:
        """Return the address under which the routes are, ``/v1`` where it names no path."""
        if text is None:
            return None
        return _read_api_root(text, URL_ALLOWED)

    @field_validator("generator_servers")
    @classmethod
    def _are_generators(cls, text: str | None) -> str | None:
        if text is None:
            return None
        if not text.strip():
            raise _wrong_value(f"it must be {GENERATORS_ALLOWED}")
        return ",".join(f"{name}={url}" for name, url in read_generator_servers(text).items())

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_collector(cls, text: str | None) -> str | None:
        if text is not None:
            _split_url(text, OTLP_ALLOWED, "OTEL_EXPORTER_OTLP_HEADERS carries credentials")
        return text

    @field_validator("index_database")
    @classmethod
    def _is_database(cls, text: str | None) -> str | None:
        if text is None:
            return None
        if text.startswith("file:"):
            parts = urlsplit(text)
            if parts.netloc or parts.query or parts.fragment or len(parts.path) < 2:
                raise _wrong_value(f"it must be {DATABASE_ALLOWED}")
            return text
        _split_url(text, DATABASE_ALLOWED, "the key is CONDENSERY_INDEX_DATABASE_KEY")
        return text.rstrip("/")

    @field_validator("answer_key", "index_database_key")
    @classmethod
    def _is_header(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not re.fullmatch(r"[!-~]+", key.get_secret_value()):
            raise _wrong_value(f"it must be {ANSWER_KEY_ALLOWED}")
        return key

    @field_validator(*LIST_READERS)
    @classmethod
    def _is_list(cls, text: str | None, info: ValidationInfo) -> str | None:
        """Return a list with commas between its parts, each of which can be read."""
        if text is None:
            return None
        try:
            if not LIST_READERS[str(info.field_name)](text):
                raise ValueError("it is empty")
        except ValueError as error:
            allowed = describe_allowed(str(info.field_name))
            raise _wrong_value(f"{error}; it must be {allowed}") from None
        return ",".join(part.strip() for part in text.split(","))

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.port and self.port == self.grpc_port:
            raise self._clash("grpc_port", "other than", "port", "other than")
        if self.max_inflight_bytes < self.max_body_bytes:
            raise self._clash("max_inflight_bytes", "at least", "max_body_bytes", "at most")
        if self.index_backend != "faiss" and self.index_database is None:
            raise _wrong_value("it needs index_database beside it", "index_backend")
        if self.index_backend == "faiss" and self.index_database is not None:
            problem = "it needs index_backend beside it, qdrant or milvus"
            raise _wrong_value(problem, "index_database")
        if bool(self.answer_with) != bool(self.answer_model):
            present, missing = "answer_with", "answer_model"
            if self.answer_model:
                present, missing = missing, present
            raise _wrong_value(f"it needs {missing} beside it", present)
        if self.generator_servers and self.answer_with:
            problem = "answer_with is set, whose server writes all answers"
            raise _wrong_value(problem, "generator_servers")
        if self.shadow_model and not self.shadow_share:
            raise _wrong_value("it needs shadow_share beside it", "shadow_model")
        if self.shadow_share and self.answer_with:
            problem = "answers are read from text where answer_with is set: nothing to compare"
            raise _wrong_value(problem, "shadow_share")
        if self.tls_cert and self.tls_key:
            try:
                read_certificate(self.tls_cert, self.tls_key)
            except SettingError as error:
                raise _wrong_value(error.message, error.field) from None
        elif self.tls_cert or self.tls_key:
            present, missing = "tls_cert", "tls_key"
            if self.tls_key:
                present, missing = missing, present
            raise _wrong_value(f"it needs {missing} beside it", present)
        return self

    def _clash(self, name: str, rule: str, other: str, reverse: str) -> PydanticCustomError:
        if name not in self.model_fields_set:  # so that what is blamed is what somebody set
            name, rule, other = other, reverse, name
        return _wrong_value(f"it must be {rule} {other}, {getattr(self, other)}", name)


def read_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the environment, and over it the command line.

    Args:
        flags: Fields by name; None is a flag that was not set.

    Raises:
        SettingError: A value is not allowed, or the environment names a setting that does not
            exist; the message names the setting, where it was set, the value (unless it is a
            secret) and what is allowed.
    """
    return trace_settings(flags)[0]


def trace_settings(flags: Mapping[str, Any] | None = None) -> tuple[Settings, dict[str, str]]:
    """Read the settings as ``read_settings`` does, and return where each value comes from.

    Returns:
        The settings, and by field "default", "environment variable NAME" or "flag --name".

    Raises:
        SettingError: As in ``read_settings``.
    """
    origins = dict.fromkeys(Settings.model_fields, "default")
    values: dict[str, Any] = _read_environment()
    origins |= {name: f"environment variable {variable_of(name)}" for name in values}
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = value
            origins[name] = f"flag {flag_of(name)}"
    try:
        return Settings(**values), origins
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else first["ctx"]["field"]
    ours, secret = first["type"] in ("wrong", "secret"), is_secret(name)
    secret = secret or first["type"] == "secret"
    problem = first["msg"] if ours else f"it must be {describe_allowed(name)}"
    value = "its value" if secret else shorten(values[name])
    raise SettingError(
        f"{origins[name].split()[-1]}: {value} is not allowed: {problem}.",
        field=name,
        value=None if secret else values[name],
    )


def variable_of(name: str) -> str:
    """Return the environment variable that gives a setting."""
    return f"{VARIABLE_PREFIX}{name.upper()}"


def flag_of(name: str) -> str:
    """Return the flag that gives a setting."""
    return f"--{name.replace('_', '-')}"


def is_secret(name: str) -> bool:
    """Whether a setting's value is never shown, nor taken from the command line."""
    return name in Settings.model_fields and Settings.model_fields[name].annotation == (
        SecretStr | None
    )


def group_of(name: str) -> str:
    """Return the heading under which a setting is listed."""
    extra = Settings.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return str(extra["group"])


def describe_allowed(name: str) -> str:
    """Say in words which values a setting may have."""
    if name not in Settings.model_fields:
        return "a setting that exists"
    field = Settings.model_fields[name]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "allowed" in extra:
        return str(extra["allowed"])
    if is_secret(name):
        return f"{MIN_KEY_CHARACTERS} characters or more"
    if choices := field.examples or choices_of(name):
        *others, last = map(repr, choices)
        return f"{', '.join(others)} or {last}"
    if field.annotation in (int, float):
        least, most = (
            next(getattr(bound, side) for bound in field.metadata if hasattr(bound, side))
            for side in ("ge", "le")
        )
        return f"a {'whole ' if field.annotation is int else ''}number, {least} to {most}"
    if field.annotation is bool:
        return "true or false"
    return "a text that is not empty" if field.annotation is str else "a path"


def choices_of(name: str) -> tuple[str, ...]:
    """Return the values among which a setting is chosen; none where there are too many."""
    annotation = Settings.model_fields[name].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def read_certificate(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """Return a certificate and its private key, as they are in their files.

    Raises:
        SettingError: A file can't be read, or the two make no pair; the message is the bare
            problem, the field ``tls_cert`` or ``tls_key``.
    """
    contents = []
    for field, path in (("tls_cert", cert), ("tls_key", key)):
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            raise SettingError(f"it can't be read: {error.strerror}", field=field) from error
    try:
        # Without a password of ours OpenSSL would ask for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:  # which says little: "PEM lib"
        problem = f"it must be the key of the certificate in {cert}, both PEM, without a password"
        raise SettingError(problem, field="tls_key") from error
    return contents[0], contents[1]


def read_generator_servers(text: str) -> dict[str, str]:
    """Return the addresses of pairs' generators by the pairs' names.

    Raises:
        PydanticCustomError: A part is no ``PAIR=URL``, or a pair is named twice.
    """
    servers: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, url = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise _wrong_value(f"it must be {GENERATORS_ALLOWED}")
        if name in servers:
            raise _wrong_value(f"it names {shorten(name)} twice; it must be {GENERATORS_ALLOWED}")
        servers[name] = _read_api_root(url, GENERATORS_ALLOWED)
    return servers


def _read_api_root(text: str, allowed: str) -> str:
    """Return the address under which a server's routes are, ``/v1`` where it names no path."""
    parts = _split_url(text, allowed, "the key is CONDENSERY_ANSWER_KEY")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def _split_url(text: str, allowed: str, instead: str) -> SplitResult:
    """Return the parts of a server's address.

    A name and a password in it are refused without being shown; ``instead`` says where they go.
    """
    problem = f"it must be {allowed}"
    try:
        parts = urlsplit(text)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        right, parts = False, SplitResult("", "", "", "", "")
    if "@" in text:
        problem = f"it holds a name or password; {instead}"
        raise PydanticCustomError("secret", "{problem}", {"problem": problem, "field": None})
    if not right or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", text):
        raise _wrong_value(problem)
    return parts


def _wrong_value(problem: str, field: str | None = None) -> PydanticCustomError:
    return PydanticCustomError("wrong", "{problem}", {"problem": problem, "field": field})


def _read_environment() -> dict[str, str]:
    """Return what the environment sets, by field; what is empty is not set.

    Raises:
        SettingError: It names a setting that does not exist: a typo in CONDENSERY_KEYS_FILE must
            not let everybody in. Or keys or TLS are set and empty, for the same reason.
    """
    names = {variable_of(name): name for name in Settings.model_fields}
    values: dict[str, str] = {}
    for variable, value in sorted(os.environ.items()):
        if not variable.upper().startswith(VARIABLE_PREFIX) or variable in CLIENT_VARIABLES:
            continue
        if _SERVICE_LINK.fullmatch(f"{variable}={value}"):
            continue
        if variable not in names:
            word = variable[len(VARIABLE_PREFIX) :].lower()
            near = difflib.get_close_matches(word, Settings.model_fields, n=1)
            hint = f" Did you mean {variable_of(near[0])}?" if near else ""
            raise SettingError(
                f"{variable}: there is no such setting.{hint} `condensery serve --help` lists all."
            )
        if value:
            values[names[variable]] = value
        elif group_of(names[variable]) == SECURITY_GROUP:
            raise SettingError(f"{variable}: it is set, and empty; give it a value, or unset it.")
    return values
