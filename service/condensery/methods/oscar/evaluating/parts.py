"""What a report holds beside the answers: parts measured elsewhere, the run, the machine."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from condensery.errors import InputError
from condensery.methods.trainer.progress import NAME, read_log
from condensery.networks.dtypes import dtype_name

PARTS = ("rerank", "passages", "baselines", "weights")
MADE = "made"  # how a part was: its command and machine


def read_parts(paths: Sequence[Path]) -> dict[str, Any]:
    """Merge parts of a report (``condensery eval rerank``, ``eval weights`` and their like).

    Raises:
        InputError: A file holds neither part, or two say different things of the same.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"part: {path}: {error}", field="part", value=str(path)) from error
        parts = {
            name: content[name]
            for name in (*PARTS, MADE)
            if isinstance(content, dict) and isinstance(content.get(name), dict)
        }
        if not parts.keys() & set(PARTS):
            raise InputError(
                f"part: {path} holds neither of {', '.join(PARTS)}", field="part", value=str(path)
            )
        _merge(merged, parts, path)
    return merged


def _merge(into: dict[str, Any], part: Mapping[str, Any], path: Path, at: str = "") -> None:
    for name, value in part.items():
        there = into.get(name)
        if isinstance(there, dict) and isinstance(value, Mapping):
            _merge(there, value, path, f"{at}{name}.")
        elif there is not None and there != value:
            raise InputError(
                f"part: {path}: {at}{name} is in an earlier part too, and differs",
                field="part",
                value=str(path),
            )
        else:
            into[name] = json.loads(json.dumps(value))


def training_curve(run: Path) -> list[dict[str, Any]]:
    """Return the validations of a training run's log: step, items seen, figures.

    Raises:
        InputError: The folder holds no log with a validation.
    """
    curve = []
    items = 0
    for row in read_log(run):
        items = int(row.get("items", items))
        if "validation" in row:
            figures = row["validation"]
            numbers = {name: value for name, value in figures.items() if _is_figure(value)}
            curve.append({"step": row["step"], "items": items, **numbers})
    if not curve:
        raise InputError(f"run: {run / NAME} has no validation in it", field="run", value=str(run))
    return curve


def _is_figure(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_figure, value.values()))
    return isinstance(value, int | float)


def machine(device: torch.device, dtype: torch.dtype) -> str:
    """Say what was measured on: processor, threads, and what was computed in."""
    kind = dtype_name(dtype)
    threads = len(os.sched_getaffinity(0))
    processor = f"{_processor()}, {threads} threads"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {kind}; {processor}"
    return f"{processor}, {kind}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
