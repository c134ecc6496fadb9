"""What a benchmark ran on, and what else the machine did meanwhile: part of every raw JSON.

A figure says little without it: bf16 is four times as fast where a CPU multiplies it natively, and
another process on two cores halves whatever is measured. All benchmarks and loads take it from
here:

    recording = Recording("benchmarks/encode.py", "torch", "transformers")
    ...  # what is measured
    report = {**recording.about(), "results": ...}

Needs nothing but Python, so that it runs where there is little else.
"""

import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
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


class Recording:
    """Begins with the run, and tells at its end.

    Args:
        script: Its path in the checkout, as the command is told.
        packages: Whose versions are told, those of peers too.
        command: How it was called; None is ``sys.argv``, without folders from the root.
    """

    def __init__(self, script: str, *packages: str, command: str | None = None) -> None:
        self._packages = packages
        self._command = command or f"python {script} {tell_command(sys.argv[1:])}".strip()
        self._date = time.strftime("%Y-%m-%d")
        self._began = time.monotonic()
        self._load = os.getloadavg()[0]
        self._foreign = busy_seconds() - tree_seconds()

    def about(self) -> dict[str, Any]:
        """Return date, command, machine, versions, and the load of others so far."""
        seconds = time.monotonic() - self._began
        foreign = max(0.0, busy_seconds() - tree_seconds() - self._foreign)
        return {
            "date": self._date,
            "command": self._command,
            "machine": describe_machine(),
            "versions": {name: _version(name) for name in self._packages},
            "others": {
                "seconds": round(seconds, 3),
                "load_before": self._load,  # one minute's average, our own not yet in it
                "load_after": os.getloadavg()[0],
                "cpu_seconds": round(foreign, 2),  # of processes that are none of ours
                "cores": round(foreign / max(seconds, 1e-9), 3),
            },
        }


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


def tell_machine(about: Mapping[str, Any]) -> str:
    """Return a page's words for the machine: cores, name, kind.

    Args:
        about: From ``Recording.about``.
    """
    machine = about["machine"]
    # Older files have no kind.
    return f"{machine['cores']} cores of {machine['cpu']} ({machine.get('kind', 'kind not noted')})"


def tell_others(about: Mapping[str, Any]) -> str:
    """Return a page's words for what else the machine did."""
    if "others" not in about:
        return "what else the machine did was not noted"
    others = about["others"]
    return (
        f"other processes used {others['cores']:.2f} cores in the mean over the "
        f"{others['seconds']:,.0f} s of the run (load average {others['load_before']:.2f} before, "
        f"{others['load_after']:.2f} after)"
    )


def tell_versions(about: Mapping[str, Any]) -> str:
    """Return a page's words for the versions."""
    named = [f"{name} {number}" for name, number in about["versions"].items()]
    return ", ".join([*named, f"Python {about['machine']['python']}"])


def tell_command(words: Sequence[str]) -> str:
    """Return a command's arguments without what is one machine's alone.

    Of a folder from the root its last part stays; of a file its folder too.
    """
    return shlex.join(map(_shorten, words))


def _shorten(word: str) -> str:
    path = Path(word)
    if not path.is_absolute() and ".." not in path.parts:
        return word
    return f"{path.parent.name}/{path.name}" if "." in path.name else path.name


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


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
