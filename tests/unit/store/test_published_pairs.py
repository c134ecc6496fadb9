from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_causal import bpe, tiny_bert_causal, with_specials
from tiny_pair import text_of, tiny_tokenizer
from torch import Tensor

from condensery.errors import StoreError
from condensery.networks.oscar_causal import CausalPair
from condensery.networks.oscar_loading import open_networks, open_texts
from condensery.store.published_pairs import PublishedPair, write_pair
from condensery.store.refusals import MissingTensors


def described(pair: CausalPair, state: dict[str, Tensor]) -> PublishedPair:
    configs = pair.compressor.backbone.config, pair.generator.network.config
    return PublishedPair(
        shape=pair.shape,
        configs=(configs[0].to_dict(), configs[1].to_dict()),
        tokenizers=(tiny_tokenizer(), with_specials(bpe("mistral"))),
        tensors=iter(state.items()),
    )


def test_a_pair_with_a_bert_size_compressor_is_written_as_it_is_opened(tmp_path: Path) -> None:
    pair, state = tiny_bert_causal(fewer=(1,))
    written = write_pair(described(pair, state), tmp_path)
    assert written.parameters == sum(tensor.numel() for tensor in state.values())
    directory = tmp_path / "stored"
    for name, path in written.files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(directory / name)
    shape = pair.shape.to_dict()
    weights = load_file(directory / "model-00001.safetensors")
    opened, texts = open_networks(directory, shape, weights.items()), open_texts(directory, shape)
    assert texts.vectors == (3, 1)
    (readings,) = texts.make_windows(text_of(4), [text_of(40, seed=1)])
    with torch.inference_mode():
        compressed, wanted = (p.compressor.compress(readings) for p in (opened, pair))
    assert torch.equal(compressed.vectors, wanted.vectors)


def test_a_pair_that_is_not_whole_is_not_written(tmp_path: Path) -> None:
    pair, state = tiny_bert_causal()
    lacking = {name: value for name, value in state.items() if name != "compressor.rerank.bias"}
    with pytest.raises(MissingTensors, match=r"compressor\.rerank\.bias is missing"):
        write_pair(described(pair, lacking), tmp_path)
    wrong = described(pair, state)
    wrong.configs[0]["model_type"] = "llama"
    with pytest.raises(StoreError, match=r"compressor/config.json: .*'llama' is no BERT"):
        write_pair(wrong, tmp_path)
