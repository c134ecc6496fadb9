"""LLM2Comp's published checkpoints into the store: ``mp_rank_00_model_states.pt`` of any stage.

DeepSpeed writes a training's whole network: the language model within one PEFT wrapper a stage, of
which the earlier ones are merged already, and of the first stage the frozen language model once
more. Neither configuration nor tokenizer is beside it: they are the base's.
"""

import json
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from condensery.errors import CorruptModel, StoreError
from condensery.networks.adapters import Adapters
from condensery.networks.dtypes import dtype_name
from condensery.networks.llm2comp import table_name, without_windows
from condensery.networks.llm2comp_shape import MemoryShape
from condensery.networks.llm2comp_texts import begin_texts, check_texts, reads, start_token
from condensery.networks.loading import build_pruned, own_name, pruning_of
from condensery.store.language_models import LanguageModel
from condensery.store.layouts import longest_input, prose_of, read_licence
from condensery.store.manifest import Manifest, Provenance, StoredModel
from condensery.store.pickles import read_training_state
from condensery.store.published_pairs import configuration
from condensery.store.refusals import MisshapenTensors, MissingTensors, UnknownTensors, listed
from condensery.store.retriever_options import STATES, RetrieverOptions, find_states
from condensery.store.sharding import write_weights
from condensery.store.store import ModelStore
from condensery.store.writing import name_of

MODULE = "module"
STAGES = ("pretext compression", "unsupervised contrast", "supervised contrast")
# The network's own names are behind as many wrappers as there were stages.
NAME = re.compile(r"^model\.(?:encoder\.)?((?:base_model\.model\.)*)(.+)$")
FROZEN = "origin_model."  # the language model as it was, which the first stage teaches by
FACTOR = re.compile(r"^(.+)\.lora_([AB])\.[^.]+\.weight$")
RANK, SCALE = 16, 2.0  # of the published code; the scale (alpha 32) is not in the file
PUBLISHED_TOKENS = 512
HEAD = "lm_head."


def import_checkpoint(
    store: ModelStore,
    path: Path,
    name: str,
    *,
    normalize: bool | None = None,
    options: RetrieverOptions | None = None,
) -> StoredModel:
    """Import a directory in which ``find_states`` finds a file, adapters merged.

    Args:
        store: Where to.
        path: The directory.
        name: The name to store it under.
        normalize: Whether vectors are scaled to length 1; by default they are, since the losses
            compare cosines.
        options: Its ``base``, the language model's directory, is needed: the checkpoint names
            none. Its prompt for queries, by default none, and the longest input, memory tokens
            included, by default 512.

    Raises:
        StoreError: A file is missing, or the base is none for it; named.
        CorruptModel: The checkpoint is cut short, or its weights are not the base's network's.
    """
    options = options or RetrieverOptions()
    file = find_states(path)
    if file is None:
        raise StoreError(f"{path.name}: holds no {STATES}")
    if options.base is None:
        raise StoreError(
            f"{name_of(file)}: is a checkpoint without a configuration or tokenizer: name its "
            "language model's directory by --base",
            field="base",
        )
    checkpoint = _Checkpoint(file, LanguageModel(options.base, "base"), options)
    notes = list(checkpoint.notes)
    if normalize is None:
        notes.append("The checkpoint declares no normalisation; vectors are normalised.")
    licences = {read_licence(folder / "README.md") for folder in (path, options.base)}
    if "unknown" in licences:
        notes.append("No licence is stated in the model card's front matter.")
    aside = store.own / f".{name}-{secrets.token_hex(4)}.partial"
    try:
        aside.mkdir(parents=True)
        files = checkpoint.write(aside)
        manifest = Manifest(
            name=name,
            kind="encoder",
            method="llm2comp",
            prompts=checkpoint.prompts,
            pooling="mean",
            normalize=True if normalize is None else normalize,
            max_tokens=checkpoint.max_tokens,
            dtype=checkpoint.dtype,
            shape=checkpoint.about,
            licence=" and ".join(sorted(licences - {"unknown"})) or "unknown",
            provenance=Provenance(source=str(path.resolve()), notes=tuple(notes)),
            cost={"parameters": checkpoint.parameters},
        )
        return store.publish(files | prose_of(path), manifest)
    except OSError as error:
        raise StoreError(
            f"model {name!r} can't be written to the store: {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Checkpoint:
    """One checkpoint, read, with the base that its network was made of."""

    def __init__(self, file: Path, base: LanguageModel, options: RetrieverOptions) -> None:
        self.file = file
        self.base = base
        self.weights, self.stage = self._weights()
        # The base's own: LLM2Comp reads all of a text, whatever window it has.
        config = without_windows(configuration(base.config, base.path / "config.json"))
        self.shape, self.config, self.network = self._network(config)
        self.table = table_name(self.network)
        self.adapters = self._adapters()
        self.vocabulary = int(self.config.vocab_size) - self.shape.memory_tokens
        self.max_tokens = self._longest(options)
        self.tokenizer = self._tokenizer()
        query = options.query_prompt
        self.prompts = {} if query is None else {"query": query, "document": ""}
        self.parameters, self.dtype = 0, "float32"

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided or ignored, one sentence each."""
        stage = STAGES[self.stage - 1] if self.stage else "no stage: its weights are plain"
        adapters = (
            f"Its adapters were merged at a scale of {SCALE:g}, which the published code has."
            if self.adapters.layers
            else "It has no adapters."
        )
        source = self.base.path.resolve()
        return f"A checkpoint of {stage}; its configuration and words are {source}'s.", adapters

    @property
    def about(self) -> dict[str, object]:
        """What the manifest says of it."""
        about = {
            "architecture": type(self.network).__name__,
            "dims": int(self.config.hidden_size),
            "layers": int(self.config.num_hidden_layers),
        }
        return about | self.shape.to_shape()

    def write(self, folder: Path) -> dict[str, Path]:
        """Write configuration, tokenizer and weights; returns files by their stored names."""
        values = {k: v for k, v in self.base.config.items() if k != "auto_map"}
        values |= {
            "architectures": [type(self.network).__name__],
            "vocab_size": int(self.config.vocab_size),
        }
        (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
        (folder / "tokenizer.json").write_text(self.tokenizer.to_str(), encoding="utf-8")
        write_weights(self._merged(), folder)
        return {path.name: path for path in folder.iterdir()}

    def _weights(self) -> tuple[dict[str, Tensor], int]:
        """Return the network's tensors by their names in it, and which stage wrote them."""
        weights: dict[str, Tensor] = {}
        wrappers: Counter[int] = Counter()
        unknown = []
        for full, tensor in read_training_state(self.file, MODULE).items():
            match = NAME.match(full)
            if full.startswith(FROZEN):
                continue
            if match is None:
                unknown.append(full)
                continue
            wrappers[match[1].count("base_model.")] += 1
            weights[match[2]] = tensor
        if unknown:
            raise UnknownTensors(
                f"{self._where}: {listed(unknown)}: not of a network of LLM2Comp's"
            )
        if len(wrappers) != 1 or max(wrappers) > len(STAGES):
            raise UnknownTensors(
                f"{self._where}: tensors are in {sorted(wrappers)} wrappers of PEFT's; each stage "
                f"adds one to all, up to {len(STAGES)}"
            )
        return weights, next(iter(wrappers))

    def _network(
        self, config: PretrainedConfig
    ) -> tuple[MemoryShape, PretrainedConfig, PreTrainedModel]:
        """Build the base's network with as many memory tokens as the table has rows for."""
        name = next((n for n in self.weights if n.endswith("embed_tokens.weight")), None)
        if name is None:
            raise MissingTensors(f"{self._where}: embed_tokens.weight is missing")
        rows, vocabulary = len(self.weights[name]), int(config.vocab_size)
        if rows <= vocabulary:
            raise MisshapenTensors(
                f"{self._where}: {name} has {rows} rows, and the base {self.base.path.name} a "
                f"vocab_size of {vocabulary}: there are none for memory tokens"
            )
        start = start_token(self.base.tokenizer())
        if start is None:
            raise StoreError(
                f"base: {name_of(self.base.path / 'tokenizer.json')}: puts no start token before a"
                " text, and LLM2Comp's were trained with one",
                field="base",
                value=str(self.base.path),
            )
        shape = MemoryShape(memory_tokens=rows - vocabulary, start_token=start)
        grown = without_windows(
            configuration({**self.base.config, "vocab_size": rows}, self.base.path / "config.json")
        )
        try:
            return shape, grown, build_pruned(grown, pruning_of(grown))
        except ValueError as error:
            raise StoreError(f"{name_of(self.base.path / 'config.json')}: {error}") from error

    def _adapters(self) -> Adapters:
        """Take the adapters out of the weights."""
        adapters = Adapters()
        for name in list(self.weights):
            if match := FACTOR.match(name):
                tensor = self.weights.pop(name)
                layer = own_name(match[1], self.network)
                adapters.take(f"{layer}.lora_{match[2]}", tensor)
                if not bool(torch.isfinite(tensor).all()):
                    raise CorruptModel(f"{self._where}: {name}: holds values that are not finite")
        if problems := adapters.problems(self.network):
            raise MisshapenTensors(f"{self._where}: {listed(problems)}")
        ranks = {len(down) for down in adapters.down.values()}
        if ranks - {RANK}:
            raise StoreError(
                f"{self._where}: its adapters have the ranks {sorted(ranks)}; the scale of any but "
                f"the published code's {RANK} is not in the file"
            )
        return adapters

    def _longest(self, options: RetrieverOptions) -> int:
        longest = longest_input(self.base.config, {})
        if options.max_tokens is not None and options.max_tokens > longest:
            raise StoreError(
                f"--max-tokens {options.max_tokens} is too long: the network has {longest} "
                "positions",
                field="max_tokens",
                value=options.max_tokens,
            )
        return min(longest, options.max_tokens or PUBLISHED_TOKENS)

    def _tokenizer(self) -> Tokenizer:
        words = self.base.tokenizer()
        tokenizer = (
            words if reads(words, self.shape) else begin_texts(words, self.shape.start_token)
        )
        try:
            check_texts(tokenizer, self.shape, self.vocabulary, self.max_tokens)
        except ValueError as error:
            raise StoreError(f"base {self.base.path.name}: {error}") from error
        return tokenizer

    def _merged(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what the network has, adapters merged; after the last, say what was wrong."""
        wanted: Mapping[str, tuple[int, ...]] = {
            name: tuple(tensor.shape) for name, tensor in self.network.state_dict().items()
        }
        left, wrong, unknown = dict(wanted), [], []
        counts: Counter[str] = Counter()
        for name, tensor in self.weights.items():
            plain = name.replace(".base_layer.", ".")
            own = own_name(plain, self.network)
            if plain.startswith(HEAD) or plain.endswith("rotary_emb.inv_freq"):
                continue
            shape = left.pop(own, None)
            if shape is None:
                unknown.append(name)
            elif shape != tuple(tensor.shape):
                wrong.append(f"{name} is {tuple(tensor.shape)}, not {shape}")
            elif not bool(torch.isfinite(tensor).all()):
                raise CorruptModel(f"{self._where}: {name}: holds values that are not finite")
            else:
                counts[dtype_name(tensor.dtype)] += tensor.numel()
                yield own, self._adapted(own, tensor)
        beside = f"the base {self.base.path.name}"
        if wrong:
            raise MisshapenTensors(f"{self._where}: {listed(wrong)} as {beside} has it")
        if unknown:
            raise UnknownTensors(f"{self._where}: {listed(unknown)}: {beside} has no such weight")
        if left:
            raise MissingTensors(f"{self._where}: {listed(sorted(left))} missing, of {beside}")
        self.parameters = counts.total()
        self.dtype = counts.most_common(1)[0][0]

    def _adapted(self, name: str, weight: Tensor) -> Tensor:
        layer = name.removesuffix(".weight")
        if layer == name or layer not in self.adapters.layers:
            return weight
        return self.adapters.merged(layer, weight, SCALE)

    @property
    def _where(self) -> str:
        """What messages call the file."""
        return name_of(self.file)
