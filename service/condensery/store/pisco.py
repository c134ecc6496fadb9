"""``PISCO`` directories, as the code of naver/pisco (2026) writes them.

``config.json`` (``model_type`` PISCO), ``decoder_state.pt``, ``connector.pt``, ``compressor/`` (a
whole causal language model), ``compressor_tokenizer/`` and ``decoder_tokenizer/``. The decoder's
base is not part of it. A passage becomes one vector for every ``compr_rate`` tokens, and one more.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from condensery.errors import StoreError
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape, GeneratorShape
from condensery.store.language_models import CONTEXT, QUESTION, ChatPrompt, LanguageModel
from condensery.store.pair_options import PairOptions
from condensery.store.pickles import read_tensors
from condensery.store.published_pairs import (
    EMBED,
    HEAD,
    SCALE,
    SYSTEM,
    PublishedPair,
    adapters_of,
    base_of,
    chain,
    generator_tensors,
    is_tied,
    lengths,
    plain,
    positive,
    renamed,
    vocabulary,
)
from condensery.store.refusals import MissingTensors
from condensery.store.writing import read_json

MEMORY = "<MEM>"
USER = f"\n\nBackground:{CONTEXT}\n Question: {QUESTION}"
STATE = "decoder_state.pt"
PASSAGE = 128  # tokens; the directory does not say
TABLE = "compressor.backbone.embed_tokens.weight"
# Where each part of the weights comes from, for messages.
FILES = {
    "generator.network.model.embed_tokens.": STATE,
    "generator.network.lm_head.": STATE,
    "lora.": STATE,
    "compressor.": "compressor",
    "compressor.mapping.": "connector.pt",
}


def read_pisco(path: Path, options: PairOptions) -> PublishedPair:
    """Read a directory whose ``config.json`` says PISCO.

    Raises:
        StoreError: A file or the base model is missing, or a value is not one we know.
        CorruptModel: A file can't be read, or holds other tensors than it should.
    """
    _refuse_compressor_base(path, options)
    file = path / "config.json"
    config = read_json(file)
    adapted = bool(config.get("lora_decoder", True))
    rank = positive(file, config, "lora_r_decoder", 64)
    compressor_shape = _compressor_shape(file, config, options)
    base = base_of(options.generator_base, config, "decoder_model_name", "generator_base", path)
    decoder = LanguageModel(path / "decoder_tokenizer", "decoder_tokenizer")
    tokenizer = decoder.tokenizer()
    state = read_tensors(path / STATE)
    ends = _ends(state)
    generator = vocabulary(
        base.config, base.path / "config.json", len(ends[EMBED]), tokenizer, f"{STATE}: {EMBED}"
    )
    compressor = LanguageModel(path / "compressor", "compressor")
    name = "compressor_tokenizer"
    compressor_tokenizer = LanguageModel(path / name, name).tokenizer()
    slot = compressor_tokenizer.token_to_id(MEMORY)
    if slot is None:
        raise StoreError(f"compressor_tokenizer/tokenizer.json: has no {MEMORY}")
    weights = dict(renamed(compressor.tensors()))
    if TABLE not in weights:
        raise MissingTensors("compressor: embed_tokens.weight is missing")
    connector = read_tensors(path / "connector.pt")
    prompt = decoder.prompt(SYSTEM, USER)
    positions = int(generator.get("max_position_embeddings") or 2048)
    scale = SCALE if adapted else 0.0
    generator_shape = _generator_shape(prompt, base.stop, positions, scale)
    adapters = ((name, tensor) for name, tensor in state.items() if ".lora_" in name)
    return PublishedPair(
        shape=CausalShape(compressor_shape, generator_shape),
        configs=(
            vocabulary(
                compressor.config,
                compressor.path / "config.json",
                len(weights[TABLE]),
                compressor_tokenizer,
                "compressor: embed_tokens.weight",
            ),
            generator,
        ),
        tokenizers=(compressor_tokenizer, tokenizer),
        tensors=chain(
            iter(weights.items()),
            iter([("compressor.slots.weight", weights[TABLE][[slot]])]),
            ((f"compressor.mapping.{name}", tensor) for name, tensor in connector.items()),
            generator_tensors(base, ends, STATE, tied=is_tied(generator)),
            adapters_of(adapters, STATE, "generator.network.", model=True),
        ),
        ranks=(0, rank if adapted else 0),
        notes=(f"The generator's base was read from {base.path.resolve()}.",),
        files={"generator.": f"the generator's base {base.path.name}", **FILES},
    )


def _refuse_compressor_base(path: Path, options: PairOptions) -> None:
    if options.compressor_base is not None:
        raise StoreError(
            f"--compressor-base {options.compressor_base} does not apply: the compressor is whole "
            f"in {path.name}/compressor",
            field="compressor_base",
            value=str(options.compressor_base),
        )


def _compressor_shape(
    file: Path, config: Mapping[str, Any], options: PairOptions
) -> CompressorShape:
    length, query = lengths(options, PASSAGE)
    return CompressorShape(
        layout="lines",
        question=options.asks,
        text_tokens=length + (8 if options.asks else 3),  # the words around both, or none
        query_tokens=query,  # for the rates that are reported: no question is cut to it
        memory_tokens=1,
        memory_rate=positive(file, config, "compr_rate"),
        memory_rows=1,
        mapping_size=positive(file, config, "compressor_mlp_hidden_dim", 4096),
        rounded_rope=bool(options.rounded_rope),
    )


def _generator_shape(
    prompt: ChatPrompt, stop: tuple[int, ...], positions: int, adapter_scale: float
) -> GeneratorShape:
    return GeneratorShape(
        before=prompt.before,
        between=prompt.between,
        after=prompt.after,
        strip=prompt.strip,
        memory=(MEMORY,),
        stop=stop,
        passage_before="Document {number}:",
        positions=positions,
        adapter_scale=adapter_scale,
    )


def _ends(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the generator's embeddings and head, as trained, by their own names."""
    weights = dict(_trained(state))
    if EMBED not in weights:
        raise MissingTensors(f"{STATE}: {EMBED} is missing")
    return weights


def _trained(state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    # PEFT keeps what it trains whole beside what was there before, ``original_module``.
    for name, tensor in state.items():
        short = plain(name).replace(".modules_to_save.default", "")
        if short in (EMBED, HEAD):
            yield short, tensor
