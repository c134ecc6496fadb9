"""Large models' weights as files of at most 2 GiB, written as they are read."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 2 * 2**30
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"

Named = Iterator[tuple[str, Tensor]]


def write_shards(tensors: Named, directory: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Write files of at most ``SHARD_BYTES``, or of one tensor that is larger.

    Yields:
        Each file once it is written, and the names in it.
    """
    shard: dict[str, Tensor] = {}
    count = size = 0

    def write() -> tuple[Path, tuple[str, ...]]:
        path = directory / f"weights-{count}.safetensors"
        save_file(shard, path, metadata={"format": "pt"})
        return path, tuple(shard)

    for name, tensor in tensors:
        if shard and size + tensor.nbytes > SHARD_BYTES:
            yield write()
            shard, count, size = {}, count + 1, 0
        # A copy: safetensors refuses tensors that share memory, such as views of one table.
        shard[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        size += tensor.nbytes
    yield write()


def write_weights(tensors: Named, directory: Path) -> None:
    """Write weights as transformers reads them: one file, or shards and their index."""
    shards = list(write_shards(tensors, directory))
    if len(shards) == 1:
        shards[0][0].rename(directory / WHOLE)
        return
    places: dict[str, str] = {}
    for number, (path, names) in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        path.rename(directory / file)
        places |= dict.fromkeys(names, file)
    content = {"metadata": {}, "weight_map": places}
    (directory / INDEX).write_text(json.dumps(content, indent=1) + "\n")
