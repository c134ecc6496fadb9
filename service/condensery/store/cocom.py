"""``COCOM`` directories, as naver/oscar-* and naver/pisco-* ship them, without their code.

``config.json`` (``model_type`` COCOM), ``decoder_first_last_layers.pth``, ``adapters.pth`` and, for
a compressor of its own, ``compressor/`` with ``compressor.pth`` (or ``first_layer.pth`` and
``compressor_adapters.pth``) and ``mlp.pth``. Base models are not part of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from condensery.errors import StoreError
from condensery.networks.decoders import layer_name
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape, GeneratorShape
from condensery.store.language_models import CONTEXT, QUESTION, LanguageModel
from condensery.store.pair_options import PairOptions
from condensery.store.pickles import read_pickle, read_tensors
from condensery.store.published_pairs import (
    EMBED,
    SCALE,
    SYSTEM,
    Named,
    PublishedPair,
    adapters_of,
    base_of,
    chain,
    configuration,
    generator_tensors,
    is_tied,
    lengths,
    positive,
    renamed,
    vocabulary,
)
from condensery.store.refusals import MissingTensors
from condensery.store.writing import name_of, read_json

TRIMMED = "mistral_trimmed"  # the reference's name for the first layers of any backbone
USER = f"Background:\n{CONTEXT}\n\nQuestion:{QUESTION}"
ENDS, ADAPTERS = "decoder_first_last_layers.pth", "adapters.pth"
RERANK = "<RR>"
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "compr_bidirectional": (False, None),
    "lora": (True, None),
    "load_adapters": (True, None),
}


def read_cocom(path: Path, options: PairOptions) -> PublishedPair:
    """Read a directory whose ``config.json`` says COCOM.

    Raises:
        StoreError: A file or a base model is missing, or the directory asks for what we don't do.
        CorruptModel: A file can't be read, or holds other tensors than it should.
    """
    return _Cocom(path, options).read()


class _Cocom:
    def __init__(self, path: Path, options: PairOptions) -> None:
        self.path = path
        self.options = options
        self.config = config = read_json(path / "config.json")
        for name, allowed in UNSUPPORTED.items():
            if config.get(name) not in allowed:
                raise StoreError(f"{self._config}: {name} {config[name]!r} is not supported")
        self.passage = self._positive("doc_max_length")
        self.memory = self.passage // self._positive("compr_rate")
        if not self.memory:
            raise StoreError(
                f"{self._config}: compr_rate is larger than doc_max_length: "
                f"{config['compr_rate']} and {self.passage}"
            )
        distinct = config.get("different_mem_tokens", True)
        self.names = tuple(f"<MEM{i}>" for i in range(self.memory)) if distinct else ("<MEM>",)
        self.base = base_of(
            options.generator_base, config, "decoder_model_name", "generator_base", path
        )
        self.files = {  # by what tensors from there are named
            "generator.": f"the generator's base {self.base.path.name}",
            **dict.fromkeys(
                ("generator.network.lm_head.", "generator.network.model.embed_tokens."), ENDS
            ),
            "lora.": ADAPTERS,
        }
        extra = ("<AE>", "<ENC>", "<SEP>", *(["<KBTC>"] if config.get("kbtc_training") else []))
        self.tokenizer = self.base.tokenizer(*self.names, *extra)
        self.adapters = read_pickle(path / ADAPTERS)
        self.notes = [f"The generator's base was read from {self.base.path.resolve()}."]
        if config.get("quantization", "no") not in ("no", None):
            self.notes.append(
                f"It was trained on a base quantised to {config['quantization']}, "
                "and is stored unquantised."
            )

    def read(self) -> PublishedPair:
        ends = self._ends()
        generator = vocabulary(
            self.base.config,
            self.base.path / "config.json",
            len(ends[EMBED]),
            self.tokenizer,
            f"{ENDS}: {EMBED}",
        )
        decoder = self._adapter("decoder_adapter")
        tensors = [
            generator_tensors(self.base, ends, ENDS, tied=is_tied(generator)),
            adapters_of(_only_adapters(decoder), ADAPTERS, "generator.network.", model=True),
        ]
        name = self.config.get("compr_model_name")
        if name is None:
            compressor, config, tokenizer, own = self._shared(ends[EMBED], generator)
        elif name == TRIMMED:
            compressor, config, tokenizer, own = self._trimmed()
        else:
            compressor, config, tokenizer, own = self._small()
        rank = self._positive("lora_r")
        prompt = self.base.prompt(SYSTEM, USER)
        shape = CausalShape(
            compressor,
            GeneratorShape(
                before=prompt.before,
                between=prompt.between,
                after=prompt.after,
                strip=prompt.strip,
                memory=self.names,
                stop=self.base.stop,
                passage_after="<SEP>" if self.config.get("sep", True) else "",
                positions=int(generator.get("max_position_embeddings") or 2048),
                adapter_scale=SCALE,
            ),
        )
        own_rank = rank if compressor.shared else self.config.get("lora_r_compressor", rank)
        adapted = own_rank if compressor.adapter_scale else 0
        return PublishedPair(
            shape=shape,
            configs=(config, generator),
            tokenizers=(tokenizer, self.tokenizer),
            tensors=chain(*tensors, own),
            ranks=(adapted, rank),
            notes=tuple(self.notes),
            files=self.files,
        )

    @property
    def _config(self) -> str:
        """What messages call its ``config.json``."""
        return name_of(self.path / "config.json")

    def _positive(self, name: str) -> int:
        return positive(self.path / "config.json", self.config, name)

    def _ends(self) -> dict[str, Tensor]:
        """Return the generator's embeddings and head, wherever they are."""
        beside = {
            name: tensor
            for name, tensor in self._adapter("decoder_adapter").items()
            if name in (EMBED, "lm_head.weight")  # PEFT writes them after a resize
        }
        path = self.path / ENDS
        ends = beside | read_tensors(path) if path.is_file() or not beside else beside
        if EMBED not in ends:
            raise MissingTensors(f"{path.name}: {EMBED} is missing")
        return ends

    def _adapter(self, name: str) -> dict[str, Tensor]:
        adapter = self.adapters.get(name)
        if not isinstance(adapter, dict):
            raise MissingTensors(f"{ADAPTERS}: {name} is missing")
        return adapter

    def _shape(self, layout: Any, room: int, **more: Any) -> CompressorShape:
        """Return a compressor's shape; ``room`` is what its text takes beside the two texts."""
        length, query = lengths(self.options, self.passage)
        return CompressorShape(
            layout=layout,
            question=self.options.asks,
            query_tokens=query,  # for the rates that are reported: no question is cut to it
            text_tokens=length + room,
            memory_tokens=self.memory,
            memory_rows=len(self.names),
            rerank=bool(self.config.get("joint_reranking", False)),
            rounded_rope=bool(self.options.rounded_rope),
            **more,
        )

    def _shared(
        self, table: Tensor, generator: dict[str, Any]
    ) -> tuple[CompressorShape, dict[str, Any], Tokenizer, Named]:
        """Take the decoder as its own compressor, with adapters of its own (PISCO)."""
        if self.options.compressor_base is not None:
            raise StoreError(
                f"--compressor-base {self.options.compressor_base} does not apply: in "
                f"{self._config} compr_model_name is null, so the generator is its own compressor",
                field="compressor_base",
                value=str(self.options.compressor_base),
            )
        self.files["compressor."] = ENDS
        shape = self._shape(
            "enclosed",
            8 if self.options.asks else 3,
            text_before=f"<ENC>{self.base.special('bos_token')}",
            text_after=self.base.special("eos_token"),
            shared=True,
            adapter_scale=SCALE,
        )
        encoder = _only_adapters(self._adapter("encoder_adapter"))
        tensors = chain(
            self._slots(table, self.tokenizer, shape),
            adapters_of(encoder, ADAPTERS, "compressor.backbone.", model=False),
            self._rerank(shape),
        )
        return shape, generator, self.tokenizer, tensors

    def _trimmed(self) -> tuple[CompressorShape, dict[str, Any], Tokenizer, Named]:
        """Take the first layers of a backbone, or every n-th, without its last norm."""
        key = "compr_base_model_name"
        directory = self.options.compressor_base
        decoder = self.config.get("decoder_model_name")
        if directory is None and self.config.get(key) in (None, "", decoder):
            directory = self.base.path
        base = base_of(directory, self.config, key, "compressor_base", self.path)
        file = base.path / "config.json"
        first, step = (self.config.get(f"compr_{n}") for n in ("n_layers", "every_n_layer"))
        if (first is None) == (step is None):
            raise StoreError(
                f"{self._config}: give one of compr_n_layers and compr_every_n_layer, not "
                f"{first!r} and {step!r}"
            )
        if step is None:
            kept = range(self._positive("compr_n_layers"))
        else:
            whole = configuration(base.config, file).num_hidden_layers
            kept = range(0, whole, self._positive("compr_every_n_layer"))
        config = configuration(base.config, file, lambda whole: kept).to_dict()
        room = 8 if self.options.asks else 2
        shape = self._shape("joined", room, final_norm=bool(self.config.get("compr_rms_norm")))
        if not base.pads_left:
            # Memory tokens stood behind the padding, in training and ever since.
            shape = replace(shape, slots_at=shape.text_tokens)
            self.notes.append(
                "The compressor's tokenizer pads on the right, so its memory tokens stand at "
                f"position {shape.slots_at}, whatever the text's length."
            )
        return self._own(shape, base, config, kept)

    def _small(self) -> tuple[CompressorShape, dict[str, Any], Tokenizer, Named]:
        """Take another language model."""
        base = base_of(
            self.options.compressor_base,
            self.config,
            "compr_model_name",
            "compressor_base",
            self.path,
        )
        layers = configuration(base.config, base.path / "config.json").num_hidden_layers
        room = 3 if self.options.asks else 2  # so many special tokens may join the texts
        return self._own(self._shape("pair", room), base, base.config, range(layers))

    def _own(
        self, shape: CompressorShape, base: LanguageModel, config: dict[str, Any], kept: range
    ) -> tuple[CompressorShape, dict[str, Any], Tokenizer, Named]:
        """Read a compressor that has files of its own."""
        folder = self.path / "compressor"
        self.notes.append(f"The compressor's base was read from {base.path.resolve()}.")
        tokenizer = base.tokenizer(*self.names, *([RERANK] if shape.rerank else []))
        if self.config.get("lora_compressor"):
            shape = replace(shape, adapter_scale=SCALE)
            table = _only(read_tensors(folder / "first_layer.pth"), "embed_tokens.weight")
            adapters = read_pickle(folder / "compressor_adapters.pth")
            adapters = adapters.get("compr_adapter", adapters)
            file = "compressor/first_layer.pth"
            self.files |= {
                "compressor.": f"the compressor's base {base.path.name}",
                "compressor.backbone.embed_tokens.": file,
                "lora.compressor.": "compressor/compressor_adapters.pth",
            }
            weights = chain(
                renamed((n, t) for n, t in _kept(base.tensors(), kept) if n != EMBED),
                iter([("compressor.backbone.embed_tokens.weight", table)]),
                adapters_of(
                    _only_adapters(adapters),
                    "compressor/compressor_adapters.pth",
                    "compressor.backbone.",
                    model=False,
                ),
            )
        else:
            file = "compressor/compressor.pth"
            self.files["compressor."] = file
            stored = dict(renamed(read_tensors(folder / "compressor.pth").items()))
            if "compressor.backbone.embed_tokens.weight" not in stored:
                raise MissingTensors(f"{file}: embed_tokens.weight is missing")
            table = stored["compressor.backbone.embed_tokens.weight"]
            weights = iter(stored.items())
        if not shape.final_norm:
            weights = ((n, t) for n, t in weights if n != "compressor.backbone.norm.weight")
        self.files |= {
            "compressor.mapping.": "compressor/mlp.pth",
            "compressor.rerank.": "compressor/ranking_head.pth",
        }
        config = vocabulary(
            config,
            base.path / "config.json",
            len(table),
            tokenizer,
            f"{file}: embed_tokens.weight",
        )
        mapping: dict[str, Tensor] = {}
        if self.config.get("compr_use_mlp", True):
            mapping = read_tensors(folder / "mlp.pth")
            shape = replace(shape, mapping_size=self._positive("compr_mlp_hidden_dim"))
        tensors = chain(
            weights,
            self._slots(table, tokenizer, shape),
            ((f"compressor.mapping.{name}", tensor) for name, tensor in mapping.items()),
            self._rerank(shape),
        )
        return shape, config, tokenizer, tensors

    def _slots(self, table: Tensor, tokenizer: Tokenizer, shape: CompressorShape) -> Named:
        names = (*self.names, *([RERANK] if shape.rerank else []))
        rows = [tokenizer.token_to_id(name) for name in names]
        yield "compressor.slots.weight", table[rows]

    def _rerank(self, shape: CompressorShape) -> Named:
        if shape.rerank:
            for name, tensor in read_tensors(self.path / "compressor/ranking_head.pth").items():
                yield f"compressor.rerank.{name}", tensor


def _kept(tensors: Named, kept: range) -> Named:
    for name, tensor in tensors:
        short = layer_name(name, kept)
        if short is not None:
            yield short, tensor


def _only_adapters(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leave out both ends, which PEFT writes after a resize."""
    ends = ("embed_tokens.weight", "lm_head.weight")
    return ((name, tensor) for name, tensor in tensors.items() if not name.endswith(ends))


def _only(tensors: dict[str, Tensor], end: str) -> Tensor:
    matches = [tensor for name, tensor in tensors.items() if name.endswith(end) or name == "weight"]
    if len(matches) != 1:
        raise MissingTensors(f"compressor/first_layer.pth: {end} is missing")
    return matches[0]
