"""Lines that a long job writes one after the other, so that a killed one goes on where it was."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from condensery.atomic_files import sync_path, write_atomically
from condensery.errors import InputError
from condensery.methods.trainer.checkpoints import TrainingStopped
from condensery.methods.trainer.trainer import differences

SUFFIX = ".jsonl"
Line = dict[str, Any]


class Journal:
    """The lines of a job that writes ``OUT``, each about one item, in the items' order.

    Until the job is done they are in ``OUT.partial``, and ``OUT`` is not there. ``OUT.about.json``
    says what they were made of, so that nothing else goes on with them. One process at a time.

    Args:
        out: The finished file, ``*.jsonl``.
        about: What the lines hang on: settings and fingerprints, as JSON holds them.
        see: Called with every line, those that were there first.

    Attributes:
        done: Whether ``out`` is there, made of the same; then no line is seen.
        count: Lines that are written.

    Raises:
        InputError: ``out`` is no name for JSONL, what is there was made of something else, or
            another process writes it.
    """

    def __init__(self, out: Path, about: Mapping[str, Any], see: Callable[[Line], None]) -> None:
        if out.suffix != SUFFIX:
            raise InputError(f"out: {out} does not end in {SUFFIX}", field="out", value=str(out))
        self.out = out
        self.about = out.with_name(f"{out.name}.about.json")
        self._partial = out.with_name(f"{out.name}.partial")
        self._made_of = dict(about)
        self._see = see
        self.count = 0
        self._check()  # before a file is made
        out.parent.mkdir(parents=True, exist_ok=True)
        # Without a buffer: what could not be written must not be tried again on closing.
        self._file = self._partial.open("ab", buffering=0)
        try:
            self._lock()
            self._check()  # another process may have finished meanwhile
            self.done = out.exists()
            if self.done:  # a kill may have come between the rename and this
                self._partial.unlink(missing_ok=True)
            else:
                self._write_about({})
                self._recover()
        except BaseException:
            self.close()
            raise

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines; synced on return.

        Raises:
            TrainingStopped: The disk refused, for being full or otherwise; what was there is whole.
        """
        with self._disk():
            unwritten = memoryview(b"".join(map(_encode, lines)))
            while unwritten:  # a disk that fills up takes some of it
                unwritten = unwritten[self._file.write(unwritten) :]
            os.fsync(self._file.fileno())
        self.count += len(lines)
        for line in lines:
            self._see(line)

    def finish(self, rows: Callable[[Line], Sequence[Line]], summary: Mapping[str, Any]) -> None:
        """Write the finished file aside, sync and rename it; ``OUT.partial`` goes.

        Args:
            rows: What of a line the file holds.
            summary: What there is to say of them, for ``OUT.about.json``.

        Raises:
            TrainingStopped: As ``append``.
        """
        aside = self.out.with_name(f"{self.out.name}.new")
        with self._disk():
            with aside.open("wb") as file:
                for line, _ in _whole_lines(self._partial):
                    file.writelines(map(_encode, rows(line)))
            sync_path(aside)
            self._write_about(summary)
            aside.replace(self.out)
            sync_path(self.out.parent)
            self._partial.unlink()

    def close(self) -> None:
        """Close the file, and let others have it."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingStopped(
                f"{self._partial}: could not be written ({error}); {self.count} lines of it are "
                "whole, and the same command goes on after them"
            ) from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"out: another process writes {self._partial}", field="out", value=str(self.out)
            ) from error

    def _check(self) -> None:
        """See that what is there was made of the same."""
        written = self.out.exists() or (self._partial.exists() and self._partial.stat().st_size > 0)
        if not self.about.exists():
            if written:
                raise InputError(
                    f"out: {self.out} is there without {self.about.name}, which would say what it "
                    "was made of; give another file",
                    field="out",
                    value=str(self.out),
                )
            return
        try:
            made_of = json.loads(self.about.read_text())["made_of"]
            differing = differences(self._made_of, made_of)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(f"out: {self.about} is damaged ({error})", field="out") from error
        if differing and written:
            raise InputError(
                f"out: {self.out} was made of other data or with other settings: "
                f"{'; '.join(differing)}; go on with the same, or give another file",
                field="out",
                value=str(self.out),
            )

    def _recover(self) -> None:
        """Read the whole lines, and cut off what a kill left after them."""
        size = 0
        for line, end in _whole_lines(self._partial):
            self.count += 1
            self._see(line)
            size = end
        self._file.truncate(size)
        sync_path(self._partial.parent)

    def _write_about(self, summary: Mapping[str, Any]) -> None:
        content = {"format": 1, "made_of": self._made_of, **summary}
        write_atomically(self.about, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _encode(line: Line) -> bytes:
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _whole_lines(path: Path) -> Iterator[tuple[Line, int]]:
    """Yield lines with the places of their ends, as far as they are whole."""
    end = 0
    with path.open("rb") as file:
        for raw in file:
            try:
                line = json.loads(raw)
            except ValueError:
                return
            if not raw.endswith(b"\n") or not isinstance(line, dict):
                return
            end += len(raw)
            yield line, end
