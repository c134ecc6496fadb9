"""PyTorch and transformers, imported as a server needs them.

Half of what transformers' networks bring is never used by one: PyTorch's compiler, with sympy, and
tensors spread over processes. Two cores (AVX2) take 1.2 of 4.5 s for them, and 83 of 365 MiB.
"""

import contextlib
import gc
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
DECORATORS = ("allow_in_graph", "assume_constant_result", "disable")
# Where all networks of transformers' take what they share.
NETWORKS = ("transformers.modeling_utils", "transformers.generation.utils")


@contextlib.contextmanager
def kept_for_good() -> Iterator[None]:
    """Import what stays to the end without looking for garbage in it, now or later.

    A quarter of the time that PyTorch and transformers took to import went in that. Each later
    look through all of their 440,000 objects would stop every thread for 0.25 s.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()


def import_networks() -> None:
    """Import transformers' networks, and PyTorch's compiler only once somebody asks it for more.

    To be called before either is imported; else it does nothing. Meanwhile two decorators of the
    compiler, for functions that no server calls, leave those as they are, and PyTorch says that it
    was built without ``torch.distributed``, which transformers knows. Whatever else is asked of the
    compiler, now or later, is answered by it.
    """
    if COMPILER in sys.modules or NETWORKS[0] in sys.modules:
        return
    import torch
    import torch.distributed

    spec = importlib.util.find_spec(COMPILER)
    assert spec is not None
    sys.modules[COMPILER] = compiler = importlib.util.module_from_spec(spec)
    compiler.__class__ = _LoadedLater
    torch._dynamo = compiler
    is_available = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    for name in DECORATORS:
        setattr(compiler, name, _unchanged)
    try:
        for name in NETWORKS:
            importlib.import_module(name)
    finally:
        torch.distributed.is_available = is_available
        for name in DECORATORS:
            if vars(compiler).get(name) is _unchanged:
                delattr(compiler, name)
        if type(compiler) is _LoadedLater:
            del compiler.__path__  # so that whoever imports a part of it has to ask, too


def _unchanged(function: Any = None, *_: object, **__: object) -> Any:
    return function if callable(function) else lambda real: real


class _LoadedLater(ModuleType):
    """A module that is executed once somebody asks for what it has not got."""

    _lock = threading.RLock()
    _begun = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        with self._lock:
            if type(self) is _LoadedLater:
                if self._begun:  # it asks itself, while it is executed
                    raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
                self._begun = True
                assert self.__spec__ is not None
                assert self.__spec__.loader is not None
                self.__path__ = self.__spec__.submodule_search_locations or []
                try:
                    self.__spec__.loader.exec_module(self)
                finally:
                    self._begun = False
                self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(self, name)
