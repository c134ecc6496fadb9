"""Whether requests are traced, and where their spans go; OpenTelemetry is imported only if so.

``--otlp-endpoint`` turns it on, or OpenTelemetry's own variables do. All else is set by those alone
(headers, certificates, sampling, the size of the queue, the service's name): its SDK reads them.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from condensery.errors import SettingError, shorten

if TYPE_CHECKING:
    from condensery.metrics import Metrics
    from condensery.tracing.spans import Tracing

OtlpProtocol = Literal["grpc", "http/protobuf"]

PROTOCOLS: dict[str, OtlpProtocol] = {"grpc": "grpc", "http/protobuf": "http/protobuf"}
INSTALL = "pip install 'condensery[otel]'"
HTTP_PORT = 4318  # as collectors have it; 4317 is gRPC's
HTTP_PATH = "/v1/traces"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpanTarget:
    """Where spans go.

    Attributes:
        endpoint: A collector's address; for HTTP with the path of its traces.
        protocol: What it is spoken to in.
    """

    endpoint: str
    protocol: OtlpProtocol


def find_target(
    endpoint: str | None, environment: Mapping[str, str] = os.environ
) -> SpanTarget | None:
    """Return where spans go, by the setting or by OpenTelemetry's variables; None: nowhere.

    Raises:
        SettingError: A variable asks for what there is not.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = environment.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    if endpoint is None and "otlp" not in (name.strip() for name in exporters):
        return None
    own = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    base = endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    address = endpoint or own or base
    if not address:
        return None
    protocol = _read_protocol(address, environment)
    if protocol == "http/protobuf" and (endpoint or not own):
        address = _with_path(address, always=endpoint is None)
    return SpanTarget(address, protocol)


def _read_protocol(address: str, environment: Mapping[str, str]) -> OtlpProtocol:
    """Return what a collector speaks: as the variables say, else as its port and path do."""
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        value = environment.get(variable, "").strip()
        if value in PROTOCOLS:
            return PROTOCOLS[value]
        if value:
            raise SettingError(
                f"{variable}: {value!r} is not allowed: it must be grpc or http/protobuf.",
                field="otlp_endpoint",
                value=value,
            )
    parts = urlsplit(address)
    return "http/protobuf" if parts.port == HTTP_PORT or parts.path.strip("/") else "grpc"


def _with_path(address: str, *, always: bool) -> str:
    """Return a base address with the path of traces; one with a path has it already."""
    has_path = bool(urlsplit(address).path.strip("/")) and not always
    return address if has_path else address.rstrip("/") + HTTP_PATH


def open_tracing(target: SpanTarget, metrics: "Metrics", *, asked: bool) -> "Tracing | None":
    """Return what traces requests; None where the extra `otel` is not installed, and none asked.

    Args:
        asked: Whether the setting asks for it, not the environment of all services alike.

    Raises:
        SettingError: The setting asks for it, and the extra is not installed; or one of
            OpenTelemetry's variables can't be read.
    """
    if not _is_installed(target.protocol):
        if asked:
            raise SettingError(
                f"--otlp-endpoint: traces need the extra `otel`: {INSTALL}.",
                field="otlp_endpoint",
            )
        _log.warning("traces_off", extra={"reason": f"the extra otel is missing: {INSTALL}"})
        return None
    from condensery.tracing.spans import Tracing

    try:
        return Tracing(target, metrics)
    except (ValueError, OSError) as error:  # what OTEL_* variables say is read there
        raise SettingError(
            f"OpenTelemetry does not take what its variables (OTEL_*) say: {shorten(error)}.",
            field="otlp_endpoint",
        ) from error


def _is_installed(protocol: OtlpProtocol) -> bool:
    kind = "grpc" if protocol == "grpc" else "http"
    try:
        return find_spec(f"opentelemetry.exporter.otlp.proto.{kind}") is not None
    except ModuleNotFoundError:  # of a package above it
        return False
