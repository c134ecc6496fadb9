"""Writing a model's files so that they are on disk when the call returns."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from condensery.atomic_files import sync_path
from condensery.errors import StoreError
from condensery.store.checking import check_weights
from condensery.store.manifest import MANIFEST, WEIGHTS, Manifest, path_problem

CHUNK_BYTES = 1 << 20


def collect(source: Path | Mapping[str, Path]) -> dict[str, Path]:
    """Return each file to store by the name to store it under, names checked.

    Raises:
        StoreError: A file is missing, empty, or of a kind that is never stored; or no weights.
    """
    if isinstance(source, Path):
        paths = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
        files = {
            path.as_posix(): source / path
            for path in paths
            if path.as_posix() != MANIFEST and not any(p.startswith(".") for p in path.parts)
        }
    else:
        files = dict(source)
    for name, path in files.items():
        if problem := path_problem(name):
            raise StoreError(problem)
        if not path.is_file():
            raise StoreError(f"{name}: there is no such file to store")
        if path.stat().st_size == 0:
            raise StoreError(f"{name}: is empty")
    if not any(name.endswith(WEIGHTS) for name in files):
        raise StoreError(f"a stored model needs {WEIGHTS} weights, and none are among its files")
    return dict(sorted(files.items()))


def copy_files(files: Mapping[str, Path], directory: Path) -> dict[str, str]:
    """Copy ``files`` into ``directory``, synced; return the sha256 of what was written, by name.

    Raises:
        CorruptModel: A weight file is no whole safetensors file.
        StoreError: A ``.json`` file does not parse.
        OSError: The disk refused.
    """
    hashes = {}
    for name, source in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        hashes[name] = _copy_synced(source, target)
        if name.endswith(WEIGHTS):
            check_weights(target)
        elif name.endswith(".json"):
            parse_json(target, name)
    return hashes


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``model.json`` last, and sync it and every directory; OSError if the disk refuses."""
    with (directory / MANIFEST).open("wb") as file:
        file.write(manifest.model_dump_json(indent=2).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    for folder, _, _ in os.walk(directory):
        sync_path(Path(folder))


def name_of(path: Path) -> str:
    """Return a file's name with its directory's: there may be several of one name."""
    return f"{path.absolute().parent.name}/{path.name}"


def parse_json(path: Path, name: str | None = None) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        name: What messages call it; by default ``name_of`` it.

    Raises:
        StoreError: It can't be read or parsed; the message names it.
    """
    name = name or name_of(path)
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{name}: can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name}: is not JSON: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        StoreError: The file is no JSON object, or can't be read; the message names it.
    """
    content = parse_json(path)
    if not isinstance(content, dict):
        raise StoreError(f"{name_of(path)}: is not a JSON object")
    return content


def _copy_synced(source: Path, target: Path) -> str:
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()
