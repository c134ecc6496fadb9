"""A part of a report: written whole or not at all; what it says of its making."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from condensery.atomic_files import write_atomically
from condensery.errors import InputError


def command_line(name: str, argv: Sequence[str]) -> str:
    """Return the command; of paths the last two names, which tell no machine's."""
    words = ["/".join(Path(word).parts[-2:]) if "/" in word else word for word in argv]
    return f"condensery {name} {shlex.join(words)}"


def check_out(path: Path | None) -> None:
    """Refuse, before any work, a place that nothing can be written to.

    Raises:
        InputError: Its folder is not there; names it.
    """
    if path is not None and not path.parent.is_dir():
        raise InputError(f"out: {path.parent} is no folder", field="out", value=str(path))


def write_part(part: Mapping[str, Any], path: Path | None) -> str:
    """Return a part as JSON, and write it to ``path`` if there is one."""
    text = json.dumps(part, indent=1, ensure_ascii=False) + "\n"
    if path is not None:
        write_atomically(path, text)
    return text


def fingerprint(folder: Path) -> str:
    """Return the sha256 of a directory's weights and config."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".json"):
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return f"sha256:{digest.hexdigest()}"
