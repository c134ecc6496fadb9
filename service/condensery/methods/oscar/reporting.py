"""A measured report into what is about to be published, of any kind of pair."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.errors import InputError
from condensery.methods.oscar.choosing import defaults, quality
from condensery.methods.oscar.measured import Report, check_report
from condensery.methods.oscar.plots import draw_plots
from condensery.methods.trainer.publishing import Publication
from condensery.store.manifest import REPORT, Manifest


@dataclass(frozen=True, slots=True)
class ReportContent:
    """What a report adds to a pair.

    Attributes:
        report: As it was read.
        manifest: With its figures and the defaults that they choose.
        plots: The plots' names.
    """

    report: Report
    manifest: Manifest
    plots: tuple[str, ...]


def add_report(content: Mapping[str, Any], manifest: Manifest, pair: Publication) -> ReportContent:
    """Write a report and its plots, and have the manifest say what was measured.

    Args:
        content: The JSON that ``condensery eval oscar`` wrote.
        manifest: What the store would say of the pair without it; ``base_fingerprint`` included.
        pair: Has all of the pair's files; ``report.json`` and the plots are added.

    Raises:
        InputError: The report is none of format 2, or of another pair: its fingerprint is not that
            of what would be published.
    """
    report = check_report(content)
    _check_whose(report, manifest, pair.files)
    measured = manifest.model_copy(
        update={"defaults": defaults(report), "quality": {**manifest.quality, **quality(report)}}
    )
    pair.add_json(REPORT, content)
    folder = pair.folder / "plots"
    plots = draw_plots(report, folder, measured.defaults.min_relevance)
    pair.files.update({f"plots/{name}.png": folder / f"{name}.png" for name in plots})
    return ReportContent(report, measured, tuple(plots))


def _check_whose(report: Report, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Refuse a report that was measured on other weights."""
    if report.fingerprint is None:
        return
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    mine = manifest.model_copy(update={"files": hashes}).fingerprint
    if report.fingerprint != mine:
        raise InputError(
            f"report: was measured on {report.fingerprint}, and this run's pair is {mine}: measure "
            "what is published",
            field="report.fingerprint",
            value=report.fingerprint,
        )
