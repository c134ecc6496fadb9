"""What a model's weights take, and how that is given back."""

import ctypes
import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn


def weight_bytes(parts: Iterable[object]) -> Mapping[str, int]:
    """Return the bytes of every tensor that the parts hold, by device; shared ones count once.

    Args:
        parts: Modules, or objects whose attributes are modules and tensors.
    """
    seen: set[int] = set()
    found: Counter[str] = Counter()
    for part in parts:
        for tensor in _tensors(part):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                # Prepacked weights are opaque, and have no bytes of their own to ask for.
                found[str(tensor.device)] += tensor.numel() * tensor.element_size()
    return dict(found)


def _tensors(part: object) -> Iterator[Tensor]:
    if isinstance(part, nn.Module):
        for module in part.modules():
            yield from module.parameters(recurse=False)
            yield from module.buffers(recurse=False)
            yield from (one for one in vars(module).values() if isinstance(one, Tensor))
        return
    for value in getattr(part, "__dict__", {}).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module):
            yield from _tensors(value)


def give_back() -> None:
    """Return to the system what is free: objects in circles, CUDA's pool, and malloc's arenas.

    The last is what counts on a CPU. malloc is told to keep what it is given back (``device``), as
    every forward pass would else pay for its pages again; after a model has gone it is told not to.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another libc: it decides for itself
        return
