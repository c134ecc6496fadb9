"""Weights in safetensors shards, some of them int8 with a float32 scale for each output row."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from condensery.errors import CorruptModel, StoreError
from condensery.networks.weight_files import (
    SCALE,
    ModelFolder,
    quantise,
    read_weights,
    tell_tensor,
)
from condensery.store.manifest import StoredModel

# What a language model that shares its base's words calls its table.
LM_TABLE = "model.embed_tokens.weight"
# A shard may be 16 MiB at most, header included.
MAX_SHARD_BYTES = 16 * 2**20 - 2**12
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def open_folder(stored: StoredModel) -> ModelFolder:
    """Return a stored model's directory, and its base's where its weights are partly there.

    Raises:
        ModelNotFound: The base is not in the store.
        CorruptModel: What the manifest says is the base's can't be understood.
    """
    parts, own = stored.manifest.base_parts, ModelFolder(stored.path, stored.name, stored.weights)
    if stored.manifest.shares_words:
        return replace(own, base=open_folder(stored.require_base()), words=LM_TABLE)
    if parts is None or not parts.weights:
        return own
    return replace(own, base=open_folder(stored.require_base()), from_base=parts.weights)


def load_state(
    stored: StoredModel,
    names: Collection[str] | None = None,
    *,
    prefix: str = "",
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Read a stored model's tensors, on the CPU, those that its base's files hold included.

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
        ModelNotFound: Its base is not in the store.
    """

    def wanted(name: str) -> bool:
        return name.startswith(prefix) and (names is None or name in names)

    state: dict[str, Tensor] = {}
    for name, tensor in read_weights(open_folder(stored), wanted):
        floating = dtype is not None and tensor.is_floating_point()
        state[name] = tensor.to(dtype) if floating else tensor
    if missing := sorted(set(names or ()) - set(state)):
        raise CorruptModel(f"{stored.name}: no weights named {', '.join(missing)}")
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


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
    content = quantised(tensors, int8_names)
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


def quantised(tensors: Mapping[str, Tensor], int8_names: Collection[str]) -> dict[str, Tensor]:
    """Return tensors as they are stored, by name in order: int8 ones with their scales beside them.

    Raises:
        StoreError: As ``save_state``.
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
                raise StoreError(f"{name}: only 2-D weights become int8, not {tell_tensor(tensor)}")
            if name + SCALE in tensors:
                raise StoreError(f"{name + SCALE}: is the name of the scale of {name}")
            content[name], content[name + SCALE] = quantise(tensor)
        else:
            content[name] = tensor
    return content


def _pack(tensors: Mapping[str, Tensor], max_bytes: int) -> list[list[str]]:
    """Fill shards in order; a file is 8 bytes, its JSON header and its tensors."""
    shards: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        # In the header: the name (escaped), dtype, shape and two offsets.
        size = tensor.nbytes + 6 * len(name) + 20 * tensor.ndim + 120
        fixed = 8 + 64  # the header's length, its metadata and its padding
        if fixed + size > max_bytes:
            raise StoreError(
                f"{name}: {tell_tensor(tensor)} does not fit a shard of {max_bytes} bytes"
            )
        if size > room:
            shards.append([])
            room = max_bytes - fixed
        shards[-1].append(name)
        room -= size
    return shards
