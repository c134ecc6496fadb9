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
from condensery.store.pair_options import Options
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
    positive,
    renamed,
    vocabulary,
)
from condensery.store.refusals import MissingTensors
from condensery.store.writing import read_json

TRIMMED = "mistral_trimmed"  # the reference's name for the first layers of any backbone
USER = f"Background:\n{CONTEXT}\n\nQuestion:{QUESTION}"
QUESTION_ROOM = 64  # added to a passage's tokens where the question is read too
RERANK = "<RR>"
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "compr_bidirectional": (False, None),
    "lora": (True, None),
    "load_adapters": (True, None),
}


def read_cocom(path: Path, options: Options) -> PublishedPair:
    """Read a directory whose ``config.json`` says COCOM.

    Raises:
        StoreError: A file or a base model is missing, or the directory asks for what we don't do.
        CorruptModel: A file can't be read, or holds other tensors than it should.
    """
    return _Cocom(path, options).read()


class _Cocom:
    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self.config = config = read_json(path / "config.json")
        for name, allowed in UNSUPPORTED.items():
            if config.get(name) not in allowed:
                raise StoreError(f"config.json: {name} {config[name]!r} is not supported")
        self.passage = positive(config, "doc_max_length")
        self.memory = self.passage // positive(config, "compr_rate")
        if not self.memory:
            raise StoreError("config.json: compr_rate is larger than doc_max_length")
        distinct = config.get("different_mem_tokens", True)
        self.names = tuple(f"<MEM{i}>" for i in range(self.memory)) if distinct else ("<MEM>",)
        self.base = base_of(
            options.generator_base, config.get("decoder_model_name"), "generator_base", path.parent
        )
        extra = ("<AE>", "<ENC>", "<SEP>", *(["<KBTC>"] if config.get("kbtc_training") else []))
        self.tokenizer = self.base.tokenizer(*self.names, *extra)
        self.adapters = read_pickle(path / "adapters.pth")
        self.notes = [f"The generator's base was read from {self.base.path.resolve()}."]
        if config.get("quantization", "no") not in ("no", None):
            self.notes.append(
                f"It was trained on a base quantised to {config['quantization']}, "
                "and is stored unquantised."
            )

    def read(self) -> PublishedPair:
        ends = self._ends()
        generator = vocabulary(
            self.base.config, len(ends[EMBED]), self.tokenizer, "decoder_first_last_layers.pth"
        )
        decoder = self._adapter("decoder_adapter")
        tensors = [
            generator_tensors(self.base, ends, tied=is_tied(generator)),
            adapters_of(_only_adapters(decoder), "generator.network.", model=True),
        ]
        name = self.config.get("compr_model_name")
        if name is None:
            compressor, config, tokenizer, own = self._shared(ends[EMBED], generator)
        elif name == TRIMMED:
            compressor, config, tokenizer, own = self._trimmed()
        else:
            compressor, config, tokenizer, own = self._small()
        rank = positive(self.config, "lora_r")
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
        )

    def _ends(self) -> dict[str, Tensor]:
        """Return the generator's embeddings and head, wherever they are."""
        beside = {
            name: tensor
            for name, tensor in self._adapter("decoder_adapter").items()
            if name in (EMBED, "lm_head.weight")  # PEFT writes them after a resize
        }
        path = self.path / "decoder_first_last_layers.pth"
        ends = beside | read_tensors(path) if path.is_file() or not beside else beside
        if EMBED not in ends:
            raise MissingTensors(f"{path.name}: {EMBED} is missing")
        return ends

    def _adapter(self, name: str) -> dict[str, Tensor]:
        found = self.adapters.get(name)
        if not isinstance(found, dict):
            raise MissingTensors(f"adapters.pth: {name} is missing")
        return found

    def _shape(self, layout: Any, room: int, **more: Any) -> CompressorShape:
        """Return a compressor's shape; ``room`` is what its text takes beside the two texts."""
        asked = self.options.questions
        length = self.options.max_length or self.passage + (QUESTION_ROOM if asked else 0)
        return CompressorShape(
            layout=layout,
            question=asked,
            query_tokens=min(QUESTION_ROOM, max(1, length // 3)),
            text_tokens=length + room,
            memory_tokens=self.memory,
            memory_rows=len(self.names),
            rerank=bool(self.config.get("joint_reranking", False)),
            rounded_rope=self.options.rounded_rope,
            **more,
        )

    def _shared(
        self, table: Tensor, generator: dict[str, Any]
    ) -> tuple[CompressorShape, dict[str, Any], Tokenizer, Named]:
        """Take the decoder as its own compressor, with adapters of its own (PISCO)."""
        shape = self._shape(
            "enclosed",
            8 if self.options.questions else 3,
            text_before=f"<ENC>{self.base.special('bos_token')}",
            text_after=self.base.special("eos_token"),
            shared=True,
            adapter_scale=SCALE,
        )
        encoder = _only_adapters(self._adapter("encoder_adapter"))
        tensors = chain(
            self._slots(table, self.tokenizer, shape),
            adapters_of(encoder, "compressor.backbone.", model=False),
            self._rerank(shape),
        )
        return shape, generator, self.tokenizer, tensors

    def _trimmed(self) -> tuple[CompressorShape, dict[str, Any], Tokenizer, Named]:
        """Take the first layers of a backbone, or every n-th, without its last norm."""
        name = self.config.get("compr_base_model_name") or self.config.get("decoder_model_name")
        given = self.options.compressor_base
        if given is None and name == self.config.get("decoder_model_name"):
            given = self.base.path
        base = base_of(given, name, "compressor_base", self.path.parent)
        first, step = (self.config.get(f"compr_{n}") for n in ("n_layers", "every_n_layer"))
        if (first is None) == (step is None):
            raise StoreError(
                "config.json: give one of compr_n_layers and compr_every_n_layer, not "
                f"{first!r} and {step!r}"
            )
        if step is None:
            kept = range(positive(self.config, "compr_n_layers"))
        else:
            whole = configuration(base.config).num_hidden_layers
            kept = range(0, whole, positive(self.config, "compr_every_n_layer"))
        config = configuration(base.config, lambda whole: kept).to_dict()
        room = 8 if self.options.questions else 2
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
        name = self.config["compr_model_name"]
        base = base_of(self.options.compressor_base, name, "compressor_base", self.path.parent)
        layers = configuration(base.config).num_hidden_layers
        room = 3 if self.options.questions else 2  # so many special tokens may join the texts
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
            weights = chain(
                renamed((n, t) for n, t in _kept(base.tensors(), kept) if n != EMBED),
                iter([("compressor.backbone.embed_tokens.weight", table)]),
                adapters_of(_only_adapters(adapters), "compressor.backbone.", model=False),
            )
        else:
            found = dict(renamed(read_tensors(folder / "compressor.pth").items()))
            if "compressor.backbone.embed_tokens.weight" not in found:
                raise MissingTensors("compressor.pth: embed_tokens.weight is missing")
            table = found["compressor.backbone.embed_tokens.weight"]
            weights = iter(found.items())
        if not shape.final_norm:
            weights = ((n, t) for n, t in weights if n != "compressor.backbone.norm.weight")
        config = vocabulary(config, len(table), tokenizer, "the compressor's embed_tokens.weight")
        mapping: dict[str, Tensor] = {}
        if self.config.get("compr_use_mlp", True):
            mapping = read_tensors(folder / "mlp.pth")
            shape = replace(shape, mapping_size=positive(self.config, "compr_mlp_hidden_dim"))
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
    found = [tensor for name, tensor in tensors.items() if name.endswith(end) or name == "weight"]
    if len(found) != 1:
        raise MissingTensors(f"first_layer.pth: {end} is missing")
    return found[0]
