"""GPUs in the metrics, and machines without one, or without what reads it."""

import math
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from condensery.metrics import Metrics
from condensery.runtime.gpu_metrics import watch_gpus

GPU = torch.device("cuda:0")


def samples(metrics: Metrics) -> dict[str, float]:
    found = {}
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            if sample.name.startswith("condensery_gpu_"):
                found["/".join((sample.name, *sample.labels.values()))] = sample.value
    return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU as PyTorch tells it."""
    properties = types.SimpleNamespace(uuid="one")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: properties)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda place: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 4)


def bindings(**functions: Callable[..., Any]) -> types.ModuleType:
    module = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    known: dict[str, Any] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": {"GPU-one": "handle"}.__getitem__,
        "nvmlDeviceGetMemoryInfo": lambda gpu: types.SimpleNamespace(used=5, total=80),
        "nvmlDeviceGetUtilizationRates": lambda gpu: types.SimpleNamespace(gpu=25),
        "nvmlDeviceGetPowerUsage": lambda gpu: 350_000,
    }
    vars(module).update(known | functions)
    return module


def test_a_machine_without_a_gpu_has_no_metrics_of_one() -> None:
    metrics = Metrics()
    watch_gpus(metrics, [torch.device("cpu")])
    assert samples(metrics) == {}


def test_a_gpu_is_found_by_its_identity_and_read_at_each_scrape(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", bindings())
    metrics = Metrics()
    watch_gpus(metrics, [GPU, GPU, torch.device("cpu")])
    assert samples(metrics) == {
        "condensery_gpu_memory_bytes/cuda:0/used": 5,
        "condensery_gpu_memory_bytes/cuda:0/limit": 80,
        "condensery_gpu_utilisation_ratio/cuda:0": 0.25,
        "condensery_gpu_power_watts/cuda:0": 350,
        "condensery_gpu_allocator_bytes/cuda:0/allocated": 3,
        "condensery_gpu_allocator_bytes/cuda:0/reserved": 4,
    }


def test_without_the_bindings_or_the_driver_the_allocator_is_told_alone(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no driver")

    for module in (None, bindings(nvmlInit=fail)):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        metrics = Metrics()
        watch_gpus(metrics, [GPU])
        assert set(samples(metrics)) == {
            "condensery_gpu_allocator_bytes/cuda:0/allocated",
            "condensery_gpu_allocator_bytes/cuda:0/reserved",
        }


def test_what_a_gpu_does_not_tell_is_no_number_and_the_scrape_goes_on(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bindings()

    def refuse(gpu: object) -> float:
        raise made.NVMLError("not supported")

    made.nvmlDeviceGetPowerUsage = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", made)
    metrics = Metrics()
    watch_gpus(metrics, [GPU])
    found = samples(metrics)
    assert math.isnan(found["condensery_gpu_power_watts/cuda:0"])
    assert found["condensery_gpu_utilisation_ratio/cuda:0"] == 0.25


@pytest.mark.gpu
def test_a_real_gpu_tells_its_memory_and_what_is_allocated() -> None:
    pytest.importorskip("pynvml")
    metrics = Metrics()
    watch_gpus(metrics, [torch.device("cuda")])
    before = samples(metrics)
    held = torch.zeros(2**24, device="cuda")
    after = samples(metrics)
    (allocated,) = [name for name in after if name.endswith("/allocated")]
    assert after[allocated] - before[allocated] >= held.numel() * 4
    (used,) = [name for name in after if name.endswith("/used")]
    (limit,) = [name for name in after if name.endswith("/limit")]
    assert held.numel() * 4 <= after[used] <= after[limit]
    assert 0 <= after[used.replace("memory_bytes", "utilisation_ratio").removesuffix("/used")] <= 1
