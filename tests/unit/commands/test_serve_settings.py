import json
import os
from pathlib import Path

import pytest

from condensery.cli import main
from condensery.settings import Settings

KEY = "0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("CONDENSERY_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("CONDENSERY_API_KEY", KEY)
    monkeypatch.setenv("CONDENSERY_GRPC_PORT", "9001")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["settings", *arguments])
    out, err = capsys.readouterr()
    assert KEY not in out + err
    return status, out, err


def test_each_setting_is_printed_with_its_value_and_where_it_comes_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = run(capsys, "--port", "9000", "--no-samples")
    assert (status, err) == (0, "")
    heading, *lines = out.splitlines()
    assert [line.split()[0] for line in lines] == list(Settings.model_fields)
    begins = [heading.index(word) for word in ("SETTING", "VALUE", "FROM")]
    rows = {
        line[: begins[1]].rstrip(): (line[begins[1] : begins[2]].rstrip(), line[begins[2] :])
        for line in lines
    }
    assert rows["port"] == ("9000", "flag --port")
    assert rows["samples"] == ("false", "flag --samples")
    assert rows["grpc_port"] == ("9001", "environment variable CONDENSERY_GRPC_PORT")
    assert rows["api_key"] == ("set", "environment variable CONDENSERY_API_KEY")
    assert rows["tls_cert"] == ("not set", "default")
    assert rows["max_body_bytes"] == ("8388608 = 8 MiB", "default")


def test_json_holds_the_same_for_programs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, out, err = run(capsys, "--json", "--data-dir", str(tmp_path))
    assert (status, err) == (0, "")
    content = json.loads(out)
    assert list(content) == list(Settings.model_fields)
    assert content["data_dir"] == {"value": str(tmp_path), "from": "flag --data-dir"}
    assert content["grpc_port"]["value"] == 9001
    assert content["samples"] == {"value": True, "from": "default"}
    assert content["api_key"]["value"] == "set"
    assert content["keys_file"]["value"] is None


def test_a_keys_file_is_read_so_that_a_wrong_one_is_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("alice infer short\n")
    status, out, err = run(capsys, "--keys-file", str(file))
    assert (status, out) == (1, "")
    assert err == (f"condensery: keys_file: {file}, line 1: a key has at least 24 characters.\n")
    file.write_text(f"alice infer {KEY}x\n")
    assert run(capsys, "--keys-file", str(file))[0] == 0


def test_an_address_that_others_reach_is_refused_without_a_key_as_serve_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "--host", "0.0.0.0")[0] == 0
    monkeypatch.delenv("CONDENSERY_API_KEY")
    status, out, err = run(capsys, "--host", "0.0.0.0")
    assert (status, out) == (1, "")
    assert err.startswith("condensery: --host: other machines can reach '0.0.0.0', and no key")
    for way_out in ("--make-key", "--allow-no-keys"):
        assert way_out in err
        assert run(capsys, "--host", "0.0.0.0", way_out)[0] == 0
    assert run(capsys, "--host", "127.0.0.2")[0] == 0
