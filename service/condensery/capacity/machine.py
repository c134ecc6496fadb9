"""The machine that something is measured on: its CPU, and what its processes use.

Needs nothing but Python and Linux's /proc, so that it runs where there is little else.
"""

import os
import platform
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
# The first that a CPU has says of which kind it is: what decides how fast it multiplies.
KINDS = {
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX512-bf16",
    "avx512f": "AVX512",
    "avx2": "AVX2",
}
FLAGS = (*KINDS, "amx_tile", "amx_int8", "avx512_vnni", "avx_vnni", "avx512_fp16", "f16c", "fma")


def describe_machine() -> dict[str, Any]:
    """Return what the CPU is called, its kind and flags, how many cores we may use, and Python."""
    name, flags = read_cpu()
    return {
        "cpu": name,
        "kind": kind_of(flags),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def read_cpu(cpuinfo: str | None = None) -> tuple[str, frozenset[str]]:
    """Return the first CPU's name and flags.

    Args:
        cpuinfo: As Linux tells it; None reads it.
    """
    lines = (cpuinfo or Path("/proc/cpuinfo").read_text()).splitlines()
    fields = [line.partition(":") for line in lines]
    first = {key.strip(): value.strip() for key, _, value in reversed(fields)}
    flags = first.get("flags", first.get("Features", ""))
    return first.get("model name", platform.machine()), frozenset(flags.split())


def kind_of(flags: frozenset[str]) -> str:
    """Return of which kind a CPU with these flags is."""
    return next((kind for flag, kind in KINDS.items() if flag in flags), platform.machine())


def cpu_seconds(pid: int) -> float:
    """Return what a process and its threads used so far."""
    return _times(pid)[0]


def busy_seconds() -> float:
    """Return what all processes of the machine used so far, all cores together."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICKS


def tree_seconds() -> float:
    """Return what this process and all that it started used so far, those that ended included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            own, ended, parents[int(folder.name)] = _times(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):  # ended while we looked
            continue
        used[int(folder.name)] = own + ended

    def ours(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return sum(seconds for pid, seconds in used.items() if ours(pid))


def _times(pid: int) -> tuple[float, float, int]:
    """Return a process's CPU seconds, those of its children that ended, and its parent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, system, ended_user, ended_system = map(int, fields[11:15])
    return (user + system) / TICKS, (ended_user + ended_system) / TICKS, int(fields[1])


def _seconds_in(stat: Path) -> float:
    fields = stat.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def loop_seconds(pid: int) -> float:
    """Return what the first thread of a process used so far: of a server, its event loop."""
    return _seconds_in(Path(f"/proc/{pid}/task/{pid}/stat"))


def memory_bytes(pid: int) -> tuple[int, int]:
    """Return a process's resident set now, and the most it ever was, bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    now, most = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


def machine_memory() -> int:
    """Return the machine's memory, bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
