"""Tensors out of ``.pth`` and ``.pt`` files, read once, on import: no code in them is run."""

import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from condensery.errors import CorruptModel, StoreError
from condensery.store.refusals import PickledCode
from condensery.store.writing import name_of

# What torch.save itself writes beside storages, as "module name".
HARMLESS = ("torch ", "torch._", "torch.storage ", "collections OrderedDict")
# What a pickled embedding or linear layer names besides.
MODULES = (
    *("torch.nn.modules.sparse Embedding", "torch.nn.modules.linear Linear"),
    *("torch.nn.parameter ", "builtins set", "__builtin__ set"),
)
_KINDS = (nn.Embedding, nn.Linear)
# What builds tensors, and all that a training's checkpoint may name: the rest becomes nothing.
_BUILDERS = frozenset(
    {
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch._utils", "_rebuild_parameter"),
        ("collections", "OrderedDict"),
    }
)


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a file that ``torch.save`` wrote: a dict of tensors, or of such dicts.

    Tensors are on the CPU whatever device they were saved on, and mapped from the file where its
    format allows.

    Raises:
        StoreError: It is missing, or holds something else than tensors by name.
        PickledCode: It names code to be run.
        CorruptModel: It can't be read.
    """
    content = _load(path)
    if not _only_tensors(content):
        raise StoreError(f"{name_of(path)}: holds something else than tensors by name")
    values: dict[str, Any] = content
    return values


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file that holds tensors by name, with no further nesting; raises as above."""
    content = read_pickle(path)
    if not all(isinstance(value, Tensor) for value in content.values()):
        raise StoreError(f"{name_of(path)}: holds more than tensors by name")
    return content


def read_module_weight(path: Path) -> Tensor:
    """Read the weight of a whole ``nn.Embedding`` or ``nn.Linear`` that was pickled.

    Those two classes and tensors are all that may be named; of the module only the weight is
    taken, and nothing of it is called.

    Raises:
        StoreError: It is missing, or another module.
        PickledCode: It names anything else.
        CorruptModel: It can't be read.
    """
    with torch.serialization.safe_globals([nn.Embedding, nn.Linear]):
        module = _load(path, allowed=MODULES)
    weight = getattr(module, "_parameters", {}).get("weight") if type(module) in _KINDS else None
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise StoreError(f"{name_of(path)}: holds no embedding or linear layer")
    return weight.detach()


class _Nothing:
    """Stands for whatever else a pickle names: made, called, filled, it stays nothing."""

    def __new__(cls, *args: object, **options: object) -> "_Nothing":
        return super().__new__(cls)

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def __call__(self, *args: object, **options: object) -> "_Nothing":
        return self

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, item: object) -> None:
        """Drop an item."""

    def extend(self, items: object) -> None:
        """Drop items."""


class _TensorsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what builds tensors as it is, and for anything else what does nothing."""
        storage = module == "torch" and name.endswith("Storage")
        if storage or (module, name) in _BUILDERS:
            return super().find_class(module, name)
        return _Nothing


def read_training_state(path: Path, key: str) -> dict[str, Tensor]:
    """Read the weights out of a training's checkpoint, which holds objects of its trainer too.

    Such a pickle names classes of DeepSpeed, argparse and others. Nothing that it names is
    imported or called but what builds tensors; all else is dropped while it is read.

    Args:
        path: A file of ``torch.save``.
        key: Of the dictionary that it holds: where the weights are, by name.

    Returns:
        Tensors on the CPU, mapped from the file.

    Raises:
        StoreError: It is missing, or holds no tensors by name there.
        CorruptModel: It can't be read.
    """
    if not path.is_file():
        raise StoreError(f"{name_of(path)}: there is no such file")
    module: Any = ModuleType("tensors_only")  # torch takes another pickle as a module
    module.Unpickler = _TensorsOnly
    try:
        with zipfile.ZipFile(path) as archive:
            compiled = any(name.endswith("constants.pkl") for name in archive.namelist())
        if compiled:  # torch would run it as a program
            raise StoreError(f"{name_of(path)}: is a TorchScript program, which is never loaded")
        content = torch.load(
            path, map_location="cpu", weights_only=False, mmap=True, pickle_module=module
        )
    except StoreError:
        raise
    except Exception as error:  # a broken pickle can raise nearly anything
        raise CorruptModel(f"{name_of(path)}: can't be read: it is cut short or altered") from error
    weights = content.get(key) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise StoreError(f"{name_of(path)}: holds no weights under the key {key!r}")
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise StoreError(f"{name_of(path)}: {key}: {name!r} is no tensor by name")
    return {name: value.detach() for name, value in weights.items()}


def _load(path: Path, allowed: tuple[str, ...] = ()) -> Any:
    """Unpickle what torch lets pass; raises as ``read_pickle``."""
    if not path.is_file():
        raise StoreError(f"{name_of(path)}: there is no such file")
    zipped = zipfile.is_zipfile(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, on pickles that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # a broken pickle can raise nearly anything
        if any(not name.startswith((*HARMLESS, *allowed)) for name in _named(path, zipped)):
            raise PickledCode(
                f"{name_of(path)}: names code beside tensors, which is never run"
            ) from error
        raise CorruptModel(f"{name_of(path)}: can't be read: it is cut short or altered") from error


def _named(path: Path, zipped: bool) -> Iterator[str]:
    """Yield what a pickle would import, as far as it can be taken apart, without running it."""
    try:
        content = path.read_bytes()
        if zipped:
            with zipfile.ZipFile(path) as archive:
                inner = next(name for name in archive.namelist() if name.endswith("data.pkl"))
                content = archive.read(inner)
        for operation, argument, _ in pickletools.genops(content):
            if operation.name in ("GLOBAL", "INST"):
                yield str(argument)
            elif operation.name == "STACK_GLOBAL":  # torch.save writes none
                yield "what its stack names"
    except (ValueError, StopIteration, zipfile.BadZipFile, OSError):
        return


def _only_tensors(content: object) -> bool:
    return isinstance(content, dict) and all(
        isinstance(name, str) and (isinstance(value, Tensor) or _only_tensors(value))
        for name, value in content.items()
    )
