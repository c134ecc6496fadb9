"""Is a directory a whole model? Reasons name the file; nothing here needs torch."""

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from condensery.errors import CorruptModel, shorten
from condensery.store.manifest import MANIFEST, WEIGHTS, Manifest, StoredModel, is_prose

# Read at once: hashing lets other threads run meanwhile, and waits for its turn after each piece.
PIECE_BYTES = 8 * 2**20

# A file as it lies there: device, inode, bytes, when written, when changed.
_Lying = tuple[int, int, int, int, int]


def read_model(directory: Path, *, check: bool = True) -> StoredModel:
    """Read the model that ``directory`` holds.

    Args:
        directory: Holds ``model.json`` and the files that it lists.
        check: Hash every file. Without, only presence, size and weight headers are looked at.

    Raises:
        CorruptModel: Something is missing, altered or half-written; the message is the reason.
    """
    manifest = _read_manifest(directory)
    if not any(path.endswith(WEIGHTS) for path in manifest.files):
        raise CorruptModel(f"{MANIFEST}: files lists no {WEIGHTS} weights")
    if manifest.base is not None and manifest.base_fingerprint is None:
        raise CorruptModel(f"{MANIFEST}: base {manifest.base!r} has no base_fingerprint")
    real = directory.resolve()
    for name, expected in manifest.files.items():
        try:
            _check_file(real, name, expected if check else None)
        except OSError as error:
            raise CorruptModel(f"{name}: can't be read: {error.strerror or error}") from error
    for name in _files_in(directory):
        # A loader that looks for files by name could pick up one that nobody vouches for.
        if name not in manifest.files and not is_prose(name):
            raise CorruptModel(f"{name}: is not listed in {MANIFEST}")
    return StoredModel(manifest, directory)


def check_weights(path: Path) -> None:
    """Check a safetensors file's header against its length.

    Raises:
        CorruptModel: It is cut short, or is no safetensors file.
    """
    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise CorruptModel(f"{path.name}: bad safetensors header: {error}") from error


def sha256_of(path: Path) -> str:
    """Return the file's sha256, hex."""
    digest, piece = hashlib.sha256(), memoryview(bytearray(PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()


class _Hashes:
    """Hashes of files, each by whoever asks first; others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_Lying, Future[str]] = {}

    def of(self, path: Path) -> str:
        lying = path.stat()
        key = (lying.st_dev, lying.st_ino, lying.st_size, lying.st_mtime_ns, lying.st_ctime_ns)
        with self._lock:
            known = self._known.get(key)
            mine = known is None
            if known is None:
                known = self._known[key] = Future()
        if mine:
            try:
                known.set_result(sha256_of(path))
            except BaseException as error:  # who waits must hear of it, whatever it is
                known.set_exception(error)
        return known.result()


_running: list[_Hashes] = []  # of blocks of hashed_once that run, the innermost last


@contextmanager
def hashed_once() -> Iterator[None]:
    """In this block hash no file twice that lies there as it did, whichever thread asks.

    A server that starts opens its default encoder for itself, and as the base of others. Later each
    load hashes anew: a disk that loses bits changes no time.
    """
    _running.append(_Hashes())
    try:
        yield
    finally:
        _running.pop()


def _read_manifest(directory: Path) -> Manifest:
    try:
        content = (directory / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise CorruptModel(f"{MANIFEST} is missing") from error
    except OSError as error:
        raise CorruptModel(f"{MANIFEST}: can't be read: {error.strerror or error}") from error
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise CorruptModel(f"{MANIFEST}: {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] in ("json_invalid", "value_error"):
        return first["msg"]
    got = "" if first["type"] == "missing" else f" (got {shorten(first['input'])})"
    return f"{place}: {first['msg']}{got}"


def _check_file(directory: Path, name: str, expected: str | None) -> None:
    path = directory / name
    # Not Path.resolve, which raises RuntimeError on a loop of links.
    if not Path(os.path.realpath(path)).is_relative_to(directory):
        raise CorruptModel(f"{name}: points outside the model's directory")
    if not path.exists():
        raise CorruptModel(f"{name} is missing")
    if not path.is_file():
        raise CorruptModel(f"{name}: is not a file")
    if path.stat().st_size == 0:
        raise CorruptModel(f"{name}: is empty")
    if name.endswith(WEIGHTS):
        check_weights(path)
    if expected is None:
        return
    running = _running[-1:]
    if (actual := running[0].of(path) if running else sha256_of(path)) != expected:
        raise CorruptModel(f"{name}: sha256 differs: expected {expected[:12]}…, got {actual[:12]}…")


def _files_in(directory: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            relative = (Path(folder) / name).relative_to(directory).as_posix()
            if not name.startswith(".") and relative != MANIFEST:
                yield relative
