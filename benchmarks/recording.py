"""What a benchmark ran on, and what else the machine did meanwhile: part of every raw JSON.

A figure says little without it: bf16 is four times as fast where a CPU multiplies it natively, and
another process on two cores halves whatever is measured. All benchmarks and loads take it from
here:

    recording = Recording("benchmarks/encode.py", "torch", "transformers")
    ...  # what is measured
    report = {**recording.about(), "results": ...}

Needs nothing but Python, so that it runs where there is little else: of the package only what needs
no more (`condensery.capacity.machine`), found in the checkout.
"""

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "service"))

from condensery.capacity.machine import (  # noqa: F401 - found by the line above; from here
    KINDS,
    busy_seconds,
    cpu_seconds,
    describe_machine,
    kind_of,
    read_cpu,
    tree_seconds,
)
from condensery.networks.native_build import library


def raw(report: object) -> str:
    """Return a report as it is kept: JSON on one line, its numbers to six digits."""
    return json.dumps(_short(report), ensure_ascii=False, separators=(",", ":")) + "\n"


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _short(part) for key, part in value.items()}
    return [_short(part) for part in value] if isinstance(value, list | tuple) else value


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
        """Return date, command, machine, kernels, versions, and the load of others so far."""
        seconds = time.monotonic() - self._began
        foreign = max(0.0, busy_seconds() - tree_seconds() - self._foreign)
        return {
            "date": self._date,
            "command": self._command,
            "machine": describe_machine(),
            "kernels": library().exists(),  # of our own; torch is slower on a CPU
            "versions": {name: _version(name) for name in self._packages},
            "others": {
                "seconds": round(seconds, 3),
                "load_before": self._load,  # one minute's average, our own not yet in it
                "load_after": os.getloadavg()[0],
                "cpu_seconds": round(foreign, 2),  # of processes that are none of ours
                "cores": round(foreign / max(seconds, 1e-9), 3),
            },
        }


def tell_machine(about: Mapping[str, Any]) -> str:
    """Return a page's words for the machine: cores, name, kind.

    Args:
        about: From ``Recording.about``.
    """
    machine = about["machine"]
    # Older files have no kind, and do not say whether there were kernels.
    kind = machine.get("kind", "kind not noted")
    missing = "" if about.get("kernels", True) else ", without kernels of our own"
    return f"{machine['cores']} cores of {machine['cpu']} ({kind}{missing})"


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
