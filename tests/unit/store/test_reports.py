"""What a stored model was measured at, as it is read again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from condensery.errors import CorruptModel, ReportNotFound
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore

REPORT: dict[str, Any] = {"format": 2, "settings": {"gold": {"f1": {"mean": 49.5}}}, "é": [1, None]}
PLOT = b"\x89PNG\r\n\x1a\nnot really"

Publish = Callable[..., StoredModel]


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    store = ModelStore(None, tmp_path / "store")

    def make(name: str = "pair", **files: bytes) -> StoredModel:
        folder = tmp_path / f"{name}-files"
        folder.mkdir()
        save_file({"a": np.ones(3, np.float32)}, folder / "model.safetensors")
        for path, content in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(content)
        return store.publish(folder, Manifest(name=name, kind="oscar-pair", max_tokens=9))

    return make


@pytest.fixture
def measured(publish: Publish) -> StoredModel:
    files = {
        "report.json": json.dumps(REPORT, ensure_ascii=False).encode(),
        "card.md": "# pair, é\n".encode(),
        "plots/passages.png": PLOT + b"2",
        "plots/cost.png": PLOT,
        "plots/notes.txt": b"no plot",
    }
    return publish(**files)


def test_report_card_and_plots_are_those_that_were_published(measured: StoredModel) -> None:
    read = StoredReport(measured)
    report = read.report()
    assert (report.model, report.version) == ("pair", "1")
    assert report.fingerprint == measured.manifest.fingerprint
    assert report.report == REPORT
    assert report.card
    assert report.plots == ("cost", "passages")
    assert read.card() == "# pair, é\n"
    assert read.plot("cost") == PLOT
    assert read.plot("passages") == PLOT + b"2"


def test_a_model_that_was_never_measured_says_so_by_name(publish: Publish) -> None:
    # A card alone, or a plot, is no report.
    read = StoredReport(publish("quiet", **{"card.md": b"# quiet", "plots/cost.png": PLOT}))
    for part in (read.report, read.card, lambda: read.plot("cost")):
        with pytest.raises(ReportNotFound, match=r"'quiet' was never measured") as caught:
            part()
        assert (caught.value.field, caught.value.value) == ("model", "quiet")


def test_a_report_without_a_card_or_plots(publish: Publish) -> None:
    read = StoredReport(publish(**{"report.json": b"{}"}))
    report = read.report()
    assert (report.card, report.plots, report.report) == (False, (), {})
    with pytest.raises(ReportNotFound, match="has a report and no card"):
        read.card()
    with pytest.raises(ReportNotFound, match="no plot 'cost'; there are: none"):
        read.plot("cost")


@pytest.mark.parametrize(
    "name",
    ["nope", "", "notes", "cost.png", "../report.json", "../../../../etc/passwd", "/etc/passwd"],
)
def test_no_name_of_a_caller_leads_to_a_file(measured: StoredModel, name: str) -> None:
    with pytest.raises(ReportNotFound, match="there are: cost, passages") as caught:
        StoredReport(measured).plot(name)
    assert caught.value.field == "plot"


@pytest.mark.parametrize("part", ["report", "card", "plot"])
def test_what_was_altered_or_removed_since_is_not_handed_out(
    measured: StoredModel, part: str
) -> None:
    file = {"report": "report.json", "card": "card.md", "plot": "plots/cost.png"}[part]
    read = StoredReport(measured)
    method = getattr(read, part)
    parts = ("cost",) if part == "plot" else ()
    method(*parts)
    (measured.path / file).write_bytes(b"{}")
    with pytest.raises(CorruptModel, match=f"'pair': {file}: .*sha256"):
        method(*parts)
    (measured.path / file).unlink()
    with pytest.raises(CorruptModel, match=f"'pair': {file}: can't be read"):
        method(*parts)


@pytest.mark.parametrize(
    ("content", "why"), [(b"[1]", "not a JSON object"), (b'{"a": NaN}', "NaN is no JSON number")]
)
def test_a_report_that_no_client_could_read_is_refused(
    publish: Publish, content: bytes, why: str
) -> None:
    with pytest.raises(CorruptModel, match=why):
        StoredReport(publish(**{"report.json": content})).report()
