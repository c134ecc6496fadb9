"""What a stored model was measured at: ``report.json``, ``card.md`` and ``plots/*.png`` beside it.

A file is found by its name in the manifest, and only what the manifest vouches for is handed out:
no name that a caller sends becomes a path.
"""

import hashlib
import json

from condensery.errors import CorruptModel, ReportNotFound, shorten
from condensery.store.manifest import CARD, REPORT, StoredModel, plot_name
from condensery.values import ModelReport


class StoredReport:
    """A stored model's report; every call reads the disk.

    Args:
        stored: The model, measured or not.

    Raises:
        ReportNotFound: By each method: it was published without a report, or without this part.
        CorruptModel: By each method: the file is gone, or is not the one that was published.
    """

    def __init__(self, stored: StoredModel) -> None:
        self._stored = stored
        files = stored.manifest.files
        self._plots = {name: path for path in files if (name := plot_name(path)) is not None}

    def report(self) -> ModelReport:
        """Return the report, and which other parts there are."""
        content = self._read(REPORT)
        try:
            report = json.loads(content, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise self._corrupt(REPORT, f"is not JSON: {error}") from error
        if not isinstance(report, dict):
            raise self._corrupt(REPORT, "is not a JSON object")
        return ModelReport(
            model=self._stored.name,
            version=self._stored.version,
            fingerprint=self._stored.manifest.fingerprint,
            report=report,
            card=CARD in self._stored.manifest.files,
            plots=tuple(sorted(self._plots)),
        )

    def card(self) -> str:
        """Return the card, Markdown; its pictures are at ``plots/<name>.png``."""
        self._check_measured()
        if CARD not in self._stored.manifest.files:
            raise self._missing("has a report and no card")
        try:
            return self._read(CARD).decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(CARD, f"is not UTF-8: {error}") from error

    def plot(self, name: str) -> bytes:
        """Return a plot, PNG."""
        self._check_measured()
        if name not in self._plots:
            there = ", ".join(sorted(self._plots)) or "none"
            raise self._missing(f"has no plot {shorten(name)}; there are: {there}", "plot", name)
        return self._read(self._plots[name])

    def _check_measured(self) -> None:
        if REPORT not in self._stored.manifest.files:
            raise self._missing("was never measured: it was published without a report")

    def _read(self, name: str) -> bytes:
        self._check_measured()
        try:
            content = (self._stored.path / name).read_bytes()
        except OSError as error:
            raise self._corrupt(name, f"can't be read: {error.strerror or error}") from error
        if hashlib.sha256(content).hexdigest() != self._stored.manifest.files[name]:
            raise self._corrupt(name, "is not the file that was published: its sha256 differs")
        return content

    def _missing(self, why: str, field: str = "model", value: str | None = None) -> ReportNotFound:
        name = self._stored.name
        return ReportNotFound(f"model {name!r} {why}.", field=field, value=value or name)

    def _corrupt(self, file: str, why: str) -> CorruptModel:
        return CorruptModel(f"model {self._stored.name!r}: {file}: {why}")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")
