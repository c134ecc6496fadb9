"""docs/metrics.md is what /metrics exports, and the other pages name nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from condensery.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
PAGES = ("metrics.md", "operating.md", "runbooks.md", "models.md", "indexes.md", "settings.md")


class Row(NamedTuple):
    """A metric, as a row of the page's tables has it."""

    name: str
    type: str
    labels: str
    text: str


def read_rows() -> list[Row]:
    cells = r" ?([^|\n]*?) ?\|"
    return [
        Row(*row)
        for row in re.findall(rf"^\| `(\w+)` \|{cells}{cells}{cells}$", PAGE, re.MULTILINE)
    ]


def exported() -> Iterator[tuple[str, str, set[str], str]]:
    """Yield the name, type, labels and description of each metric of a server."""
    metrics = Metrics()
    ProcessCollector(registry=metrics.registry)
    collectors = metrics.registry._names_to_collectors
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        labels |= set(getattr(collectors.get(family.name), "_labelnames", ()))
        kind = "untyped" if family.type == "unknown" else family.type
        yield name, kind, labels, family.documentation


def processes_are_counted() -> bool:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return any(registry.collect())


@pytest.mark.skipif(not processes_are_counted(), reason="process_* are Linux's")
def test_the_page_has_every_metric_with_its_type_and_labels_and_no_other() -> None:
    rows = read_rows()
    written = {(row.name, row.type, *sorted(re.findall(r"`(\w+)`", row.labels))) for row in rows}
    assert len(written) == len(rows) > 70
    assert written == {(name, kind, *sorted(labels)) for name, kind, labels, _ in exported()}


def test_what_the_page_says_of_a_metric_begins_as_its_own_description() -> None:
    texts = {row.name: row.text for row in read_rows()}
    assert [
        name for name, *_, text in exported() if not texts.get(name, text).startswith(text)
    ] == []


def test_the_values_of_labels_that_are_there_from_the_start_are_on_the_page() -> None:
    labels = {row.name: row.labels for row in read_rows()}
    metrics = Metrics()
    metrics.prepare_model("m")
    missing = [
        (family.name, value)
        for family in metrics.registry.collect()
        for sample in family.samples
        for label, value in sample.labels.items()
        if label not in ("le", "model")
        and value not in labels[f"{family.name}_total" if family.type == "counter" else family.name]
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_the_metrics_that_a_page_names_exist_with_their_labels(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    collectors = Metrics().registry._names_to_collectors
    named = re.findall(r"`(condensery_\w+?)(?:_total|_count)?(?:\{(.*?)\})?`", text)
    for name, labels in named:
        assert name in collectors
        asked = set(re.findall(r"(\w+)(?:=|,|$)", re.sub(r"=[^,]*", "", labels)))
        assert asked <= set(collectors[name]._labelnames)
