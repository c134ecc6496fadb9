"""PyTorch and transformers, imported as a server needs them.

Half of what transformers' networks bring is never used by one: PyTorch's compiler, with sympy, and
tensors spread over processes. Two cores (AVX2) take 1.2 of 4.5 s for them, and 83 of 365 MiB. So
does SciPy, for losses of object detection: 0.35 s where it is installed.
"""

import contextlib
import functools
import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
DECORATORS = ("allow_in_graph", "assume_constant_result", "disable")
# Where all networks of transformers' take what they share.
NETWORKS = ("transformers.modeling_utils", "transformers.generation.utils")
# Which modules each of its 400 folders of networks has, it finds by reading them all, in ``LOOK``.
LOOKS = "transformers.utils.import_utils"
LOOK = "create_import_structure_from_path"
HAS_SCIPY = "is_scipy_available"


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
    """Import transformers' networks without PyTorch's compiler, which none needs that only runs.

    To be called before either is imported; else it does nothing. Meanwhile a stand-in takes those
    of the compiler's decorators that are for functions which no server calls, and leaves these as
    they are; asked for anything else, it makes way for the compiler. PyTorch says for so long that
    it was built without ``torch.distributed``, and transformers then does without tensors spread
    over processes, for as long as this one runs; the same with SciPy.
    """
    if COMPILER in sys.modules or NETWORKS[0] in sys.modules:
        return
    import torch
    import torch.distributed

    if COMPILER in sys.modules:  # PyTorch brought it itself
        return
    spec = importlib.util.find_spec(COMPILER)
    assert spec is not None
    stand_in = importlib.util.module_from_spec(spec)
    for name in DECORATORS:
        setattr(stand_in, name, _unchanged)
    stand_in.__class__ = _StandIn
    sys.modules[COMPILER] = stand_in
    try:
        with _OneLook():
            utils: Any = importlib.import_module("transformers.utils")
            with _answering_no(torch.distributed, "is_available"), _answering_no(utils, HAS_SCIPY):
                for name in NETWORKS:
                    importlib.import_module(name)
    finally:
        _make_way(stand_in)


@contextlib.contextmanager
def _answering_no(module: Any, name: str) -> Iterator[None]:
    if (real := getattr(module, name, None)) is None:  # another version's
        yield
        return
    setattr(module, name, lambda: False)
    try:
        yield
    finally:
        setattr(module, name, real)


class _OneLook:
    """While it is entered, transformers looks through each folder of networks once.

    What it keeps itself is less than there are folders, so that the second who asks has none of it.
    It asks while it is imported: a finder of modules is all that there is before.
    """

    def __enter__(self) -> None:
        self._theirs: tuple[ModuleType, Any] | None = None
        sys.meta_path = [self, *sys.meta_path]  # anew: another thread may be going through it

    def __exit__(self, *_: object) -> None:
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        if self._theirs is not None:
            setattr(self._theirs[0], LOOK, self._theirs[1])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != LOOKS or (spec := PathFinder.find_spec(name, path, target)) is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if (look := getattr(module, LOOK, None)) is not None:
                self._theirs = module, look
                setattr(module, LOOK, functools.cache(look))

        loader.exec_module = exec_module
        return spec


def _unchanged(function: Any = None, *_: object, **__: object) -> Any:
    return function if callable(function) else lambda real: real


def _make_way(stand_in: ModuleType) -> None:
    """Let whoever asks from now on have the compiler itself; PyTorch imports it when asked."""
    if sys.modules.get(COMPILER) is stand_in:
        del sys.modules[COMPILER]


class _StandIn(ModuleType):
    """The compiler's decorators; whatever else it is asked for, the compiler is asked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _make_way(self)
        return getattr(importlib.import_module(COMPILER), name)
