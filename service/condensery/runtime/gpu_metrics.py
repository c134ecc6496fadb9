"""What NVML and PyTorch's allocator say of the GPUs that models run on, read at each scrape.

NVML comes with the driver, its bindings with the extra `gpu`. Without a GPU, the bindings or a
driver there are no such metrics, and nothing else changes.
"""

import importlib
import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from condensery.metrics import Metrics

_log = logging.getLogger(__name__)


def watch_gpus(metrics: "Metrics", devices: Iterable[torch.device]) -> None:
    """Show the GPUs among ``devices`` in the metrics, as far as they can be read."""
    places = sorted({_place(device) for device in devices if device.type == "cuda"})
    if not places:
        return
    for place in places:
        name = f"cuda:{place}"
        allocator = metrics.gpu_allocator_bytes
        allocator.labels(name, "allocated").set_function(_allocated(place))
        allocator.labels(name, "reserved").set_function(_reserved(place))
    try:
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        handles = {place: _find_handle(pynvml, place) for place in places}
    except Exception as error:  # no bindings, no driver, a GPU that it does not know
        _log.warning("gpu_not_read", extra={"reason": type(error).__name__, "hint": "extra gpu"})
        return
    for place, handle in handles.items():
        name = f"cuda:{place}"
        read = _Reader(pynvml, handle)
        metrics.gpu_memory_bytes.labels(name, "used").set_function(read.memory_used)
        metrics.gpu_memory_bytes.labels(name, "limit").set_function(read.memory_limit)
        metrics.gpu_utilisation.labels(name).set_function(read.utilisation)
        metrics.gpu_power_watts.labels(name).set_function(read.power)


def _place(device: torch.device) -> int:
    _, _, number = str(device).partition(":")
    return int(number) if number else torch.cuda.current_device()


def _find_handle(pynvml: Any, place: int) -> Any:
    """Return NVML's handle of a GPU of PyTorch's: its own count leaves none out."""
    uuid = f"GPU-{torch.cuda.get_device_properties(place).uuid}"
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _allocated(place: int) -> Callable[[], float]:
    return lambda: float(torch.cuda.memory_allocated(place))


def _reserved(place: int) -> Callable[[], float]:
    return lambda: float(torch.cuda.memory_reserved(place))


class _Reader:
    """Reads one GPU; what it does not tell, or no more, is NaN: a scrape never fails by it."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._nvml = pynvml
        self._handle = handle

    def memory_used(self) -> float:
        return self._read(lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used)

    def memory_limit(self) -> float:
        return self._read(lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total)

    def utilisation(self) -> float:
        return self._read(lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)

    def power(self) -> float:
        return self._read(lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000)

    def _read(self, read: Callable[[Any, Any], float]) -> float:
        try:
            return float(read(self._nvml, self._handle))
        except self._nvml.NVMLError:  # not supported there, or the GPU has gone
            return math.nan
