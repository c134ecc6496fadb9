import argparse
import re
from pathlib import Path

import pytest

from condensery.commands.flags import add_flags, explain_setting, format_setting, read_flags
from condensery.settings import Settings, flag_of, group_of, is_secret, read_settings

SECRETS = [name for name in Settings.model_fields if is_secret(name)]
SWITCHES = [name for name, field in Settings.model_fields.items() if field.annotation is bool]


def make() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return parser


def test_every_setting_has_a_flag_but_for_the_secrets() -> None:
    offered = set(re.findall(r"--[a-z-]+", make().format_help()))
    assert SECRETS == ["index_database_key", "answer_key", "api_key"]
    for name in Settings.model_fields:
        assert (flag_of(name) in offered) == (name not in SECRETS), name
    assert len(SWITCHES) > 1
    assert {f"--no-{flag_of(name)[2:]}" for name in SWITCHES} <= offered


def test_a_secret_as_a_flag_is_refused_with_what_to_do_instead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in (["--api-key", "secret-of-mine-0123"], ["--api-key=secret-of-mine-0123"]):
        with pytest.raises(SystemExit, match="2"):
            make().parse_args(arguments)
        message = capsys.readouterr().err
        assert "set CONDENSERY_API_KEY, or name a file of keys with --keys-file" in message
        assert "secret-of-mine" not in message
    with pytest.raises(SystemExit, match="2"):
        make().parse_args(["--answer-key", "secret-of-mine"])
    message = capsys.readouterr().err
    assert "CONDENSERY_ANSWER_KEY" in message
    assert "secret-of-mine" not in message


def test_a_flag_reaches_its_setting_and_what_is_not_given_does_not() -> None:
    flags = read_flags(make().parse_args(["--port", "9", "--no-samples", "--open-metrics"]))
    assert {name: value for name, value in flags.items() if value is not None} == {
        "port": "9",
        "samples": False,
        "open_metrics": True,
    }
    settings = read_settings(flags | {"data_dir": "/there"})
    assert (settings.port, settings.samples, settings.open_metrics) == (9, False, True)
    assert settings.data_dir == Path("/there")


def test_the_flags_of_the_first_version_still_work() -> None:
    arguments = (
        "--host ::1 --port 1 --grpc-port 2 --data-dir d --store s --dtype float32 --device cpu"
        " --workers 3 --samples --log-level debug --max-body-bytes 2048 --max-items 4"
        " --grace-seconds 5.5"
    )
    settings = read_settings(read_flags(make().parse_args(arguments.split())))
    assert settings.model_dump(include=settings.model_fields_set) == {
        "host": "::1",
        "port": 1,
        "grpc_port": 2,
        "data_dir": Path("d"),
        "store": Path("s"),
        "dtype": "float32",
        "device": "cpu",
        "workers": 3,
        "samples": True,
        "log_level": "debug",
        "max_body_bytes": 2048,
        "max_items": 4,
        "grace_seconds": 5.5,
    }


def test_help_lists_each_flag_in_its_group_with_its_values_and_default() -> None:
    sections = re.split(r"\n\n(?=\S)", make().format_help())
    for name in Settings.model_fields:
        if name in SECRETS:
            continue
        (section,) = [text for text in sections if text.startswith(f"{group_of(name)}:\n")]
        assert f"\n  {flag_of(name)}" in section
        assert explain_setting(name) in " ".join(section.split())
    text = " ".join(make().format_help().split())
    assert "--dtype {auto,float32,bfloat16}" in text
    assert "REST port; 0 takes a free one (0 to 65535; default: 8080)" in text
    assert "(1024 to 1048576; default: 16384 = 16 KiB)" in text
    assert "('auto', 'cpu', 'cuda' or 'cuda:1'; default: auto)" in text


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("api_key", "a very secret secret", "set"),
        ("api_key", None, "not set"),
        ("keys_file", None, "not set"),
        ("samples", True, "true"),
        ("grace_seconds", 30.0, "30"),
        ("max_body_bytes", 8 * 2**20, "8388608 = 8 MiB"),
        ("max_body_bytes", 1536, "1536"),
        ("max_body_bytes", 5 * 2**10, "5120 = 5 KiB"),
        ("data_dir", Path("/there"), "/there"),
    ],
)
def test_a_value_is_shown_as_people_read_it(name: str, value: object, shown: str) -> None:
    assert format_setting(name, value) == shown
