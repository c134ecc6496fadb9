"""A stored pair's generator as a directory that other servers serve: vLLM, transformers."""

import shutil
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from condensery.errors import InputError, StoreError
from condensery.networks.dtypes import dtype_name
from condensery.networks.oscar_causal_shape import CausalShape
from condensery.networks.oscar_loading import open_networks, read_shape
from condensery.store.manifest import StoredModel
from condensery.store.weights import each_tensor

DTYPES = {dtype_name(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
GENERATOR = "generator"  # the half's folder, and where its weights' names begin


def export_generator(stored: StoredModel, directory: Path, dtype: str | None = None) -> torch.dtype:
    """Write a pair's generator, its adapters merged, as transformers saves a model.

    Args:
        stored: Its files checked by the store.
        directory: Where to; it is made, or empty.
        dtype: Of the weights; None is what they are stored as. Adapters are merged in it.

    Returns:
        The dtype of what was written.

    Raises:
        InputError: The model is no pair of language models; or the directory holds something.
        StoreError: The files make no pair, or can't be written.
    """
    manifest = stored.manifest
    try:
        shape = read_shape(manifest.shape) if manifest.kind == "oscar-pair" else None
        if not isinstance(shape, CausalShape):
            raise InputError(
                f"{stored.name} has no generator that another server could run: it is no pair "
                "whose generator is a language model of its own",
                field="model",
                value=stored.name,
            )
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise InputError(f"{directory}: holds something already", field="directory")
        wanted = DTYPES.get(dtype or manifest.dtype, torch.float32)
        pair = open_networks(
            stored.path, manifest.shape, each_tensor(stored), dtype=wanted, generates=False
        )
        network = pair.generator.network
        network.config.dtype = wanted
        directory.mkdir(parents=True, exist_ok=True)
        network.save_pretrained(directory)
        tokenizer = stored.path / GENERATOR / "tokenizer.json"
        PreTrainedTokenizerFast(tokenizer_file=str(tokenizer)).save_pretrained(directory)
        shutil.copyfile(tokenizer, directory / "tokenizer.json")  # to the letter
    except (OSError, ValueError, RuntimeError) as error:
        raise StoreError(f"{stored.name}: its generator was not written: {error}") from error
    return wanted
