"""One server a data directory: a lock that the kernel lets go of when its holder dies."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from condensery.errors import DataDirTaken


class DataDirLock:
    """Holds ``<data-dir>/lock`` from construction until ``release``.

    ``flock``, not a pid file: a killed server leaves no lock behind. The pid in the file only
    tells people who holds it. The file stays when the lock goes, since removing it would let two
    servers lock two files of one name.

    Args:
        data_dir: The directory to hold; made if it is not there.

    Raises:
        DataDirTaken: Another process (or another lock of this one) holds it, or it can't be used.
    """

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / "lock"
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            self._file: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise DataDirTaken(
                f"The data directory {data_dir} can't be used: {error.strerror}.",
                field="data_dir",
                value=str(data_dir),
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            self._close()
            who = f"process {holder}" if holder else "another process"
            raise DataDirTaken(
                f"The data directory {data_dir} is held by {who}; "
                "stop it, or give this server a --data-dir of its own.",
                field="data_dir",
                value=str(data_dir),
            ) from error
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError as error:
            self._close()
            raise DataDirTaken(
                f"The data directory {data_dir} can't be written: {error.strerror}.",
                field="data_dir",
                value=str(data_dir),
            ) from error

    def release(self) -> None:
        """Release the directory; a second call does nothing."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
