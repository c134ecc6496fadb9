"""Rows of a benchmark, kept as they are made: what a run that was stopped has is not lost."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recording import Recording, raw, tell_machine, tell_others, tell_versions

from condensery.atomic_files import write_atomically


class ResultTable:
    """The rows of OUT.json, written as they come, and the page OUT.md.

    Args:
        out: Path without an ending; rows that OUT.json has stay.
        recording: Of this run.
        page: Writes the page's Markdown.
    """

    def __init__(
        self, out: Path, recording: Recording, page: Callable[["ResultTable"], str]
    ) -> None:
        self._out, self._recording, self._page = out, recording, page
        path = out.with_suffix(".json")
        kept = json.loads(path.read_text()) if path.is_file() else {}
        self.rows: dict[str, dict[str, Any]] = kept.get("rows", {})
        self.runs: list[dict[str, Any]] = kept.get("runs", [])

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep a row, and write both files."""
        self.rows[key] = dict(row)
        about = self._recording.about()
        content = {"runs": [*self.runs, about], "rows": self.rows}
        write_atomically(self._out.with_suffix(".json"), raw(content))
        head = [
            f"Made on {run['date']} by `{run['command']}` on {tell_machine(run)}; "
            f"{tell_others(run)}; {tell_versions(run)}."
            for run in (*self.runs, about)
        ]
        page = "\n\n".join([self._page(self), *head])
        write_atomically(self._out.with_suffix(".md"), page + "\n")
