import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from condensery.errors import DataDirTaken
from condensery.index.lock import DataDirLock

HOLD = """
import sys
from pathlib import Path
from condensery.index.lock import DataDirLock
lock = DataDirLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_lock_is_refused_and_names_the_directory_and_the_pid(tmp_path: Path) -> None:
    with DataDirLock(tmp_path), pytest.raises(DataDirTaken) as caught:
        DataDirLock(tmp_path)
    assert str(tmp_path) in caught.value.message
    assert f"process {os.getpid()}" in caught.value.message
    assert caught.value.field == "data_dir"


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataDirTaken, match=f"process {holder.pid};"):
            DataDirLock(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    DataDirLock(tmp_path).release()


def test_it_can_be_taken_again_after_release(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path / "new" / "dir")
    lock.release()
    lock.release()
    DataDirLock(tmp_path / "new" / "dir").release()


def test_a_path_that_cannot_be_a_directory_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirTaken, match="can't be used: File exists"):
        DataDirLock(tmp_path / "file")
