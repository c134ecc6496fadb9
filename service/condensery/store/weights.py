"""Weights in safetensors shards, some of them int8 with a float32 scale for each output row."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from condensery.errors import CorruptModel, StoreError
from condensery.store.manifest import StoredModel

SCALE = ".scale"
# A shard may be 16 MiB at most, header included.
MAX_SHARD_BYTES = 16 * 2**20 - 2**12
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def load_state(
    stored: StoredModel,
    names: Collection[str] | None = None,
    *,
    prefix: str = "",
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Read a stored model's tensors, on the CPU.

    What is neither quantised nor cast stays mapped from its file (copied on write), so that
    a model too large for the memory can still be read piece by piece.

    Args:
        stored: Its files checked by the store.
        names: Take these only, as the files name them.
        prefix: Take those that begin so, and name them by what follows.
        dtype: Cast floating-point tensors to it. None keeps them as stored, and int8 ones become
            float32.

    Returns:
        Tensors by name; the scales of int8 tensors are used up.

    Raises:
        CorruptModel: A name is missing or there twice, or a scale does not fit its tensor.
    """
    state: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    everything: set[str] = set()
    for path in stored.weights:
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118  # a shard can be iterated in no other way
                if name in everything:
                    raise CorruptModel(f"{stored.name}: {path.name}: {name} is there twice")
                everything.add(name)
                owner = name.removesuffix(SCALE)
                if _wanted(name, names, prefix):
                    state[name] = shard.get_tensor(name)
                elif owner != name and _wanted(owner, names, prefix):
                    scales[owner] = shard.get_tensor(name)
    if missing := sorted(set(names or ()) - everything):
        raise CorruptModel(f"{stored.name}: no weights named {', '.join(missing)}")
    for name in [name for name in state if name.endswith(SCALE)]:
        owner = name.removesuffix(SCALE)
        if owner in state and state[owner].dtype == torch.int8:
            scales[owner] = state.pop(name)
    return {
        name.removeprefix(prefix): _restore(stored.name, name, tensor, scales.get(name), dtype)
        for name, tensor in state.items()
    }


def each_tensor(stored: StoredModel) -> Iterator[tuple[str, Tensor]]:
    """Yield a stored model's tensors one at a time, as stored, each mapped from its file.

    Whoever puts each in its place before asking for the next needs no second copy of the model.

    Args:
        stored: Its files checked by the store; it is not quantised.
    """
    for path in stored.weights:
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118  # a shard can be iterated in no other way
                yield name, shard.get_tensor(name)


def save_state(
    directory: Path,
    tensors: Mapping[str, Tensor],
    *,
    int8_names: Collection[str] = (),
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> list[Path]:
    """Write tensors as ``model-00001-of-0000N.safetensors``, in place of older such shards.

    Args:
        directory: Where to; a working directory, from which ``publish`` copies.
        tensors: By name; a shard holds them in the order of their names.
        int8_names: 2-D weights to store as int8 (see ``quantise``).
        max_shard_bytes: Of a whole file.

    Returns:
        The shards written.

    Raises:
        StoreError: A tensor is not finite, not 2-D but to be int8, too large for a shard, or has
            the name that another's scale needs.
    """
    if unknown := sorted(set(int8_names) - set(tensors)):
        raise StoreError(f"int8_names: no tensor is named {', '.join(unknown)}")
    content: dict[str, Tensor] = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise StoreError(f"{name}: holds values that are not finite")
        if name in int8_names:
            if tensor.ndim != 2 or not tensor.is_floating_point():
                raise StoreError(f"{name}: only 2-D weights become int8, not {_about(tensor)}")
            if name + SCALE in tensors:
                raise StoreError(f"{name + SCALE}: is the name of the scale of {name}")
            content[name], content[name + SCALE] = quantise(tensor)
        else:
            content[name] = tensor
    shards = _pack(content, max_shard_bytes)
    for path in directory.iterdir():
        if SHARD.fullmatch(path.name):
            path.unlink()
    paths = []
    for number, names in enumerate(shards, start=1):
        path = directory / f"model-{number:05}-of-{len(shards):05}.safetensors"
        # Cloned: safetensors refuses tensors that share memory, such as tied weights.
        shard = {name: content[name].clone(memory_format=torch.contiguous_format) for name in names}
        save_file(shard, path, metadata={"format": "pt"})
        paths.append(path)
    return paths


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each output row symmetrically to int8: ``scale = absmax / 127``.

    Each weight comes back within half a scale.

    Args:
        weight: (outputs, inputs), any float dtype, finite.

    Returns:
        The int8 weight, (outputs, inputs), and its float32 scale, (outputs,).
    """
    scale = (weight.double().abs().amax(dim=1) / 127).float()
    scale[scale == 0] = 1.0  # an empty row: any scale restores its zeros
    rounded = (weight.double() / scale.double()[:, None]).round().clamp(-127, 127)
    return rounded.to(torch.int8), scale


def dequantise(weight: Tensor, scale: Tensor) -> Tensor:
    """Undo ``quantise``, in float32: (outputs, inputs) int8 and (outputs,) to (outputs, inputs)."""
    return weight.float() * scale.float()[:, None]


def _wanted(name: str, names: Collection[str] | None, prefix: str) -> bool:
    return name.startswith(prefix) and (names is None or name in names)


def _restore(
    model: str, name: str, tensor: Tensor, scale: Tensor | None, dtype: torch.dtype | None
) -> Tensor:
    if tensor.dtype == torch.int8 and scale is not None:
        if tensor.ndim != 2 or scale.shape != tensor.shape[:1]:
            raise CorruptModel(
                f"{model}: {name}{SCALE}: {_about(scale)} is no scale for {_about(tensor)}"
            )
        tensor = dequantise(tensor, scale)
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _pack(tensors: Mapping[str, Tensor], max_bytes: int) -> list[list[str]]:
    """Fill shards in order; a file is 8 bytes, its JSON header and its tensors."""
    shards: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        # In the header: the name (escaped), dtype, shape and two offsets.
        size = tensor.nbytes + 6 * len(name) + 20 * tensor.ndim + 120
        fixed = 8 + 64  # the header's length, its metadata and its padding
        if fixed + size > max_bytes:
            raise StoreError(f"{name}: {_about(tensor)} does not fit a shard of {max_bytes} bytes")
        if size > room:
            shards.append([])
            room = max_bytes - fixed
        shards[-1].append(name)
        room -= size
    return shards


def _about(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
