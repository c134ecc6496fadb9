"""Rows of training data, from JSONL files or Hugging Face ``datasets`` folders, with their places.

A ``datasets`` folder (``save_to_disk``) holds ``state.json``, which lists Arrow stream files;
one of several splits holds ``dataset_dict.json`` and a folder each. They are read by nanoarrow,
3 MB where ``datasets`` brings pyarrow and pandas, 260 MB, and pickles.
"""

import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.errors import InputError

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
JSONL = (".jsonl", ".jsonl.gz", ".jsonl.xz")
STATE, SPLITS = "state.json", "dataset_dict.json"


@dataclass(frozen=True, slots=True)
class Row:
    """An object of a data set, and where it stands."""

    value: dict[str, Any]
    where: str  # "FILE, line 3", lines and rows counted from 1


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a plain, .gz or .xz text file.

    Raises:
        InputError: It can't be read: no such file, cut short, not UTF-8; names file and line.
    """
    number = 0
    try:
        with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007
                yield line
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{path}, after line {number}: {why}", value=str(path)) from error


def read_rows(path: Path, split: str | None = None) -> Iterator[Row]:
    """Yield the rows of a JSONL file, of a folder of them, or of a ``datasets`` folder.

    Args:
        path: File or folder.
        split: Which split of a folder that has several; must be left out otherwise.

    Raises:
        InputError: A file can't be read or a line is no JSON object; names the file and line.
    """
    if (path / SPLITS).exists():
        splits = _json(path / SPLITS).get("splits", [])
        if split not in splits:
            raise InputError(
                f"{path}: split={split!r} is none of {', '.join(splits)}", field="split"
            )
        path = path / str(split)
    elif split is not None:
        raise InputError(f"{path}: split={split!r}, but it has no splits", field="split")
    if (path / STATE).exists():
        yield from _arrow_rows(path)
    elif path.is_dir():
        files = sorted(f for f in path.iterdir() if f.name.endswith(JSONL))
        if not files:
            raise InputError(f"{path}: holds neither JSONL files nor a datasets folder")
        for file in files:
            yield from _jsonl_rows(file)
    else:
        yield from _jsonl_rows(path)


def _jsonl_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: {error}") from error
        if not isinstance(value, dict):
            raise InputError(f"{where}: not a JSON object: {line.strip()[:80]!r}")
        yield Row(value, where)


def _arrow_rows(folder: Path) -> Iterator[Row]:
    import nanoarrow

    state = _json(folder / STATE)
    if state.get("_indices_files"):  # of an old version: rows in another order than they are in
        raise InputError(f"{folder}: holds indices; save it again after flatten_indices()")
    for entry in state.get("_data_files", []):
        path = folder / entry["filename"]
        number = 0
        try:
            with nanoarrow.ArrayStream.from_path(path) as stream:
                for array in stream:
                    for value in array.iter_py():
                        number += 1
                        yield Row(value, f"{path}, row {number}")
        except (OSError, ValueError, RuntimeError, NotImplementedError) as error:
            raise InputError(f"{path}, after row {number}: {error}", value=str(path)) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object")
    return value
