from pathlib import Path

import pytest

from condensery.cli import main
from condensery.keys import Keys, read_keys


def test_the_line_goes_to_the_file_and_the_key_to_who_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["keys", "new", "alice", "--scopes", "infer,index-write"]) == 0
    out, err = capsys.readouterr()
    file = tmp_path / "keys"
    file.write_text(out)
    said, _, key = err.strip().rpartition(" ")
    assert said == "the key, which is not shown again:"
    assert key not in out
    assert Keys(read_keys(file)).check(key, "index-write") == "alice"
