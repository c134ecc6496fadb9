"""What a run begins with, from an encoder, data sets, and perhaps a language model or a pair."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from condensery.errors import InputError
from condensery.methods.oscar.packs import Start
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Mix
from condensery.methods.oscar.sets import Source, load_sets
from condensery.methods.oscar.starting import (
    Past,
    State,
    between,
    mean_of,
    new_pair,
    run_weights,
    start_encoder,
    start_from,
    start_generator,
    start_only_generator,
    start_two_way,
)
from condensery.methods.trainer.texts import open_tokenizer
from condensery.networks.oscar_packing import Specials
from condensery.networks.oscar_shape import OscarShape
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore, shipped_store
from condensery.store.weights import load_state

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origins:
    """Where a pair's first weights come from.

    Attributes:
        base: Directory of the encoder that the compressor starts from, with its tokenizer.
        readers: Directories of extractive readers; the mean of their layers and span heads is what
            the compressor starts from instead. All else of it is the pair's to go on from, if
            there is one.
        reader_share: Of that mean in each of these weights; the rest is of the pair to go on from.
        language_model: Directory of the Llama that the generator starts from.
        start_generator: A run of ``train oscar``, or its weights, whose generator to go on from,
            in place of that of the pair to go on from.
        starts: Runs of ``train oscar``, or their weights, to go on from; of several, their mean.
        start_model: A stored pair to go on from.
        start_share: Of ``starts`` in each weight, where both are given; the rest is the stored
            pair's.
        store: Where it is stored, if it is not shipped.
    """

    base: Path
    readers: tuple[Path, ...] = ()
    reader_share: float = 1.0
    language_model: Path | None = None
    start_generator: Path | None = None
    starts: tuple[Path, ...] = ()
    start_model: str | None = None
    start_share: float = 1.0
    store: Path | None = None


def prepare(
    origins: Origins,
    data: Path | None,
    shape: OscarShape,
    recipe: Recipe,
    *,
    mix: Mix | None = None,
    sources: Sequence[Source] = (),
) -> Start:
    """Check and read all that a run needs.

    A pair to go on from gives its compressor, and its generator too if that is of the same shape
    and there is no language model.

    Args:
        origins: Where the weights come from.
        data: Folder of the data sets (``sets.load_sets``), if there is one.
        shape: The pair's dimensions.
        recipe: How to train.
        mix: What the items look like.
        sources: Questions to train on in place of the usual ones.

    Raises:
        InputError: Weights or data are of no use; names field and value.
        CondenseryError: The store has no such model.
    """
    tokenizer = open_tokenizer(origins.base)
    torch.manual_seed(recipe.seed)
    pair = new_pair(origins.base, shape)
    origin: dict[str, object] = {"encoder": digest(origins.base)}
    stored = stored_start(origins)
    state, name = start_state(origins, stored)
    taken = False
    if state is not None:
        taken = start_from(pair, state, name)
        origin["start"] = name
        origin["start_weights"] = "pair" if taken else "compressor"
        log.info("started from %s: %s", name, origin["start_weights"])
    if origins.readers:
        start_encoder(pair, origins.readers, origins.reader_share)
        origin["reader"] = ", ".join(map(digest, origins.readers))
        if origins.reader_share != 1:
            origin["reader_share"] = origins.reader_share
    if shape.two_way and not taken and origins.start_generator is None:
        start_two_way(pair, Specials.of(tokenizer).end)
        origin["generator"] = "the compressor's layers"
    if origins.language_model is not None:
        start_generator(pair, origins.language_model, tokenizer)
        origin["language_model"] = digest(origins.language_model)
        log.info("the generator starts from %s", origins.language_model)
    if origins.start_generator is not None:
        name = origins.start_generator.name
        start_only_generator(pair, run_weights(origins.start_generator), name)
        origin["start_generator"] = name
    before = past(origins, stored)
    if before.commands:
        origin["commands"] = list(before.commands)
    sets = load_sets(
        data,
        tokenizer,
        cloze=recipe.cloze,
        seed=recipe.seed,
        sources=sources,
        cloze_share=recipe.cloze_share,
        label_tokens=recipe.label_tokens,
        wording=recipe.wording,
    )
    sets = replace(sets, report=before.then((), sets.report).data)
    return Start(pair, sets, origins.base, recipe, mix or Mix(), origin)


def stored_start(origins: Origins) -> StoredModel | None:
    """Open the stored pair to go on from, its files checked; None without one.

    Raises:
        InputError: There is no store.
        CondenseryError: The store has no such model.
    """
    if origins.start_model is None:
        return None
    shipped = shipped_store()
    root = origins.store or shipped
    if root is None:
        raise InputError("store: no models are shipped here, so name theirs", field="store")
    return ModelStore(shipped, root).open(origins.start_model)


def start_state(origins: Origins, stored: StoredModel | None) -> tuple[State | None, str]:
    """Return the weights of the pair to go on from, None without one, and its name.

    Args:
        origins: Where the weights come from.
        stored: What ``stored_start`` opened of them.
    """
    state: State | None = None
    name = ""
    if origins.starts:
        state = mean_of([run_weights(start) for start in origins.starts])
        name = ", ".join(start.name for start in origins.starts)
    if stored is None:
        return state, name
    whole, its_name = load_state(stored), f"{stored.name} {stored.manifest.fingerprint}"
    if state is None:
        return whole, its_name
    share = origins.start_share
    return between(whole, state, share), f"{share:g} of {name}, {1 - share:g} of {its_name}"


def past(origins: Origins, stored: StoredModel | None) -> Past:
    """Return what went into the pairs to go on from; ``stored`` is one, if it is not None."""
    all_of_it = Past()
    if stored is not None:
        all_of_it = Past.of(stored.path, stored.manifest.provenance.command)
    for run in filter(None, (origins.start_generator, *origins.starts)):
        one = Past.of_run(run)
        all_of_it = all_of_it.then(one.commands, one.data)
    return all_of_it


def digest(folder: Path) -> str:
    """Return the sha256 of a folder's safetensors files."""
    sha256 = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        sha256.update(path.read_bytes())
    return sha256.hexdigest()
