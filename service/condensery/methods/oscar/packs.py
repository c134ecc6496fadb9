"""All that a run needs in one folder, to train where nothing else is: a pack.

It is made where the data, pydantic and the store are. Training with it needs torch, transformers,
tokenizers, safetensors and numpy.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import BertConfig

from condensery.errors import InputError
from condensery.methods.oscar.data import TrainingSets, open_sets, save_sets
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Mix
from condensery.methods.oscar.starting import empty_pair
from condensery.networks.oscar import WORDS, OscarPair
from condensery.networks.oscar_shape import OscarShape

RUN, START, TABLE = "run.json", "start.safetensors", "words.safetensors"
COPIED = ("config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Start:
    """What a run begins with.

    Attributes:
        pair: With the weights it starts from, in fp32.
        sets: What it is trained on.
        directory: Holds the encoder's ``config.json`` and ``tokenizer.json``.
        recipe: How to train.
        mix: What the items look like.
        origin: What the weights came from; JSON.
    """

    pair: OscarPair
    sets: TrainingSets
    directory: Path
    recipe: Recipe
    mix: Mix
    origin: Mapping[str, Any]


def write_pack(folder: Path, start: Start) -> None:
    """Write a run's beginning; weights in bf16, the encoder's words in fp16, as most are small."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copy(start.directory / name, folder)
    words = start.pair.compressor.backbone.embeddings.word_embeddings.weight
    save_file({WORDS: words.detach().to(torch.float16).contiguous()}, folder / TABLE)
    weights = {
        name: value.detach().to(torch.bfloat16).contiguous()
        for name, value in start.pair.own_state().items()
    }
    save_file(weights, folder / START)
    save_sets(folder, start.sets)
    about = {
        "shape": start.pair.shape.to_dict(),
        "recipe": asdict(start.recipe),
        "mix": asdict(start.mix),
        "origin": start.origin,
    }
    (folder / RUN).write_text(json.dumps(about, indent=1) + "\n")


def open_pack(folder: Path) -> Start:
    """Read what ``write_pack`` wrote.

    Raises:
        InputError: A file is missing or damaged.
    """
    try:
        about = json.loads((folder / RUN).read_text())
        config = BertConfig.from_json_file(folder / "config.json")
        words = load_file(folder / TABLE)[WORDS].float()
        pair = empty_pair(config, OscarShape.from_dict(about["shape"]), words)
        pair.load_own_state(load_file(folder / START))
        recipe, mix = Recipe(**about["recipe"]), Mix(**about["mix"])
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise InputError(
            f"packed: {folder} is no pack that can be read: {error}",
            field="packed",
            value=str(folder),
        ) from error
    return Start(pair, open_sets(folder), folder, recipe, mix, about["origin"])
