"""Every line that a dashboard may draw is there, at zero, before the first event."""

import itertools
import math
import shutil
from pathlib import Path

from condensery.metrics import Metrics, OtherProcesses, watch_disk

# Label sets by metric; what is told of a model at its start or of an index is not among them.
STAGES = ("queue", "forward", "compress", "generate")
AT_ZERO = {
    "condensery_cancelled_total": {"stage": STAGES, "cause": ("client", "deadline")},
    "condensery_compressed_docs_total": {"status": ("applied", "fallback", "left_out")},
    "condensery_compression_fallback_total": {"reason": ("timeout", "fault")},
    "condensery_oom_total": {"action": ("split", "failed")},
    "condensery_answers_total": {"finish": ("stop", "length", "not_found")},
    "condensery_sequences": {"state": ("running", "waiting")},
    "condensery_cache_positions": {"state": ("used", "limit")},
    "condensery_requests_total": {
        "task": ("embed", "rerank", "classify", "compress", "answer", "compare", "index"),
        "protocol": ("rest", "grpc"),
        "code": ("ok",),
    },
    "condensery_stage_duration_seconds_count": {
        "stage": (*STAGES, "tokenize", "index", "serialize")
    },
}
LIMITS = ("queue_tokens", "queue_seconds", "requests", "bytes", "connections", "context_bytes")
# Told of a model once it serves, is loaded or changes; not counted from zero.
OTHERWISE = {
    *("condensery_index_passages", "condensery_model_state"),
    *("condensery_model_load_seconds", "condensery_model_memory_bytes"),
}


def test_every_label_set_of_a_model_is_there_at_zero() -> None:
    metrics = Metrics()
    metrics.prepare_model("m")
    for name, labels in AT_ZERO.items():
        for values in itertools.product(*labels.values()):
            labelled = {"model": "m", **dict(zip(labels, values, strict=True))}
            assert metrics.registry.get_sample_value(name, labelled) == 0, (name, labelled)


def test_no_metric_of_a_model_waits_for_its_first_event() -> None:
    metrics = Metrics()
    metrics.prepare_model("m")
    names = [name for name in vars(metrics).values() if "model" in getattr(name, "_labelnames", ())]
    assert len(names) > 20
    for family in names:
        (collected,) = family.collect()
        if f"{collected.name}" in OTHERWISE:
            continue
        of_model = [sample for sample in collected.samples if sample.labels.get("model") == "m"]
        assert of_model, f"{collected.name} is not there before its first event"
        assert not any(
            sample.value for sample in of_model if not sample.name.endswith("_created")
        ), collected.name


def test_every_limit_that_refuses_is_there_at_zero_before_any_model() -> None:
    metrics = Metrics()
    for reason in LIMITS:
        value = metrics.registry.get_sample_value("condensery_rejected_total", {"reason": reason})
        assert value == 0, reason


def test_a_scrape_tells_the_disk_and_a_folder_that_is_gone_fails_none(tmp_path: Path) -> None:
    def read(state: str) -> float:
        value = metrics.registry.get_sample_value("condensery_data_bytes", {"state": state})
        assert value is not None
        return value

    metrics, folder = Metrics(), tmp_path / "data"
    folder.mkdir()
    watch_disk(metrics, folder)
    assert read("total") == shutil.disk_usage(folder).total
    assert 0 < read("free") <= read("total")
    folder.rmdir()
    assert math.isnan(read("free"))


def test_what_another_process_counted_stays_when_it_is_gone() -> None:
    metrics = Metrics(tei=False)
    others = OtherProcesses(lambda name: name != "condensery_connections")
    metrics.registry.others = others.total
    label = {"reason": "bytes"}
    rejected = "condensery_rejected_total", (("reason", "bytes"),)
    connections = "condensery_connections", ()

    def read() -> tuple[float | None, float | None]:
        samples = [sample for family in metrics.registry.collect() for sample in family.samples]
        by = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples
        }
        return by[rejected], by[connections]

    metrics.rejected.labels(**label).inc(1)
    others.note("front 0", {rejected: 2.0, connections: 5.0})
    others.note("front 1", {rejected: 4.0, connections: 7.0})
    assert read() == (7.0, 12.0)
    others.remove("front 1")
    assert read() == (7.0, 5.0)
    others.note("front 1", {rejected: 1.0})  # another one in its place
    assert read() == (8.0, 5.0)
    assert others.names == ["front 0", "front 1"]
