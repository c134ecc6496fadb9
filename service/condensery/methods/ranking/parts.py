"""Parts of a report, written whole or not at all, and the rows that a killed run finds again."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from condensery.atomic_files import write_atomically
from condensery.errors import DataDirTaken, InputError, ReportNotFound, StorageError
from condensery.index.lock import DataDirLock
from condensery.store.manifest import REPORT, StoredModel
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore


class StoredRows:
    """A file: what its rows depend on, then a query a line; a line that a kill cut short is not.

    Args:
        path: Made if it is not there.
        about: What the rows depend on beside the query; JSON.

    Attributes:
        found: The rows so far, by query.

    Raises:
        InputError: The file holds rows of something else; names what differs.
        StorageError: The disk refuses.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        wanted = json.loads(json.dumps(about))
        content = path.read_text() if path.exists() else ""
        lines = content.split("\n")[:-1]  # what follows the last newline is half a line
        try:
            made_of, *rows = [json.loads(line) for line in lines] or [wanted]
            self.found: dict[str, dict[str, Any]] = {row["query"]: row for row in rows}
        except (ValueError, TypeError, KeyError) as error:
            raise self._refusal(f"is damaged ({error})") from error
        if made_of != wanted:
            names = sorted({*made_of, *wanted})
            differ = [name for name in names if made_of.get(name) != wanted.get(name)]
            raise self._refusal(f"is of another {', '.join(differ)}")
        whole = "".join(f"{line}\n" for line in lines) or f"{json.dumps(wanted)}\n"
        if content != whole:
            self._write(whole)

    def add(self, query: str, **row: object) -> None:
        """Keep a query's row.

        Raises:
            StorageError: The disk refuses; what was there can be gone on with.
        """
        self.found[query] = {"query": query, **row}
        try:
            with self._path.open("a") as file:
                file.write(f"{json.dumps(self.found[query])}\n")
        except OSError as error:
            raise StorageError(f"{self._path}: {error}", field="work") from error

    def _write(self, text: str) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, text)
        except OSError as error:
            raise StorageError(f"{self._path}: {error}", field="work") from error

    def _refusal(self, why: str) -> InputError:
        return InputError(
            f"{self._path}: {why}; give another folder (--work), or remove the file",
            field="work",
            value=str(self._path),
        )


def check_out(path: Path | None) -> None:
    """Refuse, before any work, a place that nothing can be written to.

    Raises:
        InputError: Its folder is not there; names it.
    """
    if path is not None and not path.parent.is_dir():
        raise InputError(f"out: {path.parent} is no folder", field="out", value=str(path))


def write_part(part: Mapping[str, Any], path: Path | None) -> str:
    """Return a part as JSON, and write it to ``path`` if there is one."""
    text = json.dumps(part, indent=1, ensure_ascii=False) + "\n"
    if path is not None:
        write_atomically(path, text)
    return text


def fingerprint(folder: Path) -> str:
    """Return the sha256 of a directory's weights and config."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".json"):
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return f"sha256:{digest.hexdigest()}"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other evaluations from a folder.

    Raises:
        InputError: Another one holds it, or it can't be used.
    """
    try:
        lock = DataDirLock(folder)
    except DataDirTaken as error:
        raise InputError(
            f"out: {folder} can't be used, or another evaluation is writing to it",
            field="out",
            value=str(folder),
        ) from error
    with lock:
        yield


def report_with(stored: StoredModel, name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored model's report with more under a name; what it says already stays.

    Args:
        stored: Measured before or not.
        name: Of the part.
        part: Its entries; those of the same names are replaced.
    """
    try:
        report = dict(StoredReport(stored).report().report)
    except ReportNotFound:
        report = {"format": 1}
    before = report.get(name)
    report[name] = {**(before if isinstance(before, dict) else {}), **part}
    return report


def publish_report(
    store: ModelStore,
    stored: StoredModel,
    report: Mapping[str, Any],
    more: Mapping[str, Path] | None = None,
) -> StoredModel:
    """Put the next version of a model into the store: the same, but for what its report says.

    Its fingerprint stays, so that indexes of its vectors do.

    Args:
        store: Whose own part it goes to.
        stored: The version that there is.
        report: In the place of its own.
        more: Other files, plots, by name.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / REPORT
        text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
        files = {name: stored.path / name for name in stored.manifest.files}
        return store.publish({**files, **(more or {}), REPORT: path}, stored.manifest)
