"""What a run tells of itself: ``log.jsonl`` and a line for whoever watches."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from condensery.atomic_files import write_atomically
from condensery.methods.trainer.failures import TrainingStopped

log = logging.getLogger(__name__)
NAME = "log.jsonl"


def read_log(out: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's log; a last line that a kill cut short is left out."""
    path = out / NAME
    rows: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def rewind(out: Path, step: int) -> list[dict[str, Any]]:
    """Drop rows past ``step``, which a resumed run writes again; return those that stay."""
    found = read_log(out)
    rows = [row for row in found if row["step"] <= step]
    path = out / NAME
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.exists() and path.read_text() != text:
        write_atomically(path, text)
    return rows


def record(out: Path, row: Mapping[str, object]) -> None:
    """Append a row to the run's log, and show it.

    Raises:
        TrainingStopped: The disk refused.
    """
    row = {name: _short(value) for name, value in row.items()}
    text = json.dumps(row)
    try:
        with (out / NAME).open("a") as file:
            file.write(text + "\n")
    except OSError as error:
        raise TrainingStopped(f"step {row['step']}: {out / NAME}: {error}") from error
    log.info("%s", line(row))


def _short(value: object) -> object:
    """Round the numbers of a row to six decimals."""
    if isinstance(value, Mapping):
        return {name: _short(one) for name, one in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def line(row: Mapping[str, object]) -> str:
    """Return a row as one line: ``step 50/3600 · loss 2.31 · ...``."""
    shown = [f"step {row['step']}/{row['steps']}"]
    shown += [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {json.dumps(value)}"
        for name, value in row.items()
        if name not in ("step", "steps", "seconds_left")
    ]
    left = row.get("seconds_left")
    if isinstance(left, float):
        minutes = round(left / 60)
        shown.append(f"{minutes // 60}:{minutes % 60:02} h left")
    return " · ".join(shown)
