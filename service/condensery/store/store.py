"""The model store: two roots of ``<name>/<version>/model.json``, and how a model gets in."""

import errno
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from condensery.atomic_files import sync_path
from condensery.errors import CorruptModel, ModelNotFound, StoreError, shorten
from condensery.store.checking import read_model
from condensery.store.manifest import (
    NAME_PATTERN,
    VERSION_PATTERN,
    BrokenModel,
    Manifest,
    StoredModel,
    missing_base,
)
from condensery.store.writing import collect, copy_files, write_manifest

STALE_SECONDS = 3600.0

Listing = list[StoredModel | BrokenModel]


def shipped_store() -> Path | None:
    """Find the read-only store that comes with the package.

    Returns:
        ``condensery/model_store`` of an installed wheel, else ``model_store`` of the checkout
        that this file belongs to, else None.
    """
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    if (package / "model_store").is_dir():
        return package / "model_store"
    if (checkout / "pyproject.toml").is_file() and (checkout / "model_store").is_dir():
        return checkout / "model_store"
    return None


def check_name(name: str) -> None:
    """Raise StoreError if no model may have this name."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise StoreError(
            f"{shorten(name)} can't be a model's name: at most 64 letters, digits, '.', '_' and "
            "'-', and the first a letter or a digit",
            field="name",
            value=name,
        )


class ModelStore:
    """Models by name and version, in a shipped root (never written to) and an own one.

    A name that both roots hold opens from the own one. Without a version, the highest opens;
    if that one is broken it is refused, never quietly replaced by an older one.
    """

    def __init__(self, shipped: Path | None, own: Path) -> None:
        self.shipped = shipped
        self.own = own

    def list(self, *, check: bool = True) -> Listing:
        """List every version of every model in both roots, broken ones with their reason.

        Sorted by name; of one name, the own root's first, then the highest version: so the first
        of a name is the one that ``open(name)`` takes.

        Args:
            check: Hash the files too (about 0.1 s for 100 MB).

        Raises:
            StoreError: A root itself can't be read.
        """
        entries = [entry for root in self._roots() for entry in _scan(root, check)]
        return sorted(entries, key=lambda entry: entry.name)  # stable: the rest is in order

    def names(self) -> tuple[str, ...]:
        """Name what ``open`` can be asked for, broken ones included, sorted."""
        return tuple(sorted({name for root in self._roots() for name in _names(root)}))

    def open(self, name: str, version: str | None = None, *, check: bool = True) -> StoredModel:
        """Open a model: its highest version unless one is named.

        Raises:
            ModelNotFound: No such name or version; the message names those that exist.
            CorruptModel: It is there, but not whole; the message names the file.
        """
        for root in self._roots():
            if name not in _names(root):
                continue
            versions = _versions(root / name)
            if not versions and version is None:
                raise CorruptModel(f"model {name!r}: {_no_version(name)}")
            wanted = max(versions, default=None) if version is None else _number(version)
            if wanted in versions:
                return self._with_base(_read(name, versions[wanted], check), check)
        raise ModelNotFound(self._missing(name, version), field="model", value=name)

    def verify(self, name: str, version: str | None = None) -> StoredModel:
        """Hash every file of a model again; raises as ``open`` does."""
        return self.open(name, version, check=True)

    def open_base(self, stored: StoredModel, *, check: bool = True) -> StoredModel:
        """Open the model that ``stored`` shares files with, in the version it was made with.

        Raises:
            ModelNotFound: No version of the base has the fingerprint that ``stored`` names.
            StoreError: ``stored`` has no base.
        """
        if stored.manifest.base is None:
            raise StoreError(f"model {stored.name!r} has no base")
        base = self._find_base(stored.manifest, check)
        if base is None:
            raise missing_base(stored.manifest)
        return base

    def has_base(self, stored: StoredModel) -> bool:
        """Tell whether a model's base is in the store; true where it has none."""
        manifest = stored.manifest
        return manifest.base is None or self._find_base(manifest, check=False) is not None

    def publish(self, source: Path | Mapping[str, Path], manifest: Manifest) -> StoredModel:
        """Put a model into the own root, whole or not at all.

        Files are written aside, synced, then renamed into place: a crash, a kill or a full disk
        leaves nothing that ``list`` would show.

        Args:
            source: A directory, all of whose files (hidden ones and ``model.json`` left out) are
                taken; or each file by the name to store it under.
            manifest: What ``model.json`` is to say. Its ``version``, ``files`` and ``created``
                are set here (the next version of that name over both roots), and its
                ``base_fingerprint`` too if it names a base without one.

        Raises:
            StoreError: A file is of a kind that is refused, or the disk refused.
            CorruptModel: A weight file is no whole safetensors file.
            ModelNotFound: The base is not in the store.
        """
        check_name(manifest.name)
        files = collect(source)
        if manifest.base is not None and manifest.base_fingerprint is None:
            base = self.open(manifest.base).manifest
            manifest = manifest.model_copy(update={"base_fingerprint": base.fingerprint})
        if manifest.base_parts is not None and self._find_base(manifest, check=False) is None:
            raise missing_base(manifest)  # nothing could open what is published
        aside = self.own / f".{manifest.name}-{secrets.token_hex(4)}.partial"
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            _sweep(self.own, manifest.name)
            aside.mkdir()
            hashes = copy_files(files, aside)
            return self._rename(aside, manifest, hashes)
        except OSError as error:
            raise StoreError(
                f"model {manifest.name!r} can't be written to the store: "
                f"{error.strerror or error} ({error.filename or aside.name})"
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)  # gone already when all went well

    def _rename(self, aside: Path, manifest: Manifest, hashes: Mapping[str, str]) -> StoredModel:
        while True:
            content = manifest.model_dump(exclude={"fingerprint"}) | {
                "version": str(self._highest(manifest.name) + 1),
                "files": hashes,
                "created": int(time.time()),
            }
            final = Manifest.model_validate(content)
            write_manifest(aside, final)
            place = self.own / final.name / final.version
            place.parent.mkdir(exist_ok=True)
            try:
                aside.rename(place)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    continue  # another publisher took this version meanwhile
                raise
            for directory in (place.parent, self.own, self.own.parent):
                sync_path(directory)
            return self._with_base(StoredModel(final, place), check=False)

    def _with_base(self, stored: StoredModel, check: bool) -> StoredModel:
        """Add the base of a model that takes parts from one, if it is there.

        Raises:
            CorruptModel: It is there and not whole.
        """
        if stored.manifest.base_parts is None and not stored.manifest.shares_words:
            return stored
        return replace(stored, base=self._find_base(stored.manifest, check))

    def _find_base(self, manifest: Manifest, check: bool) -> StoredModel | None:
        """Return the version of a base that a model was made with, None if there is none.

        Raises:
            CorruptModel: It is there and not whole.
        """
        base = manifest.base or ""
        for root in self._roots():
            for _, path in sorted(_versions(root / base).items(), reverse=True):
                try:
                    found = _read(base, path, check=False)
                except CorruptModel:
                    continue
                if found.manifest.fingerprint == manifest.base_fingerprint:
                    return self._with_base(_read(base, path, check) if check else found, check)
        return None

    def _roots(self) -> tuple[Path, ...]:
        return (self.own,) if self.shipped is None else (self.own, self.shipped)

    def _highest(self, name: str) -> int:
        return max((n for root in self._roots() for n in _versions(root / name)), default=0)

    def _missing(self, name: str, version: str | None) -> str:
        if version is not None and name in self.names():
            numbers = {n for root in self._roots() for n in _versions(root / name)}
            there = ", ".join(str(n) for n in sorted(numbers)) or "none"
            return f"model {name!r} has no version {shorten(version)}; there are: {there}"
        there = ", ".join(self.names()) or "none"
        return f"no model {shorten(name)} in the store; there are: {there}"


def _read(name: str, path: Path, check: bool) -> StoredModel:
    try:
        stored = read_model(path, check=check)
        if (stored.name, stored.version) != (name, path.name):
            raise CorruptModel(
                f"model.json: is of {stored.name!r} version {stored.version}, "
                f"not of its directory {name}/{path.name}"
            )
    except CorruptModel as error:
        raise CorruptModel(f"model {name!r} version {path.name}: {error.message}") from error
    return stored


def _scan(root: Path, check: bool) -> Iterator[StoredModel | BrokenModel]:
    for name in _names(root):
        directory = root / name
        try:
            children = [path for path in directory.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            yield BrokenModel(name, directory, f"can't be read: {error.strerror or error}")
            continue
        versions = _versions(directory)
        if children and not versions:
            yield BrokenModel(name, directory, _no_version(name))
        for number in sorted(versions, reverse=True):
            try:
                yield _read(name, versions[number], check)
            except CorruptModel as error:
                yield BrokenModel(name, versions[number], error.message)
        for path in sorted(children) if versions else ():
            if path.is_dir() and path not in versions.values():
                yield BrokenModel(name, path, f"{path.name}: is not a version (a whole number)")


def _names(root: Path) -> tuple[str, ...]:
    """Name the directories of ``root`` that are not empty.

    A publisher that is killed before its rename can leave an empty one, which means nothing.
    """
    try:
        paths = sorted(path for path in root.iterdir() if path.is_dir())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StoreError(f"store {root} can't be read: {error.strerror or error}") from error
    return tuple(path.name for path in paths if not path.name.startswith(".") and _holds(path))


def _holds(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return True  # unreadable is not empty: list says so


def _versions(directory: Path) -> dict[int, Path]:
    if not re.fullmatch(NAME_PATTERN, directory.name):
        return {}
    try:
        paths = list(directory.iterdir())
    except OSError:
        return {}
    return {int(path.name): path for path in paths if re.fullmatch(VERSION_PATTERN, path.name)}


def _no_version(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        return "is not a name that a model may have"
    return f"holds no version such as {name}/1/model.json"


def _number(version: str) -> int | None:
    return int(version) if re.fullmatch(VERSION_PATTERN, version) else None


def _sweep(root: Path, name: str) -> None:
    """Remove what publishers of ``name`` that died left aside, once it is surely theirs."""
    pattern = re.compile(rf"\.{re.escape(name)}-[0-9a-f]{{8}}\.partial")
    for path in root.iterdir():
        if pattern.fullmatch(path.name) and time.time() - _touched(path) > STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _touched(directory: Path) -> float:
    """Return when anything in ``directory`` last changed, Unix seconds; now if it has gone."""
    try:
        return max(path.stat().st_mtime for path in (directory, *directory.rglob("*")))
    except FileNotFoundError:
        return time.time()  # its publisher is alive: it renames or removes
