"""A memory encoder into a store: as adapters beside its base, or merged with it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from condensery.errors import InputError
from condensery.methods.llm2comp.weights import MemoryWeights
from condensery.methods.retriever.publishing import CONFIG, StoredDType
from condensery.methods.trainer.publishing import Publication, check_finite, publication
from condensery.networks.decoders import read_config
from condensery.networks.llm2comp import ROWS, table_name, without_windows
from condensery.networks.llm2comp_cost import MemoryCost
from condensery.networks.llm2comp_shape import KEYS, MEMORY, MemoryShape
from condensery.networks.llm2comp_texts import begin_texts, check_texts, reads
from condensery.networks.loading import build_pruned, own_name, pruning_of
from condensery.networks.weight_files import read_weights
from condensery.store.base_parts import KEY, BaseParts
from condensery.store.manifest import REPORT, Manifest, StoredModel
from condensery.store.sharding import write_weights
from condensery.store.store import ModelStore
from condensery.store.weights import open_folder, quantised
from condensery.store.writing import read_json

TOKENIZER = "tokenizer.json"


def publish_memory_encoder(
    store: ModelStore,
    base: StoredModel,
    manifest: Manifest,
    shape: MemoryShape,
    weights: MemoryWeights,
    *,
    merge: bool = False,
    dtype: StoredDType = "bfloat16",
    report: Mapping[str, Any] | None = None,
    card: str | None = None,
    plots: Sequence[Path] = (),
) -> StoredModel:
    """Publish what was trained, whole or not at all.

    Args:
        store: Its own root receives the model; it holds the base too, in either root, unless the
            two are merged.
        base: A causal language model: of kind ``language-model``, or an encoder made of one.
        manifest: Name, longest input (memory tokens included), prompts, normalisation, licence,
            provenance, quality; what the format decides is set here, and its cost where it says
            none; of ``shape`` the keys of others stay.
        shape: How it reads; the scale of its adapters must fit ``weights``.
        weights: What was trained.
        merge: Store a whole directory, adapters merged, that needs no base.
        dtype: What trained weights are stored in, merged all of them; int8 is for matrices.
        report: What it was measured at.
        card: The same for people, Markdown.
        plots: Pictures (PNG) for the card.

    Raises:
        InputError: A weight is not finite, or does not fit the base; named. Or the shape does
            not fit the base's tokenizer, or the longest input.
        CorruptModel: The base's weights can't be read, or are not those of its configuration.
        ModelNotFound: The store does not hold the base.
        StoreError: The store refused.
    """
    config = read_json(base.file(CONFIG))
    words = Tokenizer.from_file(str(base.file(TOKENIZER)))
    try:
        parts = _Parts.of(base, config, shape)
        parts.check(weights)
        # The base's own file serves where it puts the start token alone.
        tokenizer = words if reads(words, shape) else begin_texts(words, shape.start_token)
        check_texts(tokenizer, shape, parts.vocabulary, manifest.max_tokens)
    except ValueError as error:
        raise InputError(f"{manifest.name}: {error}", field="shape") from error
    tensors = weights.tensors(parts.table)
    check_finite(tensors)
    with publication() as model_files:
        if merge:
            shared = BaseParts({}, ())
            merged = parts.merged(base, weights, shape.adapter_scale)
            write_weights(_as_stored(merged, dtype), model_files.folder)
        else:
            shared = parts.shared(tensors, (TOKENIZER,) if tokenizer is words else ())
            write_weights(_as_stored(iter(tensors.items()), dtype), model_files.folder)
        model_files.add_written()
        if TOKENIZER not in shared.files:
            model_files.add(TOKENIZER, tokenizer.to_str())
        _add_about(model_files, parts, report, plots)
        manifest = _manifest(manifest, base, parts, shape, merge, dtype, shared)
        return model_files.publish(store, manifest, card)


def _add_about(
    model_files: Publication,
    parts: "_Parts",
    report: Mapping[str, Any] | None,
    plots: Sequence[Path],
) -> None:
    model_files.add(CONFIG, json.dumps(parts.config, indent=2, sort_keys=True) + "\n")
    if report is not None:
        model_files.add_json(REPORT, report)
    model_files.files.update({f"plots/{path.name}": path for path in plots})


def _manifest(
    manifest: Manifest,
    base: StoredModel,
    parts: "_Parts",
    shape: MemoryShape,
    merge: bool,
    dtype: str,
    shared: BaseParts,
) -> Manifest:
    """Return a manifest in which what the format decides is set."""
    own = shape.to_shape()
    if merge:
        own.pop("adapter_scale", None)
    others = {key: v for key, v in manifest.shape.items() if key not in (*KEYS, KEY)}
    about = {
        "architecture": type(parts.network).__name__,
        "dims": int(parts.network.config.hidden_size),
        "layers": int(parts.network.config.num_hidden_layers),
    }
    return manifest.model_copy(
        update={
            "kind": "encoder",
            "method": "llm2comp",
            "pooling": manifest.pooling or "mean",
            "dtype": dtype,
            "base": None if merge else base.name,
            "base_fingerprint": None if merge else base.manifest.fingerprint,
            "cost": manifest.cost or parts.cost(shape),
            "shape": {**others, **about, **own, **({} if merge else shared.to_shape())},
        }
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a memory encoder is made of, as its base has it.

    Attributes:
        network: The base model with memory tokens, its weights nowhere.
        config: Its ``config.json``.
        names: Its weights, each with its name in the base's files.
        table: Name of its embedding table.
        vocabulary: Rows of the base's table, and so the first memory token's id.
    """

    network: PreTrainedModel
    config: Mapping[str, Any]
    names: Mapping[str, str]
    table: str
    vocabulary: int

    @classmethod
    def of(cls, base: StoredModel, config: Mapping[str, Any], shape: MemoryShape) -> "_Parts":
        """Look at a base.

        Raises:
            ValueError: Its configuration is of no causal language model.
            CorruptModel: A weight is missing, or of another shape; named.
        """
        vocabulary = int(read_config(config).vocab_size)
        values = {k: v for k, v in config.items() if k != "auto_map"}
        values["vocab_size"] = vocabulary + shape.memory_tokens
        known = without_windows(read_config(values))
        network = build_pruned(known, pruning_of(values))
        values["architectures"] = [type(network).__name__]
        wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        table = table_name(network)
        wanted[table] = (vocabulary, *wanted[table][1:])
        names: dict[str, str] = {}
        wrong = []
        for name, tensor in read_weights(open_folder(base)):
            own = name if name in wanted else own_name(name, network)
            if own not in wanted:
                continue
            names[own] = name
            if tuple(tensor.shape) != wanted[own]:
                wrong.append(f"{name} is {tuple(tensor.shape)}, not {wanted[own]}")
        wrong += [f"{name} is missing" for name in wanted if name not in names]
        if wrong:
            raise ValueError(f"base {base.name}: {'; '.join(wrong[:5])}")
        return cls(network, values, names, table, vocabulary)

    def check(self, weights: MemoryWeights) -> None:
        """Check that trained weights fit.

        Raises:
            ValueError: One does not; named with its shape and the base's.
        """
        wrong = weights.adapters.problems(self.network)
        hidden = int(self.network.config.hidden_size)
        memory = int(self.network.config.vocab_size) - self.vocabulary
        for name, tensor, expected in (
            (f"{ROWS} ({MEMORY})", weights.memory, (memory, hidden)),
            (self.table, weights.table, (self.vocabulary, hidden)),
        ):
            if tensor is not None and tuple(tensor.shape) != expected:
                wrong.append(f"{name} is {tuple(tensor.shape)}, not {expected}")
        if wrong:
            raise ValueError("; ".join(wrong[:5]))

    def cost(self, shape: MemoryShape) -> dict[str, int]:
        """Return its parameters, and the FLOPs of a text where they can be counted."""
        parameters = sum(tensor.numel() for tensor in self.network.state_dict().values())
        try:
            return {**MemoryCost.of(self.config, shape).record(), "parameters": parameters}
        except ValueError:  # parts of the base are gone
            return {"parameters": parameters}

    def shared(self, own: Mapping[str, Tensor], files: tuple[str, ...]) -> BaseParts:
        """Return what is the base's, and not stored again."""
        return BaseParts({n: theirs for n, theirs in self.names.items() if n not in own}, files)

    def merged(
        self, base: StoredModel, weights: MemoryWeights, scale: float
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the whole network's weights, adapters merged."""
        own = {theirs: name for name, theirs in self.names.items()}
        for theirs, tensor in read_weights(open_folder(base), own.__contains__):
            name = own[theirs]
            layer = name.removesuffix(".weight")
            if name == self.table:
                words = tensor if weights.table is None else weights.table
                yield name, torch.cat([words.float(), weights.memory.float().cpu()])
            elif layer in weights.adapters.layers and layer != name:
                yield name, weights.adapters.merged(layer, tensor.float(), scale)
            else:
                yield name, tensor


def _as_stored(
    tensors: Iterator[tuple[str, Tensor]], dtype: StoredDType
) -> Iterator[tuple[str, Tensor]]:
    """Yield weights as they are written; of int8, memory rows and vectors stay float32."""
    for name, tensor in tensors:
        own = tensor.detach().cpu()
        if dtype != "int8":
            yield name, own.to(getattr(torch, dtype))
            continue
        rounded = [name] if own.ndim == 2 and name != ROWS else []
        yield from quantised({name: own.float()}, rounded).items()
