"""Retrievers made of language models, whole or with parts gone, into the store.

Read are directories in transformers' layout, with LLM-Drop's lists or our widths in
``config.json``, and PEFT's LoRA directories on a base of either kind, as EffiR is published.
Adapters are merged and what is dropped or not used is left out.
"""

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel

from condensery.errors import CorruptModel, StoreError, shorten
from condensery.networks.adapters import Adapters
from condensery.networks.dtypes import dtype_name
from condensery.networks.effir_shape import KEYS, Pruning
from condensery.networks.loading import build_pruned, own_name
from condensery.store.language_models import (
    LanguageModel,
    end_texts,
    ends_texts,
    named_directory,
)
from condensery.store.layouts import longest_input, prose_of, read_licence
from condensery.store.manifest import EndToken, Manifest, Pooling, Provenance, StoredModel
from condensery.store.pickles import read_module_weight
from condensery.store.published_adapters import find_weights, read_adapters
from condensery.store.refusals import MisshapenTensors, MissingTensors, listed
from condensery.store.retriever_options import ADAPTER, RetrieverOptions
from condensery.store.sharding import write_weights
from condensery.store.store import ModelStore
from condensery.store.writing import name_of, read_json

# What the published EffiR retrievers read before a query; passages are read as they are.
QUERY_PROMPT = "<instruct>Given a query, retrieve relevant passages that answer the query.\n<query>"
PUBLISHED_TOKENS = 512
INPUT, HEAD = "embedding/input_emb.pth", "embedding/lm_head.pth"


def import_retriever(
    store: ModelStore,
    path: Path,
    name: str,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    options: RetrieverOptions | None = None,
) -> StoredModel:
    """Import a directory that ``is_retriever`` knows.

    Args:
        store: Where to.
        path: The directory.
        name: The name to store it under.
        pooling: Of token vectors; by default a causal model's last token, of others the mean.
        normalize: Whether vectors are scaled to length 1; by default they are.
        options: What else it does not say.

    Raises:
        StoreError: A file is missing, or asks for what we don't do; named.
        CorruptModel: Weights are missing, of another shape, or not finite; named.
    """
    options = options or RetrieverOptions()
    retriever = _Retriever(path, options)
    chosen: Pooling = pooling or ("last" if retriever.causal else "mean")
    if pooling is None:
        retriever.notes.append(f"The directory declares no pooling; {chosen} was taken.")
    if normalize is None:
        retriever.notes.append("The directory declares no normalisation; vectors are normalised.")
    end_token = retriever.end_texts(chosen, options.add_eos)
    aside = store.own / f".{name}-{secrets.token_hex(4)}.partial"
    try:
        aside.mkdir(parents=True)
        files = retriever.write(aside)
        manifest = Manifest(
            name=name,
            kind="encoder",
            method="none" if retriever.pruning.dense else "effir",
            prompts={} if retriever.prompt is None else {"query": retriever.prompt, "document": ""},
            pooling=chosen,
            normalize=True if normalize is None else normalize,
            max_tokens=retriever.max_tokens,
            end_token=end_token,
            dtype=retriever.dtype,
            shape=retriever.shape,
            licence=retriever.licence,
            provenance=Provenance(source=str(path.resolve()), notes=tuple(retriever.notes)),
            cost={"parameters": retriever.parameters},
        )
        return store.publish(files | prose_of(path), manifest)
    except OSError as error:
        raise StoreError(
            f"model {name!r} can't be written to the store: {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Retriever:
    """One directory, read: a base model, what is left of it, and perhaps an adapter."""

    def __init__(self, path: Path, options: RetrieverOptions) -> None:
        self.path = path
        self.notes: list[str] = []
        self.adapters, self.scale = Adapters(), 1.0
        self.adapted = (path / ADAPTER).is_file()
        self.base = self._base(options.base) if self.adapted else LanguageModel(path, "path")
        self.embedding = self._embedding()
        self.values = self._configuration()
        self.config: PretrainedConfig = CONFIG_MAPPING[self.values["model_type"]].from_dict(
            self.values
        )
        try:
            self.pruning = Pruning.from_config(self.values)
            self.network: PreTrainedModel = build_pruned(self.config, self.pruning)
        except (ValueError, TypeError) as error:
            raise StoreError(f"{self.told_by}: {error}") from error
        own = (path / "tokenizer.json").is_file()
        self.words = LanguageModel(path, "path") if own else self.base
        self.tokenizer = self._tokenizer()
        if self.adapted:
            self.adapters, self.scale = read_adapters(path, f"{self.network.base_model_prefix}.")
            if problems := self.adapters.problems(self.network):
                raise MisshapenTensors(
                    f"{name_of(find_weights(path))}: the adapter does not fit: {listed(problems)}"
                )
        self.prompt = options.query_prompt
        if self.prompt is None and self.adapted:
            self.prompt = QUERY_PROMPT
        licences = {read_licence(folder / "README.md") for folder in (path, self.base.path)}
        known = licences - {"unknown"}
        self.licence = " and ".join(sorted(known)) or "unknown"
        if "unknown" in licences:
            self.notes.append("No licence is stated in the model card's front matter.")
        file = path / "tokenizer_config.json"
        longest = longest_input(self.values, read_json(file) if file.is_file() else {})
        if options.max_tokens is not None and options.max_tokens > longest:
            raise StoreError(
                f"--max-tokens {options.max_tokens} is too long: network and tokenizer allow "
                f"{longest}",
                field="max_tokens",
                value=options.max_tokens,
            )
        usual = PUBLISHED_TOKENS if self.adapted else longest
        self.max_tokens = min(longest, options.max_tokens or usual)
        self.parameters, self.dtype = 0, "float32"

    @property
    def causal(self) -> bool:
        """Whether its tokens see only those before them."""
        return getattr(self.config, "is_decoder", False) or any(
            getattr(module, "is_causal", False) for module in self.network.modules()
        )

    @property
    def end(self) -> str:
        """The token that ends a text."""
        try:
            return self.base.special("eos_token")
        except StoreError:
            ids = self.values.get("eos_token_id")
            first = ids[0] if isinstance(ids, list) and ids else ids
            token = self.tokenizer.id_to_token(first) if isinstance(first, int) else None
            if token is None:
                raise
            return str(token)

    def end_texts(self, pooling: Pooling, add_eos: bool | None) -> EndToken:
        """Have texts end with the end token, or leave them as the tokenizer does it.

        Args:
            pooling: The import's.
            add_eos: The import's; None decides by the pooling.

        Raises:
            StoreError: The token is to be added, and the directory names none that there is.
        """
        wanted = add_eos if add_eos is not None else pooling == "last" and not self.adapted
        try:
            end = self.end
        except StoreError:
            if wanted:
                raise
            return "none"
        if ends_texts(self.tokenizer, end):
            return "tokenizer"
        if wanted:
            end_texts(self.tokenizer, end)
            self.notes.append("The tokenizer did not end texts; its end token was added.")
            return "added"
        self.notes.append(f"The tokenizer ends no text with {end}, and none was added.")
        if self.words.says_add_eos and add_eos is None:
            self.notes.append(
                f"{self.words.path.name}/tokenizer_config.json says add_eos_token true, which "
                "transformers 5 ignores beside a tokenizer.json; --add-eos does as it says."
            )
        return "none"

    @property
    def shape(self) -> dict[str, Any]:
        """What the manifest says of it."""
        about = {
            "architecture": type(self.network).__name__,
            "dims": int(self.config.hidden_size),
            "layers": int(self.config.num_hidden_layers),
        }
        return about if self.pruning.dense else about | self.pruning.to_config()

    def write(self, folder: Path) -> dict[str, Path]:
        """Write configuration, tokenizer and weights; returns files by their stored names."""
        values = {k: v for k, v in self.values.items() if k not in ("auto_map", *KEYS)}
        values["architectures"] = [type(self.network).__name__]
        if not self.pruning.dense:
            values |= self.pruning.to_config()
        (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
        (folder / "tokenizer.json").write_text(self.tokenizer.to_str(), encoding="utf-8")
        write_weights(self._weights(), folder)
        return {path.name: path for path in folder.iterdir()}

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what the network has, adapters merged; after the last, say what was wrong."""
        wanted = {name: tuple(t.shape) for name, t in self.network.state_dict().items()}
        table = _table_name(self.network)
        wrong: list[str] = []
        counts: dict[str, int] = {}
        for name, tensor in self.base.tensors():
            own = own_name(name, self.network)
            if own not in wanted:
                continue  # the head, the pooler, what is dropped
            shape = wanted.pop(own)
            weight, file = tensor, self.base.path.name
            if own == table and self.embedding is not None:
                weight, file = self.embedding, f"{self.path.name}/{INPUT}"
            if tuple(weight.shape) != shape:
                wrong.append(f"{file}: {name} is {tuple(weight.shape)}, not {shape}")
                continue
            if not bool(torch.isfinite(weight).all()):
                raise CorruptModel(f"{file}: {name}: holds values that are not finite")
            weight = self._merged(own, weight)
            self.parameters += weight.numel()
            dtype = dtype_name(weight.dtype)
            counts[dtype] = counts.get(dtype, 0) + weight.numel()
            yield own, weight
        if wrong:
            raise MisshapenTensors(listed(wrong))
        if wanted:
            raise MissingTensors(f"{self.base.path.name}: {listed(sorted(wanted))} missing")
        self.dtype = max(counts, key=lambda dtype: counts[dtype])

    def _merged(self, name: str, weight: Tensor) -> Tensor:
        layer = name.removesuffix(".weight")
        if layer not in self.adapters.layers or layer == name:
            return weight
        down, up = self.adapters.down[layer], self.adapters.up[layer]
        if not bool(torch.isfinite(down).all() and torch.isfinite(up).all()):
            file = name_of(find_weights(self.path))
            raise CorruptModel(f"{file}: {layer}: its adapter is not finite")
        return self.adapters.merged(layer, weight, self.scale)

    def _base(self, path: Path | None) -> LanguageModel:
        named = read_json(self.path / ADAPTER).get("base_model_name_or_path")
        path = path or named_directory(named, self.path)
        if path is None:
            raise StoreError(
                f"{name_of(self.path / ADAPTER)}: base_model_name_or_path {shorten(named)} is a "
                "base model that is neither in the directory nor beside it, and nothing is "
                "downloaded: name its own directory by --base",
                field="base",
                value=named,
            )
        self.notes.append(f"The adapter was merged into {path.resolve()}.")
        return LanguageModel(path, "base")

    def _embedding(self) -> Tensor | None:
        """Return the word table that a LoRA directory brings, as the reference takes it."""
        both = [(self.path / name).is_file() for name in (INPUT, HEAD)]
        if self.adapted and all(both):
            self.notes.append(f"The word embeddings are those of {INPUT}.")
            return read_module_weight(self.path / INPUT)
        if self.adapted and any(both):
            self.notes.append(
                f"Of {INPUT} and {HEAD} only one is there; as the published code does, the "
                "base's word embeddings were kept."
            )
        return None

    def _configuration(self) -> dict[str, Any]:
        values = dict(self.base.config)
        kind = values.get("model_type")
        if kind not in CONFIG_MAPPING:
            raise StoreError(
                f"{self.base.path.name}/config.json: model_type {kind!r} is not one that "
                "transformers has"
            )
        own = self.path / "config.json"
        self.told_by = name_of(self.base.path / "config.json")
        if self.adapted and own.is_file():  # the lists may stand beside the adapter
            lists = {k: v for k, v in read_json(own).items() if k in KEYS and v is not None}
            self.told_by = f"{name_of(own)} on {self.told_by}" if lists else self.told_by
            values |= lists
        if self.embedding is not None:
            values["vocab_size"] = len(self.embedding)
        return values

    def _tokenizer(self) -> Tokenizer:
        own = self.words.path
        tokenizer = self.words.tokenizer()
        tokens, rows = tokenizer.get_vocab_size(with_added_tokens=True), self.config.vocab_size
        if tokens > rows:
            raise StoreError(
                f"{own.name}/tokenizer.json: has {tokens} tokens, but the embedding {rows} rows "
                f"({f'vocab_size in {self.told_by}' if self.embedding is None else INPUT})"
            )
        return tokenizer


def _table_name(network: PreTrainedModel) -> str:
    table = network.get_input_embeddings()
    return next(f"{name}.weight" for name, module in network.named_modules() if module is table)
