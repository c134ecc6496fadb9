import subprocess
import sys
from pathlib import Path

import pytest

from condensery.auth import Keys, read_keys
from condensery.cli import main


def test_the_line_goes_to_the_file_and_the_key_to_who_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["keys", "new", "alice", "--scopes", "infer,index-write"]) == 0
    out, err = capsys.readouterr()
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(out)
    message, _, key = err.strip().rpartition(" ")
    assert message == "the key, which is not shown again:"
    assert key not in out
    assert Keys(read_keys(file)).check(key, "index-write") == "alice"


def test_a_printed_line_that_a_shell_writes_for_all_to_read_is_said_to_be(tmp_path: Path) -> None:
    script = "import sys; from condensery.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "keys", "new", "alice", "--scopes", "infer"]
    for mode, message in ((0o644, True), (0o640, False)):
        file = tmp_path / f"{mode:o}"
        file.touch()
        file.chmod(mode)
        with file.open("a") as out:
            done = subprocess.run(
                command,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                check=True,
                timeout=60,
            )
        assert ("`chmod 600` it" in done.stderr) is message
        assert file.read_text().startswith("alice infer sha256:")


def test_the_line_is_added_to_a_file_that_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    flags = ["--keys-file", str(file)]
    keys: dict[str, str] = {}
    for name, scopes in (("alice", "infer"), ("nightly", "infer,index-write")):
        assert main(["keys", "new", name, "--scopes", scopes, *flags]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        keys[name] = err.split()[-1]
    known = Keys(read_keys(file))  # which refuses a file that all users may read
    assert known.check(keys["alice"], "infer") == "alice"
    assert known.check(keys["nightly"], "index-write") == "nightly"
    text = file.read_text()
    assert main(["keys", "new", "alice", "--scopes", "admin", *flags]) == 1
    out, err = capsys.readouterr()
    assert "line 3: the name is that of line 1 too" in err
    assert "the key" not in err.replace("keys_file", "")
    assert file.read_text() == text
