"""Dtypes: their names, and models built in one while other threads run models of another.

transformers builds a model under ``torch.set_default_dtype``, which is the whole process's: a
forward pass that runs meanwhile makes its tensors of another dtype, and fails, or gives other
numbers. Here the default is set for the thread that builds alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import modeling_utils

# What makes tensors of the default dtype, and parameters and buffers are made by.
_MAKERS = frozenset(
    (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.eye, torch.linspace)
)
# What draws a weight's first values.
_DRAWS = frozenset((nn.init.normal_, Tensor.normal_))
# What rotary frequencies are made by, of one vector and numbers: 1 / base ** (places / size).
_OF_FREQUENCIES = frozenset(("div", "__rdiv__", "__rpow__"))


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without its module: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


class Calls(TorchFunctionMode):
    """Has each of torch's functions called its own way, in this thread."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.call(func, args, dict(kwargs or {}))

    def call(self, func: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Return what stands for ``func(*args, **options)``."""
        raise NotImplementedError


class _DefaultDtype(Calls):
    """Gives a dtype to what is made without one, in this thread."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def call(self, func: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        if func in _MAKERS and options.get("dtype") is None:
            options["dtype"] = self._dtype
        return func(*args, **options)


class _Nowhere(Calls):
    """Makes what is nowhere (on ``meta``) without PyTorch's compiler, sympy and all.

    What PyTorch has of these functions for ``meta`` is Python of the compiler's kind, which takes a
    second and 80 MiB to import (``heavy_imports``). Nobody sees numbers that are nowhere.
    """

    def call(self, func: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        if func is torch.arange and str(options.get("device")) == "meta":
            return torch.arange(*args, **options | {"device": "cpu"}).to("meta")
        first = args[0] if args else options.get("tensor")
        if not isinstance(first, Tensor) or not first.is_meta:
            return func(*args, **options)
        if func in _DRAWS:
            return first
        if func is torch.empty_like and first.is_contiguous():
            like: dict[str, Any] = {"dtype": first.dtype, "device": first.device}
            given = {name: value for name, value in options.items() if value is not None}
            given.pop("memory_format", None)  # contiguous, as it is
            return torch.empty(first.shape, **like | given)
        by_numbers = not any(isinstance(one, Tensor) for one in (*args[1:], *options.values()))
        if func.__name__ in _OF_FREQUENCIES and by_numbers and first.is_floating_point():
            return torch.empty(first.shape, dtype=first.dtype, device=first.device)
        return func(*args, **options)


@contextmanager
def _of_this_thread(dtype: torch.dtype, model_class_name: str | None = None) -> Iterator[None]:
    """Stand in for transformers' ``local_torch_dtype``; its refusal of whole numbers is kept."""
    if not dtype.is_floating_point:
        raise ValueError(f"{model_class_name or 'a model'} can't be built in {dtype}")
    with _DefaultDtype(dtype):
        yield


@contextmanager
def thread_dtypes() -> Iterator[None]:
    """Let transformers build models without touching the process's default dtype."""
    # Left in place or put back by another thread that builds: either is right for this one too.
    usual = modeling_utils.local_torch_dtype
    modeling_utils.local_torch_dtype = _of_this_thread
    try:
        with _Nowhere():
            yield
    finally:
        modeling_utils.local_torch_dtype = usual
