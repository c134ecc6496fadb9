"""Whether there are traces, and where they go: by the setting and by OpenTelemetry's variables."""

import subprocess
import sys

import pytest

from condensery.errors import SettingError
from condensery.metrics import Metrics
from condensery.tracing import opening
from condensery.tracing.opening import SpanTarget, find_target, open_tracing

# What comes with serving: a request's way through both doors, a model's, an index's.
SERVING = """
import sys
import condensery.server, condensery.runtime.registry, condensery.runtime.answer_server
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


@pytest.mark.parametrize(
    ("endpoint", "variables", "target"),
    [
        (None, {}, None),
        ("http://c:4317", {}, ("http://c:4317", "grpc")),
        ("http://c", {}, ("http://c", "grpc")),
        ("http://c:4318", {}, ("http://c:4318/v1/traces", "http/protobuf")),
        ("http://c:4318/", {}, ("http://c:4318/v1/traces", "http/protobuf")),
        ("https://c/in/v1/traces", {}, ("https://c/in/v1/traces", "http/protobuf")),
        (
            "http://c:9",
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ("http://c:9/v1/traces", "http/protobuf"),
        ),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, ("http://c:4317", "grpc")),
        (
            None,
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/in"},
            ("http://c:4318/in/v1/traces", "http/protobuf"),
        ),
        (
            None,
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:4318/own",
            },
            ("http://traces:4318/own", "http/protobuf"),
        ),
        (
            "http://mine:4317",
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/own"},
            ("http://mine:4317", "grpc"),
        ),
        (
            None,
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_TRACES_EXPORTER": "none"},
            None,
        ),
        ("http://c:4317", {"OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_the_setting_comes_before_the_variables_which_are_those_of_the_standard(
    endpoint: str | None, variables: dict[str, str], target: tuple[str, str] | None
) -> None:
    assert find_target(endpoint, variables) == (target and SpanTarget(*target))  # type: ignore[arg-type]


def test_a_protocol_that_there_is_not_is_refused_by_its_variable() -> None:
    with pytest.raises(SettingError, match="OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json'"):
        find_target("http://c:1", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})


def test_without_the_extra_the_setting_is_refused_and_the_variables_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    target, metrics = SpanTarget("http://c:4317", "grpc"), Metrics()
    with pytest.raises(SettingError, match="pip install 'condensery\\[otel\\]'"):
        open_tracing(target, metrics, asked=True)
    assert open_tracing(target, metrics, asked=False) is None


def test_a_variable_that_cannot_be_read_ends_the_start_with_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(SettingError, match="soon"):
        open_tracing(SpanTarget("http://c:4317", "grpc"), Metrics(), asked=True)


def test_nothing_of_opentelemetry_is_imported_where_nothing_is_traced() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVING], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr
