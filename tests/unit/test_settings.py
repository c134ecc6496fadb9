from pathlib import Path

import pytest

from condensery.errors import SettingError
from condensery.settings import Settings, default_data_dir, read_settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"CONDENSERY_{name.upper()}", raising=False)


def test_defaults_are_those_that_the_readme_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/there")
    settings = read_settings()
    assert (settings.host, settings.port, settings.grpc_port) == ("127.0.0.1", 8080, 8081)
    assert settings.data_dir == Path("/there/condensery")
    assert settings.own_store == Path("/there/condensery/models")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_data_dir() == Path.home() / ".local/share/condensery"


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_PORT", "9000")
    monkeypatch.setenv("CONDENSERY_STORE", "/models")
    assert read_settings({"port": None}).port == 9000
    assert read_settings({"port": 9001}).port == 9001
    assert read_settings().own_store == Path("/models")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("dtype", "float16", "'auto', 'float32' or 'bfloat16'"),
        ("port", "tcp://10.0.0.1:80", "valid integer"),
        ("grpc_port", "70000", "less than or equal to 65535"),
        ("max_body_bytes", "1", "greater than or equal to 1024"),
        ("workers", "-1", "greater than or equal to 0"),
        ("log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("samples", "perhaps", "valid boolean"),
    ],
)
def test_a_wrong_value_is_named_with_its_source_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    with pytest.raises(SettingError, match=allowed) as caught:
        read_settings({name: value})
    assert caught.value.message.startswith(f"--{name.replace('_', '-')}: '{value}' is not allowed")
    assert caught.value.field == name
    monkeypatch.setenv(f"CONDENSERY_{name.upper()}", value)
    with pytest.raises(SettingError, match=allowed) as caught:
        read_settings()
    assert caught.value.message.startswith(f"CONDENSERY_{name.upper()}: '{value}'")


def test_a_flag_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingError, match="--colour"):
        read_settings({"colour": "red"})
