"""Where forward passes run: the device, what it computes in, and the threads that feed it."""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import torch

from condensery.errors import SettingError

DTypeSetting = Literal["auto", "float32", "bfloat16"]
Job = Callable[[], None]

# glibc's mallopt parameters (malloc.h).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MMAP_BYTES = 32 << 20  # glibc documents no more; with 1 GiB the page faults came back
TRIM_BYTES = 1 << 30


def choose_device(setting: str = "auto") -> torch.device:
    """Return the device that ``setting`` names; "auto" is CUDA where there is one.

    Raises:
        SettingError: There is no such device here.
    """
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(setting)
    except RuntimeError as error:
        raise SettingError(f"device={setting!r} is no device name", field="device") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"device={setting!r}, but torch sees no CUDA device", field="device")
    if device.type not in ("cpu", "cuda"):
        raise SettingError(f"device={setting!r} is neither cpu nor cuda", field="device")
    return device


def choose_dtype(device: torch.device | str, setting: DTypeSetting | str = "auto") -> torch.dtype:
    """Return what to compute in on ``device``.

    "auto" is bf16 where the hardware multiplies it natively (AMX or AVX512-bf16 on a CPU;
    elsewhere it is emulated and slower than fp32), else fp32.

    Raises:
        SettingError: The setting is none of the three.
    """
    if setting == "float32":
        return torch.float32
    if setting == "bfloat16":
        return torch.bfloat16
    if setting != "auto":
        raise SettingError(
            f"dtype={setting!r} is none of auto, float32, bfloat16", field="dtype", value=setting
        )
    if torch.device(device).type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def tune_allocator() -> bool:
    """Tell glibc's malloc to keep what torch frees; returns whether it listened.

    By default each large activation is mapped from the kernel and given back, forward after
    forward: 1,500 to 10,000 page faults a batch of passages, and up to 14 % of its time.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False  # another libc: no such knob, nothing lost but the speed
    mapped = mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
    return bool(mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)) and bool(mapped)


def prepare_process() -> None:
    """Set up torch and the allocator; the composition root calls this before any forward.

    The main thread must hold one OMP thread first: where it has ever run with more, the workers'
    pools come on top of its own and every parallel region is 40 % slower.
    """
    torch.set_num_threads(1)
    tune_allocator()


def worker_count(device: torch.device | str) -> int:
    """Return how many workers ``device`` wants: a thread a core on a CPU, one on CUDA.

    One-thread workers do 20 to 40 % more than one worker of as many threads, and do not
    collapse at OMP barriers when a neighbour takes a core.
    """
    if torch.device(device).type == "cuda":
        return 1
    return max(1, len(os.sched_getaffinity(0)))


class Source(Protocol):
    """What holds work for the device: a model's queue."""

    def take(self, idle: int) -> Job | None:
        """Return the next piece of work, or None if nothing waits.

        Called by a worker that holds ``Workers.changed``, when ``idle`` workers (itself among
        them) are free.
        """
        ...


class Workers:
    """Threads that take work from sources as they fall free, round robin: fair between models.

    A worker takes its next batch itself, without a detour through the event loop, so a busy loop
    does not leave the device idle.

    Attributes:
        changed: Guards every source's queue; notify it when work arrives.
    """

    def __init__(self, count: int | None = None, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.count = worker_count(self.device) if count is None else count
        if self.count < 1:
            raise SettingError(f"workers={self.count} is less than 1", field="workers")
        self.changed = threading.Condition()
        self._sources: deque[Source] = deque()
        self._idle = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"device-worker-{number}", daemon=True)
            for number in range(self.count)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, source: Source) -> None:
        """Serve ``source`` from now on."""
        with self.changed:
            self._sources.append(source)
            self.changed.notify_all()

    def remove(self, source: Source) -> None:
        """Serve ``source`` no more; what it gave out already runs on."""
        with self.changed:
            self._sources.remove(source)

    def close(self) -> None:
        """Stop once the work in hand is done; waits for that."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        while (job := self._next()) is not None:
            job()
            # Else the last batch's tensors live on until the next one comes.
            del job

    def _next(self) -> Job | None:
        with self.changed:
            self._idle += 1
            try:
                while not self._closed:
                    for _ in range(len(self._sources)):
                        source = self._sources[0]
                        self._sources.rotate(-1)
                        if (job := source.take(self._idle)) is not None:
                            return job
                    self.changed.wait()
                return None
            finally:
                self._idle -= 1
