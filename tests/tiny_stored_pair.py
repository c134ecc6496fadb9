"""Pairs of tiny language models in a store, as they are published."""

from pathlib import Path
from typing import Any

from tiny_causal import (
    bert_causal_shape,
    bpe,
    causal_shape,
    decoder_config,
    generator_shape,
    random_state,
    with_specials,
    write_halves,
)
from tiny_pair import tiny_config, tiny_tokenizer

from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_causal_shape import CausalShape
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.store import ModelStore
from condensery.store.weights import save_state


def store_causal_pair(
    store: ModelStore,
    files: Path,
    name: str = "pair",
    *,
    family: str = "causal",
    seed: int = 0,
    generator: str = "llama",
    **sizes: Any,
) -> StoredModel:
    """Publish a pair of random weights, whose generator's answers hang on all of its prompt.

    Args:
        files: A folder for its files.
        family: Of its compressor.
        seed: Of its weights.
        generator: Whose tokenizer and layers its generator has.
        sizes: Of its generator's configuration.
    """
    tokenizer = with_specials(bpe(generator))
    written = decoder_config(generator, len(tokenizer.get_vocab()), **{"hidden_size": 64} | sizes)
    stop = (tokenizer.token_to_id({"llama": "<|eot_id|>", "mistral": "</s>"}[generator]),)
    if family == "causal":
        reading = bpe("llama")
        read = decoder_config("llama", len(reading.get_vocab()), num_hidden_layers=2)
        plain = causal_shape(rerank=True, mapping_size=40)
    else:
        reading, read = tiny_tokenizer(), tiny_config()
        plain = bert_causal_shape()
    prompt = generator_shape(memory=plain.generator.memory, stop=stop, positions=512)
    shape = CausalShape(plain.compressor, prompt)
    pair = CausalPair(shape, read, written)
    state = random_state(pair.expected(), seed)
    write_halves(files, pair, reading, tokenizer)
    save_state(files, state)
    manifest = Manifest(
        name=name,
        kind="oscar-pair",
        method="oscar",
        max_tokens=shape.compressor.text_tokens if family == "causal" else 39,
        shape=shape.to_dict(),
    )
    return store.publish(files, manifest)
